"""Results in a notebook: tables as data frames of pandas, and as HTML that is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pyarrow as pa

from palmette.errors import BadInput

# No colours of its own: letters and lines take those of the page.
_CELL = "padding:0.15em 0.7em;text-align:{};border:none;background:none"
_HEAD = f"{_CELL};border-bottom:1px solid currentColor;font-weight:bold"
_NOTE = "opacity:0.75;font-size:0.9em;max-width:60em;margin:0.2em 0"


def to_pandas(table: pa.Table) -> Any:
    """Return a table as a data frame of pandas, which need not be installed otherwise."""
    try:
        return table.to_pandas()
    except ImportError:
        raise BadInput(
            "a data frame needs pandas: pip install 'palmette[data]'; without it there is the Arrow table"
        ) from None


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML: the first column names its row, the others are numbers; all text is shown as it is."""
    sides = ["left", *["right"] * (len(head) - 1)]
    top = "".join(
        f'<th scope="col" style="{_HEAD.format(side)}">{escape(text)}</th>'
        for text, side in zip(head, sides, strict=True)
    )
    lines = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL.format("left")};font-weight:normal">{escape(row[0])}</th>'
        + "".join(f'<td style="{_CELL.format("right")}">{escape(text)}</td>' for text in row[1:])
        + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;border:none;color:inherit;background:none;margin:0.3em 0"
    return f'<table style="{style}"><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>'


def html_page(title: str, what: str, tables: Sequence[str], notes: Sequence[str]) -> str:
    """Return a heading with what it is about, tables, and sentences below them.

    Args:
        title: What it is, in a word or two.
        what: The rest of that sentence.
        tables: Tables as HTML.
        notes: Sentences.
    """
    told = "".join(f'<p style="{_NOTE}">{escape(note)}</p>' for note in notes)
    return f"<div><p style='margin:0.2em 0'><b>{escape(title)}</b> {escape(what)}</p>{''.join(tables)}{told}</div>"
