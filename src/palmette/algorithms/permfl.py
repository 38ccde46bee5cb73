"""PerMFL: personalized models on a tree, each pulled towards the model above it.

It minimises, over one model per device (theta_ij), per team (w_i) and for everybody (x),

    mean_i mean_j [ f_ij(theta_ij) + lam/2 |theta_ij - w_i|^2 ]  +  mean_i gamma/2 |w_i - x|^2

by gradient steps at every tier. A device takes ``local_steps`` (L) steps on its loss from its team's model; a team takes
``team_steps`` (K) steps of size ``eta``, each after one exchange with its devices; the server one step of size ``beta``. On
deeper trees every inner tier runs the team program with its own pull.

Sourasekhar Banerjee, Ali Dadras, Alp Yurtsever, Monowar Bhuyan: Personalized Multi-tier Federated Learning.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.blocks import found_pulls
from palmette.blocks.survey import WORD, Way
from palmette.errors import BadInput
from palmette.protocol import (
    Ask,
    Device,
    Inner,
    Node,
    Reduce,
    Replies,
    Server,
    State,
    check_per_tier,
    inverse,
)
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, Rate, settings
from palmette.tree import Tree
from palmette.tree.segments import segment_mean

PUBLISHED = {"alpha": 0.01, "eta": 0.03, "beta": 0.6, "gamma": 1.5, "lam": 0.5, "teams": "restart"}


@settings
class MoreauTree(found_pulls.FindsPulls):
    """The programs PerMFL and pFedMT share; the two differ in how children are weighted.

    Attributes:
        team_steps: Rounds of a team with its devices in every global round; on deeper trees also a list with one number per
            inner tier, lowest first (K in the paper).
        local_steps: Gradient steps of a device each time its team asks (L in the paper).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (alpha in the paper).
        lam: Pull (proximal strength) of a device's model to its team's model; ``"auto"`` finds it in the first round from
            how different devices are, at most 1 / (alpha local_steps), beyond which they would hardly move (lambda in the
            paper).
        gamma: Pull (proximal strength) of a team's model to the model above it; on deeper trees also a list with one number
            per inner tier, lowest first; ``"auto"`` finds it from how different teams are, at most the pull below over
            team_steps, beyond which teams and the global model would hardly move (gamma in the paper).
        eta: Learning rate of the teams; also one number per team name or per inner tier; ``"auto"`` is 1 / (lam + gamma)
            (eta in the paper).
        beta: Learning rate of the server, which moves by beta * gamma towards its teams; ``"auto"`` is 1 / gamma
            (beta in the paper).
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
        survey: What leaves a device to find ``"auto"`` pulls: ``"moments"`` are second moments of its samples, which its team
            sees; ``"sums"`` are numbers of which the team needs only the sum over its devices.
        teams: Where a team begins in a round: ``"warm"`` from its own last model (from the model above in its first round),
            ``"restart"`` from the model above in every round, as published.
        as_published: Slips of the paper or its code to repeat: ``device-pull`` pulls devices with local_steps in place of lam,
            ``stale-teams`` averages teams that did not take part too, ``line-12`` is pFedMT's misprinted server step.
        reduce: How replies are averaged: ``"mean"``, all children the same, or ``"samples"``, by training samples.
    """

    absent: ClassVar[str] = (
        "A device that is left out keeps its last model; the means of that round are over those that answered."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "lam": Between(0.01, 1.0),
        "gamma": Between(0.0003, 0.1),
    }
    by_name: ClassVar[Mapping[str, int]] = {"alpha": 0, "eta": 1}
    reduce: ClassVar[Reduce]

    team_steps: Count | tuple[Count, ...] = 10
    local_steps: Count = 20
    alpha: Rate = 0.05
    lam: Literal["auto"] | NonNegative = 0.1
    gamma: Literal["auto"] | NonNegative | tuple[NonNegative, ...] = 0.01
    eta: Literal["auto"] | Positive | tuple[Positive, ...] | dict[str, Positive] = "auto"
    beta: Literal["auto"] | Positive = "auto"
    batch_size: BatchSize = 20
    survey: Way = "moments"
    teams: Literal["warm", "restart"] = "warm"
    as_published: tuple[Literal["device-pull", "stale-teams", "line-12"], ...] = ()

    def check(self, tree: Tree) -> None:
        """Refuse lists that do not fit the tree, and trees without teams."""
        if tree.tiers < 3:
            raise BadInput(f"{self.name} needs teams between devices and server; this tree ({tree}) has none")
        check_per_tier(tree, team_steps=self.team_steps, gamma=self.gamma, eta=self.eta)
        if isinstance(self.eta, dict) and tree.top > 2:
            raise BadInput("eta by team name is for trees with one tier of teams; give a list with one entry per tier")
        super().check(tree)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Every node keeps its model; a warm team whether it began; the server its teams' last where stale ones count."""
        kept = {"model": initial}
        if node.tier == node.tree.top:
            if "stale-teams" in self.as_published:
                kept["teams"] = initial.repeat(node.tree.size(node.tier - 1))
        elif node.tier and self.teams == "warm":
            kept["began"] = initial.new_zeros(1)
        return {**kept, **found_pulls.keeps(self.asking, node, initial)} if self.surveys else kept

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell the pulls that were found."""
        if not self.surveys or node.tier == node.tree.top:
            return {}
        return {"pull": state[found_pulls.ROW][:, node.tier]}

    def pull(self, tier: int, found: Tensor | None = None) -> float:
        """Return the pull of the nodes of a tier to their parents; given or, where nothing is, found."""
        given: Any = self.lam if tier == 0 else _entry(self.gamma, tier)
        if given != "auto":
            return float(given)
        assert found is not None
        return float(found[0, tier])

    def _found(self, node: Node, x: Tensor) -> Generator[Any, Replies, Tensor | None]:
        """Find the pulls, none so strong that models would hardly move: here pulls also say how fast they do."""
        found = yield from found_pulls.find(self.asking, node, x)
        if found is None:
            return None
        rates = self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]
        slow = min(1 / (float(rate) * self.local_steps) for rate in rates)
        pulls = [min(found[0], slow)] if self.lam == "auto" else [self.lam]
        for tier in range(1, node.tree.top):
            given = _entry(self.gamma, tier)
            slow = pulls[-1] / int(_entry(self.team_steps, tier))
            pulls.append(min(found[tier], slow) if given == "auto" else given)
        return x.new_tensor([pulls])

    def stable(self, curvature: float) -> dict[str, float]:
        """Return alpha <= 1 / (L + lam), eta <= 1 / (pulls below and above), beta <= 1 / gamma; what is found fits."""
        if self.lam == "auto" or self.gamma == "auto":
            return {"alpha": inverse(curvature + (0.0 if self.lam == "auto" else self.lam))}
        gammas = self.gamma if isinstance(self.gamma, tuple) else (self.gamma,)
        pulls = [self.lam, *gammas]
        strongest = max(below + above for below, above in pairwise(pulls))
        limits = {"alpha": inverse(curvature + self.lam), "eta": inverse(strongest)}
        return {**limits, "beta": inverse(gammas[-1])}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Approach the proximal point of the team's model w."""
        if self.surveys and WORD in message:
            return self.asking.answer(node, message, state)
        w, pulls = found_pulls.read(message)
        state = state if pulls is None else {**state, found_pulls.ROW: pulls}
        theta = self.adapt(node, w, state)
        return theta, {**state, "model": theta}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Take the device's L steps from its parent's model."""
        if self.lam == "auto":
            return found_pulls.adapted(node, parent, state, lambda pull: self._approach(node, parent, pull))
        return self._approach(node, parent, self.lam)

    def _approach(self, node: Device, w: Tensor, lam: float) -> Tensor:
        pull = float(self.local_steps) if "device-pull" in self.as_published else lam
        return node.descend(w, steps=self.local_steps, lr=node.own(self.alpha, w), pull=pull, centre=w)

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Take K steps between the children's models and the parent's; without an answer only the parent pulls."""
        if self.surveys and WORD in message:
            return (yield from self.asking.pass_on(node, message, state))
        x, pulls = found_pulls.read(message)
        w, kept = x, {} if pulls is None else {found_pulls.ROW: pulls}
        if self.teams == "warm":
            w = torch.where(state["began"] > 0, state["model"], x)
            kept["began"] = torch.ones_like(state["began"])
        below, above = self.pull(node.tier - 1, pulls), self.pull(node.tier, pulls)
        if self.eta == "auto":
            eta: Any = 1 / (below + above) if below + above else 0.0
        else:
            eta = node.own(_entry(self.eta, node.tier), w)
        stay, pulled = 1 - eta * (below + above), eta * above * x
        for _ in range(int(_entry(self.team_steps, node.tier))):
            theta = yield Ask(found_pulls.sent(w, pulls), reduce=self.reduce, otherwise=w)
            w = stay * w + pulled + eta * below * theta.rows
        return w, {"model": w, **kept}

    def server(self, node: Node, state: State) -> Server:
        """Move towards the mean of the models below."""
        x, pulls, kept = state["model"], None, {}
        if self.surveys:
            pulls = state[found_pulls.ROW] if found_pulls.known(state) else (yield from self._found(node, x))
            if pulls is None:
                return state  # nobody answered yet
            kept = {found_pulls.ROW: pulls}
        gamma, message = self.pull(node.tier - 1, pulls), found_pulls.sent(x, pulls)
        beta = (1 / gamma if gamma else 0.0) if self.beta == "auto" else self.beta
        share = min(1.0, beta * gamma) if self.beta == "auto" else beta * gamma
        gain = beta if "line-12" in self.as_published else share
        if "stale-teams" in self.as_published:
            replies = yield Ask(message, reduce="stack")
            teams = state["teams"].view(-1, x.shape[1]).clone()
            if len(replies.positions):
                teams[replies.positions.to(x.device)] = replies.rows
            weights = node.child_samples if self.reduce == "samples" else None
            mean = segment_mean(teams, torch.zeros(len(teams), dtype=torch.int64), 1, weights)
            return {"model": (1 - share) * x + gain * mean, "teams": teams.view(1, -1), **kept}
        replies = yield Ask(message, reduce=self.reduce, otherwise=x)
        return {"model": (1 - share) * x + gain * replies.rows, **kept}


def _entry(value: Any, tier: int) -> Any:
    """Return an inner tier's own entry of a setting."""
    return value[tier - 1] if isinstance(value, Sequence) and not isinstance(value, str) else value


@settings
class PerMFL(MoreauTree):
    """Personalized multi-tier federated learning (PerMFL); all devices, and all teams, count the same.

    Attributes:
        as_published: Mistakes of the published code to repeat on purpose: ``device-pull`` pulls devices with local_steps in
            place of lam, ``stale-teams`` also averages teams that did not take part.
    """

    name: ClassVar[str] = "permfl"
    paper: ClassVar[str] = "Banerjee, Dadras, Yurtsever, Bhuyan: Personalized Multi-tier Federated Learning"
    reduce: ClassVar[Reduce] = "mean"

    as_published: tuple[Literal["device-pull", "stale-teams"], ...] = ()
