"""SCAFFOLD: FedAvg with control variates, which take out what each device's own data pulls its steps away by.

Server and devices keep a guess of their gradient, c and c_i. A device takes K local steps from the global model x

    y = y - alpha (g_i(y) - c_i + c)

and renews its control variate: ``option = "I"`` takes its gradient on all its samples at x, one more gradient of the device;
``option = "II"`` reuses the steps it took, ``c_i+ = c_i - c + (x - y) / (K alpha)``. With S devices of N answering
(devices kept out of training are none of the N),

    x = x + server_lr mean (y_i - x)          c = c + |S|/N mean (c_i+ - c_i)

All devices count the same in both means, as in the paper. Two rows cross the link each way (2B). Where all devices have the
same data and take full batches, c_i = c and the global model is FedAvg's. Option II takes plain steps of size alpha for
granted: with another optimiser or a schedule of the step size it is refused; choose option I. The personal model is the
global one fine-tuned, as in FedAvg.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich, Ananda Theertha Suresh: SCAFFOLD:
Stochastic Controlled Averaging for Federated Learning, ICML 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.algorithms.fedavg import FedAvg
from palmette.blocks.statistics import with_statistics
from palmette.protocol import Ask, Device, Node, Server, State
from palmette.protocol.settings import Between, Positive, settings


@settings
class Scaffold(FedAvg):
    """Federated averaging with control variates, which keep the devices' steps from drifting apart (SCAFFOLD).

    Attributes:
        local_steps: Gradient steps of a device in every round (K in the paper).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta_l in the paper).
        server_lr: Learning rate of the server; 1 takes the devices' mean (eta_g in the paper).
        option: How a device renews its control variate: ``"I"`` by its gradient at the global model, ``"II"`` by the steps
            it took.
    """

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging (ICML 2020)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its control variate, which still counts in the server's; "
        "the model's mean is over those that answered."
    )
    search: ClassVar[Mapping[str, Between]] = FedAvg.search

    server_lr: Positive = 1.0
    option: Literal["I", "II"] = "II"

    @property
    def plain_steps(self) -> bool:
        """Option II reads the gradients off the steps that were taken."""
        return self.option == "II"

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Every node keeps its control variate, and the server the model."""
        own = {"control": torch.zeros_like(initial)}
        return {"model": initial, **own} if node.tier else own

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train with the gradient corrected, and renew the control variate."""
        x, own, rate = message["model"], state["control"], node.own(self.alpha, message["model"])
        shift = message["control"] - own
        y = node.descend(x, steps=self.local_steps, lr=rate, shift=shift)
        control = node.gradient(x) if self.option == "I" else (x - y) / (self.local_steps * rate) - shift
        return {"model": y - x, "control": control - own}, {"control": control}

    def server(self, node: Node, state: State) -> Server:
        """Move by the mean of the devices' moves; those that did not answer count as unmoved in the control variate."""
        still = torch.zeros_like(state["model"])
        kept = {name: state[name] for name in ("model", "control")}
        moves = yield Ask(kept, otherwise={"model": still, "control": still})
        share = (moves.count / moves.members).to(still)[:, None]
        mean = state["model"] + moves["model"]
        return {
            "model": with_statistics(node.layout, state["model"] + self.server_lr * moves["model"], mean),
            "control": state["control"] + share * moves["control"],
        }
