"""Halfway: a node that hears from its parent begins between its own model and the parent's."""

from typing import Any, ClassVar

import torch
from torch import Tensor

import palmette as pm
from palmette.protocol import Inner, Server, State
from palmette.protocol.settings import BatchSize, Count, Positive, Share


@pm.settings
class Halfway(pm.Algorithm):
    """Averaging on trees in which every node keeps a model of its own and only goes towards its parent's.

    Attributes:
        local_steps: Gradient steps of a device each time its team asks.
        team_steps: How often a team asks its devices in every global round.
        alpha: Learning rate of the devices; called as in other methods, so that one setting serves all.
        device_mix: How far a device goes towards its team's model before it trains: 0 stays, 1 takes it over.
        team_mix: How far a team goes towards the global model.
    """

    name: ClassVar[str] = "halfway"

    local_steps: Count = 10
    team_steps: Count = 5
    alpha: Positive = 0.3
    device_mix: Share = 0.5
    team_mix: Share = 0.5
    batch_size: BatchSize = 20

    def keeps(self, node: pm.Node, initial: Tensor) -> State:
        """Keep a model on every node: PM, TM and GM."""
        return {"model": initial}

    def device(self, node: pm.Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Go towards the team's model, train, and send the result."""
        start = torch.lerp(state["model"], message, self.device_mix)
        theta = node.descend(start, steps=self.local_steps, lr=self.alpha)
        return theta, {"model": theta}

    def team(self, node: pm.Node, message: Any, state: State) -> Inner:
        """Go towards the global model, then average the devices' models a few times."""
        w = torch.lerp(state["model"], message, self.team_mix)
        for _ in range(self.team_steps):
            replies = yield pm.Ask(w, reduce="samples", otherwise=w)
            w = replies.rows
        return w, {"model": w}

    def server(self, node: pm.Node, state: State) -> Server:
        """Average the teams' models."""
        replies = yield pm.Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}
