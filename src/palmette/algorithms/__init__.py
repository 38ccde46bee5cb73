"""The algorithms, one file each, and how to make one by name."""

from __future__ import annotations

from typing import Any

from palmette.algorithms.fedavg import FedAvg as FedAvg
from palmette.algorithms.hierfavg import HierFAVG as HierFAVG
from palmette.algorithms.local import Local as Local
from palmette.algorithms.permfl import PerMFL as PerMFL
from palmette.algorithms.pfedmt import PFedMT as PFedMT
from palmette.errors import BadInput, nearest
from palmette.protocol import Algorithm
from palmette.settings import build

ALGORITHMS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (PerMFL, PFedMT, HierFAVG, FedAvg, Local)}


def algorithm(name: str, *, preset: str | None = None, **settings: Any) -> Algorithm:
    """Make an algorithm by name.

    Args:
        name: A name of `ALGORITHMS`.
        preset: A named set of settings, such as ``"published"``; single settings override it.
        **settings: Settings of the algorithm.
    """
    if name not in ALGORITHMS:
        raise BadInput(f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}")
    kind = ALGORITHMS[name]
    if preset is not None and preset not in kind.presets:
        raise BadInput(f"{name} has no preset {preset!r}{nearest(preset, kind.presets) if kind.presets else ''}")
    chosen = {} if preset is None else dict(kind.presets[preset])
    return build(kind, name, {**chosen, **settings})
