"""Local training: every device by itself, no communication at all. The measure of what federation is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Rate, settings


@settings
class Local(Algorithm):
    """Local training: each device trains its own model alone, all from the same initial model.

    Attributes:
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "The baseline that every paper compares with"
    absent: ClassVar[str] = "A device that is left out of a round does not train in it."
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0)}

    local_steps: Count = 20
    alpha: Rate = 0.05
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Only devices have models."""
        return ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model; the server's never changes."""
        return {"model": initial}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[None, State]:
        """Go on training where the device left off."""
        model = state["model"]
        return None, {"model": node.descend(model, steps=self.local_steps, lr=node.own(self.alpha, model))}

    def server(self, node: Node, state: State) -> Server:
        """Let the devices work; nothing is sent."""
        yield Ask(None)
        return state
