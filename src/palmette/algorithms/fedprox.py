"""FedProx: FedAvg whose devices are pulled to the global model while they train.

A device approaches the minimiser of

    f_i(theta) + lam/2 |theta - x|^2

by ``local_steps`` gradient steps from the global model x, and the server averages what comes back by samples. With ``lam = 0``
it is FedAvg, bit for bit. The paper lets slow devices stop early; here all take the same number of steps. The personal model is
the global one after ``tune_steps`` more steps without the pull, as in FedAvg.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith: Federated Optimization in
Heterogeneous Networks, MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from palmette.algorithms.fedavg import FedAvg
from palmette.protocol import Device, State, inverse
from palmette.protocol.settings import Between, NonNegative, settings


@settings
class FedProx(FedAvg):
    """Federated averaging whose devices are pulled to the global model (FedProx).

    Attributes:
        lam: Pull (proximal strength) of a device's model to the global model while it trains (mu in the paper).
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al.: Federated Optimization in Heterogeneous Networks (MLSys 2020)"
    search: ClassVar[Mapping[str, Between]] = {**FedAvg.search, "lam": Between(0.001, 1.0)}

    lam: NonNegative = 0.01

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / (L + lam)."""
        return {"alpha": inverse(curvature + self.lam)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the global model on the device's own data, pulled back to it."""
        rate = node.own(self.alpha, message)
        return node.descend(message, steps=self.local_steps, lr=rate, pull=self.lam, centre=message), state
