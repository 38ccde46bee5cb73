"""How every plot is written: whole or not at all, with one line when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from palmette.errors import PalmetteError


def save(figure: Figure, path: Path, *, hint: str = "") -> Path:
    """Write a figure as PNG and return where.

    Args:
        figure: What was drawn.
        path: The file.
        hint: What to add where it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(part, format="png")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PalmetteError(f"cannot write {path}: {error.strerror}{hint}") from None
    return path
