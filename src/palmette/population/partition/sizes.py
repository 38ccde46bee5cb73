"""How unequal the numbers of samples of the devices are."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palmette.errors import BadInput
from palmette.tree import Ints
from palmette.values import real, shown

Sizes = Literal["equal", "lognormal", "power-law"]
_LARGEST = 10.0  # of a spread: beyond it the weights leave the range of numbers

Floats = NDArray[np.float64]


def check_sizes(kind: object, spread: float | None, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not allowed, and a spread that is none or has nothing to spread."""
    if not isinstance(kind, str) or kind not in allowed:
        raise BadInput(f"sizes = {shown(kind)} must be one of {', '.join(allowed)}")
    if spread is None:
        return
    if kind not in ("lognormal", "power-law"):
        raise BadInput(f"size_spread = {shown(spread)} is for sizes = lognormal or power-law; leave it out")
    if not 0 <= real("size_spread", spread) <= _LARGEST:
        raise BadInput(f"size_spread = {shown(spread)} must be from 0 to {_LARGEST:g}")


def weights(kind: str, spread: float | None, units: int, random: np.random.Generator) -> Floats:
    """Return a positive weight for every unit: all 1, exp(spread * normal), or uniform ** -spread."""
    if kind == "equal":
        return np.ones(units)
    width = 1.0 if spread is None else float(spread)
    drawn = random.standard_normal(units) if kind == "lognormal" else random.standard_exponential(units)
    found: Floats = np.exp(width * drawn)  # e ** exponential is the inverse of a uniform number
    return found


def in_proportion(total: int, weight: Floats, least: int) -> Ints:
    """Share a number of samples out in proportion to weights, at least ``least`` to each; the shares add up exactly."""
    units = len(weight)
    if total < least * units:
        raise BadInput(
            f"{total} samples are too few for {units} devices of at least {least}; lower least or use fewer devices"
        )
    share = (total - least * units) * (weight / weight.sum())
    size: Ints = np.floor(share).astype(np.int64)
    left = total - least * units - int(size.sum())
    size[np.argsort(size - share, kind="stable")[:left]] += 1  # the largest fractions first
    size += least
    return size
