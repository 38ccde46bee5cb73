"""Ladder: one model for everybody, from it one per team, from that one per device, each tier trained in its turn.

1. The global model x by federated averaging over all devices.
2. A model w_i for every team by federated averaging inside the team, from x, its devices pulled to x with ``gamma``.
3. A model theta_ij for every device by itself, from w_i, pulled to w_i with ``lam``.

So tier by tier it minimises, over w_i and then theta_ij,

    mean_j f_ij(w_i) + gamma/2 |w_i - x|^2     and     f_ij(theta_ij) + lam/2 |theta_ij - w_i|^2.

A pull says how far models may lie apart and never how fast they move: a step is implicit in the pull,

    theta <- (theta - alpha gradient + alpha pull centre) / (1 + alpha pull),

which is stable for any pull wherever gradient descent without one is. An infinite pull takes the model above as it is, a pull of
zero forgets where a model began. On deeper trees every inner tier has its turn, from the top down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from palmette.errors import BadInput
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State, check_per_tier, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, Rate, settings
from palmette.tree import Tree

Pull = Annotated[float, Field(ge=0), NUMBER]
"""Zero for none, infinite to take the model above as it is."""


@settings
class Ladder(Algorithm):
    """A global model, then team models pulled to it, then personal models pulled to those, each tier in its turn.

    Attributes:
        share: Share of the rounds that go to the global model; on deeper trees also to each inner tier but the lowest, of
            the rounds that are left to it.
        team_steps: Averages in a team in every round of its turn; on deeper trees also a list with one number per inner
            tier, lowest first. While the global model is trained, there is one average over all devices in a round.
        local_steps: Gradient steps of a device between two averages.
        tune_steps: Gradient steps that make a device's own model from its team's.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        lam: Pull (proximal strength) of a device's model to its team's; ``inf`` takes the team's model as it is, 0 is plain
            fine-tuning. Also one number per device name.
        gamma: Pull (proximal strength) of a team's model to the model above it; ``inf`` takes that model as it is, 0 trains
            every team by itself. Also one number per team name; on deeper trees a list with one number per inner tier,
            lowest first.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "ladder"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; the average is over those that answered, by their samples."
    )
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "lam": Between(0.001, 1.0),
        "gamma": Between(0.0003, 0.1),
    }
    by_name: ClassVar[Mapping[str, int]] = {"alpha": 0, "lam": 0, "gamma": 1}

    share: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.5
    team_steps: Count | tuple[Count, ...] = 10
    local_steps: Count = 20
    tune_steps: Count = 40
    alpha: Rate = 0.05
    lam: Pull | dict[str, Pull] = 0.03
    gamma: Pull | tuple[Pull, ...] | dict[str, Pull] = 0.01
    batch_size: BatchSize = 20

    def check(self, tree: Tree) -> None:
        """Refuse lists that do not fit the tree, and teams' names on trees with several tiers of teams."""
        check_per_tier(tree, team_steps=self.team_steps, gamma=self.gamma)
        if isinstance(self.gamma, dict) and tree.tiers != 3:
            raise BadInput("gamma by team name is for trees with one tier of teams; give a list with one entry per tier")
        super().check(tree)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Server and teams keep a model and which of their children began their turn; teams the model above, too."""
        if node.tier == 0:
            return {}
        kept = {"model": initial}
        if node.tier < node.tree.top:
            kept["above"] = initial
        if node.tier > 1:
            kept["began"] = initial.new_zeros(node.tree.size(node.tier - 1))
        return kept

    def stable(self, curvature: float) -> dict[str, float]:
        """Steps that are implicit in the pull are stable up to 1 / L, whatever the pulls."""
        return {"alpha": inverse(curvature)}

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turns(self, tree: Tree, rounds: int) -> dict[int, int]:
        """Return how many of the rounds each tier has, by tier, the server's first."""
        found, left = {}, rounds
        skipped = {tier: self._pull(tier) == math.inf for tier in range(1, tree.top)}
        for tier in range(tree.top, 0, -1):
            after = tier - 1
            if not any(not skipped[below] for below in range(1, tier)):
                wanted = left - after
            else:
                wanted = 1 if skipped.get(tier) else round(self.share * left)
            found[tier] = left if tier == 1 else min(left, max(1, min(wanted, left - after)))
            left -= found[tier]
        return found

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        """Return the tier whose models are trained in a round."""
        last = 0
        for tier, count in self.turns(tree, rounds).items():
            last += count
            if round_ < last:
                return tier
        return 1

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Tell how many rounds every tier has."""
        turns = self.turns(tree, rounds)
        told: dict[str, Any] = {"global_rounds": turns.pop(tree.top)}
        if turns:
            given = list(turns.values())[::-1]
            told["team_rounds"] = given[0] if len(given) == 1 else given
            if not all(given):
                told["note"] = f"{rounds} rounds are too few for all tiers: teams that had no turn have the model above"
        return told

    def _pull(self, tier: int) -> Any:
        """Return the pull of the nodes of an inner tier to their parents."""
        return self.gamma[tier - 1] if isinstance(self.gamma, tuple) else self.gamma

    # -- programs ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the model that came down on one's own data, pulled to the model above it where there is one."""
        if isinstance(message, Tensor):
            return self._descend(node, message, message, 0.0, self.local_steps), state
        pull = message["pull"] if "pull" in message else self._pull(node.stage)
        return self._descend(node, message["model"], message["above"], pull, self.local_steps), state

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Train one's team's model further, pulled back to it."""
        return self._descend(node, parent, parent, node.own(self.lam, parent), self.tune_steps)

    def _descend(self, node: Device, start: Tensor, centre: Tensor, pull: float | Tensor, steps: int) -> Tensor:
        """Take steps that are implicit in the pull; where it is infinite, the rows end at their centre."""
        strength = torch.as_tensor(pull, dtype=start.dtype, device=start.device)
        free = torch.where(strength.isinf(), 0.0, strength)
        rate = node.own(self.alpha, start) / (1 + node.own(self.alpha, start) * free)
        moved = node.descend(start, steps=steps, lr=_row(rate), pull=_row(free), centre=centre)
        return torch.where(strength.isinf(), centre, moved)

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Train one's own model in one's turn; before it pass on what comes down and average, after it hand one's over."""
        if node.stage > node.tier:
            got = yield Ask(message, reduce="samples", otherwise=_model(message))
            return got.rows, {**state, "model": _model(message)}
        if node.stage < node.tier:
            return None, (yield from self._hand_over(node, state))
        w, above = (state["model"], state["above"]) if message is None else (message, message)
        pull = node.own(self._pull(node.tier), w)
        trains = ~torch.as_tensor(pull).isinf().reshape(-1).expand(len(node)).cpu()
        steps = self.team_steps[node.tier - 1] if isinstance(self.team_steps, tuple) else self.team_steps
        for _ in range(steps if bool(trains.any()) else 0):
            got = yield Ask(self._pulled(w, above, pull), to=trains, reduce="samples", otherwise=w)
            w = got.rows
        return None, {**state, "model": w, "above": above}

    def _pulled(self, w: Tensor, above: Tensor, pull: float | Tensor) -> Any:
        """Return what devices need for a step of a team's model: without a pull, not the model above."""
        if isinstance(pull, Tensor):
            return {"model": w, "above": above, "pull": pull}
        return {"model": w, "above": above} if pull else w

    def server(self, node: Node, state: State) -> Server:
        """Average over all devices in the global model's turn; then hand it over."""
        if node.stage < node.tier:
            return (yield from self._hand_over(node, state))
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {**state, "model": replies.rows}

    def _hand_over(self, node: Node, state: State) -> Server:
        """Give one's model to the children that begin their turn; otherwise let them work by themselves."""
        if node.stage < node.tier - 1:
            yield Ask(None)
            return dict(state)
        began = torch.gather(state["began"], 1, node.child_ids[None].to(state["began"].device)) > 0
