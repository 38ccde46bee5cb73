"""Ten thousand devices: a round works on them chunk by chunk and never expands all messages at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palmette.algorithms import PerMFL
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.links import Link, Participation
from palmette.links.ledger import Traffic
from palmette.population import Population
from palmette.task import make_task
from processes import linux_only, told

DEVICES = 10_000
MEGABYTE = 1 << 20

_PARTS = """
import sys
import torch
from palmette.algorithms import PerMFL
from palmette.population import Population
from palmette.engines.simulate import Simulation
from palmette.engines.store import Store
from palmette.task import make_task
from palmette.tree import Tree

def status(name):
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
"""
_ROUND = (
    _PARTS
    + """
torch.manual_seed(0)
population = Population(
    tree=Tree.parse("100x100"),
    x=torch.rand(20_000, 784),
    y=torch.randint(10, (20_000,)),
    start=2 * torch.arange(10_001),
    train=torch.full((10_000,), 2),
    classes=10,
)
before = status("VmRSS")
method = PerMFL(team_steps=1, local_steps=1, batch_size=2)
task = make_task("mclr", (784,), 10)
simulation = Simulation(method, population, task, rounds=1, chunk=int(sys.argv[1]) or None, threads=2)
simulation.step()
assert simulation.device_steps == 10_000
kept = sum(rows.nbytes for store in simulation.stores for rows in store.rows.values())
print(status("VmHWM") - before, kept)
"""
)
_STORE = (
    _PARTS
    + """
before = status("VmRSS")
store = Store(10_000, {"model": torch.ones(7_850)})
few = torch.arange(100)
store.write(few, store.read(few), 0)
print(status("VmHWM") - before, sum(rows.nbytes for rows in store.rows.values()))
"""
)


def growth(program: str, *arguments: object) -> tuple[int, int]:
    """Run a program in a process of its own; return by how much its memory grew at most, and the size of its stores."""
    grown, kept = map(int, told(program, *arguments).split())
    return grown, kept


# One message for every device at once takes as much as the devices' store, 299 MiB; so do their replies.
SPARE = 200 * MEGABYTE


@linux_only
def test_a_round_of_ten_thousand_devices_needs_little_more_than_what_they_keep() -> None:
    grown, kept = growth(_ROUND, 0)
    assert kept >= DEVICES * 7_850 * 4
    assert grown < kept + SPARE


@linux_only
def test_the_measure_of_memory_sees_too_many_messages_at_once() -> None:
    grown, kept = growth(_ROUND, DEVICES // 4)
    assert grown > kept + SPARE


@linux_only
def test_a_store_takes_memory_only_for_nodes_that_took_part() -> None:
    grown, kept = growth(_STORE)
    assert kept == DEVICES * 7_850 * 4
    assert grown < 100 * MEGABYTE


@pytest.fixture(scope="module")
def wide() -> Population:
    """Four samples of sixty features on each of ten thousand devices."""
    random = np.random.default_rng(0)
    return Population.from_arrays(
        random.normal(size=(4 * DEVICES, 60)).astype(np.float32),
        random.integers(0, 10, 4 * DEVICES),
        tree="100x100",
        device=np.repeat(np.arange(DEVICES), 4),
        classes=10,
    )


def one_round(population: Population, **options: Any) -> Simulation:
    task = make_task("mclr", population.shape, population.classes)
    simulation = Simulation(PerMFL(team_steps=2, local_steps=3), population, task, rounds=1, **options)
    simulation.step()
    return simulation


def test_a_round_reaches_all_ten_thousand_devices(wide: Population) -> None:
    simulation = one_round(wide)
    row = 610 * 4
    assert bool((simulation.stores[0].last == 0).all())
    assert bool((simulation.stores[0].rows["model"].abs().sum(1) > 0).all())
    assert simulation.device_steps == 2 * 3 * DEVICES
    assert simulation.ledger.totals() == {
        1: Traffic(2 * 100, 2 * DEVICES * row, 2 * DEVICES * row),
        2: Traffic(1, 100 * row, 100 * row),
    }
    scores = evaluate(simulation)
    assert {kind: float(found.count.sum()) for kind, found in scores.items()} == dict.fromkeys(
        ("PM", "TM", "GM"), DEVICES
    )


def test_chunks_of_ten_thousand_devices_change_round_off_only(wide: Population) -> None:
    one, other = (one_round(wide, chunk=chunk) for chunk in (None, 1_000))
    torch.testing.assert_close(one.model(), other.model(), atol=1e-5, rtol=0)
    torch.testing.assert_close(one.stores[0].rows["model"], other.stores[0].rows["model"], atol=1e-5, rtol=0)


def test_ten_devices_of_each_of_ten_teams_cost_a_hundredth(wide: Population) -> None:
    links = {0: Link(Participation("count", 10)), 1: Link(Participation("count", 10))}
    simulation = one_round(wide, links=links)
    assert simulation.device_steps == 2 * 3 * 100
    took = simulation.stores[0].last >= 0
    assert 100 < int(took.sum()) <= 200  # each team draws anew in its second step
    assert int((simulation.stores[1].last >= 0).sum()) == 10
