"""What the children of one exchange are sent, and the way back for what they answer: whose reply enters, and whose does not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palmette import address
from palmette.errors import Diverged, ProtocolError
from palmette.links.clock import SECOND
from palmette.links.ledger import total_payload
from palmette.links.link import Link
from palmette.links.office import Office
from palmette.links.post import Post, Sent
from palmette.links.record import BAD, LATE
from palmette.links.reduction import Reduction
from palmette.links.sparse import Sparse, plain
from palmette.protocol import Message, Node, PerChild
from palmette.tree import Tree
from palmette.tree.segments import Positions


@dataclass(frozen=True, eq=False)
class Parcel:
    """The children that are reached, and what each is sent.

    Attributes:
        ids: Their numbers within their tier, ascending.
        exchange: For each, the number of its parent's exchange within the round.
        message: The asking program's message.
        parents: For each, the position of its parent in the asking stack.
        places: For each, its position among all children of the asking stack.
        node: The asking stack.
        office: What it asks with.
        wait: Whether it waits for replies.
        reduction: What the replies are added up in, for a transport that does so itself.
    """

    ids: Tensor
    exchange: Tensor
    message: Message
    parents: Tensor
    places: Tensor
    node: Node
    office: Office
    wait: bool = True
    reduction: Reduction | None = None

    def take(self, positions: Positions, *, wrapped: bool = False) -> Any:
        """Return the message with one line for each of the children at ``positions``.

        Sparse rows come out plain, as the children see them; with ``wrapped`` they stay wrapped, to be sent.
        """

        def part(value: Any) -> Any:
            if isinstance(value, PerChild):
                return value.rows.index_select(0, self.places[positions].to(value.rows.device))
            if isinstance(value, Sparse):
                rows = part(value.rows)
                return Sparse(rows) if wrapped else rows
            if isinstance(value, Tensor):
                return value.index_select(0, self.parents[positions].to(value.device))
            return value

        if isinstance(self.message, Mapping):
            return {name: part(value) for name, value in self.message.items()}
        return part(self.message)

    @cached_property
    def post(self) -> Post:
        """What encodes the messages of this exchange."""
        link = self.office.link
        return Post(link.down, link.up, self.office.memory, self.node.layout)

    @cached_property
    def begin(self) -> Tensor:
        """For each child, the time at which its parent asks; to be looked at before that goes on."""
        begin: Tensor = self.office.mine.time[self.node.ids][self.parents]
        return begin

    @property
    def alike(self) -> bool:
        """Whether all children of one asking node are sent the same bytes."""
        parts = self.message.values() if isinstance(self.message, Mapping) else [self.message]
        return self.office.link.down.plain and not any(isinstance(part, PerChild) for part in parts)

    @property
    def uncertain(self) -> bool:
        """Whether a reply may not enter though its sender has worked."""
        return self.office.link.faults.drops

    def open(self, positions: Positions, *, coded: bool = False) -> Delivery:
        """Return what some of the children are sent.

        Args:
            positions: Which of them, in ascending order.
            coded: Whether it is wanted as it travels, too, and not only as they see it.
        """
        if coded or self.office.clocked or self.office.link.encodes:
            sent = self.post.send("down", self.take(positions, wrapped=True), self.ids[positions])
            return Delivery(self, positions, sent.body, sent)
        return Delivery(self, positions, self.take(positions), None)

    def delay(self, positions: Positions, lengths: Tensor) -> Tensor:
        """Return the nanoseconds that messages of some bytes take to or from the children at ``positions``."""
        node, line = self.node, self.office.link.line
        where = (node.tree, node.tier - 1, self.ids[positions])
        return line.delay(*where, lengths, node.seed, node.round, self.exchange[positions])


@dataclass(frozen=True, eq=False)
class Arrival:
    """What came back from some children.

    Attributes:
        body: Their replies as the parent sees them, a line for each.
        bytes_up: Bytes of the replies that entered.
        bytes_down: Bytes of what they were sent; ``None`` where that is counted elsewhere.
        entered: Whose reply entered (bool); ``None`` for all.
        reason: Why others did not: places in `REASONS`; ``None`` where all entered.
        ended: When each ended its work on the clock, and ...
        at: ... when its reply was there; ``None`` without a clock.
    """

    body: Any
    bytes_up: int
    bytes_down: int | None = None
    entered: Tensor | None = None
    reason: Tensor | None = None
    ended: Tensor | None = None
    at: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Delivery:
    """What some children are sent, and the way back for what they answer.

    Attributes:
        parcel: The whole parcel.
        positions: Which of its children.
        message: What they are sent, as they see it.
        sent: The same as it travels; ``None`` where nobody needs to know.
    """

    parcel: Parcel
    positions: Positions
    message: Any
    sent: Sent | None

    @cached_property
    def ids(self) -> Tensor:
        """The children's numbers within their tier."""
        return self.parcel.ids[self.positions]

    @cached_property
    def arrives(self) -> Tensor:
        """When the message is there, on the clock; one that does not exist takes no time."""
        begin = self.parcel.begin[self.positions]
        if self.sent is None or not self.parcel.office.clocked or self.parcel.message is None:
            return begin
        return begin + self.parcel.delay(self.positions, self.sent.lengths)

    @cached_property
    def start(self) -> Tensor:
        """When the children begin to work on it: when they have ended what they did before."""
        return torch.maximum(self.arrives, self.parcel.office.theirs.time[self.ids])

    def accept(self, reply: Any, ended: Tensor | None = None, kept: Any = None) -> Arrival:
        """Take the replies that the children made in this process; what both ends remember of those that enter is kept.

        Args:
            reply: The replies as the program made them, a line for each child.
            ended: When each ended its work, where there is a clock.
            kept: What they keep, which must be finite, too.
        """
        _check_lines(reply, self.ids.shape[0])
        reply = self._guarded(reply)
        if self.sent is not None:
            sent = self.parcel.post.send("up", reply, self.ids)
            reason = self._finite(self._fate(), sent.body, kept)
            return self._judge(sent, ended, reason, silent=reply is None)
        reason = self._finite(self._fate(), reply, kept)
        if reason is None:
            return Arrival(plain(reply), total_payload(reply, None, self.ids.shape[0]))
        some = (reason == 0).nonzero().squeeze(1)
        return Arrival(plain(reply), total_payload(_lines(reply, some), None, len(some)), None, reason == 0, reason)

    def receive(self, body: Any, ended: Tensor | None, place: torch.device) -> Arrival:
        """Take the reply of one child from another machine, as it came over the wire, to where its parent has its models."""
        sent = self.parcel.post.receive("up", body, self.ids, place)
        _check_lines(sent.body, 1)
        return self._judge(sent, ended, self._finite(self._fate(), sent.body), silent=body is None)

    def nothing(self, reason: int) -> Arrival:
        """Say that nothing came from one child, and why: a place in `REASONS`."""
        assert self.sent is not None
        down, why = int(self.sent.lengths.sum()), torch.full((len(self.ids),), reason, dtype=torch.int8)
        return Arrival(None, 0, down, why == 0, why)

    # -- which replies enter -------------------------------------------------------------------------------------------

    def _guarded(self, reply: Any) -> Any:
        link, node = self.parcel.office.link, self.parcel.node
        if not link.guards:
            return reply
        where = (node.tree, node.tier - 1, self.ids, node.seed, node.round, self.parcel.exchange[self.positions])
        return guarded(link, *where, reply)

    def _fate(self) -> Tensor | None:
        """Return what chance does to the replies: places in `REASONS`; ``None`` where nothing can happen."""
        parcel, link = self.parcel, self.parcel.office.link
        if not link.faults.drops:
            return None
        return link.fate(parcel.node, parcel.exchange[self.positions], parcel.places[self.positions])

    def _finite(self, reason: Tensor | None, *rows: Any) -> Tensor | None:
        """Drop children whose rows are not finite, where the user wants that; else the first of them ends the run."""
        bad = not_finite(*rows)
        if bad is None:
            return reason
        node, office = self.parcel.node, self.parcel.office
        if reason is not None:
            bad &= reason == 0  # nobody sees a reply that does not arrive
        if reason is not None and office.link.faults.drop_bad:
            return torch.where(bad, torch.tensor(BAD, dtype=torch.int8), reason)
        if bool(bad.any()):
            raise diverged(node.tree, node.tier - 1, int(self.ids[bad][0]), node.round, office.method)
        return reason

    def _judge(self, sent: Sent, ended: Tensor | None, reason: Tensor | None, *, silent: bool) -> Arrival:
        """Say whose reply enters, given how long it took, and keep what both ends remember of those that do."""
        parcel, office = self.parcel, self.parcel.office
        assert self.sent is not None
        at = None
        if ended is not None:
            at = ended if silent else ended + parcel.delay(self.positions, sent.lengths)
            deadline = office.link.faults.deadline if parcel.wait else None  # who does not wait has none
            if deadline is not None and reason is not None:
                late = (reason == 0) & (at - parcel.begin[self.positions] > round(deadline * SECOND))
                reason = torch.where(late, torch.tensor(LATE, dtype=torch.int8), reason)
        entered = None if reason is None else reason == 0
        for one in (self.sent, sent):
            parcel.post.remember(one, self.ids, entered, parcel.node.round)
        up = sent.lengths if entered is None else sent.lengths[entered]
        if ended is not None:
            there = self.ids if entered is None else self.ids[entered]
            office.theirs.time[there] = ended if entered is None else ended[entered]
        return Arrival(sent.body, int(up.sum()), int(self.sent.lengths.sum()), entered, reason, ended, at)


def guarded(
    link: Link, tree: Tree, tier: int, ids: Tensor, seed: int, round_: int, exchange: Tensor, reply: Any
) -> Any:
    """Return the replies of some children after the link's guards have changed them, on the children's side.

    Args:
        link: The link above the children.
        tree: The tree.
        tier: The children's tier.
        ids: Their numbers within it.
        seed: The run's seed.
        round_: The round.
        exchange: For each child, the number of its parent's exchange within the round.
        reply: Their replies.
    """
    if not link.guards or reply is None:
        return reply
    base = address.mix(address.key(seed, "guard", round_, tier), exchange)
    where = address.mix(base, torch.from_numpy(tree.addresses[tier])[ids])

    def changed(value: Any) -> Any:
        rows = plain(value)
        if not (isinstance(rows, Tensor) and rows.is_floating_point() and rows.dim() > 1):
            return value
        for guard in link.guards:
            rows = guard.guarded(rows, where)
        return Sparse(rows) if isinstance(value, Sparse) else rows

    if isinstance(reply, Mapping):
        return {name: changed(value) for name, value in reply.items()}
    return changed(reply)


def not_finite(*bodies: Any) -> Tensor | None:
    """Return which rows of some messages are not finite (bool), in any of them; ``None`` where all are."""
    found, values = None, (one for rows in bodies for one in (rows.values() if isinstance(rows, Mapping) else [rows]))
    for value in {id(rows): rows for rows in map(plain, values)}.values():  # what is sent is often what is kept
        if not isinstance(value, Tensor) or not value.is_floating_point() or math.isfinite(value.sum()):
            continue  # a finite sum has finite parts only, and is far cheaper to look at
        bad = ~(value.flatten(1) if value.dim() > 1 else value[:, None]).isfinite().all(1).cpu()
        found = bad if found is None else found | bad
    return found if found is not None and bool(found.any()) else None


def diverged(tree: Tree, tier: int, number: int, round_: int, method: str) -> Diverged:
    """Return the error of a node whose rows are no longer finite."""
    return Diverged(
        f"{tree.name(tier, number)!r} (tier {tier}) is no longer finite in round {round_ + 1}: {method} diverged; lower its "
        "step sizes"
    )


def _check_lines(reply: Any, count: int) -> None:
    """Refuse a reply that has not one line for each child."""
    given = plain(reply)
    for name, value in given.items() if isinstance(given, Mapping) else [("", given)] if given is not None else ():
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != count:
            raise ProtocolError(f"reply {name!r} must be a tensor with {count} rows")


def _lines(body: Any, some: Tensor) -> Any:
    """Return some lines of a reply."""
    if isinstance(body, Mapping):
        return {name: _lines(value, some) for name, value in body.items()}
    if isinstance(body, Sparse):
        return Sparse(_lines(body.rows, some))
    return body[some.to(body.device)] if isinstance(body, Tensor) else body
