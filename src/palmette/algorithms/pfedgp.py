"""pFedGP: one feature network for all, and on every device a Gaussian process in the place of the last layer.

The model's last layer (the part ``head``) is not used: what enters it is a sample's feature vector. A device predicts by a
Gaussian process on the features of its own training samples (`palmette.blocks.gaussian_process`), so it needs no training of
its own, tells how sure it is, and does well with few samples. With phi the features of a network theta, all devices solve

    min over theta of   sum_i n_i / n * E [ - log p(y_query | phi_theta(x_query), phi_theta(x_context), y_context) ]

In a round a device takes ``local_steps`` steps from the global network. At each it draws a mini-batch; every other sample is
context, the rest are queries; and it steps down the mean loss of what the process, given the context, predicts for the queries
(the task's loss: for classes the logarithm above). Only the layers before the head are sent, and averaged by samples.

PM is the global network with a process on at most ``context`` of the device's training samples, which are the same every time:
the classes take turns by their share of the device's samples, each from its first sample on. There is no global model, as a
process needs samples. Labels that are numbers are predicted by ordinary regression with the noise variance ``noise``.

The published method classifies by a tree of two-class processes over the device's classes, with Polya-Gamma augmentation and
Gibbs sampling. Here all classes are predicted at once by exact regression on Dirichlet labels: no draws, no tree, the same
kernel. Its halves are stratified parts of all the device's data; here they are those of a mini-batch. Published: kernel scale
8, length 1, SGD at 0.05 with momentum 0.9, five devices in a round. The length belongs to the features: for the 100 of ``dnn``
on images 3 is right, where 1 makes nearly all samples strangers to each other.

Idan Achituve, Aviv Shamsian, Aviv Navon, Gal Chechik, Ethan Fetaya: Personalized Federated Learning with Gaussian Processes,
NeurIPS 2021. The text could not be had: it is written from notes on it and on the authors' code, IdanAchituve/pFedGP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from palmette.blocks.gaussian_process import Seen, class_targets, log_chances, posterior
from palmette.errors import BadInput
from palmette.learner import Batch
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, Server, State
from palmette.protocol.settings import NUMBER, Between, Count, Positive, settings
from palmette.task.layout import Layout

HEAD = "head"
Pairs = Annotated[int, Field(ge=2), NUMBER]


@settings
class PFedGP(Algorithm):
    """Gaussian processes on shared features, without teams: all devices train one feature network, each has its own process.

    Attributes:
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the feature network.
        scale: Output scale of the kernel: the variance of the process.
        length: Length scale of the kernel: features this far apart are still alike.
        context: Most training samples of a device that its process is made of.
        epsilon: Concentration of the classes that a label is not; the smaller, the surer a label.
        noise: Variance of the noise in labels that are numbers.
        batch_size: Samples in a device's mini-batch, half of them context and half queries.
    """

    name: ClassVar[str] = "pfedgp"
    paper: ClassVar[str] = "Achituve et al.: Personalized Federated Learning with Gaussian Processes (NeurIPS 2021)"
    absent: ClassVar[str] = (
        "A device that is left out still predicts with the newest features; these are averaged over those that answered."
    )
    flat: ClassVar[bool] = True
    one_label: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, str]] = {HEAD: "last(1)"}
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.005, 0.5), "length": Between(0.5, 20.0)}

    local_steps: Count = 20
    alpha: Positive = 0.05
    scale: Positive = 8.0
    length: Positive = 3.0
    context: Count = 100
    epsilon: Positive = 0.01
    noise: Positive = 0.1
    batch_size: Pairs = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """A process needs samples, which only devices have."""
        return ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep what their process is made of; the server the network."""
        if node.tier:
            return {"model": initial}
        width, outputs = _sizes(node.layout)
        sizes = {
            "features": self.context * width,
            "targets": self.context * outputs,
            "precision": self.context * outputs,
        }
        return {**{name: initial.new_zeros(size) for name, size in sizes.items()}, "classes": initial.new_zeros(1)}

    # -- training ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train the features to predict one half of every batch from the other."""
        start = node.layout.put(message.new_zeros(len(node), node.layout.width), _body(node.layout), message)
        _, outputs = _sizes(node.layout)

        def objective(rows: Any, batch: Batch) -> Tensor:
            model: Tensor = rows["model"]
            return self._predictive(model, batch, outputs) + 0.5 * node.l2 * model.square().sum()

        rows = node.minimise(objective, {"model": start}, steps=self.local_steps, lr=self.alpha)["model"]
        return node.part(rows, _body(node.layout)), state

    def _predictive(self, model: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the mean loss of every second sample, predicted from those between."""
        features = batch.features(model, HEAD)
        targets, precision = self._as_regression(batch.y, features, outputs)
        known, asked = batch.real[::2], batch.real[1::2]
        seen = Seen(features[::2], targets[::2], precision[::2] * known[:, None])
        mean, variance = posterior(seen, features[1::2], self.scale, self.length)
        found = mean if batch.y.is_floating_point() else log_chances(mean, variance)
        losses = batch.losses(found, batch.y[1::2])
        return (losses * asked).sum() / asked.sum().clamp(min=1)

    def _as_regression(self, y: Tensor, features: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        """Return targets and precisions ``(..., outputs)`` for labels that are classes or numbers."""
        if not y.is_floating_point():
            return class_targets(y, outputs, self.epsilon, features.dtype)
        targets = y.to(features).reshape(*features.shape[:-1], outputs)
        return targets, torch.full_like(targets, 1 / self.noise)

    def server(self, node: Node, state: State) -> Server:
        """Average the layers before the head, by samples."""
        body = node.part(state["model"], _body(node.layout))
        replies = yield Ask(body, reduce="samples", otherwise=body)
        return {"model": node.layout.put(state["model"], _body(node.layout), replies.rows)}

    # -- predicting ----------------------------------------------------------------------------------------------------

    def adapt(self, node: Device, parent: Tensor, state: State) -> Any:
        """Take the newest features of the device's samples; a process needs no steps."""
        found = node.features(parent, "train", of=HEAD)
        _, outputs = _sizes(node.layout)
        classes = not found.targets.is_floating_point()
        targets, precision = self._as_regression(found.targets, found.values, outputs)
        precision = precision * found.real[:, :, None]
        order = _turns(found.targets, found.real, outputs)[:, : self.context]
        kept = {"features": found.values, "targets": targets, "precision": precision}
        rows = {name: self._filled(value, order) for name, value in kept.items()}
        return {"model": parent, **rows, "classes": torch.full_like(state["classes"], float(classes))}

    def _filled(self, values: Tensor, order: Tensor) -> Tensor:
        """Return the values of the samples chosen as one row per device, filled up with zeros."""
        chosen = values.gather(1, order[:, :, None].expand(-1, -1, values.shape[2]))
        row = values.new_zeros(len(values), self.context, values.shape[2])
        row[:, : chosen.shape[1]] = chosen
        return row.flatten(1)

    def predict(self, rows: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Predict with the device's process, given the features of its own samples."""
        seen = Seen(*(rows[name].unflatten(0, (self.context, -1)) for name in Seen._fields))
        mean, variance = posterior(seen, batch.features(rows["model"], HEAD), self.scale, self.length)
        return torch.where(rows["classes"] > 0, log_chances(mean, variance), mean)


def _body(layout: Layout) -> tuple[str, ...]:
    """Return the parts before the head: all but it."""
    return tuple(part for part in layout.parts if part != HEAD)


def _sizes(layout: Layout) -> tuple[int, int]:
    """Return how many features enter the head, and how many outputs it has."""
    head = layout.part(HEAD)
    matrices = [shape for shape in head.shapes if len(shape) == 2]
    if not matrices:
        raise BadInput(
            "pfedgp puts a Gaussian process in the place of the model's head, which must be a linear layer; name one with "
            f"--set model.parts.head. The head is now {', '.join(head.names) or 'empty'}"
        )
    return matrices[0][1], matrices[-1][0]


def _turns(targets: Tensor, real: Tensor, classes: int) -> Tensor:
    """Return an order of every device's samples in which classes take turns by their shares, and real ones come first."""
    if targets.is_floating_point():
        return torch.arange(real.shape[1], device=real.device).expand(len(real), -1)
    labels = F.one_hot(targets, classes) * real[:, :, None]
    place = (labels.cumsum(1) * labels).sum(2) - 1
    count = labels.sum(1).gather(1, targets)
    share = torch.where(real, place / count.clamp(min=1), torch.inf)
    return share.argsort(dim=1, stable=True)
