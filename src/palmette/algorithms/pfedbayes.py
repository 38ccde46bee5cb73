"""pFedBayes: every device has a distribution over models, pulled to a global one by their Kullback-Leibler divergence.

A distribution is a Gaussian with a mean mu and a deviation ``sigma = log(1 + exp(rho))`` for every weight, independent of each
other. With z the global distribution, q_i a device's own and n_i its samples, it solves

    min over z of  1/N sum_i F_i(z),    F_i(z) = min over q of  E_{theta ~ q} f_i(theta) + zeta / n_i * KL(q || z)

where f_i is the mean loss on the device's samples. In a round a device copies z into w_i and takes ``local_steps`` steps on

    f_batch(mu + sigma * noise) + zeta / n_i * KL(q_i || w_i)

with new standard normal noise for every weight at every step: q_i and w_i step at once, by ``alpha`` and ``eta``. It keeps q_i
and sends w_i; the server takes ``z = (1 - beta) z + beta mean(w_i)``, of mu and of rho. So twice the bytes of a model go each
way. PM is the network of the mean of q_i, GM that of z.

Readings. In the paper a step of q_i is followed by one of w_i, here both are taken from the same place; the known code (an
unofficial one) takes five steps of q_i on each batch for one of w_i. That code also draws noise of deviation 0.001 in place of
1 and ignores beta; here both are as in the paper. The divergence is divided by the samples, so that a batch's objective has the
whole objective as its mean. Both step by Adam, whose means begin anew in every round; ``optimiser = "sgd"`` is plain.
With ``zeta = 0`` no z is learned: each device trains alone, with noise.

The published zeta and rates (``preset = "published"``) are for hundreds of rounds and thousands of samples; with tens of
samples on a device that zeta holds every device at z, so the defaults are others.

Xu Zhang, Yinchuan Li, Wenpeng Li, Kaiyang Guo, Yunfeng Shao: Personalized Federated Learning via Variational Bayesian
Inference, ICML 2022. The text could not be had: the update is written from notes on it and on the code AllenBeau/pFedBayes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor

from palmette.blocks.gaussians import divergence
from palmette.blocks.statistics import with_statistics
from palmette.learner import Batch, Optimiser
from palmette.protocol import Algorithm, Ask, Device, Node, Server, State
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, NonNegative, Positive, settings

PUBLISHED = {"local_steps": 20, "alpha": 0.001, "eta": 0.001, "zeta": 10.0, "rho": -3.0, "batch_size": 100}


@settings
class PFedBayes(Algorithm):
    """Variational Bayes without teams: a device's own Gaussian over models is pulled to the global one.

    Attributes:
        local_steps: Gradient steps of a device in every round (R in the paper).
        alpha: Learning rate of a device's own distribution (eta_1 in the paper).
        eta: Learning rate of a device's copy of the global distribution (eta_2 in the paper).
        zeta: Weight of the divergence between the two; the larger, the closer devices stay together (zeta in the paper).
        rho: Initial deviation of all weights, as log(exp(deviation) - 1); the smaller, the less noise (rho in the paper).
        beta: How far the server moves to the mean of its devices (beta in the paper).
        optimiser: Steps of the devices: ``"adam"``, or plain gradient steps, ``"sgd"``.
        weights: Weights of the average: ``"equal"`` counts all devices alike, ``"samples"`` by their training samples.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "pfedbayes"
    paper: ClassVar[str] = (
        "Zhang et al.: Personalized Federated Learning via Variational Bayesian Inference (ICML 2022)"
    )
    absent: ClassVar[str] = (
        "A device that is left out keeps its distribution; the global one is averaged over those that answered."
    )
    flat: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.0005, 0.05),
        "eta": Between(0.0005, 0.05),
        "zeta": Between(0.01, 20.0),
    }

    local_steps: Count = 20
    alpha: Positive = 0.01
    eta: Positive = 0.01
    zeta: NonNegative = 0.1
    rho: Annotated[float, Field(ge=-80, le=80), NUMBER] = -3.0
    beta: Positive = 1.0
    optimiser: Literal["adam", "sgd"] = "adam"
    weights: Literal["equal", "samples"] = "equal"
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices and server keep a distribution: the mean, which is their model, and rho."""
        return {"model": initial, "rho": torch.full_like(initial, self.rho)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Fit the device's own distribution and its copy of the global one to each other and to the data."""
        own, copy = self._fit(node, {"model": state["model"], "rho": state["rho"]}, message)
        return copy, own

    def _fit(self, node: Device, own: State, copy: State) -> tuple[State, State]:
        """Take the steps of a round; return both distributions."""
        weight = (self.zeta / node.samples.to(own["model"]))[:, None]
        start = {**own, "w_model": copy["model"], "w_rho": copy["rho"], "weight": weight}
        rates = {"model": self.alpha, "rho": self.alpha, "w_model": self.eta, "w_rho": self.eta, "weight": 0.0}
        rule = Optimiser(name=self.optimiser)
        after = node.minimise(self._objective(node.l2), start, steps=self.local_steps, lr=rates, optimiser=rule)
        # No gradient moves statistics: the copy takes those of the device's own.
        mean = with_statistics(node.layout, after["w_model"], after["model"])
        return {name: after[name] for name in own}, {"model": mean, "rho": after["w_rho"]}

    def _objective(self, l2: float) -> Any:
        """Return the objective of one device and one batch."""

        def objective(rows: Any, batch: Batch) -> Tensor:
            mean: Tensor = rows["model"]
            width = mean.shape[-1]  # without running statistics, which are no weights
            deviation = F.softplus(rows["rho"][:width])
            value = batch.loss(mean + deviation * batch.normal(mean))
            beside: Tensor = 0.5 * l2 * mean.square().sum()
            if self.zeta:
                other = rows["w_model"][:width], F.softplus(rows["w_rho"][:width])
                beside = beside + rows["weight"][0] * divergence(mean, deviation, *other)
            return value + beside * batch.share

        return objective

    def server(self, node: Node, state: State) -> Server:
        """Move to the mean of the devices' copies."""
        reduce: Literal["mean", "samples"] = "mean" if self.weights == "equal" else "samples"
        sent = {name: state[name] for name in ("model", "rho")}
        replies = yield Ask(sent, reduce=reduce, otherwise=sent)
        moved = {name: (1 - self.beta) * rows + self.beta * replies[name] for name, rows in sent.items()}
        return {**moved, "model": with_statistics(node.layout, moved["model"], replies["model"])}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fit a distribution around the global mean, for a device that never took part."""
        own, _ = self._fit(node, {"model": parent, "rho": state["rho"]}, {"model": parent, "rho": state["rho"]})
        return own["model"]
