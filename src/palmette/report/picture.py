"""How every plot is written: whole or not at all, with one line when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from palmette.errors import PalmetteError


def save(figure: Figure, path: Path, *, hint: str = "") -> Path:
    """Write a figure as PNG, or as PDF or SVG where the file is named so, and return where.

    Args:
        figure: What was drawn.
        path: The file.
        hint: What to add where it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        kind = path.suffix.lower().removeprefix(".")
        figure.savefig(part, format=kind if kind in ("pdf", "svg") else "png")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PalmetteError(f"cannot write {path}: {error.strerror}{hint}") from None
    return path
