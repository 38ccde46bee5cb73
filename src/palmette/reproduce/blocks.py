"""Pieces of a page, and two ways to write them: as Markdown and as HTML."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """A piece of a page: a heading of some level, a paragraph, a list, a table, a picture or a line of commands."""

    kind: str
    text: str = ""
    items: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    level: int = 0


def anchor(text: str) -> str:
    """Return the name by which a link finds a heading."""
    return re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-")


def markdown(blocks: Iterable[Block]) -> str:
    """Write blocks as Markdown."""
    parts = []
    for block in blocks:
        if block.kind == "heading":
            parts.append(f"{'#' * block.level} {block.text}")
        elif block.kind == "list":
            parts.append("\n".join(f"- {item}" for item in block.items))
        elif block.kind == "table":
            lines = [_row(block.rows[0]), "|" + "---|" * len(block.rows[0]), *map(_row, block.rows[1:])]
            parts.append("\n".join(lines))
        elif block.kind == "picture":
            parts.append(f"![{block.text}]({block.items[0]})")
        else:
            parts.append(block.text)
    return "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; margin-top: 2.2rem; } h3 { border-top: 1px solid #ddd; padding-top: 1.2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; margin: .8rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #e4e4e4; }
th { border-bottom: 2px solid #999; } td:first-child { min-width: 9rem; } td small { color: #666; white-space: nowrap; }
img { max-width: 100%; display: block; margin: 1rem 0; } figcaption { color: #555; font-size: .9rem; }
code { background: #f3f3f3; padding: .1rem .25rem; border-radius: 3px; font-size: .9em; }
.holds { color: #00704f; } .fails { color: #b34700; } .open { color: #666; } li { margin: .15rem 0; }
"""


def as_html(blocks: Iterable[Block], folder: Path) -> str:
    """Write blocks as one page of HTML that loads nothing: its pictures are in it.

    Args:
        blocks: What it says.
        folder: Where pictures lie.
    """
    parts = []
    for block in blocks:
        if block.kind == "heading":
            name = html.escape(anchor(block.text), quote=True)
            parts.append(f'<h{block.level} id="{name}">{_inline(block.text)}</h{block.level}>')
        elif block.kind == "list":
            parts.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>")
        elif block.kind == "table":
            parts.append(_html_table(block.rows))
        elif block.kind == "picture":
            data = base64.b64encode((folder / block.items[0]).read_bytes()).decode()
            caption = _inline(block.text)
            parts.append(
                f'<figure><img alt="{html.escape(block.text, quote=True)}" src="data:image/png;base64,{data}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        else:
            parts.append(f"<p>{_inline(block.text)}</p>")
    head = f'<meta charset="utf-8"><title>Do the papers\' claims hold? – Palmette</title><style>{_STYLE}</style>'
    safe = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{safe}">'
    return f'<!doctype html><html lang="en"><head>{policy}{head}</head><body>{"".join(parts)}</body></html>\n'


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
    body = []
    for row in rows[1:]:
        cells = []
        for cell in row:
            first, _, rest = cell.partition("\n")
            cells.append(f"<td>{_inline(first)}{f'<br><small>{_inline(rest)}</small>' if rest else ''}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _inline(text: str) -> str:
    """Write a line with code, bold, slanted text and links; verdicts in their colours."""
    made = html.escape(text)
    made = re.sub(r"`([^`]+)`", r"<code>\1</code>", made)
    made = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", made)
    made = re.sub(r"(?<![\w*])\*([^*]+)\*(?![\w*])", r"<i>\1</i>", made)
    made = re.sub(r"\[([^\]]+)\]\((#[\w.-]+)\)", r'<a href="\2">\1</a>', made)
    for kind, word in (("holds", "✓ holds"), ("fails", "✗ does not hold"), ("open", "\\? cannot be decided")):
        made = re.sub(word, rf'<span class="{kind}">\g<0></span>', made)
    return made
