"""pFedMe: personal models in a Moreau envelope around the global one.

It minimises, over the global model x,

    mean_i min_theta [ f_i(theta) + lam/2 |theta - x|^2 ]

A device begins with ``w = theta = x``. In each of R local steps it takes a batch, approaches the prox of w by K gradient steps
on that one batch, going on from its last theta, and moves its copy of the global model:

    K times  theta = theta - alpha (g(theta) + lam (theta - w))          then  w = w - eta lam (w - theta)

The server mixes, ``x = (1 - beta) x + beta mean w``. The personal model is theta.

Readings: all devices count the same, as in the objective; the authors' code weights them by samples (``weights = "samples"``).
Their code adds ``mu theta``, mu = 0.001, to the gradient: that is weight decay, here the model's own setting (``model.l2``).
It also trains all devices and averages some; here, as in the paper, those left out do nothing.

Canh T. Dinh, Nguyen H. Tran, Tuan Dung Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.blocks.statistics import with_statistics
from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Positive, Rate, settings

# MNIST, multinomial logistic regression: 20 devices of which 5 take part, 800 rounds.
PUBLISHED = {"local_steps": 20, "prox_steps": 5, "alpha": 0.1, "eta": 0.005, "lam": 15.0, "beta": 1.0, "batch_size": 20}


@settings
class PFedMe(Algorithm):
    """Personalized federated learning with Moreau envelopes (pFedMe): own models are pulled to the global one.

    Attributes:
        local_steps: Steps of a device's copy of the global model in every round (R in the paper).
        prox_steps: Gradient steps of a device's own model before each of these, all on one mini-batch (K in the paper).
        alpha: Learning rate of a device's own model; also one number per device name, or ``"auto"`` for the largest that is
            stable.
        lam: Pull (proximal strength) of a device's own model to its copy of the global model (lambda in the paper).
        eta: Learning rate of a device's copy of the global model, which moves by eta * lam to its own (eta in the paper).
        beta: How far the server moves to the mean of the devices; 1 takes the mean (beta in the paper).
        weights: Weights of the server's mean: ``"equal"`` counts all devices alike, ``"samples"`` by training samples.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes (NeurIPS 2020)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its own model as it was; the server's mean is over those that answered."
    )
    flat: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "lam": Between(0.03, 10.0),
        "eta": Between(0.01, 1.0),
    }

    local_steps: Count = 20
    prox_steps: Count = 5
    alpha: Rate = 0.05
    lam: Positive = 1.0
    eta: Positive = 0.1
    beta: Positive = 1.0
    weights: Literal["equal", "samples"] = "equal"
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their own model, the server the global one."""
        return {"model": initial}

    def stable(self, curvature: float) -> dict[str, float]:
        """Return alpha <= 1 / (L + lam) and eta <= 1 / lam, with which a device's copy of the global model is its own."""
        return {"alpha": inverse(curvature + self.lam), "eta": inverse(self.lam)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Reply with the device's copy of the global model; keep its own."""
        theta, w = self._train(node, message)
        return w, {"model": theta}

    def _train(self, node: Device, x: Tensor) -> tuple[Tensor, Tensor]:
        theta = w = x
        rate = node.own(self.alpha, x)
        for _ in range(self.local_steps):
            given: dict[str, Any] = {"pull": self.lam, "centre": w, "batch": "same"}
            theta = node.descend(theta, steps=self.prox_steps, lr=rate, **given)
            w = torch.lerp(w, theta, self.eta * self.lam)
        return theta, w

    def server(self, node: Node, state: State) -> Server:
        """Move to the mean of what comes back."""
        x = state["model"]
        replies = yield Ask(x, reduce="samples" if self.weights == "samples" else "mean", otherwise=x)
        mixed = (1 - self.beta) * x + self.beta * replies.rows
        return {"model": with_statistics(node.layout, mixed, replies.rows)}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Train as in a round, from the global model."""
        return self._train(node, parent)[0]
