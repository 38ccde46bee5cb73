"""Every node as its own machine: one program each with a stack of one, messages as bytes through queues.

This is deployment without a network. It runs the very programs of the simulator, and with chunks of one device the two agree
bit for bit; a transport over a real network takes the place of the queues and nothing else changes. No machine knows more than
one on its own would: see `palmette.engines.setup`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch

from palmette.engines.aside import scores
from palmette.engines.channel import Mail, Queues
from palmette.engines.evaluation import Scores
from palmette.engines.machine import Machine as Machine
from palmette.engines.setup import setup_of
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.links.wire import Envelope
from palmette.protocol import ModelKind
from palmette.protocol.stages import Stages


@dataclass(eq=False)
class Worker:
    """A machine in a thread of its own.

    Attributes:
        machine: The machine.
        place: Its number among its parent's children.
        inbox: Where messages from the parent arrive; ``None`` ends it.
        parent: Where replies to the parent go.
    """

    machine: Machine
    place: int
    parent: SimpleQueue[Mail | None]
    inbox: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)

    def serve(self) -> None:
        """Answer messages until told to end; an error goes to the parent as it is."""
        while (message := self.inbox.get()) is not None:
            try:
                if (reply := self.machine.answer(message)) is not None:
                    self.parent.put((self.place, reply))
            except BaseException as error:
                self.parent.put((self.place, error))
                return


class Separate:
    """A federation of machines, a thread for each, to be used in a ``with`` statement.

    Args:
        simulation: What to run: its algorithm, population, task, seed, links and clock; it is not stepped itself.
        queues: Makes what carries the messages between a node of some tier and its children.

    Attributes:
        machines: The machines, tier by tier.
        workers: Those of them that have a parent, from the devices up.
    """

    def __init__(self, simulation: Simulation, queues: Callable[[int], Queues] = lambda tier: Queues()) -> None:
        tree = self.tree = simulation.tree
        self.rounds, self.round = simulation.rounds, 0
        self._stages = Stages(simulation.algorithm, tree, simulation.rounds)
        self._ways = [[queues(tier) for _ in range(tree.size(tier))] for tier in range(tree.tiers)]
        self.machines = [
            [Machine(setup_of(simulation, tier, number), way) for number, way in enumerate(ways)]
            for tier, ways in enumerate(self._ways)
        ]
        self.workers: list[Worker] = []
        for tier, parents in enumerate(tree.parents):
            for number, parent in enumerate(parents.tolist()):
                way, place = self._ways[tier + 1][parent], number - tree.children(tier + 1, parent).start
                worker = Worker(self.machines[tier][number], place, way.returns)
                way.inboxes[place] = worker.inbox
                self.workers.append(worker)
        self._threads = [threading.Thread(target=worker.serve, daemon=True) for worker in self.workers]

    @property
    def server(self) -> Machine:
        """The server's machine."""
        return self.machines[-1][0]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self.workers:
            worker.inbox.put(None)
        for way in (way for ways in self._ways for way in ways):
            way.returns.put(None)  # after an error elsewhere a machine's children may have ended without an answer
        for thread in self._threads:
            thread.join(timeout=60)

    def _start(self) -> Envelope:
        stage, turn = self._stages.at(self.round)
        return Envelope(round=self.round, rounds=self.rounds, stage=stage, turn=turn)

    def step(self) -> None:
        """Run one round."""
        with one_thread_inside():
            self.server.begin(self._start())
        self.round += 1

    def settle(self) -> None:
        """Let every machine go back to what entered of it, as the next ask would."""
        for tier in range(self.tree.top, 0, -1):
            for number, parent in enumerate(self.machines[tier]):
                for place, child in enumerate(self.tree.children(tier, number)):
                    self.machines[tier - 1][child].settle(parent.now.entered.get(place, -1))

    def evaluate(self) -> dict[ModelKind, Scores]:
        """Measure the models as `palmette.engines.evaluation.evaluate` does, by an exchange of its own."""
        with one_thread_inside(), torch.no_grad():
            found = scores(self.server, Envelope(kind="evaluate", round=self.round, rounds=self.rounds))
        return scores_of(found)

    @property
    def record(self) -> torch.Tensor:
        """Who was absent when, in the order of rounds, tiers, exchanges and children; see `palmette.links.record`."""
        parts = []
        for tier, machines in enumerate(self.machines[1:], 1):
            for number, machine in enumerate(machines):
                table = machine.now.record.table().clone()
                table[:, 3] += self.tree.children(tier, number).start
                parts.append(table)
        return ordered(torch.cat(parts))


def scores_of(sums: dict[str, torch.Tensor]) -> dict[ModelKind, Scores]:
    """Return the scores of each kind of model, given all sums by ``"PM/accuracy"`` and so on, ``(1, devices)``."""
    found: dict[ModelKind, dict[str, torch.Tensor]] = {}
    for name, value in sums.items():
        kind, _, metric = name.partition("/")
        found.setdefault(kind, {})[metric] = value[0]
    return {kind: Scores(kind, one, one.pop("count")) for kind, one in found.items()}


def ordered(record: torch.Tensor) -> torch.Tensor:
    """Return a table of absences in the order of rounds, tiers, exchanges and children."""
    rows = sorted(map(tuple, record.tolist()))
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, record.shape[1])


def run_separately(simulation: Simulation, rounds: int) -> list[list[Machine]]:
    """Run a simulation's algorithm with one thread per node and return the machines, tier by tier.

    Args:
        simulation: What to run; it is not stepped itself.
        rounds: How many rounds.
    """
    with Separate(simulation) as federation:
        for _ in range(rounds):
            federation.step()
    federation.settle()
    return federation.machines
