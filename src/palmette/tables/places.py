"""Who sits where: the device of every row from its path of names, and the tree over all devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from palmette.tables import columns
from palmette.tables.problems import Findings
from palmette.tree import Ints, Tree
from palmette.tree.planting import from_links, refuse_deep, refuse_huge

Path = tuple[str, ...]
_TOLD = 3  # names in a sentence
_MOST = 2**62  # a path's names as one whole number


class Places:
    """Collects the paths of devices, from the top team down to the device.

    Attributes:
        paths: The path of every device, in the order in which they appear.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._columns = list(names)
        self._known: list[dict[str, int]] = [{} for _ in names]
        self._names: list[list[str]] = [[] for _ in names]
        self._number: dict[tuple[int, ...], int] = {}
        self._rows: list[NDArray[np.int32]] = []
        self.paths: list[Path] = []

    def add(self, batch: dict[str, Any]) -> None:
        """Take in the next rows; columns are from `columns.plain`."""
        codes = [self._codes(tier, batch[name]) for tier, name in enumerate(self._columns)]
        joined, bound = np.zeros(len(codes[0]), dtype=np.int64), 1
        for tier, code in enumerate(codes):
            size = len(self._names[tier]) + 1
            if bound * size >= _MOST:  # numbered anew before they leave the whole numbers there are
                joined, bound = np.unique(joined, return_inverse=True)[1].reshape(-1), len(joined) + 1
            joined, bound = joined * size + code + 1, bound * size
        _, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        order = np.argsort(first)  # by appearance
        keys = zip(*(code[first[order]].tolist() for code in codes), strict=True)
        numbers = np.empty(len(first), dtype=np.int32)
        numbers[order] = [self._of(key) for key in keys]
        self._rows.append(numbers[inverse])

    def _of(self, key: tuple[int, ...]) -> int:
        """Return the number of a path, a new one where it was not met before; -1 for a path with a gap."""
        number = self._number.get(key)
        if number is None:
            number = -1 if -1 in key else len(self.paths)
            self._number[key] = number
            if number >= 0:
                self.paths.append(tuple(self._names[tier][code] for tier, code in enumerate(key)))
        return number

    def _codes(self, tier: int, array: Any) -> Ints:
        coded = pc.dictionary_encode(columns.names(array))
        known, listed, names = self._known[tier], self._names[tier], coded.dictionary.to_pylist()
        for name in names:
            if name not in known:
                known[name] = len(listed)
                listed.append(name)
        own = np.array([known[name] for name in names], dtype=np.int64)
        index = np.array(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.where(index < 0, -1, own[index] if len(own) else -1)

    @property
    def rows(self) -> NDArray[np.int32]:
        """The number in `paths` of every row's device; -1 where its path has a gap."""
        return np.concatenate(self._rows) if self._rows else np.zeros(0, dtype=np.int32)


def plant(paths: Sequence[Path], findings: Findings, *, refuse_repeats: bool) -> tuple[Tree, Ints]:
    """Make the tree of some devices and return it with each one's number in the tree.

    A name that stands at two places is told apart by its path, aloud.

    Args:
        paths: The path of every device, from the top down; all of one length and all different.
        findings: Is told of names that were made different.
        refuse_repeats: Whether a device at two places is a problem rather than two devices.
    """
    depth = len(paths[0])
    refuse_deep(depth + 1)
    refuse_huge(len(paths), named=True)
    parent: dict[Path, Path | None] = {}
    for path in paths:
        for size in range(1, depth + 1):
            parent.setdefault(path[:size], path[: size - 1] or None)
    called: dict[Path, str] = {}
    for size in range(1, depth + 1):
        tier = [node for node in parent if len(node) == size]
        times = Counter(node[-1] for node in tier)
        called |= {node: node[-1] if times[node[-1]] == 1 else "/".join(node) for node in tier}
        repeated = [name for name, count in times.items() if count > 1]
        if repeated:
            _tell(repeated, tier, size == depth, findings, refuse_repeats=refuse_repeats)
    parents, labels = from_links(parent, depth, called.__getitem__, lambda node: depth - len(node))
    tree = Tree(parents, labels)
    number = {name: index for index, name in enumerate(tree.names(0))}
    return tree, np.array([number[called[path]] for path in paths], dtype=np.int64)


def _tell(repeated: list[str], tier: list[Path], devices: bool, findings: Findings, *, refuse_repeats: bool) -> None:
    """Tell of names that stand at two places or more."""
    what = "device" if devices else "team"
    if devices and refuse_repeats:
        for name in repeated[:_TOLD]:
            above = ["/".join(node[:-1]) for node in tier if node[-1] == name]
            some = ", ".join(map(repr, above[:_TOLD])) + (" and others" if len(above) > _TOLD else "")
            findings.problem(
                f"it is in {len(above)} teams ({some}), and data.repeats = refuse; a device has one team", device=name
            )
        if len(repeated) > _TOLD:
            findings.problem(f"{len(repeated) - _TOLD} more devices are in two teams or more")
        return
    places = ["/".join(node) for node in tier if node[-1] == repeated[0]]
    others = f", like {len(repeated) - 1} more names," if len(repeated) > 1 else ""
    findings.warn(
        f"the {what} name {repeated[0]!r}{others} stands in {len(places)} places: taken as different {what}s and named by "
        f"their path, as in {' and '.join(map(repr, places[:2]))}; if they are one {what}, correct the columns of teams"
    )
