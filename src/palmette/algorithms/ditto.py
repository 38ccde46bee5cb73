"""Ditto: FedAvg for all, and beside it a personal model on every device that is pulled to the global one.

The global model x is FedAvg's. In every round in which it takes part a device also takes s personal steps on

    f_i(v) + lam/2 |v - x|^2          x: the global model it was sent

from where its personal model v, which never leaves it, was left. So ``lam = 0`` is FedAvg beside local training. Both trainings
of a round go through the same batches (`node.stream`), those of FedAvg and of local training, so that this holds bit for bit.

Published code to beware of: in PerMFL's copy of Ditto local steps edit the global model in place and what is sent is zero;
PFLlib's default of the pull is 0. Here v begins at the run's initial model; a device that never took part is measured by s
steps from the global model.

Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML
2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Rate, settings


@settings
class Ditto(Algorithm):
    """FedAvg for the global model, and a personal model on every device that is pulled to it (Ditto).

    Attributes:
        local_steps: Gradient steps of a device for the global model in every round.
        personal_steps: Gradient steps of a device's own model in every round (s in the paper).
        alpha: Learning rate of both models; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta in the paper).
        lam: Pull (proximal strength) of a device's own model to the global model (lambda in the paper).
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning (ICML 2021)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its own model as it was; the average is over those that answered, by samples."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "lam": Between(0.003, 1.0)}

    local_steps: Count = 20
    personal_steps: Count = 20
    alpha: Rate = 0.05
    lam: NonNegative = 0.1
    batch_size: BatchSize = 20

    @property
    def several_models(self) -> bool:
        """The global model and the device's own."""
        return True

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their own model, the server the global one."""
        return {"model": initial}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / (L + lam)."""
        return {"alpha": inverse(curvature + self.lam)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the global model and the device's own, on the same batches."""
        batches, rate = node.stream(), node.own(self.alpha, message)
        theta = node.descend(message, steps=self.local_steps, lr=rate, batch=batches)
        given: dict[str, Any] = {"pull": self.lam, "centre": message, "batch": batches.again()}
        return theta, {"model": node.descend(state["model"], steps=self.personal_steps, lr=rate, **given)}

    def server(self, node: Node, state: State) -> Server:
        """Average what comes back, by samples."""
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Take the personal steps from the global model."""
        rate = node.own(self.alpha, parent)
        return node.descend(parent, steps=self.personal_steps, lr=rate, pull=self.lam, centre=parent)
