"""Errors of one process that end a round in all: told as text, and made again."""

from __future__ import annotations

import traceback

import palmette.errors
from palmette.errors import PalmetteError


def described(error: Exception) -> tuple[str, str]:
    """Return an error as text: its kind and what it says; of a bug, where it happened."""
    if isinstance(error, PalmetteError | MemoryError):
        return type(error).__name__, str(error)
    return "RuntimeError", "".join(traceback.format_exception(error))


def made_again(rank: int, kind: str, text: str) -> Exception:
    """Return an error of another process."""
    known = getattr(palmette.errors, kind, None)
    if isinstance(known, type) and issubclass(known, PalmetteError):
        return known(text)
    return MemoryError(text) if kind == "MemoryError" else RuntimeError(f"in process {rank}: {text}")
