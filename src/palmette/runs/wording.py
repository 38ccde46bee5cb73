"""How a run's numbers are written while it goes on; what the tables of a report need besides is in `palmette.report.words`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from palmette.protocol import ModelKind
from palmette.values import rough

_MODEL_STYLES = {"PM": "cyan", "TM": "yellow", "GM": "magenta"}


def model_style(kind: ModelKind) -> str:
    """Return the colour of a kind of model."""
    return _MODEL_STYLES.get(kind, "green")


def name(key: str) -> str:
    """Write the name of a number for people."""
    return key.replace("_", " ")


def many(count: int, what: str) -> str:
    """Write a count with its noun: ``1 round``, ``2,000 rounds``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def number(value: float) -> str:
    """Write a number of any size: counts in full, others with four digits; a dash where there is none."""
    if isinstance(value, int):
        return f"{value:,}" if value < 10**15 else rough(value)
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def outline(told: Mapping[str, Any]) -> list[str]:
    """Write what an algorithm's settings came to, a phrase each; numbers that differ by node as their range."""
    phrases = []
    for key, value in told.items():
        if isinstance(value, Mapping):
            low, high = min(value.values()), max(value.values())
            phrases.append(f"{name(key)} {number(low)} to {number(high)} by team")
        else:
            phrases.append(value if isinstance(value, str) else f"{name(key)} {number(value)}")
    return phrases
