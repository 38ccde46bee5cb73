"""A fixed number of training and test samples of every label of a device, as in sFedHP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.population.partition.base import Partition, Parts, at_least, circle
from palmette.tree import Ints, Tree
from palmette.values import Array, shown

_SHARED = ("none", "test", "all")


@dataclass(frozen=True)
class PerClass(Partition):
    """Every device has a few labels and of each the same number of training and test samples, as in sFedHP.

    Of C classes, device u has the c labels (u + q) mod C for q = 0..c-1. Settings 1 and 2 of sFedHP have 5 labels and, of
    each, 200 and 800 or 900 and 300 samples (MNIST, Fashion-MNIST), 100 and 400 or 450 and 150 (CIFAR-10). With its 20
    devices that is more than MNIST has: 10 devices own each label and need 10,000 or 12,000 of about 7,000 samples. The paper
    does not say what it did, so it must be said here: 10 devices, or samples that devices share.

    Attributes:
        classes_per_device: Number of different labels on a device.
        train_per_class: Training samples of each label of a device.
        test_per_class: Test samples of each label of a device.
        shared: Which samples devices may have in common: ``"none"``; ``"test"``, all owners of a label take their test samples
            from what nobody trains on; ``"all"``, each label is cut into samples for training and samples for testing, and its
            owners draw theirs from these. Nobody is ever tested on what anybody trains on.
    """

    classes_per_device: int = 5
    train_per_class: int = 200
    test_per_class: int = 800
    shared: Literal["none", "test", "all"] = "none"

    def __post_init__(self) -> None:
        for name in ("classes_per_device", "train_per_class", "test_per_class"):
            at_least(name, getattr(self, name), 1)
        if not isinstance(self.shared, str) or self.shared not in _SHARED:
            raise BadInput(f"shared = {shown(self.shared)} must be one of {', '.join(_SHARED)}")

    @property
    def by_label(self) -> int | None:
        """How many labels each unit owns."""
        return self.classes_per_device

    @property
    def splits(self) -> bool:
        """It decides which samples are for testing."""
        return True

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        units, each = tree.devices, self.classes_per_device
        label = (circle(units, each, classes) if owned is None else owned).reshape(-1)
        size, owners = np.bincount(y, minlength=classes), np.bincount(label, minlength=classes)
        self._check(size, owners)
        per_entry = self.train_per_class + self.test_per_class
        index = np.empty((len(label), per_entry), dtype=np.int64)
        for one in np.unique(label).tolist():
            random = address.numpy_generator(seed, "partition", one)
            members = random.permutation(np.flatnonzero(y == one))
            index[label == one] = self._deal(members, int(owners[one]), random)
        test = np.tile(np.arange(per_entry) >= self.train_per_class, len(label))
        return Parts(index.reshape(-1), np.arange(units + 1, dtype=np.int64) * each * per_entry, test)

    def _deal(self, members: Ints, owners: int, random: np.random.Generator) -> Ints:
        """Return the samples of every owner of one class, ``(owners, training + test samples)``; the members come shuffled."""
        train, test = self.train_per_class, self.test_per_class
        if self.shared == "none":
            return members[: owners * (train + test)].reshape(owners, train + test)
        if self.shared == "test":
            own = members[: owners * train].reshape(owners, train)
            return np.concatenate([own, _draw(members[owners * train :], owners, test, random)], axis=1)
        cut = self._cut(len(members))
        return np.concatenate(
            [_draw(members[:cut], owners, train, random), _draw(members[cut:], owners, test, random)], axis=1
        )

    def _cut(self, size: Array | int) -> Array | int:
        """Return how many samples of a class are for training where devices share all: in proportion, and enough."""
        both = self.train_per_class + self.test_per_class
        return np.clip(size * self.train_per_class // both, self.train_per_class, size - self.test_per_class)

    def _check(self, size: Ints, owners: Ints) -> None:
        """Refuse what the classes are too small for, and say what would do."""
        train, test = self.train_per_class, self.test_per_class
        need = {
            "none": owners * (train + test),
            "test": owners * train + test,
            "all": np.full_like(owners, train + test),
        }
        short = (owners > 0) & (need[self.shared] > size)
        if not short.any():
            return
        worst = int(np.where(short, need[self.shared] - size, -1).argmax())
        wider = [
            word for word in _SHARED[_SHARED.index(self.shared) + 1 :] if not ((need[word] > size) & (owners > 0)).any()
        ]
        how = (
            f"set data.shared={wider[0]}, use fewer devices"
            if wider
            else "use fewer devices"
            if owners[worst] > 1
            else ""
        )
        raise BadInput(
            f"class {worst} has {size[worst]} samples, but {owners[worst]} devices own it and need {need[self.shared][worst]} "
            f"({train} for training and {test} for testing each, shared = {self.shared}); "
            f"{how + ' or ' if how else ''}lower train_per_class or test_per_class"
        )


def _draw(pool: Ints, owners: int, count: int, random: np.random.Generator) -> Ints:
    """Let every owner draw from one pool, none of them a sample twice."""
    return np.stack([random.choice(pool, count, replace=False, shuffle=False) for _ in range(owners)])
