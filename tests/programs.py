"""Methods written against the protocol alone, to prove its powers before anything is built on it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State
from palmette.protocol.settings import BatchSize, settings
from palmette.tree import Tree


@settings
class AsyncL2GD(Algorithm):
    """Coins at the server and in every team: masks, numbers per row, local runs that cost no exchange."""

    name: ClassVar[str] = "async-l2gd"
    paper: ClassVar[str] = "a test program"
    tiers: ClassVar[tuple[int, ...]] = (3,)
    iterations: int = 20
    between: float = 0.2  # p_0
    within: float = 0.3  # p_i
    a: float = 0.25
    c: float = 0.5
    tau: float = 0.2
    eta: float = 0.05
    batch_size: BatchSize = "full"

    def keeps(self, node: Node, initial: Tensor) -> State:
        return {"mean": initial} if node.tier == 1 else {"model": initial}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        theta = message["keep"][:, None] * state["model"] + message["add"]
        lr = self.eta / ((1 - self.between) * (1 - self.within))
        theta = node.descend(theta, steps=message["steps"], lr=lr, batch="full")
        return theta, {"model": theta}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        gain = message["mixed"] * self.eta * self.c / self.between
        keep = message["mean"].new_full((len(node),), 1 - gain * (self.a + self.tau * (1 - self.a)))
        add = gain * (self.a * message["mean"] + self.tau * (1 - self.a) * state["mean"])
        steps = torch.zeros(len(node), dtype=torch.int64)
        s = self.eta * self.c * (1 - self.tau) * (1 - self.a) / ((1 - self.between) * self.within)
        for i in range(message["first"], message["last"]):
            meet = node.uniform("within", i) < self.within
            got = yield Ask({"keep": keep, "add": add, "steps": steps}, to=meet, otherwise=add)
            keep, add = torch.where(meet, 1 - s, keep), torch.where(meet[:, None], s * got.rows, add)
            steps = torch.where(meet, 0, steps + 1)
        got = yield Ask({"keep": keep, "add": add, "steps": steps})
        return got.rows, {"mean": got.rows}

    def server(self, node: Node, state: State) -> Server:
        meetings = [i for i in range(self.iterations) if bool(node.uniform("between", i) < self.between)]
        mean, mixed, first = state["model"], 0.0, 0
        for last in [*meetings, self.iterations]:
            sizes = torch.from_numpy(node.tree.offsets[0]).diff().double()
            ask = {"first": first, "last": last, "mean": mean, "mixed": mixed}
            got = yield Ask(ask, weights=sizes)
            mean, mixed, first = got.rows, 1.0, last + 1
        return {"model": mean}


@settings
class TwoStages(Algorithm):
    """First one model for all, then each team alone from there: stages, and ticks without messages."""

    name: ClassVar[str] = "two-stages"
    paper: ClassVar[str] = "a test program"
    first: int = 2
    lr: float = 0.1
    batch_size: BatchSize = "full"

    def keeps(self, node: Node, initial: Tensor) -> State:
        return {"model": initial} if node.tier else {}

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        return int(round_ >= self.first)

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        return node.descend(message, steps=2, lr=self.lr), state

    def team(self, node: Node, message: Any, state: State) -> Inner:
        got = yield Ask(state["model"] if message is None else message, reduce="samples", otherwise=state["model"])
        return (got.rows if node.stage == 0 else None), {"model": got.rows}

    def server(self, node: Node, state: State) -> Server:
        x = state["model"]
        if node.stage == 0:
            got = yield Ask(x, reduce="samples", otherwise=x)
            return {"model": got.rows}
        yield Ask(x if node.round == self.first else None)
        return state


# A method of a user's own, as a file.
METHOD = '''
from typing import Any, ClassVar
import palmette as pm

@pm.settings
class Mine(pm.Algorithm):
    """Plain averaging.

    Attributes:
        lr: Learning rate of the devices (eta in the paper).
    """
    name: ClassVar[str] = "plain"
    flat: ClassVar[bool] = True
    lr: float = 0.1
    batch_size: int = 5
    def device(self, node, w, state):
        return node.descend(w, steps=2, lr=self.lr), state
    def server(self, node, state):
        replies = yield pm.Ask(state["model"], otherwise=state["model"])
        return {"model": replies.rows}
'''
