"""Numbers as a page keeps them: few digits, and ``None`` where there is none, because JSON has no NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

_DIGITS = 5  # that a reader could tell apart in a chart


def number(value: float) -> float | int | None:
    """Return a number with the digits that a page shows."""
    if not math.isfinite(value):
        return None
    if isinstance(value, int):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def numbers(values: Iterable[float]) -> list[float | int | None]:
    """Return several numbers with the digits that a page shows."""
    return [number(value) for value in values]


def plain(value: Any) -> Any:
    """Return nested plain data with all its numbers short."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or value is None:
        return value
    return number(value) if isinstance(value, int | float) else str(value)


def thinned(count: int, most: int) -> list[int]:
    """Return which of some points to keep: all, or so many at equal distances, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})
