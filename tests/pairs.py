"""What a pair of processes does for `test_distributed`: every algorithm, in both of them and in one, held against each other.

Both processes run this program; rank 0 prints what differed. ``make prove-distributed`` uses it with more processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from palmette.engines.distributed import Distributed
from palmette.engines.evaluation import measure_all
from palmette.engines.peers import Peers, place
from palmette.engines.simulate import Simulation
from palmette.engines.store import Pieces
from palmette.errors import Diverged, PalmetteError, ProtocolError
from palmette.learner import Optimiser
from palmette.links import Link, Participation
from palmette.population import Population
from palmette.protocol import Algorithm, Ask, Device, Node, Server, State
from palmette.protocol.settings import settings
from palmette.testing.checks import _people as people_for
from palmette.testing.problems import regression, task_for
from palmette.testing.storm import PACE, STORM
from test_contract import LEFT_OUT, TABLE

ROUNDS = 3
SOME = {0: Link(Participation("fraction", 0.6)), 1: Link(Participation("count", 2))}
CASES: dict[str, dict[str, Any]] = {
    "everybody": {},
    "some": {"links": SOME},
    "storm": {"links": STORM, "pace": PACE},
}
# Of each kind of exchange one, where everybody takes part and the table does not: means, masks, single replies, a flat tree.
FEW = ("permfl", "async-l2gd", "fedamp", "ditto", "scaffold", "pfedmt")
# And those whose storms differ in kind: stages and passes, coins, stragglers nobody waits for, surveys, teams that are found.
QUICK = (*FEW, "groupperfl", "al2sgd", "fedbuff", "ladder", "cfl")


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


def left_behind(simulation: Simulation) -> dict[str, Tensor]:
    """Return all that a run leaves behind, wherever it lies."""
    found = {}
    for name, store in simulation.kept.items():
        ids = store.changed()
        found[f"last {name}"] = store.last
        found |= {f"{name} {kind}": store.rows_of(kind, ids) for kind in store.initial}
    found |= {f"counts {tier}": counter.table for tier, counter in enumerate(simulation.counters)}
    for kind, score in measure_all(simulation).scores.items():
        found |= {f"{kind} {metric}": sums for metric, sums in score.sums.items()}
    numbers = [simulation.device_steps, simulation.wasted_steps, simulation.adapt_steps, simulation.round]
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


def compared(
    pair: Pair, name: str, method: Algorithm, case: str, people: Population | None = None, **more: Any
) -> list[str]:
    """Run a method in one process and in all, in a storm stopped and gone on with; return what differs."""
    people = people or people_for(method)
    links = {tier: link for tier, link in CASES[case].get("links", {}).items() if tier < people.tree.top}
    given = method, people, task_for(method, people)
    named: dict[str, Any] = {"rounds": ROUNDS, "chunk": 2, "threads": 1, **CASES[case], "links": links, **more}
    told: list[str] = []
    rounds = ROUNDS if case == "storm" else 2
    with pair.simulation(*given, **named) as simulation:
        if pair.leads:
            alone = Simulation(*given, **named)
            for _ in range(rounds):
                alone.step()
            for done in range(rounds):
                if (
                    case == "storm" and done == 2
                ):  # what went on by itself is forgotten, and comes back from a checkpoint
                    kept = {name: _whole(value) for name, value in simulation.state().items()}
                    simulation.step()
                    simulation.restore(kept)
                simulation.step()
            told = [f"{name} ({case}): {what}" for what in differences(alone, simulation)]
    return told


def _whole(value: Tensor | Pieces) -> Tensor:
    """Return a tensor as a checkpoint would hold it."""
    if isinstance(value, Tensor):
        return value.clone()
    pieces = list(value)
    return torch.cat(pieces) if pieces else torch.empty(value.shape, dtype=value.dtype)


@settings
class Failing(Algorithm):
    """Averaging, in which something goes wrong in the second round: at the last device, or at the server."""

    name: ClassVar[str] = "failing"
    flat: ClassVar[bool] = True
    how: str = "diverged"
    batch_size: int = 5

    def device(self, node: Device, w: Tensor, state: State) -> tuple[Tensor, State]:
        last = node.round == 1 and bool((node.ids == node.tree.devices - 1).any())
        if last and self.how == "bug":
            raise KeyError("a bug")
        return w * (torch.inf if last and self.how == "diverged" else 0.5), state

    def server(self, node: Node, state: State) -> Server:
        replies = yield Ask(state["model"])
        if node.round == 1 and self.how == "server":
            raise ProtocolError("a mistake at the server")
        return {"model": replies.rows}


def failed(pair: Pair) -> list[str]:
    """Let rounds fail in another process, or in all; return where rank 0 is told something else than one process would be."""
    people, wrong = regression([3, 2, 4]), list[str]()
    expected = {"diverged": Diverged, "server": ProtocolError, "bug": RuntimeError}
    for how, kind in expected.items():
        method = Failing(how=how)
        given: dict[str, Any] = {"rounds": 3, "chunk": 2, "threads": 1}
        with pair.simulation(method, people, task_for(method, people), **given) as simulation:
            if not pair.leads:
                continue
            simulation.step()
            kept = {name: _whole(value) for name, value in simulation.state().items()}
            for _ in range(2):  # a round that failed leaves nothing behind that would be in the way of another
                try:
                    simulation.step()
                except (PalmetteError, RuntimeError) as error:
                    said = str(error)
                    if not isinstance(error, kind) or (
                        "tier 0" not in said and "a mistake" not in said and "a bug" not in said
                    ):
                        wrong.append(f"{how}: {error!r}")
                else:
                    wrong.append(f"{how}: nothing failed")
                simulation.restore(kept)
    return wrong


def main() -> None:
    """Go through cases of the table, and what it does not cover."""
    torch.set_num_threads(1)
    pair, told = Pair(), list[str]()
    words = [word for word in sys.argv[1:] if word != "quick"]
    rows = {name: TABLE[name] for name in QUICK} if "quick" in sys.argv else TABLE
    for case in words or CASES:
        for name, method in rows.items():
            if case != "storm" or name not in LEFT_OUT:
                told += compared(pair, name, method, case)
    for name in FEW if "everybody" not in words else ():
        told += compared(pair, name, TABLE[name], "everybody")
    told += compared(
        pair, "momentum that is kept", TABLE["permfl"], "storm", optimiser=Optimiser(momentum=0.9, keep=True)
    )
    told += compared(pair, "one device", TABLE["permfl"], "everybody", regression("1x1"))
    told += compared(pair, "four tiers", TABLE["hierfavg"], "some", regression("2x2x3"))
    told += failed(pair)
    if pair.leads:
        print(*told, "all cases were compared", sep="\n")
    pair.peers.leave()  # gloo's threads must not outlive Python


if __name__ == "__main__":
    main()
