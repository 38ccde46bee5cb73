"""Ways to deal a pool of samples out to devices.

Every partition depends on the pool's labels, the tree and the seed alone, ends after a bounded number of steps and says
clearly when what is asked cannot be had.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from palmette import address
from palmette.errors import BadInput, nearest
from palmette.tree import Ints, Tree
from palmette.values import real, shown


@dataclass(frozen=True, eq=False)
class Parts:
    """The pool's samples unit by unit: those of unit ``u`` are ``index[start[u]:start[u + 1]]``."""

    index: Ints
    start: Ints


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


@dataclass(frozen=True)
class Labels(Partition):
    """Every device has samples of a few labels only, as in pFedMe and PerMFL.

    Of C classes, device u has the c labels (u + q) mod C for q = 0..c-1.

    With ``slot``, a class's size over the number of its owners, an owner gets 10 samples, a lognormal(0, 2) share of
    the class (slot / C on average) and uniformly 0.343 to 0.686 slots, in the data set's order. For MNIST and 40
    devices that is the published 10 + share + randint(300, 600). Where the demands exceed a class, the published code
    skips whole demands and leaves late devices with 10 samples; here the class's demands shrink in proportion and
    nobody starves. The published doubling for 20 devices or fewer needs no rule: the slot doubles by itself.

    Attributes:
        classes_per_device: Number of different labels on a device.
    """

    classes_per_device: int = 2

    def __post_init__(self) -> None:
        _at_least("classes_per_device", self.classes_per_device, 1)

    @property
    def by_label(self) -> int | None:
        """How many labels each unit owns."""
        return self.classes_per_device

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        units, each = tree.devices, self.classes_per_device
        if each > classes:
            raise BadInput(f"classes_per_device = {each} is more than the {classes} classes there are")
        if owned is None:
            owned = (np.arange(units)[:, None] + np.arange(each)) % classes
        label = owned.reshape(-1)
        size = np.bincount(y, minlength=classes)
        owners = np.bincount(label, minlength=classes)
        if (owners > size).any():
            short = int((owners > size).argmax())
            raise BadInput(
                f"class {short} has {size[short]} samples for {owners[short]} devices that own it; use fewer "
                f"devices or lower classes_per_device = {each}"
            )
        random = address.numpy_generator(seed, "partition")
        share = random.lognormal(0, 2, (classes, units, each))
        share *= (np.maximum(size - units, 0) / share.sum((1, 2)))[:, None, None]
        uniform = random.uniform(0.343, 0.686, len(label))
        unit, place = np.divmod(np.arange(len(label)), each)
        wanted = share[label, unit, place] + uniform * (size / np.maximum(owners, 1))[label]
        base = np.minimum(10, size // np.maximum(owners, 1))
        rest = (size - base * owners).astype(np.float64)
        demand = np.bincount(label, weights=wanted, minlength=classes)
        shrink = np.minimum(1.0, rest / np.maximum(demand, 1e-9))
        count = base[label] + np.floor(wanted * shrink[label]).astype(np.int64)
        return _take_in_order(y, label, count, classes, each)


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
        _at_least("least", self.least, 1)

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
        return _by_owner(owner, tree.devices)

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


@dataclass(frozen=True)
class Iid(Partition):
    """Every device gets a random part of all samples; the parts have equal sizes, to within one sample."""

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        if len(y) < tree.devices:
            raise BadInput(f"{len(y)} samples are too few for {tree.devices} devices; use fewer devices")
        index = address.numpy_generator(seed, "partition").permutation(len(y))
        return Parts(index, len(y) * np.arange(tree.devices + 1, dtype=np.int64) // tree.devices)


@dataclass(frozen=True)
class Few(Partition):
    """Another partition, of which each device keeps only a few training samples and all test samples.

    Attributes:
        samples: How many training samples each device keeps.
        of: The other partition, by name; in Python also an object.
    """

    samples: int = 10
    of: Partition = field(default_factory=Labels)

    def __post_init__(self) -> None:
        _at_least("samples", self.samples, 1)
        if not isinstance(self.of, Partition):
            object.__setattr__(self, "of", make_partition(self.of))
        if isinstance(self.of, Few):
            raise BadInput(
                "partition 'few' cannot be applied to itself; name another partition with data.of, such as labels or dirichlet"
            )

    @property
    def train_limit(self) -> int | None:
        """How many training samples each device keeps."""
        return self.samples

    @property
    def knows_teams(self) -> bool:
        """As the partition that is cut."""
        return self.of.knows_teams

    @property
    def by_label(self) -> int | None:
        """As the partition that is cut."""
        return self.of.by_label

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples, uncut: the cut comes with the split."""
        return self.of.assign(y, tree, classes, seed, owned)


PARTITIONS: dict[str, type[Partition]] = {"labels": Labels, "dirichlet": Dirichlet, "iid": Iid, "few": Few}


def option_names(name: str) -> list[str]:
    """Return the names of a partition's own options."""
    if not isinstance(name, str) or name not in PARTITIONS:
        raise BadInput(f"there is no partition {shown(name)}{nearest(shown(name), PARTITIONS)}")
    return [entry.name for entry in fields(PARTITIONS[name])]  # type: ignore[arg-type]


def make_partition(name: str, options: Mapping[str, Any] | None = None) -> Partition:
    """Make a partition by name; ``few`` hands the options that are not its own to the partition it cuts."""
    given = dict(options or {})
    known = option_names(name)
    if name == "few" and not isinstance(given.get("of", "labels"), Partition):
        inner = {option: given.pop(option) for option in list(given) if option not in known}
        of = given.get("of", "labels")
        known += option_names(of)
        given["of"] = make_partition(of, _only(inner, known, f"few of {of}"))
    return PARTITIONS[name](**_only(given, known, name))


def _only(options: dict[str, Any], known: list[str], what: str) -> dict[str, Any]:
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "; it has none"
            raise BadInput(f"the partition {what} has no option {option!r}{hint}")
    return options


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{name} = {shown(value)} must be a whole number of at least {least}")


def _by_owner(owner: Ints, units: int) -> Parts:
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=units))]).astype(np.int64)
    return Parts(np.argsort(owner, kind="stable"), start)


def _take_in_order(y: Ints, label: Ints, count: Ints, classes: int, each: int) -> Parts:
    """Give every (unit, label) entry, in turn, the next ``count`` samples of its label."""
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
