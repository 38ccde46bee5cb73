"""The base class of all algorithms: settings, and the programs of server, teams and devices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from palmette.errors import BadInput, ProtocolError
from palmette.learner import Batch
from palmette.protocol.messages import Replies
from palmette.protocol.node import Device, ModelKind, Node, State
from palmette.protocol.settings import Between
from palmette.tree import Tree


def inverse(number: float) -> float:
    """Return one over a curvature or a pull: the largest stable step; no step is too large where there is neither."""
    return 1 / number if number else math.inf


def check_per_tier(tree: Tree, **lists: Any) -> None:
    """Refuse settings that are lists, one entry for each tier of teams, and have more or fewer entries."""
    tiers = tree.top - 1
    for name, value in lists.items():
        if isinstance(value, tuple) and len(value) != tiers:
            entries = "1 entry" if len(value) == 1 else f"{len(value)} entries"
            raise BadInput(
                f"{name} has {entries} but the tree ({tree}) has {tiers} {'tier' if tiers == 1 else 'tiers'} of teams; "
                "give one entry for each, or one number for all"
            )


Inner = Generator[Any, Replies, tuple[Any, State]]
Server = Generator[Any, Replies, State]


class Algorithm(ABC):
    """The base class of all algorithms: its fields are the settings, its methods the programs of the nodes.

    The row named ``"model"`` in a node's state is that node's model: the device's own (PM), the team's (TM), the global one
    (GM). A device without such a state, or that never took part, gets its model from `adapt`; a team that never took part
    has its parent's.

    Attributes:
        name: What users call the algorithm.
        paper: Where it comes from; ``""``, the default, for a method that is in no paper.
        absent: One sentence on what it means for a device, and for the others, that the device is left out of a round.
        flat: Whether it ignores teams and runs on the devices directly under the server.
        one_label: Whether it is for samples with one label each, so that text, with one for every token, is refused.
        tiers: The numbers of tiers it is defined for; ``None`` for any.
        held_out: The share of each device's training samples it wants kept out of training, to choose settings by.
        presets: Named sets of settings.
        parts: Parts of a model that it treats differently, each with the pattern that is taken where the user names none, as in
            ``{"head": "last(1)"}``.
        whole_part: Whether one of these parts may be all there is, as in a model of one layer; else such a model is refused.
        search: Settings that tuning looks for (``palmette compare --tune``), each with the values it tries; where none are
            declared, every number above zero from a tenth to ten times its default.
        by_name: Settings that may be mappings of node names, and the tier the names are of.
        batch_size: Samples per gradient step.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    absent: ClassVar[str] = ""
    flat: ClassVar[bool] = False
    one_label: ClassVar[bool] = False
    tiers: ClassVar[tuple[int, ...] | None] = None
    held_out: ClassVar[float] = 0.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    parts: ClassVar[Mapping[str, str]] = {}
    whole_part: ClassVar[bool] = False
    search: ClassVar[Mapping[str, Between]] = {}
    by_name: ClassVar[Mapping[str, int]] = {"alpha": 0}
    batch_size: int | Literal["full"]

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Which kinds of models the algorithm makes; ``"TM"`` stands for those of all inner tiers."""
        return ("PM", "GM") if self.flat else ("PM", "TM", "GM")

    @property
    def plain_steps(self) -> bool:
        """Whether its formulas count on plain gradient steps of length alpha; other optimisers are then refused."""
        return False

    @property
    def several_models(self) -> bool:
        """Whether a device trains several models in turn, so that no momentum can be kept for one (optimiser.keep)."""
        return False

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Declare what the nodes of a tier keep between messages: initial rows ``(width,)`` by name.

        Args:
            node: All nodes of the tier; ``node.tier``, ``node.tree`` and ``node.part(initial, "head")`` say what is needed.
            initial: The initial model as a row.
        """
        return {"model": initial} if node.tier == node.tree.top else {}

    def predict(self, rows: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return one device's outputs for samples of its own; what evaluation and every use of a personal model call.

        By default it is the device's model at work. A method that predicts from several rows says so here.

        Args:
            rows: What the device keeps, by name, each row ``(width,)``; ``"model"`` is there for every device.
            batch: The samples: ``batch.predict(row)`` gives a model's outputs, ``batch.x`` the features.
        """
        return batch.predict(rows["model"])

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        """Return the stage a round belongs to, for algorithms that have several.

        Args:
            tree: The tree.
            round_: The round, from 0.
            rounds: Rounds the run has in all.
        """
        return 0

    def asked_rounds(self, tree: Tree) -> int | None:
        """Return how many rounds the settings ask for on a tree; ``None`` where they leave it to the user.

        Args:
            tree: The tree.
        """
        return None

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Return what the settings amount to in a run of so many rounds: numbers or sentences, by name.

        Args:
            tree: The tree.
            rounds: Rounds of the run.
        """
        return {}

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Return numbers of the algorithm's own about its nodes, by name, one per node, from what the nodes keep.

        Whole numbers are counts, to be added up over a tier; others are averaged. ``state["model"]`` is there for every
        node and is the model that is measured.

        Args:
            node: The nodes of a tier.
            state: What they keep, by name.
        """
        return {}

    def check(self, tree: Tree) -> None:
        """Refuse a tree the algorithm is not defined on, and names that are not in it.

        Args:
            tree: The tree that the algorithm is to run on.
        """
        if self.tiers is not None and tree.tiers not in self.tiers:
            allowed = " or ".join(map(str, self.tiers))
            raise BadInput(f"{self.name} is defined on trees of {allowed} tiers; this one, {tree}, has {tree.tiers}")
        for setting, tier in self.by_name.items():
            if isinstance(names := vars(self).get(setting), Mapping):
                tree.check_names(tier, names, setting)

    def tuned(self, curvature: Callable[[], float]) -> Algorithm:
        """Return the algorithm with ``alpha="auto"`` replaced by its largest stable value.

        Args:
            curvature: Computes the largest curvature of the devices' losses; called only where it is needed.
        """
        if vars(self).get("alpha") != "auto":
            return self
        found = curvature()
        limit = self.stable(found)["alpha"]
        if not 0 < found < math.inf or not 0 < limit < math.inf:
            why = "the loss is flat, there is nothing to learn" if found == 0 else "scale the features first"
            raise BadInput(
                f"alpha = 'auto' follows from the curvature of the loss on these samples, which is {found:g} ({why}); "
                "or give alpha a number"
            )
        return replace(self, alpha=limit)  # type: ignore[type-var]

    def stable(self, curvature: float) -> dict[str, float]:
        """Return the largest stable value of every step size, given the curvature of the devices' losses.

        It is asked for where a step size is ``"auto"``, and for advice when a training diverged.

        Args:
            curvature: The largest curvature of the devices' losses, the L of 1 / L.
        """
        return {}

    @abstractmethod
    def server(self, node: Node, state: State) -> Server:
        """Run one global round at the server: a generator that yields asks and returns the new state.

        Args:
            node: The server.
            state: What it keeps, by name: rows ``(1, width)``, as `keeps` declared them.
        """

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Answer one message at an inner node: a generator that returns the reply and the new state.

        Args:
            node: The nodes: all of this tier in the simulator, one on a real machine. It has their tree, tier and
                round.
            message: What their parents sent: rows, one line per node, or rows and numbers by name.
            state: What they keep, by name: rows ``(nodes, width)``, as `keeps` declared them.
        """
        raise ProtocolError(f"{self.name} has no program for teams: write the method team")

    @abstractmethod
    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Answer one message at a device: return the reply and the new state.

        Args:
            node: The devices, with their local work: `Device.descend` and others.
            message: What their parents sent: rows, one line per device, or rows and numbers by name.
            state: What they keep, by name: rows ``(devices, width)``.
        """

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Make a device's own model from its parent's: for devices that keep none, are new or never took part.

        By default it is the parent's model as it is.

        Args:
            node: The devices, with their local work.
            parent: Their parents' models, one row per device.
            state: What the devices keep, by name.
        """
        return parent
