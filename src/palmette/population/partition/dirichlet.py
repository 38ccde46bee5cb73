"""Classes that are shared out in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.population.partition.base import Partition, Parts, at_least, by_owner
from palmette.tree import Ints, Tree
from palmette.values import real, shown


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared out over the devices in proportions drawn from a Dirichlet distribution.

    Every sample is used exactly once.

    Attributes:
        alpha: Concentration: near 0 a class lies on few devices, large values are nearly iid.
        within: ``"team"`` first deals the pool evenly and at random to the teams, so that teams are alike and only
            their devices differ.
        least: Least number of samples of a device; what is missing is taken from the largest devices.
    """

    alpha: float = 1.0
    within: Literal["all", "team"] = "all"
    least: int = 4

    def __post_init__(self) -> None:
        if real("alpha", self.alpha) <= 0:
            raise BadInput(f"alpha = {self.alpha!r} must be a number above 0")
        if not isinstance(self.within, str) or self.within not in ("all", "team"):
            raise BadInput(f"within = {shown(self.within)} must be 'all' or 'team'")
        at_least("least", self.least, 1)

    @property
    def knows_teams(self) -> bool:
        """Whether unit ``u`` is meant for leaf ``u``."""
        return self.within == "team"

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        random = address.numpy_generator(seed, "partition")
        bounds = tree.offsets[0] if self.within == "team" else np.array([0, tree.devices])
        shuffled = random.permutation(len(y))
        cuts = len(y) * bounds // tree.devices
        owner = np.empty(len(y), dtype=np.int64)
        for group in range(len(bounds) - 1):
            mine = shuffled[cuts[group] : cuts[group + 1]]
            units = int(bounds[group + 1] - bounds[group])
            if len(mine) < self.least * units:
                raise BadInput(
                    f"{len(mine)} samples are too few for {units} devices of at least {self.least}; "
                    "lower least or use fewer devices"
                )
            owner[mine] = bounds[group] + _fill_up(self._share(y[mine], units, classes, random), units, self.least)
        return by_owner(owner, tree.devices)

    def _share(self, y: Ints, units: int, classes: int, random: np.random.Generator) -> Ints:
        """Return the unit of every sample; the samples come shuffled."""
        owner = np.empty(len(y), dtype=np.int64)
        by_class = np.argsort(y, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(y, minlength=classes))])
        for label in range(classes):
            members = by_class[start[label] : start[label + 1]]
            edges = np.cumsum(random.dirichlet(np.full(units, self.alpha)))[:-1]
            owner[members] = np.searchsorted(edges, (np.arange(len(members)) + 0.5) / max(1, len(members)))
        return owner


def _fill_up(owner: Ints, units: int, least: int) -> Ints:
    """Move samples from the largest units to those with fewer than ``least``, all in one go.

    The largest units are cut to a common level, found by bisection; the samples come shuffled, so those a unit gives
    away are a random choice of its own.
    """
    size = np.bincount(owner, minlength=units)
    need = np.maximum(least - size, 0)
    missing = int(need.sum())
    if missing == 0:
        return owner
    low, high = least, int(size.max())  # cutting to `low` frees enough, cutting to `high` does not
    while high - low > 1:
        level = (low + high) // 2
        low, high = (level, high) if np.maximum(size - level, 0).sum() >= missing else (low, level)
    give = np.maximum(size - low, 0)
    give[np.flatnonzero(give)[: int(give.sum()) - missing]] -= 1
    order = np.argsort(owner, kind="stable")
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    moved = order[rank >= np.repeat(size - give, size)]
    filled = owner.copy()
    filled[moved] = np.repeat(np.arange(units), need)
    return filled
