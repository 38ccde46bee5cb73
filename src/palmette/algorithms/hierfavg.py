"""HierFAVG: averaging in every team many times, across teams once in a while.

With ``weights="equal"`` it is h-SGD. With ``global_every=0`` teams are never averaged: each runs FedAvg by itself. On deeper
trees every inner tier averages ``team_steps`` times (a list gives each tier its own number, lowest first).

With ``global_every`` above 1 the model goes down at the first round of a period and comes up at the last, two exchanges of the
upper link. A team that the link's participation left out at the first goes on from the model it last had.

Lumin Liu, Jun Zhang, S. H. Song, Khaled B. Letaief: Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from palmette.errors import BadInput
from palmette.protocol import (
    Algorithm,
    Ask,
    Device,
    Inner,
    ModelKind,
    Node,
    Reduce,
    Server,
    State,
    check_per_tier,
    inverse,
)
from palmette.protocol.settings import BatchSize, Between, Count, Rate, settings
from palmette.tree import Tree


@settings
class HierFAVG(Algorithm):
    """Hierarchical federated averaging; a team's model (TM) is its average, a device's own (PM) that model fine-tuned.

    Attributes:
        local_steps: Gradient steps of a device between two averages in its team (kappa_1 in the paper).
        team_steps: Averages in a team in every global round; on deeper trees also a list with one number per inner tier,
            lowest first (kappa_2 in the paper).
        global_every: Rounds between two averages across teams; 1 averages in every round, 0 never.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta in the paper).
        tune_steps: Gradient steps of fine-tuning that make a device's own model from its team's.
        weights: Weights of the averages: ``"samples"`` counts a child by its training samples, ``"equal"`` all alike.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "hierfavg"
    paper: ClassVar[str] = "Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning (ICC 2020)"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; the average is over those that answered, by their samples."
    )
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "tune_steps": Between(5, 80, whole=True)}

    local_steps: Count = 20
    team_steps: Count | tuple[Count, ...] = 10
    global_every: Annotated[int, Field(ge=0)] = 1
    alpha: Rate = 0.05
    tune_steps: Count = 20
    weights: Literal["samples", "equal"] = "samples"
    batch_size: BatchSize = 20

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """There is no global model when teams are never averaged."""
        return ("PM", "TM", "GM") if self.global_every else ("PM", "TM")

    def check(self, tree: Tree) -> None:
        """Refuse trees without teams and lists that do not fit."""
        if tree.top < 2:
            raise BadInput(f"hierfavg needs teams between devices and server; this tree ({tree}) has none")
        check_per_tier(tree, team_steps=self.team_steps)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Teams and server keep their model."""
        return {"model": initial} if node.tier > 0 else {}

    @property
    def _reduce(self) -> Reduce:
        return "samples" if self.weights == "samples" else "mean"

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the team's model on the device's own data."""
        return node.descend(message, steps=self.local_steps, lr=node.own(self.alpha, message)), state

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Average the children several times, from the parent's model or, where none came, from one's own."""
        w = state["model"] if message is None else message
        steps = self.team_steps if isinstance(self.team_steps, int) else self.team_steps[node.tier - 1]
        for _ in range(steps):
            replies = yield Ask(w, reduce=self._reduce, otherwise=w)
            w = replies.rows
        ends = self.global_every and (node.round + 1) % self.global_every == 0
        return w if ends or node.tier < node.tree.top - 1 else None, {"model": w}

    def server(self, node: Node, state: State) -> Server:
        """Send out the global model after it changed, and average at the rounds set."""
        x = state["model"]
        begins = node.round == 0 or (self.global_every and node.round % self.global_every == 0)
        ends = self.global_every and (node.round + 1) % self.global_every == 0
        replies = yield Ask(x if begins else None, reduce=self._reduce, otherwise=x)
        return {"model": replies.rows if ends else x}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the team's model."""
        return node.descend(parent, steps=self.tune_steps, lr=node.own(self.alpha, parent))
