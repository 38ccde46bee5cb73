"""Where a program runs: nodes of one tier with their children, settings and coins, and devices with their local work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palmette import address
from palmette.errors import ProtocolError
from palmette.learner import Learner, LocalWork
from palmette.task.layout import Layout, Which
from palmette.tree import Tree

ModelKind = str
"""Whose model: ``"PM"`` a device's own, ``"TM"`` its team's, ``"TM2"`` ... of inner tiers above, ``"GM"`` the global one."""
State = Mapping[str, Tensor]
"""What a node keeps, by name: given to its program, which returns what it keeps from then on."""
Setting = str | float | Mapping[str, float]
"""A number for all nodes of a tier, or one per node by name; a word such as ``"auto"`` must be resolved before use."""


class Node:
    """What a program knows about the nodes it runs for: all nodes of a tier in the simulator, one on a real machine.

    Attributes:
        tree: The tree the algorithm runs on.
        tier: The nodes' tier.
        ids: Their numbers within the tier. They say where a node's rows are and change when nodes come and go, so a program
            must not make numbers from them: `addresses` and `uniform` belong to the node itself.
        round: The round under way, from 0.
        rounds: How many rounds the run has in all. A run whose program looks at it cannot be given more rounds later.
        stage: What `Algorithm.stage` says of this round.
        turn: How many rounds of this stage came before.
        seed: The run's random seed.
        child_samples: Training samples under each child, in the order of `child_ids`.
        layout: Which numbers of a model's row belong to which layer and to which part of the model.
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
        turn: int = 0,
        samples: list[Tensor],
        layout: Layout,
        on_rounds: Callable[[], None] = lambda: None,
        on_parts: Callable[[], None] = lambda: None,
    ) -> None:
        self.tree, self.tier, self.ids = tree, tier, ids
        self.seed, self.round, self.stage, self.turn = seed, round_, stage, turn
        self._rounds, self._on_rounds, self._on_parts = rounds, on_rounds, on_parts
        self._samples, self.layout = samples, layout

    @staticmethod
    def of_tier(tree: Tree, tier: int, layout: Layout) -> Node:
        """Return all nodes of a tier before any round, for what an algorithm says of them in advance.

        Args:
            tree: The tree.
            tier: The tier.
            layout: Which numbers of a model's row belong to which part.
        """
        samples = [torch.zeros(tree.size(one), dtype=torch.int64) for one in range(tree.tiers)]
        ids = torch.arange(tree.size(tier))
        return Node(tree, tier, ids, seed=0, round_=0, rounds=1, stage=0, samples=samples, layout=layout)

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def rounds(self) -> int:
        """How many rounds the run has in all."""
        self._on_rounds()
        return self._rounds

    @cached_property
    def samples(self) -> Tensor:
        """Training samples under each node."""
        return self._samples[self.tier][self.ids]

    @cached_property
    def addresses(self) -> Tensor:
        """The nodes' own addresses, under which their random numbers are drawn."""
        return torch.from_numpy(self.tree.addresses[self.tier])[self.ids]

    @cached_property
    def child_addresses(self) -> Tensor:
        """The addresses of all of `child_ids`."""
        return torch.from_numpy(self.tree.addresses[self.tier - 1])[self.child_ids]

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

    def part(self, rows: Tensor, which: Which) -> Tensor:
        """Return the columns of a part of the model (or of several), as rows of their own: what to send, or to keep.

        Args:
            rows: Whole rows, one model each.
            which: The name of a part, or several.
        """
        self._on_parts()
        return self.layout.cut(rows, which)

    def join(self, rows: Tensor | None = None, /, **parts: Tensor) -> Tensor:
        """Return whole rows made of their parts, as in ``node.join(body=message, head=state["head"])``.

        Args:
            rows: Whole rows whose columns are taken for the parts that are not given.
            **parts: Rows of each part, by its name.
        """
        self._on_parts()
        return self.layout.joined(rows, parts)

    def uniform(self, purpose: str, *parts: int) -> Tensor:
        """Return one random number in [0, 1) per node (float64), the same on every machine.

        Args:
            purpose: A word of your own; other words give other numbers.
            *parts: Whole numbers, such as that of a step, for several draws in a round.
        """
        base = address.key(self.seed, purpose, self.round, self.tier, *parts)
        return address.uniform(address.mix(base, self.addresses))

    def own(self, setting: Setting, like: Tensor) -> float | Tensor:
        """Return a setting for the nodes of this stack: the number, or a column that multiplies rows like ``like``.

        Args:
            setting: A number, or a mapping from node names to numbers.
            like: Rows, one line per node, that the column is to multiply.
        """
        return _pick(setting, self.tree, self.tier, self.ids, like)

    def theirs(self, setting: Setting, like: Tensor) -> float | Tensor:
        """Return a setting for the children of this stack, in the order of `child_ids`.

        Args:
            setting: A number, or a mapping from node names to numbers.
            like: Rows, one line per child, that the column is to multiply.
        """
        return _pick(setting, self.tree, self.tier - 1, self.child_ids, like)


def _pick(setting: Setting, tree: Tree, tier: int, ids: Tensor, like: Tensor) -> float | Tensor:
    if isinstance(setting, str):
        raise ProtocolError(f"the setting {setting!r} is not a number yet: resolve it in the method tuned")
    if not isinstance(setting, Mapping):
        return setting
    tree.check_names(tier, setting)
    values = like.new_tensor([setting[name] for name in tree.names(tier)])
    return values[ids.to(like.device)].reshape(-1, *([1] * (like.dim() - 1)))


def model_kind(tier: int, top: int) -> ModelKind:
    """Return what the models of a tier are called, in a tree whose server is in tier ``top``."""
    return "PM" if tier == 0 else "GM" if tier == top else "TM" if tier == 1 else f"TM{tier}"


class Device(Node, LocalWork):
    """What a device program runs for: a chunk of devices, with their local work (`LocalWork`: descend, gradient, loss)."""

    def __init__(self, learner: Learner, exchange: Tensor, tree: Tree, ids: Tensor, **where: Any) -> None:
        kept = where.pop("kept", None)
        Node.__init__(self, tree, 0, ids, **where)
        LocalWork.__init__(self, learner, ids, where["round_"], exchange, kept)

    def _all_rounds(self) -> int:
        return self.rounds

    def _in_parts(self) -> None:
        self._on_parts()
