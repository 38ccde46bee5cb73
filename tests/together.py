"""What a pair of processes does for `test_distributed`: every algorithm, in both of them and in one, held against each other.

Both processes run this program; rank 0 prints what differed, and how long it took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from palmette.engines.distributed import Distributed
from palmette.engines.evaluation import measure_all
from palmette.engines.peers import Peers, place
from palmette.engines.simulate import Simulation
from palmette.errors import Diverged
from palmette.learner import Optimiser
from palmette.links import Link, Participation
from palmette.protocol import Algorithm
from palmette.testing.checks import _people
from palmette.testing.problems import regression, task_for
from palmette.testing.storm import PACE, STORM
from test_contract import LEFT_OUT, TABLE

ROUNDS = 3
PART: dict[int, Link] = {0: Link(Participation("fraction", 0.6)), 1: Link(Participation("count", 2))}
CASES: dict[str, dict[str, Any]] = {
    "everybody": {},
    "some": {"links": PART},
    "storm": {"links": STORM, "pace": PACE},
}


def left_behind(simulation: Simulation) -> dict[str, Tensor]:
    """Return all that a run leaves behind, wherever it lies."""
    found = {}
    for name, store in simulation.kept.items():
        ids = torch.arange(store.size)
        found[f"last {name}"] = store.last
        found |= {f"{name} {kind}": store.rows_of(kind, ids) for kind in store.initial}
    found |= {f"counts {tier}": counter.table for tier, counter in enumerate(simulation.counters)}
    measured = measure_all(simulation)
    for kind, score in measured.scores.items():
        found |= {f"{kind} {metric}": sums for metric, sums in score.sums.items()}
    numbers = [simulation.device_steps, simulation.wasted_steps, simulation.adapt_steps]
    return found | {
        "traffic": torch.tensor([list(row.values()) for row in simulation.ledger.rows()]),
        "record": simulation.record.table(),
        "numbers": torch.tensor(numbers),
    }


def differences(one: Simulation, other: Simulation) -> list[str]:
    """Return what two runs left behind that is not the same, bit for bit."""
    mine, theirs = left_behind(one), left_behind(other)
    if mine.keys() != theirs.keys():
        return sorted(mine.keys() ^ theirs.keys())
    return [name for name, value in mine.items() if not torch.equal(value, theirs[name])]


class Pair:
    """The processes: rank 0 does something with a simulation, the others follow it."""

    def __init__(self) -> None:
        here = place()
        assert here is not None
        self.peers = Peers(here)
        if here.rank:
            assert self.peers.wait_for_call()
        else:
            self.peers.join()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.peers.rank == 0

    @contextmanager
    def simulation(self, *given: Any, **named: Any) -> Iterator[Distributed]:
        """Give rank 0 a simulation on all processes; others follow it."""
        made = Distributed(*given, peers=self.peers, **named)
        if not self.leads:
            made.follow()
        yield made
        if self.leads:
            made.command("end")


def compared(pair: Pair, name: str, method: Algorithm, case: dict[str, Any], **more: Any) -> list[str]:
    """Run a method in one process and in all, stopped and gone on with; return what differs."""
    people = more.pop("people", None) or _people(method)
    links = {tier: link for tier, link in case.get("links", {}).items() if tier < people.tree.top}
    given = method, people, task_for(method, people)
    named: dict[str, Any] = {"rounds": ROUNDS, "chunk": 2, "threads": 1, **case, "links": links, **more}
    kept, told = {}, []
    with pair.simulation(*given, **named) as first:
        if pair.leads:
            for _ in range(2):
                first.step()
            kept = {key: value if isinstance(value, Tensor) else torch.cat(list(value)) for key, value in first.state().items()}
    with pair.simulation(*given, **named) as second:
        if pair.leads:
            alone = Simulation(*given, **named)
            for _ in range(ROUNDS):
                alone.step()
            second.restore(kept)
            second.step()
            told = [f"{name}: {what}" for what in differences(alone, second)]
    return told


def main() -> None:
    """Go through the table."""
    torch.set_num_threads(1)
    pair, told, begun = Pair(), [], time.monotonic()
    cases = sys.argv[1:] or list(CASES)
    for word in cases:
        for name, method in TABLE.items():
            if word == "storm" and name in LEFT_OUT:
                continue
            told += compared(pair, f"{name} {word}", method, CASES[word])
    memory = Optimiser(momentum=0.9, keep=True)
    told += compared(pair, "momentum that is kept", TABLE["permfl"], CASES["storm"], optimiser=memory)
    told += compared(pair, "one device", TABLE["permfl"], {}, people=regression("1x1"))
    told += compared(pair, "on disk", TABLE["ditto"], CASES["storm"])
    if pair.leads:
        print(*told, sep="\n")
        print(f"{len(told)} differ, {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
