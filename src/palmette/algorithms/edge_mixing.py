"""Edge mixing (PHE-FL): a team's model is a mix of its own average and that of the other teams, and it learns how much of each.

In every round, team i trains its model ``v_i`` by ``team_steps`` averages over its devices, which gives ``w_i``. The
server takes the means

    x = sum_i n_i w_i / sum_i n_i,    x_-i = sum_{j != i} n_j w_j / sum_{j != i} n_j

by training samples, and sends every team its ``x_-i``. Then ``v_i = a_i w_i + (1 - a_i) x_-i``, from which the team goes
on in the next round. x is the global model, ``v_i`` the team's, and a device's own is ``v_i`` fine-tuned.

``a_i`` is learned on training samples that the devices of the team hold out, by the devices: the team sends them ``w_i``
and ``x_-i``, and they reply with losses, which the team averages by samples. With ``mixing="ratio"`` these are ``L_w``
and ``L_x`` of the two models, and ``a_i = exp(-L_w) / (exp(-L_w) + exp(-L_x))``. With ``mixing="search"``, the default,
they are the losses of the mixes with ``a = 0, 0.1, ..., 1``, and ``a_i`` is the one with the least.

We had the paper's abstract and its authors' code. There ``a_i`` is ``A_w / (A_w + A_x)`` of the two accuracies on a part
of the test data, which lies at the edge server. We touch no test data, data lies on devices, and losses serve regression
as well. With accuracies a team takes something from the others even where they are of no use, because no accuracy is 0.
``others="all"`` mixes with x in place of ``x_-i``.

Personalizing Federated Learning for Hierarchical Edge Networks with Non-IID Data (PHE-FL), 2025, arXiv 2504.08872.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.blocks.held_out import held_out_losses
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, PerChild, Replies, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Rate, settings


@settings
class EdgeMixing(Algorithm):
    """Teams that average by themselves and mix their model with the other teams', as much as held-out samples advise.

    Attributes:
        local_steps: Gradient steps of a device between two averages in its team.
        team_steps: Averages in a team in every global round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        mixing: How a team's share of its own model is learned: the best of eleven on held-out samples (``"search"``), or by the
            ratio of likelihoods (``"ratio"``) (alpha in the paper).
        others: What a team mixes with: the mean of the ``"others"``, or of ``"all"`` teams, which is the global model.
        tune_steps: Gradient steps of fine-tuning that make a device's own model from its team's.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "edge-mixing"
    paper: ClassVar[str] = "PHE-FL: Personalizing Federated Learning for Hierarchical Edge Networks (arXiv 2504.08872)"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; averages and shares are over those that answered, by their samples."
    )
    tiers: ClassVar[tuple[int, ...]] = (3,)
    held_out: ClassVar[float] = 0.2
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "tune_steps": Between(5, 80, whole=True)}

    local_steps: Count = 20
    team_steps: Count = 10
    alpha: Rate = 0.05
    mixing: Literal["search", "ratio"] = "search"
    others: Literal["others", "all"] = "others"
    tune_steps: Count = 20
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Teams keep their model and its share of their own; the server the global model."""
        return ({}, {"model": initial, "share": initial.new_ones(1)}, {"model": initial})[node.tier]

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of a team's own model whose mixes the devices judge."""
        return (0.0, 1.0) if self.mixing == "ratio" else tuple(tenth / 10 for tenth in range(11))

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the team's model; or, where two models came, judge their mixes on the samples held out."""
        if isinstance(message, Tensor):
            return node.descend(message, steps=self.local_steps, lr=node.own(self.alpha, message)), state
        mixes = [torch.lerp(message["others"], message["own"], share) for share in self.shares]
        return held_out_losses(node, mixes).T.contiguous(), state

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Average the devices several times; or, where the others' model came, mix with it."""
        w = state["model"]
        if message is None:
            for _ in range(self.team_steps):
                replies = yield Ask(w, reduce="samples", otherwise=w)
                w = replies.rows
            return w, {**state, "model": w}
        none = w.new_zeros((len(node), len(self.shares)))
        replies = yield Ask({"own": w, "others": message}, reduce="samples", otherwise=none)
        share = self._share(replies.rows)
        share = torch.where(replies.present[:, None].to(w.device), share, state["share"])  # nobody judged
        return None, {"model": torch.lerp(message, w, share), "share": share}

    def _share(self, losses: Tensor) -> Tensor:
        """Return every team's share of its own model, given the mean losses of the mixes."""
        if self.mixing == "ratio":
            return torch.sigmoid(losses[:, :1] - losses[:, 1:])
        best = losses.shape[1] - 1 - losses.flip(1).argmin(1)  # of equal ones the team's own counts most
        return losses.new_tensor(self.shares)[best][:, None]

    def server(self, node: Node, state: State) -> Server:
        """Let the teams train, and send each what the others came to."""
        trained = yield Ask(None, reduce="stack")
        if not len(trained.positions):
            return state
        x, apart = self._means(node, trained)
        sent = x.repeat(len(node.child_ids), 1)
        sent[trained.positions.to(x.device)] = apart
        there = torch.zeros(len(node.child_ids), dtype=torch.bool)
        there[trained.positions] = True
        yield Ask(PerChild(sent), only=there, again=True, reduce="stack")
        return {"model": x}

    def _means(self, node: Node, trained: Replies) -> tuple[Tensor, Tensor]:
        """Return the mean of all teams that trained, and for each of them what it mixes with."""
        rows = trained.rows
        weight = node.child_samples[trained.positions].to(rows)[:, None]
        total, summed = weight.sum(), (weight * rows).sum(0, keepdim=True)
        x = summed / total
        if self.others == "all" or len(rows) == 1:
            return x, x.expand(len(rows), -1)
        return x, (summed - weight * rows) / (total - weight)

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the team's model."""
        return node.descend(parent, steps=self.tune_steps, lr=node.own(self.alpha, parent))

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell every team's share of its own model."""
        return {"own_share": state["share"][:, 0]} if node.tier == 1 else {}
