"""Every node as its own machine: one program each with a stack of one, messages as bytes through queues.

This is deployment without a network. It runs the very programs of the simulator, and with chunks of one device the two agree
bit for bit; a transport over a real network takes the place of the queues and nothing else changes.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import torch

from palmette.engines.evaluation import Scores
from palmette.engines.machine import Machine as Machine
from palmette.engines.machine import Setup as Setup
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.links.wire import Envelope
from palmette.protocol import ModelKind


class Separate:
    """A federation of machines, a thread for each, to be used in a ``with`` statement.

    Args:
        simulation: What to run: its algorithm, population, task, seed, links and clock; it is not stepped itself.
    """

    def __init__(self, simulation: Simulation) -> None:
        tree = self.tree = simulation.tree
        setup = Setup(
            algorithm=simulation.algorithm,
            tree=tree,
            learner=simulation.learner,
            layout=simulation.task.layout,
            links=simulation.links,
            samples=simulation.samples,
            seed=simulation.seed,
            top=simulation.population.tree.top,
            pace=simulation.pace,
            kinds=tuple(simulation.kinds),
        )
        self.rounds, self.round = simulation.rounds, 0
        self.machines = [
            [Machine(setup, tier, number) for number in range(tree.size(tier))] for tier in range(tree.tiers)
        ]
        """The machines, tier by tier."""
        for tier in range(1, tree.tiers):
            for parent in self.machines[tier]:
                for number in tree.children(tier, parent.number):
                    child = self.machines[tier - 1][number]
                    child.parent, parent.children[number] = parent.returns, child.inbox
        self._workers = [machine for tier in self.machines[:-1] for machine in tier]
        self._threads = [threading.Thread(target=machine.serve, daemon=True) for machine in self._workers]

    @property
    def server(self) -> Machine:
        """The server's machine."""
        return self.machines[-1][0]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for machine in self._workers:
            machine.inbox.put(None)
            machine.returns.put(None)  # after an error elsewhere its children may have ended without an answer
        for thread in self._threads:
            thread.join(timeout=60)

    def step(self) -> None:
        """Run one round."""
        with one_thread_inside():
            self.server.begin(self.round, self.rounds)
        self.round += 1

    def settle(self) -> None:
        """Let every machine go back to what entered of it, as the next ask would."""
        for tier in range(self.tree.top, 0, -1):
            for parent in self.machines[tier]:
                for number in self.tree.children(tier, parent.number):
                    self.machines[tier - 1][number].settle(parent.now.entered.get(number, -1))

    def evaluate(self) -> dict[ModelKind, Scores]:
        """Measure the models as `palmette.engines.evaluation.evaluate` does, by an exchange of its own."""
        with one_thread_inside(), torch.no_grad():
            found = self.server.scores(Envelope(kind="evaluate", round=self.round, rounds=self.rounds))
        sums: dict[ModelKind, dict[str, torch.Tensor]] = {}
        for name, value in found.items():
            kind, _, metric = name.partition("/")
            sums.setdefault(kind, {})[metric] = value[0]
        return {kind: Scores(kind, one, one.pop("count")) for kind, one in sums.items()}

    @property
    def record(self) -> torch.Tensor:
        """Who was absent when, in the order of rounds, tiers, exchanges and children; see `palmette.links.record`."""
        parts = [machine.now.record.table() for tier in self.machines[1:] for machine in tier]
        return ordered(torch.cat(parts))


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
