"""One node as a machine of its own: it answers its parent's messages and asks its children, all in bytes.

What did not enter did not happen. A machine keeps the states that its parent may still name, and every ask says from which of
them it goes on. Which reply of each child last entered is part of the parent's own state, so a parent that goes back takes all
that is below it along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.aside import end, scores
from palmette.engines.channel import Children, Queues
from palmette.engines.desk import Desk
from palmette.engines.growing import grown
from palmette.engines.setup import Setup
from palmette.engines.snapshot import Snapshot
from palmette.errors import Diverged, PalmetteError, ProtocolError, WireError
from palmette.links import Ledger, Link
from palmette.links.exchange import drive, exchange
from palmette.links.forms import odd_ones
from palmette.links.office import Counters, Office
from palmette.links.parcel import Arrival, Delivery, Parcel, diverged, guarded, not_finite
from palmette.links.post import Post
from palmette.links.record import BAD, CORRUPT, NO_ANSWER
from palmette.links.wire import LIMIT, Envelope, decode, encode, pack
from palmette.protocol import Ask, Device, Node, Replies, State

ONLY = torch.zeros(1, dtype=torch.int64)
"""The number of a machine's own node in the tree as it knows it."""
_MARGIN = 0.9  # of the time that is left for an ask may go into one exchange with the children


class Expired(PalmetteError):  # noqa: N818 - reads as what it is
    """Nobody waits any more for what a machine works on."""


class Forgotten(PalmetteError):  # noqa: N818 - reads as what it is
    """The parent names a state that this machine does not have: its disk was lost, or another took its place."""


@dataclass(eq=False)
class Machine:
    """One node of the tree, with its own state, its own counters and its own children.

    Attributes:
        setup: What it was told.
        children: The way to its children.
        desk: Where it asks them.
        deadline: Seconds that it waits for its children's replies at most.
        limit: Bytes that a message may take when it is decoded.
        starts: How often it was started.
        added: For each of its children, how many devices were added below it since the training began.
        on_added: Is called where a message counts more devices than it knows of, with their number.
        ledger: What crossed the link to its children.
        evaluated: What crossed it for evaluation.
        device_steps: Gradient steps it took, in vain or not; of a node with children those that it heard of.
        on_kept: Is called when there is a new state, before the reply that belongs to it leaves.
    """

    setup: Setup
    children: Children = field(default_factory=Queues)
    desk: Desk = None  # type: ignore[assignment]
    deadline: float | None = None
    limit: int = LIMIT
    starts: int = 0
    added: list[int] = field(default_factory=list)
    on_added: Callable[[int], None] = lambda number: None
    ledger: Ledger = field(default_factory=Ledger)
    evaluated: Ledger = field(default_factory=Ledger)
    device_steps: int = 0
    on_kept: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        setup, learner = self.setup, self.setup.learner
        work = {} if learner is None else learner.keeps()
        self.tier = setup.tier
        self.desk = self.desk or Desk(self.children, limit=self.limit)
        self.declared = rules.stored(setup.algorithm, setup.tree, self.tier, setup.layout, setup.initial, work)
        rows = {name: row[None].clone() for name, row in self.declared.items()}
        self.now = Snapshot(rows, Counters(setup.tree.size(self.tier)), Counters(setup.children))
        self.kept = {-1: self.now}  # the states that the parent may name
        self.grown = 0  # devices that were added below it
        self.added = [0] * setup.children
        self.version = -1
        self.done: tuple[tuple[int, ...], int] | None = None  # the ask that was answered last, and from which state
        self.reply = b""
        self._until: float | None = None  # when nobody waits any more for what it works on

    @property
    def state(self) -> State:
        """What its programs keep."""
        return self.now.rows

    @property
    def took_part(self) -> bool:
        """Whether a reply of its own ever left a trace in it."""
        return self.now.round >= 0

    # -- answering the parent ------------------------------------------------------------------------------------------

    def answer(self, message: bytes) -> bytes | None:
        """Work on one message and return the reply: the stored one if it is repeated, none if it is damaged or outdated."""
        try:
            ask = decode(message, limit=self.limit)
        except WireError:
            return None
        return self.answer_to(ask)

    def answer_to(self, ask: Envelope, since: float | None = None) -> bytes | None:
        """Work on one message as `answer` does.

        Args:
            ask: The message.
            since: When it arrived, by `time.monotonic`; now by default.
        """
        if ask.kind not in ("ask", "evaluate", "end"):
            return None
        self._until = None
        if ask.within:
            self._until = (time.monotonic() if since is None else since) + ask.within / 1000
            self.seconds_left()
        if self.tier and ask.grown > self.grown:
            self.on_added(ask.grown)
        with torch.no_grad():
            if ask.kind == "ask":
                return self._answered(ask)
            self.now = self._named(ask.base)
            kind, body = ("scores", scores(self, ask)) if ask.kind == "evaluate" else ("ended", end(self, ask))
            return encode(replace(ask, kind=kind, body=body))

    def _answered(self, ask: Envelope) -> bytes | None:
        if self.done is not None and ask.address <= self.done[0]:
            return self.reply if (ask.address, ask.base) == self.done else None
        before = self.now, self.version, self.kept, self.done, self.reply
        self.now = self._named(ask.base).going_on(ask.round)
        try:
            reply, reached = self._work(ask)
            self.kept = {number: kept for number, kept in self.kept.items() if number in (-1, ask.base, *ask.keep)}
            self.kept[self.version] = self.now = reached
            self.done, self.reply = (ask.address, ask.base), encode(reply)
            self.on_kept()
        except BaseException:  # as if it had never been asked
            self.now, self.version, self.kept, self.done, self.reply = before
            raise
        return self.reply

    def _named(self, number: int) -> Snapshot:
        if number not in self.kept:
            raise Forgotten(f"{self.setup.name!r} has no state number {number} any more")
        return self.kept[number]

    def _work(self, ask: Envelope) -> tuple[Envelope, Snapshot]:
        """Let the program work on a message; return the reply, and the state to keep until it is known whether that entered."""
        setup = self.setup
        link, before = setup.links.get(self.tier, Link()), self.device_steps
        post = Post(link.down, link.up, self.now.above, setup.layout)
        came = post.receive("down", ask.body, ONLY, setup.initial.device)
        work = self._on_device if self.tier == 0 else self._on_team
        body, state, ended = work(ask, came.body, max(ask.time, int(self.now.mine.time[0])))
        self.now.mine.time[0] = ended
        self.version += 1
        now = replace(self.now, rows=state)
        told = replace(ask, kind="reply", version=self.version, time=ended, steps=self.device_steps - before)
        if not_finite(state) is not None:
            return replace(told, kind="error", body={"reason": BAD}), now
        number = torch.tensor([ask.exchange])
        went = post.send("up", guarded(link, setup.tree, self.tier, ONLY, setup.seed, ask.round, number, body), ONLY)
        for one in (came, went):
            post.remember(one, ONLY, None, ask.round)
        return replace(told, body=went.on_the_wire()), now

    def _on_device(self, ask: Envelope, message: Any, start: int) -> tuple[Any, State, int]:
        setup, number = self.setup, torch.tensor([ask.exchange])
        device = self.device(ask, number)
        reply, state = rules.device(setup.algorithm, device, message, self.state, self.declared)
        self.device_steps += device.device_steps
        if setup.pace is not None:
            taken = torch.from_numpy(device.taken)
            start += int(setup.pace.duration(setup.tree, ONLY, taken, setup.seed, ask.round, number))
        return reply, state, start

    def _on_team(self, ask: Envelope, message: Any, start: int) -> tuple[Any, State, int]:
        node = self.node(ask)
        self.now.mine.time[0] = start
        program = rules.team(self.setup.algorithm, node, message, self.state, self.declared)
        reply, state = drive(program, lambda one: self._exchange(node, one, ask))
        return reply, state, int(self.now.mine.time[0])

    def node(self, ask: Envelope) -> Node:
        """Return this node as its program sees it."""
        return Node(self.setup.tree, self.tier, ONLY, **self._where(ask))

    def device(self, ask: Envelope, number: Tensor) -> Device:
        """Return this device as its program sees it, in the exchange of some number."""
        assert self.setup.learner is not None
        work = rules.of_work(self.state, self.declared)
        return Device(self.setup.learner, number, self.setup.tree, ONLY, kept=work, **self._where(ask))

    def _where(self, ask: Envelope) -> dict[str, Any]:
        where = {
            "seed": self.setup.seed,
            "round_": ask.round,
            "rounds": ask.rounds,
            "stage": ask.stage,
            "turn": ask.turn,
        }
        return {**where, "samples": self.setup.samples, "layout": self.setup.layout}

    def settle(self, entered: int) -> None:
        """Go back to the state that the parent has of this machine, as the next ask would do."""
        self.now = self.kept[entered]

    def grow(self, name: str, parent: str, child: int | None, samples: int) -> None:
        """Count one more device below this machine; see `palmette.engines.growing.grown`."""
        self.setup = grown(self.setup, name, parent, child, samples)
        if child is None:
            self.added.append(0)
        else:
            self.added[child] += 1
        self.grown += 1
        for snapshot in {id(one): one for one in (*self.kept.values(), self.now)}.values():
            snapshot.theirs.widen(self.setup.children)

    # -- asking the children -------------------------------------------------------------------------------------------

    def begin(self, start: Envelope) -> None:
        """Run one round from the top; for the server's machine."""
        setup = self.setup
        before = self.now
        self.now, self.kept = self.now.going_on(start.round), {}  # nobody names a state of the server
        try:
            with torch.no_grad():
                node = self.node(start)
                program = rules.server(setup.algorithm, node, self.state, self.declared)
                state = drive(program, lambda ask: self._exchange(node, ask, start))
            if not_finite(state) is not None:
                raise diverged(setup.tree, self.tier, 0, start.round, setup.algorithm.name)
        except BaseException:
            self.now = before
            raise
        self.now = replace(self.now, rows=state)

    def _exchange(self, node: Node, ask: Ask, under: Envelope) -> Replies:
        setup, now = self.setup, self.now
        link = setup.links.get(self.tier - 1, Link())
        office = Office(link, now.mine, now.theirs, now.below, now.record, setup.algorithm.name, setup.pace is not None)
        traffic = self.ledger.at(node.round, setup.top if setup.algorithm.flat else self.tier)
        with rules.asking(setup.algorithm, node):
            return exchange(node, ask, office, traffic, lambda parcel: self._deliver(parcel, under))

    def _deliver(self, parcel: Parcel, under: Envelope) -> Iterator[tuple[Tensor, Arrival]]:
        """Send every child its part, wait for all, and hand the replies on in the order of the children."""
        node, link, seconds = parcel.node, parcel.office.link, self.seconds_left()
        envelope = self.under(under, int(parcel.exchange[0]), seconds)
        twice = link.repeats(node, parcel.exchange, parcel.places).tolist()
        deliveries: dict[int, Delivery] = {}
        messages: dict[int, bytes] = {}
        packed = None
        for position, child in enumerate(parcel.ids.tolist()):
            delivery = deliveries[child] = parcel.open(torch.tensor([position]), coded=True)
            assert delivery.sent is not None
            if packed is None or not parcel.alike:
                packed = pack(delivery.sent.on_the_wire())
            where = {**self.states_of(child), "time": int(delivery.arrives)}
            messages[child] = encode(replace(envelope, **where), packed)
            if twice[position]:
                self.children.send(child, messages[child])
        fates = dict(zip(parcel.ids.tolist(), link.fate(node, parcel.exchange, parcel.places).tolist(), strict=True))
        replies = self.desk.ask(envelope, messages, fates, seconds)
        self._refuse_broken(replies)
        self._drop_odd(replies)
        for position, (child, delivery) in enumerate(deliveries.items()):
            yield torch.tensor([position]), self._arrived(child, delivery, replies[child])

    def under(self, ask: Envelope, number: int, seconds: float | None) -> Envelope:
        """Return the envelope of an exchange that is part of the work on an ask; the server's own has no path."""
        own = self.tier == self.setup.tree.top
        path, starts = ((), ()) if own else (ask.path, ask.starts)
        within = 0 if seconds is None else max(1, int(1000 * seconds))
        return replace(
            ask, path=(*path, number), starts=(*starts, self.starts), base=-1, keep=(), within=within, body=None
        )

    def states_of(self, child: int) -> dict[str, Any]:
        """Return from which of its states a child goes on, and which others may still be named."""
        base = self.now.entered.get(child, -1)
        keep = {kept.entered.get(child, -1) for kept in self.kept.values()} - {base, -1}
        return {"base": base, "keep": tuple(sorted(keep)), "grown": self.added[child]}

    def seconds_left(self) -> float | None:
        """Return the seconds that children may take; raise `Expired` where nobody waits for this machine any more."""
        if self._until is None:
            return self.deadline
        left = self._until - time.monotonic()
        if left <= 0:
            raise Expired(f"{self.setup.name!r} was asked for something, and nobody waits for it any more")
        return _MARGIN * left if self.deadline is None else min(self.deadline, _MARGIN * left)

    def _arrived(self, child: int, delivery: Delivery, reply: Envelope | int) -> Arrival:
        """Take one child's reply; if it enters, the child goes on from there."""
        if isinstance(reply, Envelope) and reply.kind == "error":
            reply = self._failed(child, delivery, reply)
        if isinstance(reply, int):
            return delivery.nothing(reply)
        self.device_steps += reply.steps
        ended = torch.tensor([reply.time]) if self.setup.pace is not None else None
        try:
            arrival = delivery.receive(reply.body, ended, self.setup.initial.device)
        except (WireError, ProtocolError) as error:
            self.desk.event("damaged", child, str(error))
            return delivery.nothing(CORRUPT)
        if arrival.entered is None or bool(arrival.entered):
            self.now.entered[child] = reply.version
        return arrival

    def _refuse_broken(self, replies: Mapping[int, Envelope | int]) -> None:
        """End the training where the program of every child that was asked broke down: it would break down for ever."""
        told = [one.body for one in replies.values() if isinstance(one, Envelope) and one.kind == "error"]
        broken = [body["text"] for body in told if isinstance(body, Mapping) and body.get("broken") is True]
        if replies and len(broken) == len(replies):
            raise PalmetteError(f"none of the children of {self.setup.name!r} could answer: {broken[0]}")

    def _drop_odd(self, replies: dict[int, Envelope | int]) -> None:
        """Drop replies that could not be put together with the others'."""
        came = {child: one.body for child, one in replies.items() if isinstance(one, Envelope) and one.kind == "reply"}
        for child in odd_ones(came):
            self.desk.event("damaged", child, "its reply has other parts than the others', or parts of other shapes")
            replies[child] = CORRUPT

    def _failed(self, child: int, delivery: Delivery, reply: Envelope) -> int:
        """Return why a child that says so has no reply; rows that are not finite end the run, unless they are dropped."""
        told = reply.body if isinstance(reply.body, Mapping) else {}
        if told.get("reason") == BAD:
            if not delivery.parcel.office.link.faults.drop_bad:
                if text := told.get("text"):  # it happened below the child, who says where
                    raise Diverged(str(text))
                tree, node = self.setup.tree, delivery.parcel.node
                raise diverged(tree, self.tier - 1, child, node.round, self.setup.algorithm.name)
            return BAD
        self.desk.event("failed", child, str(told.get("text", "")))
        if told.get("forgotten"):
            self.now.entered.pop(child, None)  # it has nothing left of what it was: it begins anew
        return NO_ANSWER
