"""Every device alike in its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.population.partition.base import Partition, Parts, at_least
from palmette.population.partition.sizes import Sizes, check_sizes, in_proportion, weights
from palmette.tree import Ints, Tree


@dataclass(frozen=True)
class Iid(Partition):
    """Every device gets a random part of all samples.

    Attributes:
        sizes: How many samples devices have: ``"equal"`` to within one sample, ``"lognormal"``, or ``"power-law"``, where few
            devices have most samples.
        size_spread: How unequal the sizes are, from 0: the standard deviation of the logarithm of a lognormal size (1 by
            default); for a power law the inverse of its exponent (1 by default).
        least: Least number of samples of a device; by default 4 where sizes are unequal.
    """

    sizes: Sizes = "equal"
    size_spread: float | None = None
    least: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self.sizes, self.size_spread, get_args(Sizes))
        if self.least is not None:
            at_least("least", self.least, 1)

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        if len(y) < tree.devices:
            raise BadInput(f"{len(y)} samples are too few for {tree.devices} devices; use fewer devices")
        index = address.numpy_generator(seed, "partition").permutation(len(y))
        if self.sizes == "equal" and self.least is None:
            return Parts(index, len(y) * np.arange(tree.devices + 1, dtype=np.int64) // tree.devices)
        weight = weights(self.sizes, self.size_spread, tree.devices, address.numpy_generator(seed, "sizes"))
        size = in_proportion(len(y), weight, 4 if self.least is None else self.least)
        return Parts(index, np.concatenate([[0], np.cumsum(size)]).astype(np.int64))
