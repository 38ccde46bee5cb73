"""FedAMP and HeurFedAMP: every device gets a cloud model of its own, made mostly of the models that are like its own.

FedAMP lowers ``sum_i f_i(theta_i) + lambda sum_{i<q} A(|theta_i - theta_q|^2)`` with ``A(z) = 1 - exp(-z / sigma)``, in
turns. The server takes a gradient step on the second sum, which gives device i the cloud model

    u_i = (1 - sum_q xi_iq) theta_i + sum_{q != i} xi_iq theta_q,    xi_iq = alpha_k A'(|theta_i - theta_q|^2),

and the device takes steps on ``f_i(theta) + lambda / (2 alpha_k) |theta - u_i|^2`` from the model it has. HeurFedAMP sets
the weights directly: ``xi_ii`` is fixed, the others share ``1 - xi_ii`` by ``softmax_q(sigma cos(theta_i, theta_q))``.
There is no global model.

The paper leaves it to the user to choose ``alpha_k`` so small that no weight is negative. Here ``strength`` is what all
others together weigh at most, ``xi_iq = strength / (N - 1) exp(-|theta_i - theta_q|^2 / sigma)``: ``alpha_k`` is
``strength sigma / (N - 1)``. And ``lam`` is the pull itself, ``lambda / alpha_k``. Distances between models depend on the
model and grow during training, so by default ``sigma`` is the mean squared distance between two devices of the round. A
widely used implementation builds the pull from tensors without gradients, so that its devices train alone; ours do not.

Yutao Huang, Lingyang Chu, Zirui Zhou, Lanjun Wang, Jiangchuan Liu, Jian Pei, Yong Zhang: Personalized Cross-Silo
Federated Learning on Non-IID Data, AAAI 2021.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.blocks.last_models import LastModels, cosines, squared_distances
from palmette.blocks.statistics import weights_of
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, PerChild, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, Rate, Share, settings


@settings
class MessagePassing(Algorithm):
    """The programs of both methods, which differ in how much each device's model counts for another.

    Attributes:
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        lam: Pull (proximal strength) of a device's model to its cloud model (lambda / alpha_k in the paper).
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    paper: ClassVar[str] = "Huang et al.: Personalized Cross-Silo Federated Learning on Non-IID Data (AAAI 2021)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its model; the last one the server has of it still counts for the others."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "lam": Between(0.01, 10.0)}

    local_steps: Count = 20
    alpha: Rate = 0.05
    lam: NonNegative = 0.3
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """There is no global model."""
        return ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model; the server the last one of every device, and their mean for new devices."""
        return {"model": initial, **LastModels.keeps(node, initial)} if node.tier else {"model": initial}

    def stable(self, curvature: float) -> dict[str, float]:
        """The pull adds to the curvature."""
        return {"alpha": inverse(curvature + self.lam)}

    @abstractmethod
    def weights(self, last: LastModels) -> Tensor:
        """Return how much each device (a column) counts in the cloud model of each (a line); lines sum to 1."""

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Go on training the device's own model, pulled to its cloud model."""
        start = state["model"]
        theta = node.descend(
            start, steps=self.local_steps, lr=node.own(self.alpha, start), pull=self.lam, centre=message
        )
        return theta, {"model": theta}

    def server(self, node: Node, state: State) -> Server:
        """Send every device its own cloud model, and keep what comes back."""
        last = LastModels.of(state)
        learned = LastModels(weights_of(node.layout, last.rows), last.known)
        cloud = self.weights(learned).to(last.rows) @ last.rows
        replies = yield Ask(PerChild(cloud), reduce="stack")
        last = last.after(replies)
        return {"model": last.mean, **last.state()}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part train from the mean of the others' models."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))


@settings
class FedAMP(MessagePassing):
    """Attentive message passing: a device is pulled to a mean of models, in which near models count more.

    Attributes:
        strength: What all other devices together weigh at most in a device's cloud model, from 0 to 1; a device weighs less the
            farther its model is (alpha_k in the paper).
        sigma: Squared distance between models at which a device's weight has fallen to 1/e; ``"mean"`` takes the mean over all
            pairs of devices in the round (sigma in the paper).
    """

    name: ClassVar[str] = "fedamp"

    strength: Share = 0.9
    sigma: Literal["mean"] | Positive = "mean"

    def weights(self, last: LastModels) -> Tensor:
        """Return weights that fall with the squared distance."""
        apart, others = squared_distances(last.rows), last.others
        scale = self.sigma
        if scale == "mean":
            known = others & last.known[:, None]
            scale = float(apart[known].mean()) if bool(known.any()) else 1.0
        near = torch.exp(-apart / scale) if scale else torch.ones_like(apart)  # all models are the same
        share = self.strength * near * others / others.sum(1, keepdim=True).clamp(min=1)
        return share + torch.diag(1 - share.sum(1))


@settings
class HeurFedAMP(MessagePassing):
    """FedAMP with weights by the angle between models; a device's own model has a fixed weight in its cloud model.

    Attributes:
        own: Weight of a device's own model in its cloud model, from 0 to 1 (xi_ii in the paper).
        sigma: How much more the models count that point in the same direction as the device's own; 0 counts all alike
            (sigma in the paper).
    """

    name: ClassVar[str] = "heurfedamp"

    own: Share = 0.1
    sigma: NonNegative = 10.0

    def weights(self, last: LastModels) -> Tensor:
        """Return the softmax of the cosines, next to the fixed weight of one's own model."""
        others = last.others
        alike = (self.sigma * cosines(last.rows)).masked_fill(~others, -math.inf)
        share = ((1 - self.own) * alike.softmax(1)).nan_to_num(0.0)  # nobody else is known yet
        return share + torch.diag(1 - share.sum(1))
