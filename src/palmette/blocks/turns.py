"""Tiers that are trained one after the other: whose turn it is, and what a survey found, as a row that everybody keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.blocks.seen import Shape
from palmette.blocks.survey import ENDLESS, Found
from palmette.protocol import Node
from palmette.tree import Tree

_NEARLY = 0.99 * ENDLESS  # single precision need not hold the number exactly


def turns(tree: Tree, rounds: int, share: float, skipped: Mapping[int, bool]) -> dict[int, int]:
    """Return how many of the rounds each tier has, by tier, the server's first.

    Args:
        tree: The tree.
        rounds: All rounds.
        share: The share of the global model; on deeper trees also of each inner tier but the lowest, of what is left to it.
        skipped: Which inner tiers take the model above as it is.
    """
    found, left = {}, rounds
    for tier in range(tree.top, 0, -1):
        below = [one for one in range(1, tier) if not skipped[one]]
        wanted = 0 if tier < tree.top and skipped[tier] else left if not below else max(1, round(share * left))
        found[tier] = min(left, wanted)
        left -= found[tier]
    return found


def stage(node: Node, ends: Sequence[int]) -> int:
    """Return the tier whose models are trained in this round, from the rounds in which the turns end, the server's first."""
    return next((node.tree.top - place for place, end in enumerate(ends) if node.round < end), 1)


def plan_size(node: Node, turned: bool) -> int:
    """Return how many numbers a plan has."""
    return node.tree.top * (1 + (Shape.of(node.layout).size + 1 if turned else 1))


def plan_row(found: Found, each: Mapping[int, int], begin: int, turned: bool) -> Tensor:
    """Return a plan: when each tier's turn ends, then the pulls of every tier times the samples of a node.

    Args:
        found: What a survey found.
        each: The rounds of every tier, see `turns`.
        begin: The round in which the first turn begins.
        turned: Whether there is a pull for each direction too.
    """
    ends = begin + torch.tensor(list(each.values())).cumsum(0).double()
    pulls = torch.cat([found.pulls[:, None], found.turned], 1) if turned else found.pulls[:, None]
    return torch.cat([ends, pulls.flatten().cpu()])[None]


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan as nodes keep it.

    Attributes:
        rows: One line per node; zeros where a node was never told.
        node: The nodes.
    """

    rows: Tensor
    node: Node

    @property
    def told(self) -> Tensor:
        """Which nodes have been told (bool)."""
        return (self.rows != 0).any(1)

    @property
    def stage(self) -> int:
        """The tier whose models are trained in this round."""
        return stage(self.node, [int(end) for end in self.rows[0, : self.node.tree.top].tolist()])

    def strengths(self, tier: int) -> Tensor:
        """Return the pulls of the nodes, which are of a tier, ``(n, 1)`` or ``(n, 1 + directions)``; endless if not told."""
        top = self.node.tree.top
        mine = self.rows[:, top:].unflatten(1, (top, -1))[:, tier].double()
        each = mine / self.node.samples.to(mine)[:, None].clamp(min=1)
        return torch.where(self.told[:, None] & (mine < _NEARLY), each, ENDLESS)
