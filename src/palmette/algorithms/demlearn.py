"""DemLearn: the server grows a tree over the devices' models in every round, and everybody mixes with what is above.

With ``levels`` K the tree has a root, K levels of groups below it, and the devices. It comes from agglomerative
clustering (average linkage) of the flat models: at every level a group is the two halves it was merged of, and the groups
of the lowest level have their devices directly below them. Upwards, a node's model is the mean of its children, each
counted by its devices; in the first ``amplified_rounds`` rounds every such mean is multiplied by ``amplification``. Then
downwards, from the root, ``child = (1 - a) child + a parent``. A device receives the model g of its group, mixes
likewise, ``theta = (1 - a) theta + a g``, and takes its steps with the pull ``mu (theta - g)``; in the first round, in
which there are no groups, without a pull.

The update is that of the authors' code (K_Levels = 3 "plus root", tree made anew in every round), which differs from the
paper in the amplification and in mixing with a fixed a. Groups live at the server, so all traffic is between devices and
server. Devices that never answered are in no group; their first model comes from the root. The global model (GM) is the
root's. ``levels = 0`` leaves the root alone: with ``mixing = 1``, ``lam = 0`` and no amplification it is FedAvg with all
devices counted alike.

Minh N. H. Nguyen, Shashi Raj Pandey, Tri Nguyen Dang, Eui-Nam Huh, Nguyen H. Tran, Walid Saad, Choong Seon Hong:
Self-organizing Democratized Learning: Towards Large-scale Distributed Learning Systems, IEEE TNNLS 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks.clustering import found, groups
from palmette.blocks.last_models import LastModels, squared_distances
from palmette.blocks.statistics import weights_of, with_statistics
from palmette.protocol import Algorithm, Ask, Device, Node, PerChild, Server, State, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, NonNegative, Positive, Rate, Share, settings
from palmette.tree.segments import segment_mean

Whole = Annotated[int, Field(ge=0), NUMBER]
# MNIST in the authors' code, where devices take two epochs.
PUBLISHED = {"levels": 3, "mixing": 0.6, "lam": 0.002, "alpha": 0.05, "batch_size": 10}


@settings
class DemLearn(Algorithm):
    """Democratized learning: groups of like devices are found anew in every round, and models mix along their tree.

    Attributes:
        levels: Levels of groups below the root; each splits the groups above it in two (K in the paper).
        mixing: How much of its parent's model a group or a device takes over, from 0 to 1 (beta in the paper).
        lam: Pull (proximal strength) of a device's model to its group's (mu in the paper).
        amplification: Number by which every mean is multiplied in the first rounds; 1 for none.
        amplified_rounds: How many rounds those are.
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "demlearn"
    paper: ClassVar[str] = "Nguyen et al.: Self-organizing Democratized Learning (IEEE TNNLS 2022)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its model; the last one the server has of it still counts in the groups."
    )
    flat: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "mixing": Between(0.1, 1.0)}

    levels: Annotated[int, Field(ge=0, le=16), NUMBER] = 3
    mixing: Share = 0.6
    lam: NonNegative = 0.002
    amplification: Positive = 1.15
    amplified_rounds: Whole = 5
    local_steps: Count = 20
    alpha: Rate = 0.05
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model, and whether they have taken part; the server the last one of every device."""
        if node.tier == 0:
            return {"model": initial, "began": initial.new_zeros(1)}
        group, models = initial.new_full((len(node.child_ids),), -1), initial.repeat(self._most(node))
        return {"model": initial, "group": group, "groups": models, **LastModels.keeps(node, initial)}

    def _most(self, node: Node) -> int:
        """Return how many groups the lowest level can have."""
        return min(1 << self.levels, len(node.child_ids))

    def stable(self, curvature: float) -> dict[str, float]:
        """The pull adds to the curvature."""
        return {"alpha": inverse(curvature + self.lam)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Mix with the group's model and train, pulled to it."""
        mixed = torch.lerp(state["model"], message, self.mixing)
        began = state["began"] > 0  # a new device has nothing to mix yet
        start = mixed if bool(began.all()) else torch.where(began, mixed, message)
        pull = self.lam if node.round else 0.0
        theta = node.descend(start, steps=self.local_steps, lr=node.own(self.alpha, start), pull=pull, centre=message)
        return theta, {"model": theta, "began": torch.ones_like(state["began"])}

    def server(self, node: Node, state: State) -> Server:
        """Send every device its group's model, and grow the next tree from what comes back."""
        group, models = state["group"][0].long(), state["groups"].view(self._most(node), -1)
        sent = torch.cat([models, state["model"]])[group]  # the last row, the root's, is for those in no group
        replies = yield Ask(PerChild(sent), reduce="stack")
        last = LastModels.of(state).after(replies)
        if not bool(last.known.any()):
            return state
        group = torch.full_like(group, -1)
        group[last.known], root, lowest = self._grown(node, last)
        models = torch.cat([lowest, models[len(lowest) :]])
        return {"model": root, "group": group.to(models)[None], "groups": models.reshape(1, -1), **last.state()}

    def _grown(self, node: Node, last: LastModels) -> tuple[Tensor, Tensor, Tensor]:
        """Grow a tree over the devices that are known: return their groups, and the models of root and groups."""
        rows = last.heard
        labels = [torch.zeros(len(rows), dtype=torch.int64)]
        apart = squared_distances(weights_of(node.layout, rows)).sqrt()
        labels += groups(apart, node.child_addresses[last.known.cpu()], "average", self.levels)
        factor = self.amplification if node.round < self.amplified_rounds else 1.0
        parents, sizes = [labels[-1]], [torch.ones(len(rows), dtype=torch.int64)]
        models = [rows]
        for level in range(self.levels, -1, -1):  # upwards
            count = int(labels[level].max()) + 1
            mean = segment_mean(models[0], parents[0], count, sizes[0])
            several = (torch.bincount(parents[0], minlength=count) > 1).to(mean.device)
            amplified = torch.where(several[:, None], factor * mean, mean)
            models.insert(0, with_statistics(node.layout, amplified, mean))
            if level:
                above = torch.zeros(count, dtype=torch.int64).scatter_(0, labels[level], labels[level - 1])
                parents.insert(0, above)
                sizes.insert(0, torch.bincount(labels[level], minlength=count))
        for level in range(1, self.levels + 1):  # downwards
            above = models[level - 1][parents[level - 1].to(rows.device)]
            models[level] = torch.lerp(models[level], above, self.mixing)
        return labels[-1].to(rows.device), models[0], models[self.levels]

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part train from the root's model."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell how many groups of the lowest level there are and how large the largest is."""
        return found(state["group"]) if node.tier else {}
