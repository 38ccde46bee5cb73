"""One exchange: whom a program's ask reaches, what each child is sent, how the replies become rows again.

Everything about communication that an algorithm does not know happens here. How messages travel is the transport's
business: the simulator computes the replies at once, a real node sends bytes and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, ProtocolError
from palmette.links.ledger import Traffic, total_payload
from palmette.links.participation import Participation
from palmette.links.sparse import Sparse, plain
from palmette.protocol import Ask, Message, Node, PerChild, Replies
from palmette.tree.segments import Positions, SegmentMean

Absences = Callable[[int, int, Tensor, Tensor], Tensor]
"""``(round, parents' tier, exchange of each child, child numbers) -> bool``: which of those asked never answer."""


@dataclass(frozen=True)
class Link:
    """How one link (the connections between two tiers) behaves: who takes part, and who does not answer.

    Attributes:
        participation: How many of a parent's children are asked each time.
        loss: Chance that a child that was asked does not answer.
        absences: A function that decides who does not answer, in place of loss; for tests and replays.
        barred: Which nodes of the lower tier are never asked (bool); they are kept out of training.
    """

    participation: Participation = field(default_factory=Participation)
    loss: float = 0.0
    absences: Absences | None = None
    barred: Tensor | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise BadInput(f"loss must be at least 0 and below 1, not {self.loss}")

    def lost(self, node: Node, exchange: Tensor, asked: Tensor) -> Tensor:
        """Return which of the asked children of a stack never answer (bool).

        Args:
            node: The asking stack.
            exchange: For each asked child, the number of its parent's exchange within the round.
            asked: Their positions in `Node.child_ids`.
        """
        gone = torch.zeros(len(asked), dtype=torch.bool)
        if self.loss:
            base = address.mix(address.key(node.seed, "loss", node.round, node.tier), exchange)
            gone |= address.uniform(address.mix(base, node.child_addresses[asked])) < self.loss
        if self.absences is not None:
            gone |= self.absences(node.round, node.tier, exchange, node.child_ids[asked])
        return gone


class Counters:
    """How many exchanges each node of a tier has made: within the round, and in all."""

    def __init__(self, size: int) -> None:
        self.exchange = torch.zeros(size, dtype=torch.int64)
        self.turn = torch.zeros(size, dtype=torch.int64)

    def next(self, ids: Tensor, asking: Tensor | None, *, again: bool = False) -> tuple[Tensor, Tensor]:
        """Return the numbers of the exchanges the nodes would begin, and count those of the nodes that do.

        An exchange with those that were drawn before (``again``) is nobody's turn.
        """
        where, by = ids.numpy(), 1 if asking is None else asking.numpy()
        # The same memory; numpy's small calls are cheaper.
        exchange, turn = self.exchange.numpy(), self.turn.numpy()
        before = exchange[where], turn[where]
        exchange[where], turn[where] = before[0] + by, before[1] + (0 if again else by)
        return torch.from_numpy(before[0]), torch.from_numpy(before[1])


@dataclass(frozen=True, eq=False)
class Parcel:
    """The children that will answer, and what each is sent.

    Attributes:
        ids: Their numbers within their tier, ascending.
        exchange: For each, the number of its parent's exchange within the round.
        message: The asking program's message.
        parents: For each, the position of its parent in the asking stack.
        places: For each, its position among all children of the asking stack.
    """

    ids: Tensor
    exchange: Tensor
    message: Message
    parents: Tensor
    places: Tensor

    def take(self, positions: Positions, *, encoded: bool = False) -> Any:
        """Return the message with one line for each of the children at ``positions``.

        Sparse rows come out plain, as the children see them; with ``encoded`` they stay wrapped, to be sent.
        """

        def part(value: Any) -> Any:
            if isinstance(value, PerChild):
                return value.rows.index_select(0, self.places[positions].to(value.rows.device))
            if isinstance(value, Sparse):
                rows = part(value.rows)
                return Sparse(rows) if encoded else rows
            if isinstance(value, Tensor):
                return value.index_select(0, self.parents[positions].to(value.device))
            return value

        if isinstance(self.message, Mapping):
            return {name: part(value) for name, value in self.message.items()}
        return part(self.message)


_NONE = torch.zeros(0, dtype=torch.int64)

Transport = Callable[[Parcel], Iterable[tuple[Positions, Any]]]
"""Delivers a parcel; yields ``(positions in the parcel, reply rows)`` in ascending order, each child at most once."""


def drive(program: Generator[Any, Replies, Any], exchange: Callable[[Ask], Replies]) -> Any:
    """Run a program to its end, answering every ask, and return what it returns."""
    try:
        asked = next(program)
        while True:
            asked = program.send(exchange(asked if isinstance(asked, Ask) else Ask(asked)))
    except StopIteration as end:
        return end.value


def exchange(node: Node, ask: Ask, link: Link, counters: Counters, traffic: Traffic, transport: Transport) -> Replies:
    """Carry out one ask of the nodes of a stack and reduce what comes back."""
    children, parents = node.child_ids, node.child_parents
    _check(node, ask, children.shape[0])
    weights = _weights(node, ask)
    asking = None if ask.to is None else ask.to.cpu()
    number, turn = counters.next(node.ids, asking, again=ask.again)
    asked = there = node.child_places
    narrowed = asking is not None or ask.only is not None or link.barred is not None
    if link.participation.kind != "all" or narrowed:
        asked = there = _asked(node, ask, link, asking, number, turn)
    if link.loss or link.absences is not None:
        there = asked[~link.lost(node, number[parents[asked]], asked)]
    here, ids = (parents, children) if there is node.child_places else (parents[there], children[there])
    reduction = _Reduction(node, ask, weights, asked, there)
    if ids.shape[0]:
        exchanges = torch.from_numpy(number.numpy()[here.numpy()])
        for positions, reply in transport(Parcel(ids, exchanges, ask.message, here, there)):
            reduction.add(positions, reply)
    if ask.message is not None or reduction.bytes_up:
        begun = len(node) if asking is None else int(asking.sum())
        traffic.add(begun, _sent(ask.message, parents, asked), reduction.bytes_up)
    open_ = node.child_count if link.barred is None else _members(node, link.barred)
    return reduction.result(asking, open_)


def _members(node: Node, barred: Tensor) -> Tensor:
    """Return how many children of each node are not kept out."""
    return torch.bincount(node.child_parents[~barred[node.child_ids]], minlength=len(node))


def _asked(node: Node, ask: Ask, link: Link, asking: Tensor | None, number: Tensor, turn: Tensor) -> Tensor:
    """Return which children are asked: drawn by the link, narrowed by the program."""
    open_ = node.child_places if link.barred is None else (~link.barred[node.child_ids]).nonzero().squeeze(1)
    chosen = torch.zeros(len(node.child_ids), dtype=torch.bool)
    chosen[open_] = ask.again or link.participation.draw(
        node.child_addresses[open_],
        node.child_parents[open_],
        seed=node.seed,
        tier=node.tier,
        round_=node.round,
        exchange=number,
        turn=turn,
    )
    if asking is not None:
        chosen &= asking[node.child_parents]
    if ask.only is not None:
        chosen &= ask.only.cpu()
    return chosen.nonzero().squeeze(1)


def _check(node: Node, ask: Ask, children: int) -> None:
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


def _weights(node: Node, ask: Ask) -> Tensor | None:
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


def _sent(message: Message, parents: Tensor, places: Tensor) -> int:
    """Return the bytes that go down to the children at ``places``; ``parents`` are those of all children."""
    if isinstance(message, Mapping):
        return sum(_sent(value, parents, places) for value in message.values())
    if isinstance(message, PerChild):
        return total_payload(message.rows, places, places.shape[0])
    return total_payload(message, parents[places] if isinstance(message, Sparse) else None, places.shape[0])


class _Reduction:
    """Collects replies as declared in the ask."""

    def __init__(self, node: Node, ask: Ask, weights: Tensor | None, asked: Tensor, there: Tensor) -> None:
        self._ask, self._node, self._there = ask, node, there
        parents, everyone = node.child_parents, node.child_places
        self._all_asked, self._all_there = asked is everyone, there is everyone
        if not self._all_asked:
            self._place = torch.full_like(everyone, -1)
            self._place[asked] = torch.arange(asked.shape[0])
            parents, weights = parents[asked], None if weights is None else weights[asked]
        self._mean = SegmentMean(parents, len(node), weights, node.child_count if self._all_asked else None)
        self._stack: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.bytes_up = 0

    def add(self, positions: Positions, reply: Any) -> None:
        """Take in the replies of the children at ``positions`` of the parcel."""
        given = plain(reply)
        rows = dict(given) if isinstance(given, Mapping) else {} if given is None else {"": given}
        count = positions.stop - positions.start if isinstance(positions, slice) else positions.shape[0]
        for name, value in rows.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != count:
                raise ProtocolError(f"reply {name!r} must be a tensor with {count} rows")
        self.bytes_up += total_payload(reply, None, count)
        places: Positions = positions if self._all_there else self._there[positions]
        if self._ask.reduce == "stack":
            self._stack.append((self._there[positions], rows))
        self._mean.add(places if self._all_asked else self._place[places], {} if self._stack else rows)

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
            if len(waiting) and (self._ask.message is not None or values):
                name = self._node.tree.name(self._node.tier, int(self._node.ids[waiting[0]]))
                if int(self._mean.present[waiting[0]]):
                    raise ProtocolError(
                        f"all children that answered {name!r} in round {self._node.round} have the weight 0 in "
                        "Ask(weights=...): give one of them a weight above 0, or write Ask(..., otherwise=...)"
                    )
                raise ProtocolError(
                    f"nobody answered {name!r} in round {self._node.round}, and its program does not say what to take "
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
