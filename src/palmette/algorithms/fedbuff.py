"""FedBuff: asynchronous averaging with a buffer, at the server and in every team.

A node sends its model to all children that are not at work, and goes on without waiting. When the first ``buffer`` of those at
work have ended, it moves by the mean of what they moved by, each scaled down by how old the model is that it began from:

    w <- w + server_lr * mean_j  (theta_j - w_sent_j) / sqrt(1 + tau_j)          tau_j: updates of w since it was sent to j

So fast children come round more often, and slow ones never hold up the others. A team makes ``team_steps`` such updates from
the model its parent sent and then has an update of its own; the server does with teams as teams with devices. A round is one
update of the server. Who ends first is told by the simulated clock (``clock.*``, ``links.*.latency``), so a run is repeated to
the bit; without a clock it is drawn by lot. Where ``buffer`` and ``team_buffer`` count everybody it is hierarchical FedAvg with
equal weights.

A child trains when it is asked, and keeps its update until that is fetched: so nothing but the nodes' own rows has to be kept
between two rounds.

John Nguyen, Kshitiz Malik, Hongyuan Zhan, Ashkan Yousefpour, Michael Rabbat, Mani Malek, Dzmitry Huba: Federated Learning with
Buffered Asynchronous Aggregation, AISTATS 2022.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Inner, ModelKind, Node, Replies, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Positive, Rate, settings


@settings
class FedBuff(Algorithm):
    """Asynchronous averaging (FedBuff): whoever ends first counts, and old updates count less.

    Attributes:
        buffer: Devices' updates that a team (the server, where there are no teams) waits for before it moves (K in the paper).
        team_buffer: Teams' updates that the server waits for before it moves.
        team_steps: Updates of a team between two of its answers to the server.
        local_steps: Gradient steps of a device for one update (Q in the paper).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta_l in the paper).
        server_lr: Learning rate of server and teams; 1 takes the mean of the updates (eta_g in the paper).
        tune_steps: Gradient steps of fine-tuning that make a device's own model from its team's.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "fedbuff"
    paper: ClassVar[str] = "Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation (AISTATS 2022)"
    absent: ClassVar[str] = (
        "A device that is left out is sent the next model; one whose update is lost on its way keeps it and is fetched again."
    )
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "tune_steps": Between(5, 80, whole=True)}

    buffer: Count = 5
    team_buffer: Count = 1
    team_steps: Count = 10
    local_steps: Count = 20
    alpha: Rate = 0.05
    server_lr: Positive = 1.0
    tune_steps: Count = 20
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Every node has a model; a device's own is its team's fine-tuned."""
        return ("PM", "TM", "GM")

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Below the server an update that waits to be fetched and how old its beginning is, above the devices a model."""
        waiting = {"update": torch.zeros_like(initial), "began": initial.new_zeros(1)}
        own = {"model": initial, "moves": initial.new_zeros(1)}
        return {**(own if node.tier else {}), **(waiting if node.tier < node.tree.top else {})}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train the model that was sent and keep the update, or hand it over."""
        if "model" not in message:
            return _scaled(message, state), state
        begun = message["model"]
        trained = node.descend(begun, steps=self.local_steps, lr=node.own(self.alpha, begun))
        return None, {"update": trained - begun, "began": message["moves"]}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Make some updates from the model that was sent and keep what came of it, or hand it over."""
        if "model" not in message:
            return _scaled(message, state), state
        model, moves = message["model"], state["moves"]
        for _ in range(self.team_steps):
            model, moves = yield from self._move(node, model, moves)
        kept = {"update": model - message["model"], "began": message["moves"]}
        return None, {"model": model, "moves": moves, **kept}

    def server(self, node: Node, state: State) -> Server:
        """Move once."""
        model, moves = yield from self._move(node, state["model"], state["moves"])
        return {"model": model, "moves": moves}

    def _move(self, node: Node, model: Tensor, moves: Tensor) -> Generator[Ask, Replies, tuple[Tensor, Tensor]]:
        """Send the model to all that are not at work, and move by the updates of those that end first."""
        yield Ask({"model": model, "moves": moves}, wait=False)
        first = self.buffer if node.tier == 1 else self.team_buffer
        got = yield Ask({"moves": moves}, first=first, otherwise=torch.zeros_like(model))
        return model + self.server_lr * got.rows, moves + 1

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the team's model."""
        return node.descend(parent, steps=self.tune_steps, lr=node.own(self.alpha, parent))


def _scaled(message: Any, state: State) -> Tensor:
    """Return the updates that wait, each scaled down by the moves of its parent since it began."""
    return state["update"] / torch.sqrt(1 + message["moves"] - state["began"])
