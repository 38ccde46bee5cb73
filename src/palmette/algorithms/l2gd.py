"""Async-L2GD (Algorithm 1): personal models drawn to their team's mean and to the mean of all, by coins.

It minimises, over one model per device,

    sum_ij f_ij(theta_ij) + (1 - a_i) c_ij / 2 |theta_ij - tb_i|^2 + a_i c_ij / 2 |theta_ij - tb|^2

(`palmette.blocks.mixing` says what the letters are, and how the same ``lam`` and ``gamma`` give PerMFL's minimiser). At
every iteration one coin decides whether all teams average; if not, every team flips its own and either averages or lets its
devices take a gradient step. Consecutive local steps cost no exchange. With a constant step it comes near the minimiser and
then wanders in a ball that shrinks with ``eta``; with ``decrease`` it converges. A round is ``iterations`` iterations; at its
end every model is brought up to date, which costs one exchange of its own. A device that is absent misses the iterations
since its team's last exchange; a team that nobody answers keeps the mean it had.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks import found_pulls, mixing
from palmette.blocks.survey import WORD, Way
from palmette.blocks.surveyed import bare
from palmette.protocol import Ask, Device, Inner, Node, PerChild, Replies, Server, State
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, settings
from palmette.tree import Tree

Chance = Annotated[float, Field(ge=0, lt=1)]


@settings
class CoinTree(found_pulls.FindsPulls):
    """The programs of Async-L2GD and its single-coin variant; the two differ in their coins.

    Attributes:
        lam: Pull (penalty) of a device's model to its team's mean, PerMFL's lambda; also one number per device name;
            ``"auto"`` finds it in the first round from how different devices are, at most 10 times L (gamma_i in the paper).
        gamma: Pull (penalty) of a team's mean to the mean of all, PerMFL's gamma; also one number per team name; times the
            team's number of devices it is the paper's penalty of a cluster; ``"auto"`` finds it from how different teams are,
            at most 10 times lam (lambda_j in the paper).
        eta: Learning rate of all steps; ``"auto"`` is 1 / (2 Lc) of Theorem 3.5 (eta in the paper).
        decrease: Decay of the learning rate: in round r it is eta / (1 + decrease * r); 0 keeps it constant.
        smoothness: Smoothness of the devices' losses, their largest curvature; ``"auto"`` estimates it in the first round
            (L in the paper).
        iterations: Iterations in a round; each flips the coins once.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
        survey: What leaves a device to find ``"auto"`` pulls: ``"moments"`` are second moments of its samples, which its team
            sees; ``"sums"`` are numbers of which the team needs only the sum over its devices.
    """

    paper: ClassVar[str] = mixing.PAPER
    absent: ClassVar[str] = (
        "A device that is left out misses the iterations since its team's last exchange; a team without answers keeps its mean."
    )
    tiers: ClassVar[tuple[int, ...] | None] = (3,)
    search: ClassVar[Mapping[str, Between]] = {"lam": Between(0.01, 1.0), "gamma": Between(0.0003, 0.1)}
    by_name: ClassVar[Mapping[str, int]] = {"lam": 0, "gamma": 1, "within": 1}

    lam: Literal["auto"] | Positive | dict[str, Positive] = 0.1
    gamma: Literal["auto"] | NonNegative | dict[str, NonNegative] = 0.01
    eta: Literal["auto"] | Positive = "auto"
    decrease: NonNegative = 0.0
    smoothness: Literal["auto"] | Positive = "auto"
    iterations: Count = 100
    batch_size: BatchSize = "full"
    survey: Way = "moments"

    @abstractmethod
    def coins(self, tree: Tree, pulls: mixing.Pulls, smoothness: float) -> mixing.Coins:
        """Return the coins of the run."""

    def check(self, tree: Tree) -> None:
        """Refuse other trees, and settings that do not fit this one."""
        super().check(tree)
        if not self.surveys:
            self.coins(tree, mixing.Pulls.on(tree, self.lam, self.gamma), 1.0)

    def _lam(self, found: Tensor | None) -> Any:
        """Return the pulls of devices, given or found."""
        return self.lam if self.lam != "auto" else float(found[0, 0]) if found is not None else 0.0

    def _pulls(self, node: Node, found: Tensor | None) -> mixing.Pulls:
        gamma = self.gamma if self.gamma != "auto" else float(found[0, 1]) if found is not None else 0.0
        return mixing.Pulls.on(node.tree, self._lam(found), gamma)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Every node keeps its model, teams and server count their averages, the server remembers L."""
        found = found_pulls.keeps(self.asking, node, initial) if self.surveys else {}
        if node.tier == 0:
            return {"model": initial, **found}
        own = {"mean": initial} if node.tier == 1 else {"smoothness": initial.new_zeros(1)}
        return {"model": initial, "counts": mixing.no_counts(), **own, **found}

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell the averages that were asked for, over all teams and within each, and the pulls that were found."""
        told = mixing.told_counts(node, state)
        if not self.surveys or node.tier == node.tree.top:
            return told
        return {**told, "pull": state[found_pulls.ROW][:, node.tier]}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Move to the centre that is due, then take the local steps since."""
        theta = state["model"]
        if WORD in message:
            return self.asking.answer(node, message, state)
        if "estimate" in message:
            return mixing.smoothness(node, theta), state
        found = message[found_pulls.ROW][:, 0] if self.surveys else None
        step = node.own(self._lam(found), theta) * message["gain"].to(theta)[:, None]
        theta = (1 - step) * theta + step * message["centre"]
        theta = node.descend(theta, steps=message["steps"], lr=message["rate"])
        return theta, {**state, "model": theta, **({} if found is None else {found_pulls.ROW: found})}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Flip the team's coin at every iteration between two averages over all teams."""
        if WORD in message:
            return (yield from self.asking.pass_on(node, message, state))
        if "estimate" in message:
            return (yield from mixing.largest(message, state["mean"].new_zeros(len(node), 1))), state
        if "last" not in message:
            return None, mixing.settled(message, state)
        told = {name: message[name] for name in message if name == found_pulls.ROW}
        found = told[found_pulls.ROW][:, 0] if told else None
        mean, weights = state["mean"], mixing.weights_of(node, self._lam(found), state["mean"])
        gain, share = message["eta"] * message["mixed"] * message["joint"], message["share"].to(mean)[:, None]
        centre, rate = share * message["mean"] + (1 - share) * mean, message["eta"] * message["local"]
        first, last = message["first"], message["last"]
        fell, since = mixing.flips(node, "within", message["within"], first, last), torch.full((len(node),), first)
        for i in fell.any(1).nonzero().flatten().tolist():
            meet, rows = fell[i], fell[i].to(mean.device)[:, None]
            ask = {"gain": gain, "centre": centre, "steps": first + i - since, "rate": rate, **told}
            got = yield Ask(ask, to=meet, weights=weights, otherwise=mean)
            mean, gain = torch.where(rows, got.rows, mean), torch.where(meet, message["eta"] * message["apart"], gain)
            centre, since = torch.where(rows, mean, centre), torch.where(meet, first + i + 1, since)
        ask = {"gain": gain, "centre": centre, "steps": last - since, "rate": rate, **told}
        got = yield Ask(ask, weights=weights, otherwise=mean)
        counts = mixing.count(state["counts"], fell)
        kept = {} if found is None else {found_pulls.ROW: found}
        return got.rows, {**state, "mean": got.rows, "counts": counts, **kept}

    def server(self, node: Node, state: State) -> Server:
        """Flip the coin of all teams at every iteration, and have everybody up to date at the end."""
        smooth = (
            state["smoothness"] if self.smoothness == "auto" else torch.full_like(state["smoothness"], self.smoothness)
        )
        if not bool(smooth):
            smooth = yield from mixing.largest({"estimate": 1}, smooth)
            if not bool(smooth):
                return state  # nobody answered yet
        found = None
        if self.surveys:
            found = (
                state[found_pulls.ROW] if found_pulls.known(state) else (yield from self._found(node, state, smooth))
            )
            if found is None:
                return {**state, "smoothness": smooth}  # nobody answered yet
            state = {**state, found_pulls.ROW: found}
        pulls = self._pulls(node, found)
        coins = self.coins(node.tree, pulls, float(smooth))
        eta = coins.step(pulls, float(smooth)) if self.eta == "auto" else self.eta
        plan: dict[str, Any] = {name: PerChild(torch.from_numpy(gain)) for name, gain in coins.gains(pulls).items()}
        plan |= {"within": PerChild(torch.from_numpy(coins.within)), "eta": eta / (1 + self.decrease * node.round)}
        if (coins.within == coins.within[0]).all():
            plan["local"] = float(coins.gains(pulls)["local"][0])  # one number, so that devices step in one product
        plan |= {} if found is None else {found_pulls.ROW: bare(found)}
        fell = mixing.flips(node, "between", coins.between, 0, self.iterations)
        mean, first = state["model"], 0
        for last in [*fell.any(1).nonzero().flatten().tolist(), self.iterations]:
            ask = {"first": first, "last": last, "mean": mean, "mixed": float(first > 0), **plan}
            got = yield Ask(ask, weights=pulls.weights, otherwise=mean)
            mean, first = got.rows, last + 1
        yield Ask({"mean": mean, "mix": PerChild(torch.from_numpy(pulls.mix))}, otherwise=mean)
        return {**state, "model": mean, "counts": mixing.count(state["counts"], fell), "smoothness": smooth}

    def _found(self, node: Node, state: State, smooth: Tensor) -> Generator[Any, Replies, Tensor | None]:
        """Find the pulls, none so strong that there would be almost no local steps."""
        found = yield from found_pulls.find(self.asking, node, state["model"])
        if found is None:
            return None
        lam = min(found[0], 10 * float(smooth)) if self.lam == "auto" else found[0]
        strongest = max(self.lam.values()) if isinstance(self.lam, dict) else lam if self.lam == "auto" else self.lam
        gamma = min(found[1], 10 * strongest) if self.gamma == "auto" else found[1]
        return state["model"].new_tensor([[lam, gamma]])


@settings
class L2GD(CoinTree):
    """Async-L2GD: in every iteration coins decide whether devices take local steps, teams average, or all average.

    Attributes:
        between: Chance that all teams average in an iteration; ``"auto"`` follows Corollary 3.6 (p_0 in the paper).
        within: Chance that a team averages in an iteration in which not all do; also one number per team name; ``"auto"``
            follows Corollary 3.6 (p_j in the paper).
    """

    name: ClassVar[str] = "l2gd"

    between: Literal["auto"] | Chance = "auto"
    within: Literal["auto"] | Chance | dict[str, Chance] = "auto"

    def coins(self, tree: Tree, pulls: mixing.Pulls, smoothness: float) -> mixing.Coins:
        """Return the coins of Corollary 3.6, or those that were set."""
        return mixing.Coins.fair(tree, pulls, smoothness, self.between, self.within)
