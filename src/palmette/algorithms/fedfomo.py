"""FedFomo: each device weighs the models of some others by how much they would help it, and by how far they are.

Device i has ``theta_i``, the model it trained last, and ``phi_i``, what it began that training from. It receives the
models of M other devices and compares them, and its own ``theta_i``, on samples it held out of training (loss ``L_i``):

    w_n = (L_i(phi_i) - L_i(theta_n)) / |theta_n - phi_i|,    phi_i <- phi_i + sum_n w+_n (theta_n - phi_i),

where ``w+`` are the positive ``w``, divided by their sum; this is the first-order choice of weights that lowers ``L_i``
most. If no model is better than ``phi_i``, it stays: the device goes back to before its last training. Then the device
trains from the new ``phi_i`` and replies with its model and its ``w``.

The server adds every ``w`` to an affinity ``P[i, n]`` and sends each device the models of the M others with the highest
affinity; with the chance epsilon, which falls by ``decay`` in every round, a place goes to any other device instead. Only
devices that have answered are sent around, and nothing is sent before two have. So a device downloads M models in a round
and uploads one and M numbers; the server keeps the last model of every device and holds M for each while it sends.

A widely used implementation measures the losses on the batches it trained on and leaves the device's own model out. The
paper's code counts the own model; so do we.

Michael Zhang, Karan Sapra, Sanja Fidler, Serena Yeung, Jose M. Alvarez: Personalized Federated Learning with First Order
Model Optimization, ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from palmette import address
from palmette.blocks.held_out import held_out_losses
from palmette.blocks.last_models import LastModels, fits
from palmette.blocks.statistics import weights_of
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, PerChild, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Rate, Share, settings


@settings
class FedFomo(Algorithm):
    """First-order model optimization: each device takes from others' models what lowers its loss on held-out samples.

    Attributes:
        others: Models of other devices that a device receives in every round (M in the paper).
        epsilon: Chance, in the first round, that a model sent is that of any device and not of the most helpful
            (epsilon in the paper).
        decay: What this chance falls by in every round.
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "fedfomo"
    paper: ClassVar[str] = (
        "Zhang et al.: Personalized Federated Learning with First Order Model Optimization (ICLR 2021)"
    )
    absent: ClassVar[str] = (
        "A device that is left out keeps its model; others may still be sent the last one that the server has of it."
    )
    flat: ClassVar[bool] = True
    held_out: ClassVar[float] = 0.2
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "others": Between(2, 10, whole=True)}

    others: Count = 5
    epsilon: Share = 0.3
    decay: NonNegative = 0.05
    local_steps: Count = 20
    alpha: Rate = 0.05
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """There is no global model."""
        return ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model and what it was trained from; the server everybody's last model and the affinities."""
        if node.tier == 0:
            return {"model": initial, "before": initial}
        devices, last = len(node.child_ids), LastModels.keeps(node, initial)
        fits(devices**2, initial, f"a number for every pair of {devices:,} devices")
        return {"model": initial, "affinity": initial.new_zeros(devices**2), **last}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Take from the models received what helps, and train."""
        start, weights = state["model"], None
        if message is not None:
            start, weights = self._federated(node, [*message.unbind(1), state["model"]], state["before"])
        theta = node.descend(start, steps=self.local_steps, lr=node.own(self.alpha, start))
        kept = {"model": theta, "before": start}
        return (theta if weights is None else {"": theta, "weights": weights[:, :-1]}), kept

    def _federated(self, node: Device, models: list[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of the models that are better than before, and the weights before they are scaled."""
        losses = held_out_losses(node, [before, *models])
        apart = torch.stack([rows - before for rows in models], 1)
        gain = (losses[0] - losses[1:]).T.nan_to_num(0.0)  # both are infinite
        far = weights_of(node.layout, apart).norm(dim=2)
        weights = torch.where(far > 0, gain / far.clamp(min=torch.finfo(far.dtype).tiny), 0)
        weights = torch.where(weights.isfinite(), weights, 0)
        positive = weights.clamp(min=0)
        share = positive / positive.sum(1, keepdim=True).clamp(min=torch.finfo(far.dtype).tiny)
        return before + (share[:, :, None] * apart).sum(1), weights

    def server(self, node: Node, state: State) -> Server:
        """Send every device the models that helped it most so far, and note how much those sent now helped."""
        last, devices = LastModels.of(state), len(node.child_ids)
        affinity = state["affinity"].view(devices, devices)
        count = min(self.others, int(last.known.sum()) - 1)
        chosen = self._chosen(node, affinity.double().cpu(), last.others.cpu(), count) if count > 0 else None
        sent = None if chosen is None else PerChild(last.rows[chosen.to(last.rows.device)])
        replies = yield Ask(sent, reduce="stack")
        last = last.after(replies)
        if chosen is not None and len(replies.positions):
            affinity = affinity.clone()
            place = replies.positions[:, None].to(affinity.device), chosen[replies.positions].to(affinity.device)
            affinity[place] += replies["weights"]
        return {"model": last.mean, "affinity": affinity.reshape(1, -1), **last.state()}

    def _chosen(self, node: Node, affinity: Tensor, others: Tensor, count: int) -> Tensor:
        """Return, for every device, which others' models it is sent, ``(devices, count)``."""
        base = address.mix(address.key(node.seed, "fedfomo", node.round), node.child_addresses)
        any_ = address.uniform(address.mix(base[:, None], node.child_addresses))  # one number for each pair
        order = any_.argsort(1)  # equal affinities are taken in the order of these numbers
        order = order.gather(1, affinity.gather(1, order).argsort(dim=1, descending=True, stable=True))
        rank = order.argsort(1).double()
        chance, free, chosen = self.epsilon - node.round * self.decay, others.clone(), []
        for place in range(count):
            coin = address.uniform(address.mix(base, torch.full_like(base, -1 - place)))
            score = torch.where((coin < chance)[:, None], any_, -rank).masked_fill(~free, -torch.inf)
            chosen.append(score.argmax(1))
            free.scatter_(1, chosen[-1][:, None], False)
        return torch.stack(chosen, 1)

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part train from the mean of the others' models."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))
