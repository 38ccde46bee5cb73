"""Async-AL2SGD+ (Algorithm 2): Async-L2GD accelerated and without noise at the end, one sample per step.

It minimises what `palmette.algorithms.l2gd` does, with the same coins, by loopless Katyusha: every device keeps a reference
``ref`` with the full gradient of the objective there (``slope``), and two sequences y (its model) and z. An iteration takes
``theta = a1 z + a2 ref + (1 - a1 - a2) y``, the slope corrected by what the coins chose (``g``), and moves

    y = theta - eta g,    z = b1 z + (1 - b1) theta - b2 g;

with chance ``refresh`` (rho) the reference then becomes y everywhere, one global exchange and a broadcast. All constants follow
Corollary 4.4 from the smoothness of single samples and the strong convexity of the losses. The estimator (4.1) is printed
without the pull to the team's mean in averages over all teams, which makes it biased; ``as_published=["estimator"]`` has it so.
Absent devices miss the iterations since their team's last exchange; what is estimated is that of the devices present then.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks import mixing
from palmette.blocks.katyusha import katyusha
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, PerChild, Server, State
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, settings
from palmette.tree import Tree


@settings
class AL2SGD(Algorithm):
    """Async-AL2SGD+: accelerated Async-L2GD with variance-reduced gradients, so it converges to the exact minimiser.

    Attributes:
        lam: Pull (penalty) of a device's model to its team's mean, PerMFL's lambda; also one number per device name
            (gamma_i in the paper).
        gamma: Pull (penalty) of a team's mean to the mean of all, PerMFL's gamma; also one number per team name; times the
            team's number of devices it is the paper's penalty of a cluster (lambda_j in the paper).
        refresh: Chance that the reference models are renewed in an iteration (rho in the paper).
        smoothness: Smoothness of the loss on one mini-batch, its largest curvature; ``"auto"`` estimates it in the first round
            (L in the paper).
        convexity: Strong convexity of the devices' losses, their least curvature; ``"auto"`` estimates it in the first round
            (mu in the paper).
        iterations: Iterations in a round; each flips the coins once.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
        as_published: Mistakes of the paper to repeat on purpose: ``estimator`` leaves the pull to the team's
            mean out of averages over all.
    """

    name: ClassVar[str] = "al2sgd"
    paper: ClassVar[str] = mixing.PAPER
    absent: ClassVar[str] = (
        "A device that is left out misses the iterations since its team's last exchange; averages are over those that answered."
    )
    tiers: ClassVar[tuple[int, ...] | None] = (3,)
    search: ClassVar[Mapping[str, Between]] = {"lam": Between(0.01, 1.0), "gamma": Between(0.0003, 0.1)}
    by_name: ClassVar[Mapping[str, int]] = {"lam": 0, "gamma": 1}

    lam: Positive | dict[str, Positive] = 0.1
    gamma: NonNegative | dict[str, NonNegative] = 0.01
    refresh: Annotated[float, Field(gt=0, le=1)] = 0.1
    smoothness: Literal["auto"] | Positive = "auto"
    convexity: Literal["auto"] | Positive = "auto"
    iterations: Count = 100
    batch_size: BatchSize = 1
    as_published: tuple[Literal["estimator"], ...] = ()

    def check(self, tree: Tree) -> None:
        """Refuse other trees, and pulls that do not fit this one."""
        super().check(tree)
        mixing.Pulls.on(tree, self.lam, self.gamma)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep y (their model), z, the reference and its slope; teams their means; the server the constants."""
        if node.tier == 0:
            return {"model": initial, "z": initial, "ref": initial, "slope": torch.zeros_like(initial)}
        zero = torch.zeros_like(initial)
        own = {"mean": initial, "delta": zero} if node.tier == 1 else {"constants": initial.new_zeros(2)}
        return {"model": initial, "counts": mixing.no_counts(), **own}

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell the averages that were asked for, over all teams and within each."""
        return mixing.told_counts(node, state)

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Take the averaging iteration that is due, then the local ones since."""
        y, z, ref, slope = (state[name] for name in ("model", "z", "ref", "slope"))
        if "estimate" in message:
            whole = mixing.smoothness(node, y)
            batch = mixing.batch_smoothness(node, y, whole, self.batch_size)
            return torch.cat([batch, 1 / mixing.convexity(node, y, whole)], 1), state
        if "anchor" in message:
            slope = node.gradient(y) + node.own(self.lam, y) * (y - message["anchor"])
            return None, {**state, "ref": y, "slope": slope}
        eta, a1, a2, b1, b2 = (message[name] for name in ("eta", "a1", "a2", "b1", "b2"))

        def theta() -> Tensor:
            now: Tensor = a1 * z + a2 * ref + (1 - a1 - a2) * y
            return now

        def move(now: Tensor, correction: Tensor, where: Tensor) -> None:
            nonlocal y, z
            g, where = slope + correction, where.to(y.device)[:, None]
            y = torch.where(where, now - eta * g, y)
            z = torch.where(where, b1 * z + (1 - b1) * now - b2 * g, z)

        gain, now = message["gain"].to(y)[:, None], theta()
        move(now, node.own(self.lam, y) * gain * (now - ref - message["centre"]), message["due"])
        for step in range(int(message["steps"].max())):
            now, active = theta(), message["steps"] > step
            gradient = node.oracle("next", where=active)
            move(now, message["rate"] * (gradient(now) - gradient(ref)), active)
        return theta() - ref if message["delta"] else y, {**state, "model": y, "z": z}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Flip the team's coin at every iteration between two events of the server."""
        if "estimate" in message:
            return (yield from mixing.largest(message, state["mean"].new_zeros(len(node), 2))), state
        if "mix" in message:
            state = mixing.settled(message, state)
            if message["refreshed"]:
                yield Ask({"anchor": state["model"]}, otherwise=state["model"])
            return None, state
        delta, weights = state["delta"], mixing.weights_of(node, self.lam, state["mean"])
        gain, due = message["joint"], torch.full((len(node),), message["mixed"])
        share = message["share"].to(delta)[:, None]
        centre = share * message["mean"] + (1 - share) * delta
        ask = {name: message[name] for name in ("eta", "a1", "a2", "b1", "b2")} | {"rate": message["local"]}
        first, last = message["first"], message["last"]
        fell, since = mixing.flips(node, "within", message["within"], first, last), torch.full((len(node),), first)
        for i in fell.any(1).nonzero().flatten().tolist():
            meet, rows = fell[i], fell[i].to(delta.device)[:, None]
            now = {**ask, "due": due, "gain": gain, "centre": centre, "steps": first + i - since, "delta": 1}
            got = yield Ask(now, to=meet, weights=weights, otherwise=delta)
            delta, gain = torch.where(rows, got.rows, delta), torch.where(meet, message["apart"], gain)
            centre, since, due = torch.where(rows, delta, centre), torch.where(meet, first + i + 1, since), due | meet
        now = {**ask, "due": due, "gain": gain, "centre": centre, "steps": last - since, "delta": message["delta"]}
        got = yield Ask(now, weights=weights, otherwise=delta if message["delta"] else state["mean"])
        kept = {"delta" if message["delta"] else "mean": got.rows, "counts": mixing.count(state["counts"], fell)}
        return got.rows, {**state, **kept}

    def server(self, node: Node, state: State) -> Server:
        """Flip the coins of all teams and of the reference, and have everybody up to date at the end."""
        mean, constants = state["model"], state["constants"]
        pulls = mixing.Pulls.on(node.tree, self.lam, self.gamma)
        settle = {"mix": PerChild(torch.from_numpy(pulls.mix))}
        if not bool(constants[0, 0]):
            if "auto" in (self.smoothness, self.convexity):
                constants = yield from mixing.largest({"estimate": 1}, constants)
                if not bool(constants[0, 0]):
                    return state  # nobody answered yet
            smooth = float(constants[0, 0]) if self.smoothness == "auto" else self.smoothness
            inverse = float(constants[0, 1]) if self.convexity == "auto" else 1 / self.convexity
            constants = constants.new_tensor([[smooth, inverse]])
            yield Ask({**settle, "mean": mean, "refreshed": 1}, otherwise=mean)  # all references start alike
        smoothness, convexity = float(constants[0, 0]), 1 / float(constants[0, 1])
        coins = mixing.Coins.fair(node.tree, pulls, smoothness)
        gains = coins.gains(pulls, "estimator" in self.as_published)
        plan: dict[str, Any] = {name: PerChild(torch.from_numpy(gain)) for name, gain in gains.items()}
        plan |= {"within": PerChild(torch.from_numpy(coins.within)), "local": float(gains["local"][0])}
        plan |= katyusha(
            max(coins.terms(pulls, smoothness)), smoothness + float(pulls.device.max()), convexity, self.refresh
        )
        shift, mixed, first = torch.zeros_like(mean), False, 0
        together = mixing.flips(node, "between", coins.between, 0, self.iterations)
        renew = mixing.flips(node, "refresh", self.refresh, 0, self.iterations)
        for i in range(self.iterations):
            if bool(together[i]):
                ask = {**plan, "first": first, "last": i, "mean": shift, "mixed": mixed, "delta": 1}
                got = yield Ask(ask, weights=pulls.weights, otherwise=shift)
                shift, mixed, first = got.rows, True, i + 1
            if bool(renew[i]) or i + 1 == self.iterations:
                ask = {**plan, "first": first, "last": i + 1, "mean": shift, "mixed": mixed, "delta": 0}
                got = yield Ask(ask, weights=pulls.weights, otherwise=mean)
                mean, mixed, first = got.rows, False, i + 1
                yield Ask({**settle, "mean": mean, "refreshed": int(renew[i])}, otherwise=mean)
        return {"model": mean, "counts": mixing.count(state["counts"], together), "constants": constants}
