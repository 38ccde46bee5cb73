"""CFL: a team is split in two when it can no longer agree, again and again, until its devices want the same.

All devices begin in one team, and every team runs FedAvg by itself. Let ``D_i`` be what device i moved its team's model
by in a round, and ``D`` the mean of its team. Near a common optimum of a team whose devices want different models, ``D``
is small while some ``D_i`` is not. So a team is split when ``|D| < eps_1`` and ``max |D_i| > eps_2``, into the two halves
that agglomerative clustering by the cosines of ``D_i`` finds. Both halves go on from the team's model.

What is small depends on the model and the step size. The paper advises to set ``eps_1`` to about a tenth of the largest
``|D|`` of the training, and ``eps_2`` by trial; so here both are multiples of the largest ``|D|`` seen so far.
``linkage="complete"`` is that of the authors' code. The paper's own rule, the bipartition whose largest cosine between
the halves is smallest, is ``"single"``. Both leave out the paper's bound gamma on the cosine, and so do we. The authors'
code waits for 20 rounds before the first split; ``wait`` says how many rounds a team must have had since it came to be.

Devices are compared in one and the same round: a team is split only in a round in which all its devices answered, those
that never did before not counted. A device that answers for the first time has begun in the team that was the largest. A
device's own model (PM) is its team's model after the device's own steps, as the device has it at the end of its last
round; there is no global one.

Felix Sattler, Klaus-Robert Müller, Wojciech Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints, IEEE Transactions on Neural Networks and Learning Systems 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks.clustering import found, halves
from palmette.blocks.last_models import cosines
from palmette.blocks.statistics import weights_of
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, PerChild, Server, State, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, Positive, Rate, settings
from palmette.tree.segments import segment_mean


@settings
class CFL(Algorithm):
    """Clustered federated learning: a team whose devices want different models is split, again and again.

    Attributes:
        clusters: How many teams there may be at most.
        eps1: A team may be split when its mean update is shorter than this part of the longest mean update so far
            (eps_1 in the paper).
        eps2: A team may be split when an update of one of its devices is longer than this many times the longest mean update so
            far (eps_2 in the paper).
        wait: Rounds that a team must have had before it may be split.
        smallest: Devices that a team must have to be split.
        linkage: How the halves are found: ``"complete"`` as in the authors' code, ``"single"`` as in the paper.
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler, Müller, Samek: Clustered Federated Learning (IEEE TNNLS 2021)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its model and its team, and the team cannot be split in that round."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "eps1": Between(0.1, 0.8)}

    clusters: Annotated[int, Field(ge=1, le=255), NUMBER] = 8
    eps1: Positive = 0.4
    eps2: Positive = 1.0
    wait: Annotated[int, Field(ge=0), NUMBER] = 2
    smallest: Annotated[int, Field(ge=2), NUMBER] = 3
    linkage: Literal["complete", "single"] = "complete"
    local_steps: Count = 20
    alpha: Rate = 0.05
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """There is a global model only where all devices stay one team."""
        return ("PM", "GM") if self.clusters == 1 else ("PM",)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model; the server those of all teams, whose each device is, and when teams were split."""
        if node.tier == 0:
            return {"model": initial}
        nobody = initial.new_full((len(node.child_ids),), -1)
        none = initial.new_full((self.clusters,), -1)
        first = torch.cat([none.new_zeros(1), none[1:]])
        teams = {"all": initial.repeat(self.clusters), "born": first, "parent": none, "longest": initial.new_zeros(1)}
        return {"model": initial, "team": nobody, **teams}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the team's model on the device's own data."""
        theta = node.descend(message, steps=self.local_steps, lr=node.own(self.alpha, message))
        return theta, {"model": theta}

    def server(self, node: Node, state: State) -> Server:
        """Average every team, and split those that cannot agree."""
        rows = state["all"].view(self.clusters, -1)
        before = state["team"][0].long().cpu()
        team = torch.where(before < 0, self._largest(before), before)
        replies = yield Ask(PerChild(rows[team.to(rows.device)]), reduce="stack")
        places = replies.positions
        if not len(places):
            return state
        moved = weights_of(node.layout, replies.rows - rows[team[places].to(rows.device)])
        mean = segment_mean(replies.rows, team[places], self.clusters, node.child_samples[places])
        some = (torch.bincount(team[places], minlength=self.clusters) > 0).to(rows.device)
        step = weights_of(node.layout, torch.where(some[:, None], mean - rows, 0)).norm(dim=1)
        longest = torch.maximum(state["longest"], step.max())
        rows = torch.where(some[:, None], mean, rows)
        after = before.clone()
        after[places] = team[places]
        kept = {"all": rows, "team": after, "born": state["born"].clone(), "parent": state["parent"].clone()}
        for one in range(self.clusters):
            mine = (team[places] == one).nonzero().squeeze(1)
            updates = moved[mine.to(moved.device)]
            whole = len(mine) == int((after == one).sum())
            if whole and self._free(node, one, len(mine), kept) and self._torn(step[one], updates, longest[0, 0]):
                self._split(node, one, places[mine], updates, kept)
        return {
            "model": kept["all"][int(self._largest(kept["team"]))][None],
            "all": kept["all"].reshape(1, -1),
            "team": kept["team"].to(rows)[None],
            "born": kept["born"],
            "parent": kept["parent"],
            "longest": longest,
        }

    def _largest(self, team: Tensor) -> Tensor:
        """Return the number of the team that has most devices."""
        return torch.bincount(team[team >= 0], minlength=self.clusters).argmax()

    def _free(self, node: Node, one: int, size: int, kept: Mapping[str, Tensor]) -> bool:
        """Tell whether a team is large and old enough to be split, and there may be one more."""
        born = kept["born"][0]
        return size >= self.smallest and node.round - int(born[one]) >= self.wait and bool((born < 0).any())

    def _torn(self, step: Tensor, updates: Tensor, longest: Tensor) -> bool:
        """Tell whether a team hardly moves although its devices still want to."""
        return bool((step < self.eps1 * longest) & (updates.norm(dim=1).max() > self.eps2 * longest))

    def _split(self, node: Node, one: int, places: Tensor, updates: Tensor, kept: dict[str, Tensor]) -> None:
        """Move the half without the device of the lowest address into a team of its own, with the same model."""
        second = halves(1 - cosines(updates), node.child_addresses[places], self.linkage)
        new = int((kept["born"][0] < 0).nonzero()[0])
        kept["all"] = kept["all"].clone()
        kept["all"][new] = kept["all"][one]
        kept["team"][places[second]] = new
        kept["born"][0, [one, new]] = node.round + 1.0
        kept["parent"][0, new] = one

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part train the model of the largest team."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell how many teams there are and how large the largest is."""
        return found(state["team"]) if node.tier else {}
