"""Own parts: some layers of the model belong to each device and never leave it, the others are averaged.

A model is cut into a part u that a device keeps (its own) and a part v that is sent and averaged (shared). All four methods
look for

    min over v and u_1 .. u_N of   sum_i n_i / n * f_i(v, u_i)

and differ in what is the device's own, and in the steps of a round:

- ``fedper``: the head u is own and the body v shared; all layers take ``local_steps`` steps together.
- ``fedrep``: the same parts; first the head takes ``head_steps`` steps with v fixed, then the body ``local_steps`` steps with u
  fixed.
- ``fedbabu``: the head stays at its initial value, the same for all, and only v is trained; so body and initial head are a
  global model. A device's own model is this one after fine-tuning.
- ``lg-fedavg``: the other way round: the head is shared, and the layers before it (the representation) are own.

The head is the model's last layer; ``model.parts.head`` names another. ``"*"`` makes all of the model the head (in ``fedper``
every device then trains alone), ``[]`` none of it (``fedper`` is then FedAvg). A model of one layer is refused, as nothing
would be left for the other part.

On a tree: with ``team_steps`` at 0 teams are ignored, as in the papers. With ``team_steps`` above 0 a team averages so often in
a round, as in HierFAVG, and then sends the shared part up. If ``model.parts.neck`` names a part, it belongs to the team: it
goes between a team and its devices, is averaged there, and never goes up. On deeper trees the teams are the nodes right above
the devices; those above them carry only what all share.

What papers leave open: PM is the newest shared part with the device's own part as it was trained, and ``tune_steps`` fits the
own part to it first. A device that never took part fits its initial own part in ``local_steps`` steps. The published code of
FedRep and FedPer measures the device's model before the average, that of LG-FedAvg begins from a model trained by FedAvg; both
are left out here. The published step counts are epochs; here they are steps, so that methods can be compared at equal work.

Manoj Ghuhan Arivazhagan et al.: Federated Learning with Personalization Layers, 2019 (arXiv 1912.00818).
Liam Collins et al.: Exploiting Shared Representations for Personalized Federated Learning, ICML 2021 (2102.07078).
Jaehoon Oh, Sangmook Kim, Se-Young Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022
(2106.06042).
Paul Pu Liang et al.: Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020 (2001.01523).
The texts of the last two could not be had, and of the first two only parts: the updates are those of abstracts, excerpts and
later papers that describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette.errors import BadInput
from palmette.protocol import Algorithm, Ask, Device, Inner, ModelKind, Node, Server, State, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, Positive, Rate, settings
from palmette.task.layout import Layout
from palmette.tree import Tree

HEAD, NECK = "head", "neck"
Steps = Annotated[int, Field(ge=0), NUMBER]


@settings
class OwnParts(Algorithm):
    """The programs of the whole family, which differ in what is a device's own and in the steps they take.

    Attributes:
        local_steps: Gradient steps of a device each time it is asked.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        tune_steps: Gradient steps that fit a device's own part to the newest shared part when its own model is made; 0 takes it
            as it is.
        team_steps: Averages in a team in every global round; 0 ignores teams. If it is above 0, ``model.parts.neck`` may name
            layers that belong to each team.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    absent: ClassVar[str] = (
        "A device that is left out keeps its own part; the shared part is averaged over those that answered, by samples."
    )
    parts: ClassVar[Mapping[str, str]] = {HEAD: "last(1)"}
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0)}
    own_head: ClassVar[bool] = True

    local_steps: Count = 20
    alpha: Rate = 0.05
    tune_steps: Steps = 0
    team_steps: Steps = 0
    batch_size: BatchSize = 20

    @property
    def flat(self) -> bool:  # type: ignore[override]  # elsewhere it is said once for a class, here by a setting
        """Whether teams are ignored."""
        return self.team_steps == 0

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Only devices have all parts."""
        return ("PM",)

    def check(self, tree: Tree) -> None:
        """Refuse teams that are not there."""
        super().check(tree)
        if self.team_steps and tree.top < 2:
            raise BadInput(
                f"{self.name}: team_steps = {self.team_steps} asks for averages in teams, and this tree ({tree}) has no teams; "
                "set team_steps to 0"
            )

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    # -- which part is whose -------------------------------------------------------------------------------------------

    def own(self, layout: Layout) -> tuple[str, ...]:
        """Return the parts that stay on a device."""
        return tuple(part for part in layout.parts if part != NECK and (part == HEAD) == self.own_head)

    def sent(self, layout: Layout, tier: int) -> tuple[str, ...]:
        """Return the parts that cross the link below a tier: all but the devices' own, and above teams without the neck."""
        others = [part for part in layout.parts if part not in self.own(layout)]
        return tuple(part for part in others if tier < 2 or part != NECK)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their own part, and whether they ever trained it; teams and server a model."""
        if self.flat and NECK in node.layout.parts:
            raise BadInput(
                f"{self.name}: model.parts.neck names layers that belong to teams, and team_steps = 0 ignores teams; set "
                "team_steps to the number of averages in a team, or leave the neck out"
            )
        if node.tier:
            return {"model": initial}
        return {"own": node.part(initial, self.own(node.layout)), "trained": initial.new_zeros(1)}

    # -- programs ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Put the parts together, train, reply with what is shared and keep what is one's own."""
        theta = self.train(node, self._whole(node, message, state))
        kept = {"own": node.part(theta, self.own(node.layout)), "trained": torch.ones_like(state["trained"])}
        return node.part(theta, self.sent(node.layout, 1)), kept

    def _whole(self, node: Device, message: Tensor, state: State) -> Tensor:
        """Return models made of what came and of what a device keeps."""
        empty = message.new_zeros(len(node), node.layout.width)
        return node.layout.put(
            node.layout.put(empty, self.sent(node.layout, 1), message), self.own(node.layout), state["own"]
        )

    def train(self, node: Device, theta: Tensor) -> Tensor:
        """Train all layers together."""
        return node.descend(theta, steps=self.local_steps, lr=node.own(self.alpha, theta))

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Take the shared part from above, average with the devices several times, send the shared part up."""
        down, up = self.sent(node.layout, node.tier), self.sent(node.layout, node.tier + 1)
        model = node.layout.put(state["model"], up, message)
        for _ in range(self.team_steps):
            model = yield from self._average(node, model, down)
        return node.part(model, up), {"model": model}

    def server(self, node: Node, state: State) -> Server:
        """Average the shared part, by samples."""
        model = yield from self._average(node, state["model"], self.sent(node.layout, node.tier))
        return {"model": model}

    @staticmethod
    def _average(node: Node, model: Tensor, parts: tuple[str, ...]) -> Any:
        """Send some parts of a model down and return the model with their averages in place."""
        rows = node.part(model, parts)
        replies = yield Ask(rows, reduce="samples", otherwise=rows)
        return node.layout.put(model, parts, replies.rows)

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Put the newest shared part before (or after) the device's own, and fit that to it."""
        own = self.own(node.layout)
        theta = node.layout.put(parent, own, state["own"])
        steps = torch.where(state["trained"][:, 0] > 0, self.tune_steps, max(self.tune_steps, self.local_steps))
        if not bool(steps.any()) or not state["own"].shape[1]:
            return theta
        return node.descend(theta, steps=steps, lr=node.own(self.alpha, theta), only=own)


@settings
class FedPer(OwnParts):
    """FedPer: devices keep the head (the last layer) and share the body (the others); both are trained together."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al.: Federated Learning with Personalization Layers (2019)"


@settings
class FedRep(OwnParts):
    """FedRep: devices keep the head and share the body; in every round the head takes its steps first, then the body.

    Attributes:
        local_steps: Gradient steps of the body each time a device is asked, after those of the head.
        head_steps: Gradient steps of the head before them, with the body fixed (tau in the paper).
    """

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al.: Exploiting Shared Representations for Personalized FL (ICML 2021)"
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "head_steps": Between(2, 40, whole=True)}

    local_steps: Count = 10
    head_steps: Count = 10

    def train(self, node: Device, theta: Tensor) -> Tensor:
        """Train the device's own part, then the shared one."""
        lr, layout = node.own(self.alpha, theta), node.layout
        theta = node.descend(theta, steps=self.head_steps, lr=lr, only=self.own(layout))
        return node.descend(theta, steps=self.local_steps, lr=lr, only=self.sent(layout, 1))


@settings
class FedBABU(OwnParts):
    """FedBABU: only the body is trained and shared, the head stays as it began; own models (PM) are fine-tuned.

    Attributes:
        tune_steps: Gradient steps of fine-tuning that make a device's own model from the global one, or from its team's.
        tune: What is fine-tuned: ``"all"`` layers, or the ``"head"`` alone.
        tune_alpha: Learning rate of fine-tuning. Around a head that never moved features grow large, so it must be small.
    """

    name: ClassVar[str] = "fedbabu"
    paper: ClassVar[str] = "Oh, Kim, Yun: FedBABU: Toward Enhanced Representation (ICLR 2022)"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; the body is averaged over those that answered, by samples."
    )
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "tune_alpha": Between(0.001, 0.3),
        "tune_steps": Between(5, 80, whole=True),
    }

    tune_steps: Steps = 20
    tune: Literal["all", "head"] = "all"
    tune_alpha: Positive = 0.01

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """The body with the initial head is a model of all; on a tree a neck may be the teams', so the models are theirs."""
        return ("PM", "GM") if self.flat else ("PM", "TM")

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep the initial head, which nobody sends them."""
        return {name: row for name, row in super().keeps(node, initial).items() if name != "trained"}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train the shared part around the initial head."""
        theta = self.train(node, self._whole(node, message, state))
        return node.part(theta, self.sent(node.layout, 1)), state

    def train(self, node: Device, theta: Tensor) -> Tensor:
        """Train the shared part alone."""
        lr = node.own(self.alpha, theta)
        return node.descend(theta, steps=self.local_steps, lr=lr, only=self.sent(node.layout, 1))

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the parent's model."""
        only = None if self.tune == "all" else self.own(node.layout)
        return node.descend(parent, steps=self.tune_steps, lr=self.tune_alpha, only=only)


@settings
class LGFedAvg(OwnParts):
    """LG-FedAvg: devices keep their representation (all layers but the last) and share the head; both train together."""

    name: ClassVar[str] = "lg-fedavg"
    paper: ClassVar[str] = "Liang et al.: Think Locally, Act Globally (2020)"
    own_head: ClassVar[bool] = False
