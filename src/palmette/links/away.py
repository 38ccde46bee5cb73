"""Availability: when nodes are away, by a table of node, from and to, or periodically."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.links.amounts import Row, read_rows
from palmette.tree import Tree
from palmette.values import real, shown

Unit = Literal["rounds", "seconds"]

_WAYS = (
    "write '8/24' (away for 8 of every 24 rounds, each node at a time of its own), '8/24 together' (all at the same time), "
    "'night' (8/24), rows [node, from, to], or the path of a CSV file with the columns node, from and to"
)


@dataclass(frozen=True)
class Away:
    """When the nodes of a tier are away: they are asked and do not answer.

    Attributes:
        rows: Name, from (included), to (not included); in rounds counted from 1, or in seconds of the clock.
        off: How long a node is away in every period ...
        period: ... of this length; 0 for no periods.
        together: Whether all nodes are away at the same time, and not each at a time of its own.
        unit: What ``rows``, ``off`` and ``period`` count.
    """

    rows: tuple[Row, ...] = ()
    off: float = 0.0
    period: float = 0.0
    together: bool = False
    unit: Unit = "rounds"

    @staticmethod
    def parse(what: Any, name: str, unit: Unit = "rounds") -> Away:
        """Read when nodes are away, as a user writes it."""
        if isinstance(what, Away):
            return what
        if isinstance(what, Sequence) and not isinstance(what, str):
            return Away(rows=tuple(_interval(one, what, name) for one in what), unit=unit)
        text = "8/24" if what == "night" else what
        number = r"([0-9]+(?:\.[0-9]+)?)"
        if isinstance(text, str) and (found := re.fullmatch(rf"{number}\s*/\s*{number}(\s+together)?", text.strip())):
            off, period = float(found[1]), float(found[2])
            if not 0 < off <= period < 1e15:
                raise BadInput(f"{name} = {shown(what)}: nodes are away for a part of a period; {_WAYS}")
            return Away(off=off, period=period, together=bool(found[3]), unit=unit)
        if isinstance(text, str) and text.endswith(".csv"):
            return Away(rows=tuple(_line(node, row, name) for node, row in read_rows(text, name)), unit=unit)
        raise BadInput(f"cannot read {name} = {shown(what)}; {_WAYS}")

    @property
    def written(self) -> str | list[list[str | float]]:
        """When nodes are away as a config holds it; a file's table is written out."""
        if self.period:
            return f"{self.off!r}/{self.period!r}{' together' if self.together else ''}"
        return [[node, begin, end] for node, begin, end in self.rows]

    def check(self, tree: Tree, tier: int, name: str) -> None:
        """Refuse names that are not in a tree."""
        tree.check_names(tier, {node for node, _, _ in self.rows}, name, every=False)

    def gone(self, tree: Tree, tier: int, ids: Tensor, seed: int, round_: int, seconds: Tensor) -> Tensor:
        """Return which of some nodes are away (bool).

        Args:
            tree: The tree.
            tier: The nodes' tier.
            ids: Their numbers within it.
            seed: The run's seed, which decides when each node's periods begin.
            round_: The round, from 0.
            seconds: The time at which each is asked.
        """
        now = seconds if self.unit == "seconds" else torch.full(ids.shape, round_ + 1.0, dtype=torch.float64)
        return self._left(tree, tier, ids, seed, now) > 0

    def back(self, tree: Tree, tier: int, ids: Tensor, seed: int, seconds: Tensor) -> Tensor:
        """Return when each of some nodes that are away by the clock is back, in seconds; now, where it is not away."""
        return seconds + self._left(tree, tier, ids, seed, seconds)

    def _left(self, tree: Tree, tier: int, ids: Tensor, seed: int, now: Tensor) -> Tensor:
        """Return how much longer each node is away; 0 for those that are not."""
        if self.period:
            phase = torch.zeros_like(now)
            if not self.together:
                own = torch.from_numpy(tree.addresses[tier])[ids]
                phase = address.uniform(address.mix(address.key(seed, "away", tier), own)) * self.period
                phase = phase.floor() if self.unit == "rounds" else phase
            since = now - 1 if self.unit == "rounds" else now
            return (self.off - (since + phase) % self.period).clamp(min=0)
        number, begin, end = _numbered(tree, tier, self.rows)
        place = torch.full((tree.size(tier),), -1)
        place[ids] = torch.arange(len(ids))
        here = place[number] >= 0
        at = place[number[here]]
        left = (end[here] - now[at]).where(begin[here] <= now[at], torch.zeros(()).to(now)).clamp(min=0)
        return torch.zeros_like(now).scatter_reduce(0, at, left, "amax")


@lru_cache(maxsize=16)
def _numbered(tree: Tree, tier: int, rows: tuple[Row, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the table with the nodes' numbers in place of their names, without nodes that are not in the tree."""
    rows = tuple(row for row in rows if tree.known(tier, row[0]) is not None)
    number = torch.tensor([tree.find(tier, node) for node, _, _ in rows], dtype=torch.int64)
    begin, end = (torch.tensor([row[at] for row in rows], dtype=torch.float64) for at in (1, 2))
    return number, begin, end


def _interval(one: Any, what: Any, name: str) -> Row:
    if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 3:
        raise BadInput(f"{name} = {shown(what)}: {shown(one)} is no row [node, from, to]; {_WAYS}")
    begin, end = real(name, one[1]), real(name, one[2])
    if not begin < end:
        raise BadInput(f"{name}: {shown(one)} ends before it begins; 'to' is the first round (or second) after it")
    return str(one[0]), begin, end


def _line(node: str, row: dict[str, str], name: str) -> Row:
    try:
        return _interval([node, float(row["from"]), float(row["to"])], row, name)
    except (KeyError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{name}: the file needs the columns node, from and to, with numbers; it has {row}") from None
