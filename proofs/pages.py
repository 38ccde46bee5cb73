"""Tables that proofs write into pages of the documentation, each between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write(page: Path, mark: str, proof: str, lines: Sequence[str]) -> None:
    """Replace a part of a page by lines.

    Args:
        page: The page.
        mark: The part's name.
        proof: The proof that writes it, as in ``make prove-NAME``.
        lines: The lines.
    """
    begin, end = f"<!-- {mark}: written by make prove-{proof} -->", f"<!-- end of {mark} -->"
    text = page.read_text(encoding="utf-8")
    if begin not in text:
        raise SystemExit(f"{page} has no part {mark}")
    made = re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: "\n".join([begin, "", *lines, "", end]), text, flags=re.S
    )
    page.write_text(made, encoding="utf-8")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [_line(heads), _line(["---"] * len(heads)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
