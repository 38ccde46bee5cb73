"""IFCA: teams that nobody was told of are found, because each device joins the one of k models that fits it best.

Every round the server sends k models to the devices that take part. Device i finds ``j = argmin_j f_i(theta_j)`` on its
training samples, trains that model and replies with it and with j. Then, with ``averaging="models"``, ``theta_j`` is the
mean of the models of those that chose j; a model that nobody chose stays as it is. With ``averaging="gradients"`` the
reply is one gradient ``g_i`` at ``theta_j``, and ``theta_j`` moves by the sum of ``alpha g_i`` over those that chose j,
divided by the number of all that answered.

The k models must begin apart, or they stay one for ever: each begins at the initial model plus random numbers of its own,
addressed by the seed and the number of the model, so that they are the same on every machine. The paper starts again from
other random numbers where a start fails. Which start is good depends on their size: ``spread``.

The paper averages all devices alike, which is ``weights="equal"``; by default devices count by their samples as in
FedAvg. A device's own model (PM) is its team's model after the device's own steps, as the device has it at the end of its
last round. With k = 1 the method is FedAvg, without fine-tuning.

Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran: An Efficient Framework for Clustered Federated Learning,
NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette import address
from palmette.blocks.clustering import found
from palmette.blocks.statistics import with_statistics
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, Server, State, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, NonNegative, Rate, settings
from palmette.tree.segments import segment_mean


@settings
class IFCA(Algorithm):
    """Iterative federated clustering: each device joins the one of k models that has the least loss on its samples.

    Attributes:
        clusters: Number of models, and so of teams that can be found (k in the paper).
        local_steps: Gradient steps of a device in every round, on the model it chose; with ``averaging = "gradients"`` one
            gradient takes their place (tau in the paper).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (gamma in the paper).
        spread: Standard deviation of the random numbers by which the models differ from the initial model in the beginning.
        averaging: What devices send: ``"models"`` that they trained, or one gradient each (``"gradients"``).
        weights: Weights of the averages: ``"samples"`` counts a device by its training samples, ``"equal"`` all alike.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning (2020)"
    )
    absent: ClassVar[str] = (
        "A device that is left out keeps its model; each average is over those that answered and chose that model."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "clusters": Between(2, 8, whole=True)}

    clusters: Annotated[int, Field(ge=1, le=255), NUMBER] = 4
    local_steps: Count = 20
    alpha: Rate = 0.05
    spread: NonNegative = 0.1
    averaging: Literal["models", "gradients"] = "models"
    weights: Literal["samples", "equal"] = "samples"
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """There is a global model only where there is one model for all."""
        return ("PM", "GM") if self.clusters == 1 else ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model and its number; the server all k, the largest team's, and who chose which."""
        if node.tier == 0:
            return {"model": initial, "cluster": initial.new_zeros(1)}
        chosen = initial.new_full((len(node.child_ids),), -1)
        return {"model": initial, "all": initial.repeat(self.clusters), "chosen": chosen}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Join the model with the least training loss, train it, and say which it was."""
        models = message.unflatten(1, (self.clusters, -1))
        losses = torch.stack([node.loss(rows) for rows in models.unbind(1)], 1)
        choice = losses.nan_to_num(torch.inf, torch.inf).argmin(1)
        start = models[torch.arange(len(models), device=models.device), choice]
        rate = node.own(self.alpha, start)
        if self.averaging == "models":
            reply = theta = node.descend(start, steps=self.local_steps, lr=rate)
        else:
            reply = rate * node.gradient(start, "next")
            theta = start - reply
        kept = {"model": theta, "cluster": choice.to(start)[:, None]}
        return {"": reply, "cluster": choice.to(torch.uint8)}, kept

    def server(self, node: Node, state: State) -> Server:
        """Send all models down, and average what comes back model by model."""
        rows = state["all"].view(self.clusters, -1)
        if node.round == 0 and self.clusters > 1:
            rows = with_statistics(node.layout, rows + self.spread * self._apart(node, rows), rows)
        replies = yield Ask(rows.reshape(1, -1), reduce="stack")
        chosen = state["chosen"].clone()
        if len(replies.positions):
            choice = replies["cluster"].long().cpu()
            chosen[0, replies.positions.to(chosen.device)] = choice.to(chosen)
            rows = self._average(node, rows, replies.rows, choice, replies.positions)
        sizes = torch.bincount(chosen[0][chosen[0] >= 0].long().cpu(), minlength=self.clusters)
        return {"model": rows[int(sizes.argmax())][None], "all": rows.reshape(1, -1), "chosen": chosen}

    def _average(self, node: Node, rows: Tensor, replies: Tensor, choice: Tensor, places: Tensor) -> Tensor:
        """Return the models after the replies of those that chose them."""
        weights = node.child_samples[places] if self.weights == "samples" else None
        mean = segment_mean(replies, choice, self.clusters, weights)
        if self.averaging == "models":
            empty = torch.bincount(choice, minlength=self.clusters) == 0
            return torch.where(empty[:, None].to(rows.device), rows, mean)
        total = choice.new_ones(len(choice)) if weights is None else weights
        share = torch.zeros(self.clusters, dtype=torch.float64).index_add_(0, choice, total.double()) / total.sum()
        return rows - share.to(rows)[:, None] * mean

    def _apart(self, node: Node, rows: Tensor) -> Tensor:
        """Return random numbers of mean 0 and variance 1, the same wherever they are made."""
        base = address.key(node.seed, "ifca")
        bits = address.mix(address.mix(base, torch.arange(len(rows)))[:, None], torch.arange(rows.shape[1]))
        return ((address.uniform(bits) - 0.5) * 12**0.5).to(rows)

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part train the model of the largest team."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell how many teams were found and how large the largest is."""
        return found(state["chosen"]) if node.tier else {}
