"""How replies become rows again: what an ask may say, and the mean or the stack of what came back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palmette.errors import ProtocolError
from palmette.links.link import Aggregate
from palmette.links.sparse import Sparse
from palmette.protocol import Ask, Node, PerChild, Replies
from palmette.tree.segments import Positions, SegmentMean

_NONE = torch.zeros(0, dtype=torch.int64)


def check(node: Node, ask: Ask, children: int) -> None:
    """Refuse an ask whose parts do not fit the asking stack."""
    for what, value, size in (
        ("to", ask.to, len(node)),
        ("only", ask.only, children),
        ("weights", ask.weights, children),
    ):
        if value is None:
            continue
        if not isinstance(value, Tensor):
            kind = "numbers" if what == "weights" else "bool"
            raise ProtocolError(
                f"Ask({what}=...) must be a tensor of {size} {kind}, not {type(value).__name__}: write torch.tensor(...)"
            )
        if value.shape != (size,):
            per = "asking node" if what == "to" else "child, in the order of node.child_ids"
            raise ProtocolError(
                f"Ask({what}=...) must have shape ({size},), one value per {per}; it has {tuple(value.shape)}"
            )
        if what != "weights" and value.dtype != torch.bool:
            raise ProtocolError(f"Ask({what}=...) must be bool, not {value.dtype}: write {what} > 0, or {what}.bool()")
    message: Mapping[str, Any] = ask.message if isinstance(ask.message, Mapping) else {"": ask.message}
    for name, sent in message.items():
        if not isinstance(name, str):
            raise ProtocolError(f'the message has the key {name!r}; names are text, as in {{"model": rows}}')
        size = children if isinstance(sent, PerChild) else len(node)
        rows = sent.rows if isinstance(sent, (PerChild, Sparse)) else sent
        if not (rows is None or isinstance(rows, (Tensor, int, float))):
            raise ProtocolError(f"message {name!r} must be rows, PerChild rows or a number, not {type(rows).__name__}")
        if isinstance(rows, Tensor) and (rows.dim() == 0 or len(rows) != size):
            raise ProtocolError(f"message {name!r} must have {size} rows, not shape {tuple(rows.shape)}")
    given = ask.otherwise
    if given is not None:
        for name, fill in given.items() if isinstance(given, Mapping) else [("", given)]:
            if not isinstance(name, str) or not isinstance(fill, Tensor) or fill.shape[:1] != (len(node),):
                said = f"shape {tuple(fill.shape)}" if isinstance(fill, Tensor) else type(fill).__name__
                raise ProtocolError(
                    f"Ask(otherwise=...) must be rows, one per asking node ({len(node)}), or a mapping of names to such rows; "
                    f"{f'its {name!r}' if name != '' else 'it'} is {said}"
                )


def weights_of(node: Node, ask: Ask) -> Tensor | None:
    """Return the children's weights on the CPU; ``None`` for the plain mean."""
    if ask.weights is None:
        return node.child_samples if ask.reduce == "samples" else None
    if ask.weights.is_complex():
        raise ProtocolError("Ask(weights=...) has complex numbers: weights must be finite numbers of at least 0")
    weights = ask.weights.cpu()
    if len(weights) and not 0 <= weights.min().item() <= weights.max().item() < torch.inf:  # a nan is in no order
        bad = int((~((weights >= 0) & weights.isfinite())).nonzero()[0])
        name = node.tree.name(node.tier - 1, int(node.child_ids[bad]))
        raise ProtocolError(
            f"Ask(weights=...) has {weights[bad].item()} for {name!r}: weights must be finite numbers of at least 0"
        )
    return weights


class Reduction:
    """Collects replies as declared in the ask."""

    def __init__(
        self,
        node: Node,
        ask: Ask,
        weights: Tensor | None,
        asked: Tensor,
        there: Tensor,
        aggregate: Aggregate = SegmentMean,
    ) -> None:
        self._ask, self._node, self._there = ask, node, there
        parents, everyone = node.child_parents, node.child_places
        self._all_asked, self._all_there = asked is everyone, there is everyone
        if not self._all_asked:
            self._place = torch.full_like(everyone, -1)
            self._place[asked] = torch.arange(asked.shape[0])
            parents, weights = parents[asked], None if weights is None else weights[asked]
        self._mean = aggregate(parents, len(node), weights, node.child_count if self._all_asked else None)
        self._stack: list[tuple[Tensor, dict[str, Tensor]]] = []

    def add(self, positions: Positions, reply: Any, entered: Tensor | None = None) -> None:
        """Take in the replies of the children at ``positions`` of the parcel.

        Args:
            positions: Which children.
            reply: Their replies, a line for each.
            entered: Which of them count (bool); all by default.
        """
        positions, rows = self._entering(positions, reply, entered)
        if isinstance(positions, Tensor) and not len(positions):
            return
        if self._ask.reduce == "stack":
            self._stack.append((self._there[positions], rows))
        self._mean.add(self._places(positions), {} if self._stack else rows)

    def sum(self, positions: Positions, reply: Any, entered: Tensor | None = None) -> None:
        """Take in the rows of replies ahead of an `add` without them, which counts whose they were.

        Several processes share an exchange so: each sums what it computed, and all count everybody.

        Args:
            positions: Which children.
            reply: Their replies, a line for each.
            entered: Which of them count (bool); all by default.
        """
        positions, rows = self._entering(positions, reply, entered)
        if rows and not (isinstance(positions, Tensor) and not len(positions)):
            self._mean.sum(self._places(positions), rows)

    @property
    def chains(self) -> bool:
        """Whether replies are only added up, one after the other, so that somebody else can go on with the sums."""
        return self._ask.reduce != "stack" and type(self._mean) is SegmentMean

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums so far by name, one row per asking node."""
        return self._mean.sums

    def total_of(self, name: str, like: Tensor) -> Tensor:
        """Return the sums of one kind of rows, which are like some others in all but their number."""
        return self._mean.total_of(name, like)

    def _entering(
        self, positions: Positions, reply: Any, entered: Tensor | None
    ) -> tuple[Positions, dict[str, Tensor]]:
        """Return who of some children counts, and their rows by name."""
        rows = dict(reply) if isinstance(reply, Mapping) else {} if reply is None else {"": reply}
        if rows and not self._ask.wait:
            raise ProtocolError("children that are not waited for, Ask(wait=False), have nothing to reply: return None")
        if entered is None or bool(entered.all()):
            return positions, rows
        some = torch.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        return some[entered], {name: value[entered.to(value.device)] for name, value in rows.items()}

    def _places(self, positions: Positions) -> Positions:
        """Return the places of some children among those that were asked."""
        places: Positions = positions if self._all_there else self._there[positions]
        return places if self._all_asked else self._place[places]

    def result(self, asking: Tensor | None, members: Tensor) -> Replies:
        """Return the reduced replies, filled up for nodes that nobody answered."""
        count = self._mean.present
        places = torch.cat([place for place, _ in self._stack]) if self._stack else _NONE
        if self._ask.reduce == "stack":
            names = self._stack[0][1] if self._stack else {}
            values = {name: torch.cat([rows[name] for _, rows in self._stack]) for name in names}
        else:
            values = self._fill(self._mean.result(), asking)
        parents = self._node.child_parents[places] if self._stack else _NONE
        return Replies(values, count, members, lambda: self._mean.total, places, parents)

    def _fill(self, values: dict[str, Tensor], asking: Tensor | None) -> dict[str, Tensor]:
        if self._mean.complete or bool(self._mean.total.numpy().all()):
            return values
        empty = self._mean.total == 0  # nobody answered, or nobody who counts
        given = self._ask.otherwise
        if given is None:
            waiting = (empty if asking is None else empty & asking).nonzero()
            if len(waiting) and self._ask.wait and (self._ask.message is not None or values):
                name = self._node.tree.name(self._node.tier, int(self._node.ids[waiting[0]]))
                if int(self._mean.present[waiting[0]]):
                    raise ProtocolError(
                        f"all children that answered {name!r} in round {self._node.round + 1} have the weight 0 in "
                        "Ask(weights=...): give one of them a weight above 0, or write Ask(..., otherwise=...)"
                    )
                raise ProtocolError(
                    f"nobody answered {name!r} in round {self._node.round + 1}, and its program does not say what to take "
                    "otherwise: write Ask(..., otherwise=...)"
                )
            return values
        rows = given if isinstance(given, Mapping) else {"": given}
        if not values:
            return dict(rows)
        for name, value in values.items():
            if name not in rows:
                raise ProtocolError(
                    f"the children replied with {name!r}, but Ask(otherwise=...) has only {sorted(rows)}"
                )
            fill = rows[name]
            if fill.shape != value.shape:
                called = f"the reply {name!r}" if name else "the reply"
                raise ProtocolError(
                    f"Ask(otherwise=...) has shape {tuple(fill.shape)} for {called}, which has {tuple(value.shape)}: give "
                    "rows of the shape of the replies"
                )
            value[empty.to(value.device)] = fill[empty.to(fill.device)].to(value)
        return values
