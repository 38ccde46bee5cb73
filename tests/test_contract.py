"""The contract every algorithm keeps, one row each: add an algorithm, add a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palmette.algorithms import ALGORITHMS, algorithm
from palmette.engines.evaluation import evaluate
from palmette.engines.separate import Machine, run_separately
from palmette.engines.simulate import Simulation
from palmette.learner import Learner
from palmette.links import Link, Participation
from palmette.protocol import Algorithm
from problems import regression, simulate, task_of
from programs import AsyncL2GD, FedAMP, Scaffold, TwoStages

SMALL: dict[str, dict[str, Any]] = {
    "permfl": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "pfedmt": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "hierfavg": {"team_steps": 3, "local_steps": 4, "batch_size": 5, "global_every": 2},
    "sfedhp": {"team_steps": 3, "local_steps": 4, "batch_size": 5, "zero_tol": 0.02},
    "fl": {"batch_size": 5},
    "perfl": {"batch_size": 5, "rates": (0.01, 0.1)},
    "groupfl": {"batch_size": 5},
    "groupperfl": {"batch_size": 5, "rates": (0.01, 0.1)},
    "l2gd": {"iterations": 12},
    "l2gd-coin": {"iterations": 12},
    "al2sgd": {"iterations": 6, "refresh": 0.3},
    "fedavg": {"local_steps": 4, "batch_size": 5},
    "local": {"local_steps": 4, "batch_size": 5},
}
TABLE: dict[str, Algorithm] = {name: algorithm(name, **given) for name, given in SMALL.items()}
# Programs of other shapes keep the same contract: two rows and control variates, coins and masks, per-child rows, stages.
TABLE |= {kind.name: kind() for kind in (Scaffold, AsyncL2GD, FedAMP, TwoStages)}

every_algorithm = pytest.mark.parametrize("method", TABLE.values(), ids=TABLE)
# The plain L2GD program wants every device at every average and says nothing of what to take otherwise.
ROBUST = {name: method for name, method in TABLE.items() if name != AsyncL2GD.name}
every_robust_algorithm = pytest.mark.parametrize("method", ROBUST.values(), ids=ROBUST)


def everything(simulation: Simulation) -> dict[str, torch.Tensor]:
    """All that a run leaves behind, to be compared bit for bit."""
    kept = {f"{tier}/{name}": rows for tier, store in enumerate(simulation.stores) for name, rows in store.rows.items()}
    kept |= {f"{tier}/last": store.last for tier, store in enumerate(simulation.stores)}
    ids = torch.arange(simulation.population.devices)
    traffic = [list(row.values()) for row in simulation.ledger.rows()]
    return {**kept, "personal": simulation.device_models(ids), "traffic": torch.tensor(traffic)}


def assert_same(one: Simulation, other: Simulation) -> None:
    mine, theirs = everything(one), everything(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


PARTIAL = {0: Link(Participation("fraction", 0.6), loss=0.2), 1: Link(Participation("count", 2))}


def test_every_algorithm_has_a_row() -> None:
    assert set(ALGORITHMS) <= set(TABLE)


@every_algorithm
def test_the_same_seed_gives_the_same_bits(method: Algorithm) -> None:
    population = regression([3, 2, 4], unequal=True)
    assert_same(*(simulate(method, population, 3, dtype=torch.float32, seed=5) for _ in range(2)))


@every_algorithm
def test_threads_change_no_bit(method: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "worth_a_thread", lambda self, devices: True)  # these steps are too small for it
    population = regression([3, 2, 4], unequal=True)
    assert_same(*(simulate(method, population, 3, dtype=torch.float32, threads=n, chunk=2) for n in (1, 5)))


@every_algorithm
def test_another_chunk_size_changes_round_off_only(method: Algorithm) -> None:
    population = regression([3, 2, 4], unequal=True)
    one, other = (everything(simulate(method, population, 3, dtype=torch.float32, chunk=n)) for n in (1, 9))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-5, rtol=1e-5)


@every_algorithm
def test_backends_agree(method: Algorithm) -> None:
    population = regression([3, 2, 4], unequal=True)
    runs = [everything(simulate(method, population, 2, backend=name)) for name in ("loop", "vmap", "fused")]
    for name, value in runs[0].items():
        for other in runs[1:]:
            torch.testing.assert_close(value, other[name], atol=1e-9, rtol=1e-9)


@every_algorithm
def test_separate_nodes_that_talk_in_bytes_are_the_simulation_bit_for_bit(method: Algorithm) -> None:
    separate_is_stacked(method, {})


@every_robust_algorithm
def test_separate_nodes_draw_the_same_participants_and_lose_the_same(method: Algorithm) -> None:
    separate_is_stacked(method, PARTIAL)


def separate_is_stacked(method: Algorithm, links: dict[int, Link]) -> None:
    population = regression([3, 2, 4], unequal=True)
    stacked = simulate(method, population, 3, dtype=torch.float32, chunk=1, links=links)
    other = Simulation(method, population, task_of(population), rounds=3, links=links)
    machines = run_separately(other, 3)
    assert_separate_is_stacked(machines, stacked)


def assert_separate_is_stacked(machines: list[list[Machine]], stacked: Simulation) -> None:
    for tier, (row, store) in enumerate(zip(machines, stacked.stores, strict=True)):
        for machine in row:
            seen = machine.took_part or tier == stacked.tree.top
            assert seen == bool(store.last[machine.number] >= 0)
            for name, value in machine.state.items() if seen else ():
                assert torch.equal(value[0], store.rows[name][machine.number]), (tier, machine.number, name)
    assert sum(m.device_steps for m in machines[0]) == stacked.device_steps
    for tier in range(1, stacked.tree.tiers):
        for count in ("exchanges", "bytes_up", "bytes_down"):
            link = stacked.link_tier(tier)
            apart = sum(getattr(m.ledger.totals()[link], count) for m in machines[tier] if m.ledger.totals())
            assert apart == getattr(stacked.ledger.totals()[link], count)


@every_robust_algorithm
def test_when_nobody_answers_nothing_breaks(method: Algorithm) -> None:
    population = regression([3, 2, 4])
    silent = Link(absences=lambda round_, tier, exchange, children: torch.full((len(children),), round_ == 1))
    simulation = simulate(method, population, 3, links={0: silent, 1: silent})
    assert all(bool(rows.isfinite().all()) for store in simulation.stores for rows in store.rows.values())
    quiet = simulation.ledger.entries
    assert all(entry.bytes_up == 0 for (round_, _), entry in quiet.items() if round_ == 1)


@every_robust_algorithm
def test_lost_devices_keep_their_state_and_the_others_go_on(method: Algorithm) -> None:
    population = regression([3, 2, 4])
    gone = Link(absences=lambda round_, tier, exchange, children: children == 4)
    simulation = simulate(method, population, 2, links={0: gone})
    assert simulation.stores[0].last.tolist() == [1, 1, 1, 1, -1, 1, 1, 1, 1]


@every_algorithm
def test_a_tree_with_one_device_works(method: Algorithm) -> None:
    simulation = simulate(method, regression("1x1"), 2)
    assert {kind: scores.count.tolist() for kind, scores in evaluate(simulation).items()} == {
        kind: [1.0] for kind in method.models if kind != "TM" or simulation.team_models() is not None
    }


def copied(value: Any) -> Any:
    """Copy what a program is given, however it is nested."""
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def unchanged(value: Any, before: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == before.keys() and all(unchanged(value[name], before[name]) for name in value)
    return torch.equal(value, before) if isinstance(value, torch.Tensor) else True


@every_algorithm
def test_programs_do_not_write_into_their_inputs(method: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(method)
    seen = []

    def plain(program: Any) -> Any:
        def call(self: Any, node: Any, *given: Any) -> Any:
            before = [copied(value) for value in given]
            result = program(self, node, *given)
            seen.append([unchanged(value, old) for value, old in zip(given, before, strict=True)])
            return result

        return call

    def generator(program: Any) -> Any:
        def call(self: Any, node: Any, *given: Any) -> Any:
            before = [copied(value) for value in given]
            result = yield from program(self, node, *given)
            seen.append([unchanged(value, old) for value, old in zip(given, before, strict=True)])
            return result

        return call

    monkeypatch.setattr(kind, "device", plain(kind.device))
    monkeypatch.setattr(kind, "adapt", plain(kind.adapt))
    monkeypatch.setattr(kind, "server", generator(kind.server))
    if not method.flat:
        monkeypatch.setattr(kind, "team", generator(kind.team))
    simulation = simulate(method, regression([3, 2, 4]), 2)
    simulation.device_models(torch.arange(9))
    assert len(seen) > 3
    assert all(all(one) for one in seen)
