"""Tiers that are trained one after the other: whose turn it is, and what a survey found, as a row that everybody keeps."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.blocks.seen import Shape
from palmette.blocks.survey import ENDLESS, Found
from palmette.blocks.surveyed import bare
from palmette.learner.directions import Directions
from palmette.protocol import Ask, Device, Node, Replies, State
from palmette.tree import Tree

LAST = "last"  # the name of the number in a message that hands a model down after the last round
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

    def rounds(self, tier: int) -> Tensor:
        """Return how many rounds the turn of a tier has ``(n,)``; NaN for nodes that were never told.

        Rounds before the first turn, in which nobody answered the survey, count as the server's.

        Args:
            tier: The tier, not that of the devices.
        """
        place = self.node.tree.top - tier
        ends = self.rows[:, : self.node.tree.top].double()
        found = ends[:, place] - (ends[:, place - 1] if place else 0.0)
        return torch.where(self.told, found, torch.nan)

    def strengths(self, tier: int) -> Tensor:
        """Return the pulls of the nodes, which are of a tier, ``(n, 1)`` or ``(n, 1 + directions)``; endless if not told."""
        top = self.node.tree.top
        mine = self.rows[:, top:].unflatten(1, (top, -1))[:, tier].double()
        each = mine / self.node.samples.to(mine)[:, None].clamp(min=1)
        return torch.where(self.told[:, None] & (mine < _NEARLY), each, ENDLESS)


def endless(pull: Any) -> bool:
    """Return whether a setting is one pull for all nodes of a tier that is as good as infinite.

    Pulls by name never are: on separate nodes nobody but the server knows all of them, and all must agree on the turns.

    Args:
        pull: The setting.
    """
    return isinstance(pull, float) and pull >= ENDLESS


def upper_pulls(node: Node, given: Any, like: Tensor, plan: Tensor | None, turned: bool) -> Tensor:
    """Return the pulls of some inner nodes to the model above ``(n, 1)``, by direction ``(n, 1 + size)``.

    Args:
        node: The nodes.
        given: The setting of their tier.
        like: Rows of the wanted type.
        plan: What a survey found, where there was one.
        turned: Whether there is a pull for each direction.
    """
    if given == "auto":
        assert plan is not None
        return Plan(plan, node).strengths(node.tier).to(like)
    one = torch.as_tensor(node.own(given, like), dtype=like.dtype, device=like.device).reshape(-1, 1)
    width = Shape.of(node.layout).size + 1 if turned else 1
    return one.clamp(max=ENDLESS).expand(len(node), width).contiguous()


def directed(node: Device, strength: Tensor, state: State) -> Tensor | Directions:
    """Return pulls from their strengths ``(n, 1)``, or by direction ``(n, 1 + size)``: the last is the constant's.

    Args:
        node: The devices.
        strength: The strengths.
        state: What they keep; the principal directions as ``basis``.
    """
    if strength.shape[1] == 1:
        return strength
    shape = Shape.of(node.layout)
    basis = state["basis"].view(-1, shape.features, shape.kept)
    inside = strength[:, 1 : 1 + shape.kept]
    # Who never got the directions has one pull for all of them.
    lacks = (basis == 0).flatten(1).all(1)[:, None]
    inside = torch.where(lacks, strength[:, :1], inside)
    last = strength[:, -1:] if shape.bias else strength[:, :1]
    return Directions(basis, inside, strength[:, :1], torch.where(lacks, strength[:, :1], last))


def pass_down(node: Node, model: Tensor, told: Mapping[str, Any]) -> Generator[Any, Replies, None]:
    """Give the model of the tier that was trained last to the inner tiers below it, which had no turn of their own.

    Args:
        node: The nodes of the tier that was trained last.
        model: Their models.
        told: What they told their children in this round.
    """
    if node.tier > 1 and node.round + 1 == node.rounds:
        plan = {"plan": told["plan"]} if "plan" in told else {}
        yield Ask({"model": model, LAST: 1, **plan}, reduce="stack")


def hand_over(node: Node, state: State, plan: Tensor | None) -> Generator[Any, Replies, State]:
    """Give one's model to the children that begin their turn, and let the others work by themselves.

    Args:
        node: The nodes whose turn is over.
        state: What they keep: their ``model``, and which children ``began``.
        plan: What a survey found, where there was one.
    """
    everybody = node.child_ids.to(state["began"].device)
    began = state["began"].gather(1, everybody[None].expand(len(node), -1))
    mine = began[node.child_parents, node.child_places] > 0
    mine = mine.cpu()
    yield Ask(None, only=mine)
    lacks = torch.bincount(node.child_parents[~mine], minlength=len(node)) > 0
    if not bool(lacks.any()):
        return state
    message = {"model": state["model"], **({} if plan is None else {"plan": bare(plan)})}
    handed = yield Ask(message, to=lacks, only=~mine, reduce="stack")
    after = state["began"].clone()
    places = handed.positions.to(after.device)
    after[handed.parents.to(after.device), everybody[places]] = 1
    return {**state, "began": after}
