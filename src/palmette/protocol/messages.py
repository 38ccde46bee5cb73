"""What crosses a link: the ask of a program and the replies it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from palmette.errors import ProtocolError

Reduce = Literal["mean", "samples", "stack"]


@dataclass(frozen=True, eq=False)
class PerChild:
    """Rows with one line per child (in the order of `Node.child_ids`) instead of one per parent.

    Attributes:
        rows: The rows: line i goes to child i alone.
    """

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
        again: Whether exactly those of ``only`` are asked, and nobody is drawn: for a second exchange with those that took
            part in the first.
        reduce: ``"mean"`` of the children's rows, mean weighted by training ``"samples"``, or ``"stack"`` of all rows.
        weights: Weights of the children (in the order of `Node.child_ids`, none below 0) for ``"mean"``, which is then a
            weighted mean.
        wait: Whether the asking node waits for its children. Where it does not, they begin to work, reply nothing, and are not
            asked in this way again before their work was fetched with ``first``.
        first: Fetch the work of so many of the children at work, those that end first by the clock; nobody is drawn.
        otherwise: What a node gets when nobody answered it, or nobody whose weight is above 0: rows of the replies' shape
            (one line per asking node), or a mapping by name.
    """

    message: Message
    to: Tensor | None = None
    only: Tensor | None = None
    again: bool = False
    reduce: Reduce = "mean"
    weights: Tensor | None = None
    wait: bool = True
    first: int | None = None
    otherwise: Tensor | Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.again and self.only is None:
            raise ProtocolError("Ask(again=True) also needs only=, the children that took part before")
        if self.first is not None and (self.first < 1 or self.again or not self.wait):
            raise ProtocolError("Ask(first=...) must be at least 1, and goes with neither again=True nor wait=False")
        if not isinstance(self.reduce, str) or self.reduce not in get_args(Reduce):
            words = ", ".join(map(repr, get_args(Reduce)))
            raise ProtocolError(f"Ask(reduce={self.reduce!r}): reduce must be {words}")
        if self.weights is not None and self.reduce == "stack":
            raise ProtocolError("Ask(weights=..., reduce='stack'): a stack of replies has no weights; leave them out")
        if self.otherwise is not None and self.reduce == "stack":
            raise ProtocolError(
                "Ask(otherwise=..., reduce='stack'): a stack has a row for each child that answered and none to fill; leave "
                "otherwise out and look at replies.positions"
            )
        if self.weights is not None and self.reduce == "samples":
            raise ProtocolError(
                "Ask(weights=..., reduce='samples'): the replies are weighted by one of the two; leave weights out, or write "
                "reduce='mean' and multiply the weights by node.child_samples if both shall count"
            )

    @property
    def apart(self) -> bool:
        """Whether asking and fetching are apart: children work while the asking node goes on."""
        return not self.wait or self.first is not None


@dataclass(frozen=True, eq=False)
class Replies:
    """The children's replies, reduced (averaged or stacked) as the `Ask` said.

    Attributes:
        values: Reduced replies by name; a bare tensor's name is ``""``.
        count: For every node of the stack, how many children answered.
        members: For every node of the stack, how many children it has that are not kept out of training (``data.unseen``).
        weigh: Computes `weight`.
        positions: With ``"stack"``: for every row, the child's position in `Node.child_ids`.
        parents: With ``"stack"``: for every row, the position of its parent in the stack.
    """

    values: Mapping[str, Tensor]
    count: Tensor
    members: Tensor
    weigh: Callable[[], Tensor]
    positions: Tensor
    parents: Tensor

    @property
    def rows(self) -> Tensor:
        """The reply, where children reply with one bare tensor."""
        return self[""]

    @property
    def weight(self) -> Tensor:
        """For every node, the sum of the weights of the children that answered; the mean weight of those asked is 1."""
        return self.weigh()

    @property
    def present(self) -> Tensor:
        """Which nodes of the stack got any answer."""
        return self.count > 0

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            raise ProtocolError(f"there is no reply named {name!r}; the children replied with {sorted(self.values)}")
        return self.values[name]
