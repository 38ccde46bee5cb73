"""FedAvg: devices train the global model for a few steps, the server averages them by samples.

The personal model is the global one after ``tune_steps`` more steps on the device's own data.

Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Rate, settings


@settings
class FedAvg(Algorithm):
    """Federated averaging without teams; a device's own model (PM) is the global model fine-tuned.

    Attributes:
        local_steps: Gradient steps of a device in every round (the paper counts E epochs).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta in the paper).
        tune_steps: Gradient steps of fine-tuning that make a device's own model from the global one.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has (B in the paper).
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al.: Communication-Efficient Learning of Deep Networks (AISTATS 2017)"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; the average is over those that answered, by their samples."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "tune_steps": Between(5, 80, whole=True)}

    local_steps: Count = 20
    alpha: Rate = 0.05
    tune_steps: Count = 20
    batch_size: BatchSize = 20

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the global model on the device's own data."""
        return node.descend(message, steps=self.local_steps, lr=node.own(self.alpha, message)), state

    def server(self, node: Node, state: State) -> Server:
        """Average what comes back, by samples."""
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the global model."""
        return node.descend(parent, steps=self.tune_steps, lr=node.own(self.alpha, parent))
