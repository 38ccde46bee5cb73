"""Devices that have a few labels only, as in pFedMe and PerMFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.population.partition.base import Partition, Parts, at_least, circle, take_in_order
from palmette.population.partition.sizes import Floats, check_sizes, weights
from palmette.tree import Ints, Tree

_SIZES = ("published", "equal", "lognormal", "power-law")


@dataclass(frozen=True)
class Labels(Partition):
    """Every device has samples of a few labels only, as in pFedMe and PerMFL.

    Of C classes, device u has the c labels (u + q) mod C for q = 0..c-1.

    With ``slot``, a class's size over the number of its owners, an owner gets 10 samples, a lognormal(0, 2) share of
    the class (slot / C on average) and uniformly 0.343 to 0.686 slots, in the data set's order. For MNIST and 40
    devices that is the published 10 + share + randint(300, 600). Where the demands exceed a class, the published code
    skips whole demands and leaves late devices with 10 samples; here the class's demands shrink in proportion and
    nobody starves. The published doubling for 20 devices or fewer needs no rule: the slot doubles by itself.

    With other sizes, every class is shared out whole among its owners: 10 samples each, the rest in proportion to the sizes.

    Attributes:
        classes_per_device: Number of different labels on a device.
        sizes: How many samples devices have: ``"published"``, the unequal sizes of pFedMe and PerMFL, ``"equal"``,
            ``"lognormal"``, or ``"power-law"``, where few devices have most samples.
        size_spread: How unequal the sizes are, from 0: the standard deviation of the logarithm of a lognormal size (1 by
            default); for a power law the inverse of its exponent (1 by default).
    """

    classes_per_device: int = 2
    sizes: Literal["published", "equal", "lognormal", "power-law"] = "published"
    size_spread: float | None = None

    def __post_init__(self) -> None:
        at_least("classes_per_device", self.classes_per_device, 1)
        check_sizes(self.sizes, self.size_spread, _SIZES)

    @property
    def by_label(self) -> int | None:
        """How many labels each unit owns."""
        return self.classes_per_device

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        units, each = tree.devices, self.classes_per_device
        chosen = circle(units, each, classes)
        label = (chosen if owned is None else owned).reshape(-1)
        size = np.bincount(y, minlength=classes)
        owners = np.bincount(label, minlength=classes)
        if (owners > size).any():
            short = int((owners > size).argmax())
            raise BadInput(
                f"class {short} has {size[short]} samples for {owners[short]} devices that own it; use fewer "
                f"devices or lower classes_per_device = {each}"
            )
        if self.sizes == "published":
            wanted = _published(label, units, each, size, owners, seed)
        else:
            random = address.numpy_generator(seed, "sizes")
            wanted = np.repeat(weights(self.sizes, self.size_spread, units, random), each)
        base = np.minimum(10, size // np.maximum(owners, 1))
        rest = (size - base * owners).astype(np.float64)
        demand = np.bincount(label, weights=wanted, minlength=classes)
        shrink = rest / np.maximum(demand, 1e-9)
        if self.sizes == "published":
            shrink = np.minimum(1.0, shrink)
        count = base[label] + np.floor(wanted * shrink[label]).astype(np.int64)
        return take_in_order(y, label, count, classes, each)


def _published(label: Ints, units: int, each: int, size: Ints, owners: Ints, seed: int) -> Floats:
    """Return how many samples of its label every (unit, label) entry wants, beside the first ten."""
    random = address.numpy_generator(seed, "partition")
    share = random.lognormal(0, 2, (len(size), units, each))
    share *= (np.maximum(size - units, 0) / share.sum((1, 2)))[:, None, None]
    uniform = random.uniform(0.343, 0.686, len(label))
    unit, place = np.divmod(np.arange(len(label)), each)
    wanted: Floats = share[label, unit, place] + uniform * (size / np.maximum(owners, 1))[label]
    return wanted
