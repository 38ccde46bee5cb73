"""What an algorithm is: programs of the nodes of a tree, written once, run stacked or one node at a time.

A program that has children is a generator: it **yields a message for them and gets their replies back**. A device program
is a plain function. All rows a program sees have one line per node of its stack: in the simulator one generator serves a
whole tier, on a real machine the same text runs with a stack of one. Programs never write into their inputs, never look
across rows, and know nothing of participation, bytes, encodings or faults: those live at the ``yield``.

    def team(self, node, message, state):
        replies = yield Ask(message)          # to the children of every node of the stack
        return replies.rows, {}               # one row per node, and what to keep until next time
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, ProtocolError
from palmette.learner import Learner, LocalWork
from palmette.tree import Tree

Reduce = Literal["mean", "samples", "stack"]
ModelKind = str
"""Whose model: ``"PM"`` a device's own, ``"TM"`` its team's, ``"TM2"`` ... of inner tiers above, ``"GM"`` the global one."""
State = Mapping[str, Tensor]
"""What a node keeps, by name: given to its program, which returns what it keeps from then on."""
Setting = str | float | Mapping[str, float]
"""A number for all nodes of a tier, or one per node by name; a word such as ``"auto"`` must be resolved before use."""


@dataclass(frozen=True, eq=False)
class PerChild:
    """Rows with one line per child (in the order of `Node.child_ids`) instead of one per parent."""

    rows: Tensor


Message = Tensor | PerChild | Mapping[str, Any] | None
"""Rows ``(n, ...)`` for a stack of n nodes, or several by name together with plain numbers, or nothing at all."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What a program yields: a message for its children and how to reduce their replies.

    Attributes:
        message: Rows (one line per asking node, or `PerChild`), or a mapping of names to rows and numbers. ``None`` lets the
            children work by themselves: nothing crosses the link and no exchange is counted.
        to: Which nodes of the stack ask now (bool, one per node); the others wait. All by default.
        only: Which children may be asked (bool, in the order of `Node.child_ids`); it narrows the link's participation.
        reduce: ``"mean"`` of the children's rows, mean weighted by training ``"samples"``, or ``"stack"`` of all rows.
        weights: Weights of the children (in the order of `Node.child_ids`) for the mean, in place of samples.
        otherwise: What a node gets when nobody answered it: rows, or a mapping by name.
    """

    message: Message
    to: Tensor | None = None
    only: Tensor | None = None
    reduce: Reduce = "mean"
    weights: Tensor | None = None
    otherwise: Tensor | Mapping[str, Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Replies:
    """What came back, reduced as declared.

    Attributes:
        values: Reduced replies by name; a bare tensor's name is ``""``.
        count: For every node of the stack, how many children answered.
        weigh: Computes `weight`.
        positions: With ``"stack"``: for every row, the child's position in `Node.child_ids`.
        parents: With ``"stack"``: for every row, the position of its parent in the stack.
    """

    values: Mapping[str, Tensor]
    count: Tensor
    weigh: Callable[[], Tensor]
    positions: Tensor
    parents: Tensor

    @property
    def rows(self) -> Tensor:
        """The reply, where children reply with one bare tensor."""
        return self[""]

    @property
    def weight(self) -> Tensor:
        """For every node, the sum of the weights of those who answered, where the average of those asked counts as 1."""
        return self.weigh()

    @property
    def present(self) -> Tensor:
        """Which nodes of the stack got any answer."""
        return self.count > 0

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            raise ProtocolError(f"no reply named {name!r}; there is {sorted(self.values)}")
        return self.values[name]


class Node:
    """Where a program runs: the nodes of one tier that work in lockstep, a single one on a real machine.

    Attributes:
        tree: The tree the algorithm runs on.
        tier: The nodes' tier.
        ids: Their numbers within the tier.
        round: The round under way, from 0.
        rounds: How many rounds the run has in all.
        stage: What `Algorithm.stage` says of this round.
        seed: The run's seed, for addressed randomness.
        child_samples: Training samples under each child, in the order of `child_ids`.
    """

    def __init__(
        self,
        tree: Tree,
        tier: int,
        ids: Tensor,
        *,
        seed: int,
        round_: int,
        rounds: int,
        stage: int,
        samples: list[Tensor],
    ) -> None:
        self.tree, self.tier, self.ids = tree, tier, ids
        self.seed, self.round, self.rounds, self.stage = seed, round_, rounds, stage
        self._samples = samples

    def __len__(self) -> int:
        return self.ids.shape[0]

    @cached_property
    def samples(self) -> Tensor:
        """Training samples under each node."""
        return self._samples[self.tier][self.ids]

    @property
    def child_ids(self) -> Tensor:
        """The numbers of all children of the stack's nodes, parent by parent."""
        return self._children[0]

    @property
    def child_parents(self) -> Tensor:
        """For each of `child_ids`, the position of its parent in the stack."""
        return self._children[1]

    @cached_property
    def child_places(self) -> Tensor:
        """The positions of all of `child_ids`."""
        return torch.arange(self.child_ids.shape[0])

    @cached_property
    def child_count(self) -> Tensor:
        """The number of children of each node."""
        return torch.bincount(self.child_parents, minlength=len(self))

    @property
    def child_samples(self) -> Tensor:
        """Training samples under each of `child_ids`."""
        return self._samples[self.tier - 1][self.child_ids]

    @cached_property
    def _children(self) -> tuple[Tensor, Tensor]:
        offsets = torch.from_numpy(self.tree.offsets[self.tier - 1])
        first, size = offsets[self.ids], offsets[self.ids + 1] - offsets[self.ids]
        parents = torch.repeat_interleave(torch.arange(len(self.ids)), size)
        return torch.arange(len(parents)) + (first - (torch.cumsum(size, 0) - size))[parents], parents

    def uniform(self, purpose: str, *parts: int) -> Tensor:
        """Return one addressed number in [0, 1) per node (float64): a coin that falls alike on every machine."""
        base = address.key(self.seed, purpose, self.round, self.tier, *parts)
        return address.uniform(address.mix(base, self.ids))

    def own(self, setting: Setting, like: Tensor) -> float | Tensor:
        """Return a setting for the nodes of this stack: the number, or a column that multiplies rows like ``like``."""
        return _pick(setting, self.tree, self.tier, self.ids, like)

    def theirs(self, setting: Setting, like: Tensor) -> float | Tensor:
        """Return a setting for the children of this stack, in the order of `child_ids`."""
        return _pick(setting, self.tree, self.tier - 1, self.child_ids, like)


def _pick(setting: Setting, tree: Tree, tier: int, ids: Tensor, like: Tensor) -> float | Tensor:
    if isinstance(setting, str):
        raise ProtocolError(f"the setting {setting!r} was not resolved to a number")
    if not isinstance(setting, Mapping):
        return setting
    tree.check_names(tier, setting)
    values = like.new_tensor([setting[name] for name in tree.names(tier)])
    return values[ids.to(like.device)].reshape(-1, *([1] * (like.dim() - 1)))


def model_kind(tier: int, top: int) -> ModelKind:
    """Return what the models of a tier are called, in a tree whose server is in tier ``top``."""
    return "PM" if tier == 0 else "GM" if tier == top else "TM" if tier == 1 else f"TM{tier}"


class Device(Node, LocalWork):
    """Where a device program runs: a chunk of devices with their local work (`LocalWork`: descend, gradient, loss)."""

    def __init__(self, learner: Learner, exchange: Tensor, tree: Tree, ids: Tensor, **where: Any) -> None:
        Node.__init__(self, tree, 0, ids, **where)
        LocalWork.__init__(self, learner, ids, where["round_"], exchange)


Inner = Generator[Any, Replies, tuple[Any, State]]
Server = Generator[Any, Replies, State]


class Algorithm(ABC):
    """A frozen dataclass of settings whose methods are the programs of the nodes.

    The row named ``"model"`` in a node's state is that node's model: the device's own (PM), the team's (TM), the global one
    (GM). A device without such a state, or that never took part, gets its model from `adapt`; a team that never took part
    has its parent's.

    Attributes:
        name: What users call the algorithm.
        paper: Where it comes from.
        flat: Whether it ignores teams and runs on the devices directly under the server.
        tiers: The numbers of tiers it is defined for; ``None`` for any.
        held_out: The share of each device's training samples it wants kept out of training, to choose settings by.
        presets: Named sets of settings.
        by_name: Settings that may be mappings of node names, and the tier the names are of.
        batch_size: Samples per gradient step.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    flat: ClassVar[bool] = False
    tiers: ClassVar[tuple[int, ...] | None] = None
    held_out: ClassVar[float] = 0.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    by_name: ClassVar[Mapping[str, int]] = {"alpha": 0}
    batch_size: int | Literal["full"]

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Which kinds of models the algorithm makes; ``"TM"`` stands for those of all inner tiers."""
        return ("PM", "GM") if self.flat else ("PM", "TM", "GM")

    def keeps(self, tree: Tree, tier: int, initial: Tensor) -> State:
        """Declare what a node of this tier keeps between messages: initial rows ``(width,)`` by name."""
        return {"model": initial} if tier == tree.top else {}

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        """Return the stage a round belongs to, for algorithms that have several."""
        return 0

    def asked_rounds(self, tree: Tree) -> int | None:
        """Return how many rounds the settings ask for on a tree; ``None`` where they leave it to the user."""
        return None

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Tell what the settings come to in so many rounds, by name: numbers, numbers by node name, or a sentence."""
        return {}

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell numbers of one's own about nodes between rounds, one per node, from what they keep.

        Whole numbers are counts, to be added up over a tier; others are averaged. ``state["model"]`` is there for every
        node and is the model that is measured.
        """
        return {}

    def check(self, tree: Tree) -> None:
        """Refuse a tree the algorithm is not defined on, and names that are not in it."""
        if self.tiers is not None and tree.tiers not in self.tiers:
            allowed = " or ".join(map(str, self.tiers))
            raise BadInput(f"{self.name} is defined on trees of {allowed} tiers, not {tree.tiers} ({tree})")
        for setting, tier in self.by_name.items():
            if isinstance(names := vars(self).get(setting), Mapping):
                tree.check_names(tier, names, setting)

    def tuned(self, curvature: Callable[[], float]) -> Algorithm:
        """Return the algorithm with ``alpha="auto"`` replaced by its largest stable value."""
        if vars(self).get("alpha") != "auto":
            return self
        return replace(self, alpha=self.stable(curvature())["alpha"])  # type: ignore[type-var]

    def stable(self, curvature: float) -> dict[str, float]:
        """Return the largest stable value of every step size, given the curvature of the devices' losses."""
        return {}

    @abstractmethod
    def server(self, node: Node, state: State) -> Server:
        """Run one global round at the server: a generator that yields asks and returns the new state."""

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Answer one message at an inner node: a generator that returns the reply and the new state."""
        raise ProtocolError(f"{self.name} has no program for inner nodes")

    @abstractmethod
    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Answer one message at a device: return the reply and the new state."""

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Make a device's own model from its parent's: for devices that keep none, are new or never took part."""
        return parent
