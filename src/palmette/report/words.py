"""Numbers as people read them."""

from __future__ import annotations

import math

from palmette.protocol import ModelKind
from palmette.runs.wording import many as many
from palmette.runs.wording import name as name
from palmette.runs.wording import number as number
from palmette.runs.wording import outline as outline

_MODEL_WORDS = {"PM": "device's own", "TM": "team's", "GM": "global"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
# Name, length in seconds, and up to which number of seconds it is used.
_SPANS = (
    ("ms", 1e-3, 0.1),
    ("s", 1.0, 120.0),
    ("min", 60.0, 7200.0),
    ("h", 3600.0, 172_800.0),
    ("days", 86_400.0, math.inf),
)


def whose(kind: ModelKind) -> str:
    """Say what a kind of model is to a device, in three words."""
    return _MODEL_WORDS.get(kind) or f"its tier {kind[2:]} node's"


def models(kind: ModelKind) -> str:
    """Name all models of a kind."""
    known = {"PM": "personal models", "TM": "team models", "GM": "global model"}
    return known.get(kind) or f"tier {kind[2:]} models"


def nodes(kind: ModelKind) -> str:
    """Name the nodes that have a kind of model."""
    return {"PM": "devices", "TM": "teams", "GM": "server"}.get(kind) or f"tier {kind[2:]}"


def size(count: int) -> str:
    """Write a number of bytes with three digits: ``31.2 MB``."""
    if count < 1000:
        return f"{count} B"
    power = min(len(_UNITS) - 1, int(math.log10(count)) // 3)
    if count / 1000**power >= 999.5 and power < len(_UNITS) - 1:  # 999,999 is 1 MB, not 1000 kB
        power += 1
    value = count / 1000**power
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[power]}"


def duration(seconds: float) -> str:
    """Write seconds with three digits, or as minutes, hours or days: ``20.4 s``, ``3.52 min``."""
    if not seconds:
        return "0 s"
    unit, length = span(seconds)
    value = seconds / length
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f} {unit}"


def span(seconds: float) -> tuple[str, float]:
    """Return the unit that some seconds are best written in, and its length in seconds."""
    return next((unit, length) for unit, length, most in _SPANS if seconds < most)


def share(value: float) -> str:
    """Write an accuracy as a table shows it; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def percent(value: float) -> str:
    """Write an accuracy as a sentence says it."""
    return f"{100 * value:.1f} %"


def points(value: float) -> str:
    """Write a difference of accuracies in percentage points."""
    number = f"{100 * abs(value):.1f}"
    return f"{number} point{'' if number == '1.0' else 's'}"


def link_name(tier: int, top: int, *, flat: bool) -> str:
    """Name the link whose parents are in a tier; a flat method has only the one from the server to the devices."""
    if tier == top and (flat or top == 1):
        return "server - devices"
    over = "server" if tier == top else "teams" if tier == 1 else f"tier {tier}"
    return f"{over} - {('devices', 'teams')[tier - 1] if tier < 3 else f'tier {tier - 1}'}"
