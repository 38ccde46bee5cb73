"""Every node as its own machine: one program each with a stack of one, messages as bytes through queues.

This is deployment without a network. It runs the very programs of the simulator, and with chunks of one device the two agree
bit for bit; a transport over a real network takes the place of the queues and nothing else changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import PalmetteError
from palmette.learner import Learner
from palmette.links import Ledger, Link
from palmette.links.exchange import Counters, Parcel, drive, exchange
from palmette.links.sparse import plain
from palmette.links.wire import Envelope, decode, encode
from palmette.protocol import Algorithm, Ask, Device, Node, Replies, State
from palmette.task.layout import Layout
from palmette.tree import Tree

Mail = SimpleQueue[bytes | BaseException | None]


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
    """

    setup: Setup
    tier: int
    number: int
    inbox: Mail = field(default_factory=SimpleQueue)
    returns: Mail = field(default_factory=SimpleQueue)
    parent: Mail = field(default_factory=SimpleQueue)
    children: dict[int, Mail] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    device_steps: int = 0

    def __post_init__(self) -> None:
        setup = self.setup
        learner = setup.learner
        self._kept = rules.stored(
            setup.algorithm, setup.tree, self.tier, setup.layout, learner.initial(), learner.keeps()
        )
        self.state: State = {name: row[None].clone() for name, row in self._kept.items()}
        self.took_part = False
        self._counters = Counters(setup.tree.size(self.tier))
        self._done: tuple[int, int] | None = None
        self._reply = b""
        self._round = -1

    def serve(self) -> None:
        """Answer messages until told to end; an error goes to the parent as it is."""
        while (message := self.inbox.get()) is not None:
            try:
                assert isinstance(message, bytes)
                self.parent.put(self.answer(message))
            except BaseException as error:
                self.parent.put(error)
                return

    def answer(self, message: bytes) -> bytes:
        """Work on one message and return the reply; a repeated message gets the stored reply."""
        envelope = decode(message)
        if self._done != (envelope.round, envelope.exchange):
            with torch.no_grad():
                body, self.state = self._work(envelope)
            self.took_part = True
            self._reply = encode(Envelope(envelope.round, envelope.rounds, envelope.exchange, self.number, body))
            self._done = (envelope.round, envelope.exchange)
        return self._reply

    def begin(self, round_: int, rounds: int) -> None:
        """Run one round from the top; for the server's machine."""
        with torch.no_grad():
            node = self._node(round_, rounds)
            program = rules.server(self.setup.algorithm, node, self.state, self._kept)
            self.state = drive(program, lambda ask: self._exchange(node, ask))

    def _where(self, round_: int, rounds: int) -> dict[str, Any]:
        setup = self.setup
        stage = setup.algorithm.stage(setup.tree, round_, rounds)
        where = {"seed": setup.seed, "round_": round_, "rounds": rounds, "stage": stage}
        return {**where, "samples": setup.samples, "layout": setup.layout}

    def _node(self, round_: int, rounds: int) -> Node:
        if round_ != self._round:
            self._round = round_
            self._counters.exchange.zero_()
        return Node(self.setup.tree, self.tier, torch.tensor([self.number]), **self._where(round_, rounds))

    def _work(self, envelope: Envelope) -> tuple[Any, State]:
        setup, message = self.setup, plain(envelope.body)
        if self.tier == 0:
            where = self._where(envelope.round, envelope.rounds)
            number, ids = torch.tensor([envelope.exchange]), torch.tensor([self.number])
            kept = rules.of_work(self.state, self._kept)
            device = Device(setup.learner, number, setup.tree, ids, kept=kept, **where)
            result = rules.device(setup.algorithm, device, message, self.state, self._kept)
            self.device_steps += device.device_steps
            return result
        node = self._node(envelope.round, envelope.rounds)
        program = rules.team(setup.algorithm, node, message, self.state, self._kept)
        answer: tuple[Any, State] = drive(program, lambda ask: self._exchange(node, ask))
        return answer

    def _exchange(self, node: Node, ask: Ask) -> Replies:
        link = self.setup.links.get(self.tier - 1, Link())
        traffic = self.ledger.at(node.round, self.setup.top if self.setup.algorithm.flat else self.tier)
        with rules.asking(self.setup.algorithm, node):
            return exchange(node, ask, link, self._counters, traffic, lambda parcel: self._deliver(node, parcel))

    def _deliver(self, node: Node, parcel: Parcel) -> Iterator[tuple[Tensor, Any]]:
        """Send every child its part, wait for all, and hand the replies on in the order of the children."""
        number = int(parcel.exchange[0])
        for position, child in enumerate(parcel.ids.tolist()):
            body = parcel.take(torch.tensor([position]), encoded=True)
            self.children[child].put(encode(Envelope(node.round, node.rounds, number, self.number, body)))
        arrived: dict[int, Any] = {}
        while len(arrived) < len(parcel.ids):
            mail = self.returns.get()
            if mail is None:
                raise PalmetteError("the training ended while a node waited for its children")
            if isinstance(mail, BaseException):
                raise mail
            envelope = decode(mail)
            if (envelope.round, envelope.exchange) == (node.round, number):
                arrived[envelope.sender] = envelope.body
        for position, child in enumerate(parcel.ids.tolist()):
            yield torch.tensor([position]), arrived[child]


def run_separately(simulation: Simulation, rounds: int) -> list[list[Machine]]:
    """Run a simulation's algorithm with one thread per node and return the machines, tier by tier.

    Args:
        simulation: What to run: its algorithm, population, task, seed and links; it is not stepped itself.
        rounds: How many rounds.
    """
    tree = simulation.tree
    setup = Setup(
        algorithm=simulation.algorithm,
        tree=tree,
        learner=simulation.learner,
        layout=simulation.task.layout,
        links=simulation.links,
        samples=simulation.samples,
        seed=simulation.seed,
        top=simulation.population.tree.top,
    )
    machines = [[Machine(setup, tier, number) for number in range(tree.size(tier))] for tier in range(tree.tiers)]
    for tier in range(1, tree.tiers):
        for parent in machines[tier]:
            for number in tree.children(tier, parent.number):
                child = machines[tier - 1][number]
                child.parent, parent.children[number] = parent.returns, child.inbox
    workers = [machine for tier in machines[:-1] for machine in tier]
    threads = [threading.Thread(target=machine.serve, daemon=True) for machine in workers]
    with one_thread_inside():
        for thread in threads:
            thread.start()
        try:
            for round_ in range(rounds):
                machines[-1][0].begin(round_, simulation.rounds)
        finally:
            for machine in workers:
                machine.inbox.put(None)
                machine.returns.put(None)  # after an error elsewhere its children may have ended without an answer
            for thread in threads:
                thread.join(timeout=60)
    return machines
