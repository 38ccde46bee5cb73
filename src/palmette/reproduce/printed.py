"""The numbers that a paper printed, so that its sentences can be held against its own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_printed(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return printed numbers: of every method, by row.

    Args:
        options: By method, by row.
        methods: Some of them; all by default.
        seed: Not used: they are what they are.
    """
    return {name: {row: float(value) for row, value in options[name].items()} for name in methods or options}
