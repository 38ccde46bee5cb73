"""What every partition is: samples in, the samples of every device out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from palmette.errors import BadInput
from palmette.tree import Ints, Tree
from palmette.values import Array, shown


@dataclass(frozen=True, eq=False)
class Parts:
    """The pool's samples unit by unit: those of unit ``u`` are ``index[start[u]:start[u + 1]]``.

    Attributes:
        index: Positions in the pool.
        start: Where each unit's begin.
        test: Which of them are for testing (bool), where the partition decides that too; ``None`` leaves it to the split.
    """

    index: Ints
    start: Ints
    test: Array | None = None


class Partition(ABC):
    """Deals samples out to as many units as the tree has devices."""

    @abstractmethod
    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples.

        Args:
            y: The label of every sample.
            tree: The tree; one unit per device.
            classes: Number of classes.
            seed: The seed.
            owned: For partitions by label, the labels of every unit, ``(units, labels)``; see `teams.owned_labels`.
        """

    @property
    def train_limit(self) -> int | None:
        """How many training samples each device keeps; ``None`` for all."""
        return None

    @property
    def knows_teams(self) -> bool:
        """Whether unit ``u`` is meant for leaf ``u``, so that teams must not be formed anew."""
        return False

    @property
    def by_label(self) -> int | None:
        """How many labels each unit owns, for partitions that take ``owned``."""
        return None

    @property
    def splits(self) -> bool:
        """Whether it also decides which samples are for testing."""
        return False


def at_least(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{name} = {shown(value)} must be a whole number of at least {least}")


def circle(units: int, each: int, classes: int) -> Ints:
    """Return the labels of every unit where nobody chose them: unit u has (u + q) mod C, q = 0..each-1."""
    if each > classes:
        raise BadInput(f"classes_per_device = {each} is more than the {classes} classes there are")
    return (np.arange(units, dtype=np.int64)[:, None] + np.arange(each)) % classes


def by_owner(owner: Ints, units: int) -> Parts:
    """Return the parts of samples whose unit is known."""
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=units))]).astype(np.int64)
    return Parts(np.argsort(owner, kind="stable"), start)


def take_in_order(y: Ints, label: Ints, count: Ints, classes: int, each: int) -> Parts:
    """Give every (unit, label) entry, in turn, the next ``count`` samples of its label.

    Args:
        y: The label of every sample.
        label: The label of every entry, unit after unit.
        count: How many samples every entry gets.
        classes: Number of classes.
        each: Entries of each unit.
    """
    by_class = np.argsort(y, kind="stable")
    class_start = np.concatenate([[0], np.cumsum(np.bincount(y, minlength=classes))])
    queue = np.argsort(label, kind="stable")
    ends = np.cumsum(count[queue])
    before = np.concatenate([[0], np.cumsum(np.bincount(label, weights=count, minlength=classes))]).astype(np.int64)
    begin = np.empty_like(count)
    begin[queue] = ends - count[queue] - before[label[queue]] + class_start[label[queue]]
    ends = np.cumsum(count)
    position = np.arange(ends[-1]) - np.repeat(ends - count, count) + np.repeat(begin, count)
    return Parts(by_class[position], np.concatenate([[0], ends[each - 1 :: each]]).astype(np.int64))
