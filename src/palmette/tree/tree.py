"""Who reports to whom: a validated tree of named nodes in tiers.

Tier 0 is the devices, the last tier is the server alone. Within a tier, nodes are numbered so that the children of one
parent are neighbours and parents come in order; every array in Palmette that has one row per node uses this numbering.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, nearest
from palmette.guards.visible import visible
from palmette.tree.planting import Ints, from_factors, from_links, from_mapping, refuse_deep, refuse_huge
from palmette.tree.segments import segment_mean
from palmette.values import plain, shown, writable


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree whose leaves all lie at the same depth.

    Make one with `parse`, `from_sizes`, `from_table` or `from_parents` rather than by hand.

    Attributes:
        parents: ``parents[t][i]`` is the parent, in tier ``t + 1``, of node ``i`` of tier ``t``; never descending.
        labels: The user's names of each tier, or ``None`` where nodes are only numbered.
        fixed: The addresses of each tier, where they were given by another tree (see `flat` and `palmette.tree.view`); ``None``
            for tiers that have their own, and nothing where all have.
    """

    parents: tuple[Ints, ...]
    labels: tuple[tuple[str, ...] | None, ...] = ()
    fixed: tuple[Ints | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.labels:
            object.__setattr__(self, "labels", (None,) * (len(self.parents) + 1))
        if not self.parents:
            raise BadInput("a tree needs at least a server and one device")
        refuse_deep(self.tiers)
        for tier, parent in enumerate(self.parents):
            size = self.size(tier + 1)
            step = np.diff(parent)
            if len(parent) == 0 or parent[0] < 0 or parent[-1] >= size or (step < 0).any():
                raise BadInput(f"tier {tier}: parents must ascend within 0..{size - 1}; build the tree with Tree.parse")
            if parent[0] > 0 or parent[-1] < size - 1 or (step > 1).any():
                childless = int(np.setdiff1d(np.arange(size), parent)[0])
                raise BadInput(f"{self.name(tier + 1, childless)!r} in tier {tier + 1} has no children")
        if len(self.labels) != self.tiers:
            raise BadInput(
                f"a tree of {self.tiers} tiers needs as many tuples of names (or None), not {len(self.labels)}"
            )
        for tier, names in enumerate(self.labels):
            if names is not None:
                if len(names) != self.size(tier):
                    raise BadInput(f"tier {tier} has {self.size(tier)} nodes but {len(names)} names")
                if not all(name.strip() for name in names):
                    raise BadInput(f"a node of tier {tier} has an empty name; every node needs one")
                for name in names:
                    writable(f"tier {tier}: the name", name)
                repeated = [name for name, times in Counter(names).items() if times > 1]
                if repeated:
                    raise BadInput(f"the name {repeated[0]!r} is used by two nodes of tier {tier}; names must differ")

    # -- shape ---------------------------------------------------------------------------------------------------------

    @property
    def tiers(self) -> int:
        """Number of tiers, devices and server included."""
        return len(self.parents) + 1

    @property
    def top(self) -> int:
        """The server's tier."""
        return len(self.parents)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.parents[0])

    def size(self, tier: int) -> int:
        """Return the number of nodes of a tier.

        Args:
            tier: The tier; 0 is the devices.
        """
        return len(self.parents[tier]) if tier < len(self.parents) else 1

    @cached_property
    def offsets(self) -> tuple[Ints, ...]:
        """``offsets[t]``: the children of node ``i`` of tier ``t + 1`` are ``offsets[t][i]:offsets[t][i + 1]``."""
        return tuple(
            np.searchsorted(parent, np.arange(self.size(tier + 1) + 1)).astype(np.int64)
            for tier, parent in enumerate(self.parents)
        )

    def children(self, tier: int, node: int) -> range:
        """Return the children of one node, as numbers in the tier below.

        Args:
            tier: The tier of the node.
            node: Its number.
        """
        if tier == 0:
            return range(0)
        start, stop = self.offsets[tier - 1][node : node + 2]
        return range(int(start), int(stop))

    def ancestors(self, tier: int, of: int = 0) -> Ints:
        """Return, for every node of tier ``of``, its ancestor in ``tier`` (itself when the two are equal).

        Args:
            tier: The tier of the ancestors.
            of: The tier of the nodes; the devices by default.
        """
        index = np.arange(self.size(of), dtype=np.int64)
        for parent in self.parents[of:tier]:
            index = parent[index]
        return index

    def flat(self) -> Tree:
        """Return the two-tier tree of the same devices under the server: what methods without teams run on."""
        zeros: Ints = np.zeros(self.devices, dtype=np.int64)
        return Tree((zeros,), (self.labels[0], self.labels[-1]), (self.addresses[0], None))

    def mean(self, tier: int, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the (weighted) mean over the children of every node of ``tier``; ``rows`` belong to the tier below.

        Args:
            tier: The tier of the parents.
            rows: One line per child.
            weights: One number per child; all the same by default.
        """
        segment = torch.from_numpy(self.parents[tier - 1]).to(rows.device)
        return segment_mean(rows, segment, self.size(tier), weights)

    @cached_property
    def addresses(self) -> tuple[Ints, ...]:
        """For every tier, a 64-bit number per node under which its random numbers are drawn.

        A named node is addressed by its name, one without a name by its place among its parent's children. So its random
        numbers stay the same when nodes elsewhere in the tree come and go. An only child without a name has its parent's
        address, so that a tier of only children changes nothing; give nodes names where they are to keep their random numbers
        even when their own team grows from one.
        """
        found: list[Ints] = [np.zeros(1, dtype=np.int64)]
        for tier in range(self.top - 1, -1, -1):
            names, parent = self.labels[tier], self.parents[tier]
            if self.fixed and (given := self.fixed[tier]) is not None:
                found.append(given)
            elif names is not None:
                found.append(address.of_names(names))
            else:
                place, above = np.arange(len(parent)) - self.offsets[tier][parent], found[-1][parent]
                mixed = address.mix(torch.from_numpy(above), torch.from_numpy(place)).numpy()
                found.append(np.where(np.diff(self.offsets[tier])[parent] == 1, above, mixed))
        return tuple(reversed(found))

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self, tier: int, node: int) -> str:
        """Return a node's name: the user's own, or its kind and number.

        Args:
            tier: The tier.
            node: The number of the node.
        """
        names = self.labels[tier]
        if names is not None:
            return names[node]
        if tier == self.top:
            return "server"
        return f"{('device', 'team')[tier] if tier < 2 else f'tier{tier}'}-{node}"

    def names(self, tier: int) -> list[str]:
        """Return all names of a tier.

        Args:
            tier: The tier; 0 is the devices.
        """
        return [self.name(tier, node) for node in range(self.size(tier))]

    def find(self, tier: int, name: str) -> int:
        """Return the number of the node of this name.

        Args:
            tier: The tier.
            name: The name.
        """
        if (number := self.known(tier, name)) is None:
            raise BadInput(f"no node {name!r} in tier {tier}{nearest(name, self._numbers[tier])}")
        return number

    def known(self, tier: int, name: str) -> int | None:
        """Return the number of the node of this name; ``None`` where there is none.

        Args:
            tier: The tier.
            name: The name.
        """
        return self._numbers[tier].get(name)

    def check_names(
        self, tier: int, given: Collection[str], setting: str = "a setting by name", *, every: bool = True
    ) -> None:
        """Refuse names that are not those of a tier, one by one and, where every node must be named, all of them."""
        for name in given:
            if name not in self._numbers[tier]:
                hint = nearest(name, self._numbers[tier])
                raise BadInput(f"{setting}: there is no node {name!r} in tier {tier}{hint}")
        if every and len(given) < self.size(tier):
            missing = next(name for name in self.names(tier) if name not in given)
            raise BadInput(f"{setting} leaves out {missing!r} of tier {tier}; give a value for every node of the tier")

    @cached_property
    def _numbers(self) -> tuple[dict[str, int], ...]:
        return tuple({name: i for i, name in enumerate(self.names(tier))} for tier in range(self.tiers))

    def __str__(self) -> str:
        return self._factors() or " > ".join(str(self.size(tier)) for tier in range(self.top, -1, -1))

    def __repr__(self) -> str:
        kinds = ["device", "team", *(f"tier {tier} node" for tier in range(2, self.top))][: self.top]
        counts = [f"{self.size(tier)} {kind}{'s' * (self.size(tier) > 1)}" for tier, kind in enumerate(kinds)]
        ends = [(self.name(tier, 0), self.name(tier, self.size(tier) - 1)) for tier in range(self.top)]
        names = [repr(first) if first == last else f"{first!r} to {last!r}" for first, last in ends]
        return f"Tree {self}: {' in '.join(counts)} under the {visible(self.name(self.top, 0))}\n  {', '.join(names)}"

    def _factors(self) -> str:
        """Return ``"4x10"`` and the like where all teams of a tier are of one size, else nothing."""
        sizes = [np.diff(offset) for offset in self.offsets]
        even = all(np.all(size == size[0]) for size in sizes)
        return "x".join(str(int(size[0])) for size in reversed(sizes)) if even else ""

    def spec(self) -> str | list[Any] | dict[str, Any]:
        """Return the tree as `parse` reads it, for a config: sizes, or nested names where nodes have them."""
        if not any(self.labels[:-1]) and self._factors():
            return self._factors()
        if not any(self.labels[:-1]) and self.top == 2:
            return [int(size) for size in np.diff(self.offsets[0])]

        def below(tier: int, node: int) -> Any:
            children = self.children(tier, node)
            if tier == 1:
                return [self.name(0, child) for child in children]
            return {self.name(tier - 1, child): below(tier - 1, child) for child in children}

        nested: list[Any] | dict[str, Any] = below(self.top, 0)
        return nested

    @property
    def can_be_written(self) -> bool:
        """Whether `spec` says all there is to the tree: not where some tiers have names and others only numbers."""
        named = [names is not None for names in self.labels[:-1]]
        if self.fixed:  # its nodes have the addresses of another tree
            return False
        return all(named) or (not any(named) and not isinstance(self.spec(), dict))

    # -- ways to make one ----------------------------------------------------------------------------------------------

    @staticmethod
    def parse(what: Tree | str | int | Sequence[Any] | Mapping[str, Any]) -> Tree:
        """Make a tree from what a user writes.

        ``"4x10"`` is 4 teams of 10 devices, ``"2x5x10"`` 2 regions of 5 teams of 10, ``40`` devices without teams,
        ``[3, 5, 2]`` three teams of those sizes, ``["d1", "d2"]`` named devices without teams, ``{"north": {"a": ["d1",
        "d2"]}, ...}`` nested names (a list of device names or their number at the bottom).
        """
        if isinstance(what, Tree):
            return what
        if isinstance(what, bool):
            raise BadInput("a tree is written like 4x10, not true or false")
        if isinstance(what, Mapping):
            return Tree(*from_mapping(what))
        if isinstance(what, str):
            if not re.fullmatch(r"\s*[0-9]{1,20}(\s*[x×]\s*[0-9]{1,20})*\s*", what):
                raise BadInput(f"cannot read the tree {shown(what)}; write sizes from the top, like 4x10 or 2x5x10")
            return _even(*(int(factor) for factor in re.split(r"[x×]", what)))
        given = plain(what)
        if isinstance(given, int):
            return _even(given)
        if not isinstance(given, list):
            raise BadInput(
                f"cannot read the tree {shown(what)}; write sizes from the top, like 4x10, or names in a mapping"
            )
        if given and all(isinstance(name, str) for name in given):
            return Tree.from_table(given)
        return Tree.from_sizes(given)

    @staticmethod
    def from_sizes(sizes: Sequence[int]) -> Tree:
        """Make a three-tier tree from the number of devices of every team."""
        whole = all(isinstance(size, Real) and not isinstance(size, bool) and size % 1 == 0 for size in sizes)
        if not len(sizes) or not whole or min(sizes) < 1:
            raise BadInput(f"team sizes must be whole numbers of at least 1, not {shown(list(sizes))}")
        counts = [int(size) for size in sizes]
        refuse_huge(sum(counts))
        teams = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        return Tree((teams, np.zeros(len(counts), dtype=np.int64)))

    @staticmethod
    def from_table(*columns: Sequence[Any]) -> Tree:
        """Make a tree from columns: devices, their teams, the teams' regions and so on, one row per device.

        Nodes come in the order in which their names first appear.
        """
        if not columns or len({len(column) for column in columns}) != 1 or not len(columns[0]):
            raise BadInput("a tree's table needs columns of one length: device, team[, region ...]")
        for row in zip(*columns, strict=True):
            if any(cell is None or cell != cell or str(cell) == "" for cell in row):
                raise BadInput(f"the row of device {str(row[0])!r} has an empty cell; every device needs a team: {row}")
        names = [[str(cell) for cell in column] for column in columns]
        parent: dict[tuple[int, str], tuple[int, str] | None] = {}
        for row in zip(*names, strict=True):
            path = [(tier, name) for tier, name in enumerate(row)]
            for child, above in zip(path, [*path[1:], None], strict=True):
                if parent.setdefault(child, above) != above:
                    first = parent[child]
                    raise BadInput(
                        f"{child[1]!r} is under both {first and first[1]!r} and {above and above[1]!r}; a node has one parent"
                    )
        if len(set(names[0])) < len(names[0]):
            twice = next(name for name, times in Counter(names[0]).items() if times > 1)
            raise BadInput(f"the device {twice!r} stands in two rows; names must differ")
        return Tree(*from_links(parent, len(columns), lambda node: node[1], lambda node: node[0]))

    @staticmethod
    def from_parents(parents: Mapping[str, str | None]) -> Tree:
        """Make a tree from each node's parent name; exactly one node, the server, has ``None``."""
        roots = [name for name, above in parents.items() if above is None]
        depth = dict.fromkeys(roots, 0)
        for name in parents:
            path: list[str] = []
            here = name
            while here not in depth:
                if here in path:
                    raise BadInput(f"{' > '.join([*path[path.index(here) :], here])} is a cycle; a tree has none")
                path.append(here)
                above = parents[here]
                if above is None or above not in parents:
                    raise BadInput(f"{here!r} has the parent {above!r}, which is not in the tree")
                here = above
            for offset, step in enumerate(reversed(path), start=1):
                depth[step] = depth[here] + offset
        if len(roots) != 1:
            raise BadInput(f"exactly one node may have no parent (the server); here are {len(roots)}: {roots[:5]}")
        inner = set(parents.values())
        leaves = [name for name in parents if name not in inner]
        deepest = max(depth[leaf] for leaf in leaves)
        for leaf in leaves:
            if depth[leaf] != deepest:
                raise BadInput(
                    f"{leaf!r} has no children but lies {depth[leaf]} below the server while others lie {deepest}: "
                    "every device must be at the same depth, and a team needs devices"
                )
        below = {name: above if above != roots[0] else None for name, above in parents.items() if above is not None}
        numbered, labels = from_links(below, deepest, str, lambda name: deepest - depth[name])
        return Tree(numbered, (*labels[:-1], (roots[0],)))


@lru_cache(maxsize=2)
def _even(*factors: int) -> Tree:
    """Make a tree of numbered nodes; a large one takes seconds and is asked for several times before a run."""
    return Tree(from_factors(factors))
