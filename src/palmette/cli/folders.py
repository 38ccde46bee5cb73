"""Where runs go when nobody says where."""

from __future__ import annotations

from pathlib import Path


def free_folder(base: Path, stem: str, *, first: int) -> Path:
    """Return a folder that does not exist yet: ``stem-1``, ``stem-2`` ...; ``first=0`` begins with the bare stem."""
    number = first
    while (path := base / (f"{stem}-{number}" if number else stem)).exists():
        number = max(number + 1, 2) if first == 0 else number + 1
    return path
