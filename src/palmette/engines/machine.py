"""One node as a machine of its own: it answers its parent's messages and asks its children, all in bytes.

What did not enter did not happen. A machine keeps the states that its parent may still name, and every ask says from which of
them it goes on. Which reply of each child last entered is part of the parent's own state, so a parent that goes back takes all
that is below it along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.alone import scores_of_device
from palmette.engines.models import ASIDE
from palmette.engines.snapshot import Snapshot
from palmette.errors import PalmetteError, WireError
from palmette.learner import Learner
from palmette.links import Ledger, Link
from palmette.links.clock import Pace
from palmette.links.exchange import drive, exchange
from palmette.links.ledger import payload
from palmette.links.office import Counters, Office
from palmette.links.parcel import Arrival, Delivery, Parcel, diverged, guarded, not_finite
from palmette.links.post import Post
from palmette.links.record import BAD, CORRUPT, LATE
from palmette.links.wire import Envelope, decode, encode
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, Replies, State, model_kind
from palmette.task.layout import Layout
from palmette.tree import Tree

Mail = SimpleQueue[tuple[int, bytes | BaseException] | None]
"""Who sent it and what; ``None`` says that no more will come."""


@dataclass(frozen=True, eq=False)
class Setup:
    """What every machine of a federation is told before it starts."""

    algorithm: Algorithm
    tree: Tree
    learner: Learner
    layout: Layout
    links: Mapping[int, Link]
    samples: list[Tensor]
    seed: int
    top: int
    pace: Pace | None = None
    kinds: tuple[ModelKind, ...] = ()


@dataclass(eq=False)
class Machine:
    """One node of the tree, with its own state, its own counters and its own mail.

    Attributes:
        setup: What all machines know.
        tier: The node's tier.
        number: Its number within the tier.
        inbox: Where messages from the parent arrive; ``None`` ends the machine.
        returns: Where replies of the children arrive; ``None`` says that no more will.
        parent: Where replies to the parent go.
        children: The children's inboxes by number.
        ledger: What crossed the link to its children.
        evaluated: What crossed it for evaluation.
        device_steps: Gradient steps it took, in vain or not.
    """

    setup: Setup
    tier: int
    number: int
    inbox: Mail = field(default_factory=SimpleQueue)
    returns: Mail = field(default_factory=SimpleQueue)
    parent: Mail = field(default_factory=SimpleQueue)
    children: dict[int, Mail] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    evaluated: Ledger = field(default_factory=Ledger)
    device_steps: int = 0

    def __post_init__(self) -> None:
        setup, learner = self.setup, self.setup.learner
        keeps = (setup.tree, self.tier, setup.layout, learner.initial(), learner.keeps())
        self._declared = rules.stored(setup.algorithm, *keeps)
        rows = {name: row[None].clone() for name, row in self._declared.items()}
        below = setup.tree.size(self.tier - 1) if self.tier else 0
        self.now = Snapshot(rows, Counters(setup.tree.size(self.tier)), Counters(below))
        self._kept = {-1: self.now}  # the states that the parent may name
        self._version = -1
        self._done: tuple[tuple[int, ...], int] | None = None  # the ask that was answered last, and from which state
        self._reply = b""
        self._late: list[tuple[int, bytes]] = []  # replies that come when nobody waits for them any more

    @property
    def state(self) -> State:
        """What its programs keep."""
        return self.now.rows

    @property
    def took_part(self) -> bool:
        """Whether a reply of its own ever left a trace in it."""
        return self.now.round >= 0

    # -- answering the parent ------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer messages until told to end; an error goes to the parent as it is."""
        while (mail := self.inbox.get()) is not None:
            try:
                assert isinstance(mail[1], bytes)
                if (reply := self.answer(mail[1])) is not None:
                    self.parent.put((self.number, reply))
            except BaseException as error:
                self.parent.put((self.number, error))
                return

    def answer(self, message: bytes) -> bytes | None:
        """Work on one message and return the reply: the stored one if it is repeated, none if it is damaged or outdated."""
        try:
            ask = decode(message)
        except WireError:
            return None
        with torch.no_grad():
            if ask.kind == "evaluate":
                self.now = self._kept[ask.base]
                return encode(replace(ask, kind="scores", sender=self.number, body=self.scores(ask)))
            address = (ask.round, *ask.path)
            if self._done is not None and address <= self._done[0]:
                return self._reply if (address, ask.base) == self._done else None
            self._kept = {number: kept for number, kept in self._kept.items() if number in (-1, ask.base, *ask.keep)}
            self.now = self._kept[ask.base].going_on(ask.round)
            self._reply = encode(self._work(ask))
        self._done = address, ask.base
        return self._reply

    def _work(self, ask: Envelope) -> Envelope:
        """Let the program work on a message, and keep the state it reaches until it is known whether that entered."""
        setup, ids = self.setup, torch.tensor([self.number])
        link, before = setup.links.get(self.tier, Link()), self.device_steps
        post = Post(link.down, link.up, self.now.above, setup.layout)
        came = post.receive("down", ask.body, ids)
        work = self._on_device if self.tier == 0 else self._on_team
        body, state, ended = work(ask, came.body, max(ask.time, int(self.now.mine.time[self.number])))
        self.now.mine.time[self.number] = ended
        self._version += 1
        self._kept[self._version] = self.now = replace(self.now, rows=state)
        told = replace(
            ask, kind="reply", sender=self.number, version=self._version, time=ended, steps=self.device_steps - before
        )
        if not_finite(state) is not None:
            return replace(told, kind="error", body={"reason": BAD})
        exchange_ = torch.tensor([ask.exchange])
        went = post.send("up", guarded(link, setup.tree, self.tier, ids, setup.seed, ask.round, exchange_, body), ids)
        for one in (came, went):
            post.remember(one, ids, None, ask.round)
        return replace(told, body=went.on_the_wire())

    def _on_device(self, ask: Envelope, message: Any, start: int) -> tuple[Any, State, int]:
        setup, ids, number = self.setup, torch.tensor([self.number]), torch.tensor([ask.exchange])
        device = self._device(ask.round, ask.rounds, number)
        reply, state = rules.device(setup.algorithm, device, message, self.state, self._declared)
        self.device_steps += device.device_steps
        if setup.pace is not None:
            taken = torch.from_numpy(device.taken)
            start += int(setup.pace.duration(setup.tree, ids, taken, setup.seed, ask.round, number))
        return reply, state, start

    def _on_team(self, ask: Envelope, message: Any, start: int) -> tuple[Any, State, int]:
        node = Node(self.setup.tree, self.tier, torch.tensor([self.number]), **self._where(ask.round, ask.rounds))
        self.now.mine.time[self.number] = start
        program = rules.team(self.setup.algorithm, node, message, self.state, self._declared)
        reply, state = drive(program, lambda one: self._exchange(node, one, ask.path, ask.rounds))
        return reply, state, int(self.now.mine.time[self.number])

    def _device(self, round_: int, rounds: int, number: Tensor) -> Device:
        work, ids = rules.of_work(self.state, self._declared), torch.tensor([self.number])
        return Device(self.setup.learner, number, self.setup.tree, ids, kept=work, **self._where(round_, rounds))

    def _where(self, round_: int, rounds: int) -> dict[str, Any]:
        setup = self.setup
        stage = setup.algorithm.stage(setup.tree, round_, rounds)
        where = {"seed": setup.seed, "round_": round_, "rounds": rounds, "stage": stage}
        return {**where, "samples": setup.samples, "layout": setup.layout}

    def settle(self, entered: int) -> None:
        """Go back to the state that the parent has of this machine, as the next ask would do."""
        self.now = self._kept[entered]

    # -- asking the children -------------------------------------------------------------------------------------------

    def begin(self, round_: int, rounds: int) -> None:
        """Run one round from the top; for the server's machine."""
        setup = self.setup
        self.now, self._kept = self.now.going_on(round_), {}  # nobody names a state of the server
        with torch.no_grad():
            node = Node(setup.tree, self.tier, torch.tensor([self.number]), **self._where(round_, rounds))
            program = rules.server(setup.algorithm, node, self.state, self._declared)
            state = drive(program, lambda ask: self._exchange(node, ask, (), rounds))
        if not_finite(state) is not None:
            raise diverged(setup.tree, self.tier, self.number, round_, setup.algorithm.name)
        self.now = replace(self.now, rows=state)

    def _exchange(self, node: Node, ask: Ask, path: tuple[int, ...], rounds: int) -> Replies:
        setup, now = self.setup, self.now
        link = setup.links.get(self.tier - 1, Link())
        office = Office(link, now.mine, now.theirs, now.below, now.record, setup.algorithm.name, setup.pace is not None)
        traffic = self.ledger.at(node.round, setup.top if setup.algorithm.flat else self.tier)
        with rules.asking(setup.algorithm, node):
            return exchange(node, ask, office, traffic, lambda parcel: self._deliver(parcel, path, rounds))

    def _deliver(self, parcel: Parcel, path: tuple[int, ...], rounds: int) -> Iterator[tuple[Tensor, Arrival]]:
        """Send every child its part, wait for all, and hand the replies on in the order of the children."""
        node, link, entered = parcel.node, parcel.office.link, self.now.entered
        envelope = Envelope(round=node.round, rounds=rounds, path=(*path, int(parcel.exchange[0])), sender=self.number)
        twice = link.repeats(node, parcel.exchange, parcel.places).tolist()
        deliveries: dict[int, Delivery] = {}
        for position, child in enumerate(parcel.ids.tolist()):
            delivery = deliveries[child] = parcel.open(torch.tensor([position]), coded=True)
            assert delivery.sent is not None
            base = entered.get(child, -1)
            keep = {kept.entered.get(child, -1) for kept in self._kept.values()} - {base, -1}
            where = {"base": base, "keep": tuple(sorted(keep)), "time": int(delivery.arrives)}
            message = replace(envelope, **where, body=delivery.sent.on_the_wire())  # type: ignore[arg-type]
            for _ in range(1 + twice[position]):
                self.children[child].put((self.number, encode(message)))
        fates = dict(zip(parcel.ids.tolist(), link.fate(node, parcel.exchange, parcel.places).tolist(), strict=True))
        replies = self._collect("reply", envelope, deliveries.keys(), fates)
        for position, (child, delivery) in enumerate(deliveries.items()):
            yield torch.tensor([position]), self._arrived(child, delivery, replies[child])

    def _arrived(self, child: int, delivery: Delivery, reply: Envelope | int) -> Arrival:
        """Take one child's reply; if it enters, the child goes on from there."""
        if isinstance(reply, Envelope) and reply.kind == "error":
            if not delivery.parcel.office.link.faults.drop_bad:
                tree, node = self.setup.tree, delivery.parcel.node
                raise diverged(tree, self.tier - 1, child, node.round, self.setup.algorithm.name)
            reply = BAD
        if isinstance(reply, int):
            return delivery.nothing(reply)
        ended = torch.tensor([reply.time]) if self.setup.pace is not None else None
        arrival = delivery.receive(reply.body, ended)
        if arrival.entered is None or bool(arrival.entered):
            self.now.entered[child] = reply.version
        return arrival

    def _collect(
        self, kind: str, envelope: Envelope, wanted: Any, fates: Mapping[int, int]
    ) -> dict[int, Envelope | int]:
        """Wait for one reply of each child: the reply, or why there is none; what belongs to no ask of now is left out.

        Args:
            kind: What is waited for.
            envelope: The ask.
            wanted: The children.
            fates: What happens to each child's reply on its way.
        """
        arrived: dict[int, Envelope | int] = {}
        for late in self._late:
            self.returns.put(late)
        self._late = []
        while len(arrived) < len(wanted):
            mail = self.returns.get()
            if mail is None:
                raise PalmetteError("the training ended while a node waited for its children")
            sender, data = mail
            if isinstance(data, BaseException):
                raise data
            if sender not in wanted:
                continue  # nobody asked it
            try:
                reply = decode(data)
            except WireError:
                arrived.setdefault(sender, CORRUPT)
                continue
            mine = (reply.round, reply.path) == (envelope.round, envelope.path) and reply.kind in (kind, "error")
            if mine and sender not in arrived:
                arrived[sender] = self._befallen(sender, data, reply, fates.get(sender, 0))
        return arrived

    def _befallen(self, sender: int, data: bytes, reply: Envelope, fate: int) -> Envelope | int:
        """Let happen to a reply what chance wants: a network does such things by itself."""
        if fate == CORRUPT:
            place = len(data) // 2
            try:
                return decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            except WireError:
                return CORRUPT
        if fate == LATE:
            self._late.append((sender, data))
        return reply if fate == 0 else fate

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def scores(self, ask: Envelope) -> dict[str, Tensor]:
        """Measure the models on the devices below: the models above come down, each team adds its own, scores go up.

        Scores are sums over a device's test samples, ``"PM/accuracy"`` and so on, ``(1, devices below)``.
        """
        models, setup = dict(ask.body or {}), self.setup
        if self.tier == 0:
            device = self._device(ask.round, ask.rounds, torch.tensor([ASIDE]))
            kept = (self.state, self._declared, self.took_part)
            return scores_of_device(setup.algorithm, setup.learner, device, *kept, models, setup.kinds)
        if "model" in self._declared:
            above = next(reversed(models.values()), None)
            own = self.state["model"] if self.took_part or above is None else above
            models[model_kind(self.tier, setup.tree.top)] = own
        message = replace(ask, kind="evaluate", sender=self.number, body=models)
        for child, mail in self.children.items():
            mail.put((self.number, encode(replace(message, base=self.now.entered.get(child, -1)))))
        replies = self._collect("scores", message, self.children.keys(), {})
        found = [replies[child] for child in self.children]
        bodies = [reply.body for reply in found if isinstance(reply, Envelope)]
        traffic = self.evaluated.at(ask.round, setup.top if setup.algorithm.flat else self.tier)
        traffic.add(1, payload(models) * len(bodies), sum(map(payload, bodies)))
        return {name: torch.cat([body[name] for body in bodies], 1) for name in bodies[0]}
