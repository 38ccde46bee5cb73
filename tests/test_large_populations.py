"""Large populations: rounds, evaluations and checkpoints take what takes part, not what there is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from palmette import address
from palmette.algorithms import PerMFL
from palmette.cli.app import app
from palmette.datasets.crowd import crowd
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged
from palmette.links import Link, Participation
from palmette.population import Population, load, make_population
from palmette.protocol import Device, State
from palmette.task import make_task
from palmette.tree import Tree
from processes import linux_only, told

MEGABYTE = 1 << 20

# What one process does; it prints by how much its memory grew at most after its data were there, and what it counted.
_MEASURED = """
import json, sys, tempfile
from pathlib import Path
import torch
from palmette.algorithms import PerMFL
from palmette.engines.evaluation import evaluate
from palmette.links import Link, Participation
from palmette.population import Population, make_population
from palmette.runs.folder import Folder
from palmette.runs.journal import Journal
from palmette.protocol import Device, State
from palmette.engines.simulate import Simulation
from palmette.engines.store import Store
from palmette.task import make_task
from palmette.tree import Tree

def status(name):
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

def devices(tree, features, classes, samples, kind=torch.float32):
    tree = Tree.parse(tree)
    generator = torch.Generator().manual_seed(0)
    total = tree.devices * samples
    x = torch.empty((total, features), dtype=kind)
    x.random_(0, 256, generator=generator) if kind == torch.uint8 else x.normal_(generator=generator)
    y = torch.randint(classes, (total,), generator=generator)
    start = samples * torch.arange(tree.devices + 1)
    train = torch.full((tree.devices,), samples - 1)
    affine = (1 / 255, 0.0) if kind == torch.uint8 else None
    return Population(tree, x, y, start, train, affine, classes)

def simulation(population, participation="all", **options):
    task = make_task("mclr", population.shape, population.classes)
    method = PerMFL(team_steps=1, local_steps=2, alpha=0.05)
    links = {0: Link(Participation.parse(participation))}
    return Simulation(method, population, task, rounds=2, links=links, threads=2, **options)

def told(**found):
    print(json.dumps({"grown": status("VmHWM") - before, **found}))

before = 0
"""


def measured(program: str) -> dict[str, Any]:
    """Run a program in a process of its own and return what it told."""
    found: dict[str, Any] = json.loads(told(_MEASURED + program))
    return found


# -- rounds ------------------------------------------------------------------------------------------------------------

_ROUND = """
population = devices({tree!r}, {features}, {classes}, 3, {kind})
before = status("VmRSS")
made = simulation(population)
made.step()
told(kept=made.stores[0].nbytes, steps=made.device_steps, took=int((made.stores[0].last == 0).sum()),
     moved=int((made.stores[0].rows["model"][:, -1] != 0).sum()))
"""


@linux_only
@pytest.mark.parametrize(
    ("tree", "features", "classes", "kind", "kept", "spare"),
    [
        # 650 MiB are kept; the system's allocator holds on to some 200 of what chunks of such wide rows gave back.
        ("35x100", 784, 62, "torch.uint8", 3_500 * 48_670 * 4, 400 * MEGABYTE),
        # 233 MiB are kept.
        ("100x1000", 60, 10, "torch.float32", 100_000 * 610 * 4, 160 * MEGABYTE),
    ],
)
def test_a_round_of_all_devices_takes_what_they_keep_and_little_more(
    tree: str, features: int, classes: int, kind: str, kept: int, spare: int
) -> None:
    count = Tree.parse(tree).devices
    found = measured(_ROUND.format(tree=tree, features=features, classes=classes, kind=kind))
    assert found["kept"] == kept
    assert found["steps"] == 2 * count
    assert found["took"] == found["moved"] == count
    assert found["grown"] < kept + spare


_FEW = """
population = devices({tree!r}, 60, 10, 17)
before = status("VmRSS")
made = simulation(population, {count})
made.step()
told(took=int((made.stores[0].last == 0).sum()), steps=made.device_steps)
"""


@linux_only
def test_memory_beyond_the_data_does_not_grow_with_the_population() -> None:
    few, many = (measured(_FEW.format(tree=tree, count=10)) for tree in ("100x10", "100x1000"))
    assert few["took"] == many["took"] == 1_000
    assert few["steps"] == many["steps"] == 2_000
    # The other 99,000 devices would take 230 MiB in the store alone. What may grow is a few numbers for each (their round,
    # parent, luck: some 25 vectors of 8 bytes, 19 MiB) and the pages around rows that no longer lie together (5 MiB).
    assert many["grown"] < few["grown"] + 32 * MEGABYTE


_EVALUATION = """
population = devices("100x300", 60, 10, 2)
made = simulation(population, 2)
made.step()
before = status("VmRSS")
scores = evaluate(made)
told(measured=int(scores["PM"].count.sum()))
"""


@linux_only
def test_an_evaluation_never_holds_all_personal_models() -> None:
    found = measured(_EVALUATION)  # 30,000 of them would take 70 MiB
    assert found["measured"] == 30_000
    assert found["grown"] < 56 * MEGABYTE


_CHECKPOINT = """
def peak(work):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from here
    before = status("VmRSS")
    result = work()
    return result, status("VmHWM") - before

with tempfile.TemporaryDirectory() as place:
    population = devices("100x300", 60, 10, 2)
    made = simulation(population, store=place)
    made.step()
    folder = Folder.create(Path(place) / "run")
    _, saved = peak(lambda: Journal(folder).save(made.state(), {}))
    _, copied = peak(lambda: torch.cat(list(made.state()["rows/0/model"])))
    other = simulation(population)
    other.restore(Journal(folder).load()[0].tensors)
    assert torch.equal(made.stores[0].rows["model"], other.stores[0].rows["model"])
    told(saved=saved, copied=copied, size=(folder.path / "checkpoint.bin").stat().st_size)
"""


@linux_only
def test_a_checkpoint_is_written_without_a_second_copy_of_the_store() -> None:
    found = measured(_CHECKPOINT)
    assert found["size"] > 30_000 * 610 * 4  # 70 MiB, written in pieces of 16
    assert found["saved"] < 48 * MEGABYTE < found["copied"]


# -- who takes part ----------------------------------------------------------------------------------------------------


def by_sorting(sizes: list[int], wanted: list[range], luck: Tensor) -> list[int]:
    """Pick children by rank as one would on paper: sort each parent's by luck."""
    chosen, first = [], 0
    for size, ranks in zip(sizes, wanted, strict=True):
        order = sorted(range(first, first + size), key=lambda child: (int(luck[child]), child))
        chosen += [order[rank] for rank in ranks if rank < size]
        first += size
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(20))
def test_picking_a_few_without_sorting_all_gives_those_of_sorting(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 1 + int(10 ** random.uniform(0, 3.3)), random.integers(1, 20)).tolist()
    parents = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    children = torch.arange(len(parents)) + 7
    exchange = torch.from_numpy(random.integers(0, 5, len(sizes)))
    where = address.mix(address.key(seed, "participation", 3, 1), exchange)
    luck = address.mix(where[parents], children)
    count, share = int(random.integers(1, 30)), float(random.uniform(0.001, 1))
    for participation, wanted in (
        (Participation("count", count), [range(count) for _ in sizes]),
        (Participation("fraction", share), [range(max(1, round(share * size))) for size in sizes]),
    ):
        chosen = participation.draw(children, parents, seed=seed, tier=1, round_=3, exchange=exchange, turn=exchange)
        assert chosen.nonzero().squeeze(1).tolist() == by_sorting(sizes, wanted, luck)


# -- the crowd ---------------------------------------------------------------------------------------------------------


def test_a_crowd_has_few_samples_on_each_of_its_devices() -> None:
    population = make_population("crowd", tree="3x700", samples=5, test_samples=2)
    assert population.source == "crowd"
    assert population.shape == (60,)
    assert population.classes == 10
    assert population.x.dtype == torch.float32
    assert population.train.tolist() == [5] * 2_100
    assert population.tests.tolist() == [2] * 2_100
    assert set(population.y.tolist()) == set(range(10))
    deviation = population.x.std(0)
    torch.testing.assert_close(deviation, torch.arange(1.0, 61) ** -0.6, rtol=0.05, atol=0)


def test_a_crowd_is_its_seed_and_its_options() -> None:
    one, same = (make_population("crowd", tree=[3, 2, 2_500], seed=4) for _ in range(2))
    assert torch.equal(one.x, same.x)
    assert torch.equal(one.y, same.y)
    other = make_population("crowd", tree=[3, 2, 2_500], seed=5)
    assert not torch.equal(one.x, other.x)
    wider = make_population("crowd", tree=[3, 2, 2_500], seed=4, spread=2.0)
    assert torch.equal(one.x, wider.x)
    assert not torch.equal(one.y, wider.y)


def test_teams_of_a_crowd_differ_and_devices_of_a_team_less() -> None:
    population = make_population("crowd", tree="20x50", samples=50, test_samples=1, spread=1.0)
    labels = torch.nn.functional.one_hot(population.y, 10).double().view(20, 50, 51, 10).mean(2)
    within = labels.std(1).mean()
    between = labels.mean(1).std(0).mean()
    assert between > within / 50**0.5 * 3
    alike = make_population("crowd", tree="20x50", samples=50, test_samples=1, spread=0.0)
    labels = torch.nn.functional.one_hot(alike.y, 10).double().view(20, 50, 51, 10).mean(2)
    assert labels.mean(1).std(0).mean() < between / 5


@pytest.mark.parametrize("tree", ["30", "2x3x4", "1x1"])
def test_a_crowd_fits_any_tree(tree: str) -> None:
    population = make_population("crowd", tree=tree)
    assert population.devices == Tree.parse(tree).devices
    pool = load("crowd", tree=tree)
    assert np.array_equal(pool.x, population.x.numpy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples = 0"),
        ({"test_samples": 1.5}, "test_samples = 1.5"),
        ({"spread": -1.0}, "spread = -1.0"),
        ({"spread": float("nan")}, "spread = nan"),
        ({"partition": "iid"}, "takes no partition"),
        ({"test": 0.5}, "leave test = 0.5 out"),
        ({"shift": "rotate"}, "turns square images"),
        ({"teams": "worst"}, "needs the partition"),
        ({"sampels": 3}, "did you mean 'samples'"),
    ],
)
def test_bad_options_of_a_crowd_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_population("crowd", tree="2x2", **options)


def test_in_a_crowd_the_own_model_is_best_then_the_teams_then_everybodys() -> None:
    population = make_population("crowd", tree="8x40", test_samples=20)
    task = make_task("mclr", population.shape, population.classes)
    simulation = Simulation(PerMFL(team_steps=5, local_steps=20, alpha=0.1), population, task, rounds=8)
    for _ in range(8):
        simulation.step()
    found = {kind: scores.by_samples("accuracy") for kind, scores in evaluate(simulation).items()}
    assert found["PM"] > found["TM"] + 0.01
    assert found["TM"] > found["GM"] + 0.01


@linux_only
def test_a_crowd_takes_the_memory_of_its_data() -> None:
    found = measured(
        """
before = status("VmRSS")
population = make_population("crowd", tree="200x200", samples=16, test_samples=4)
told(data=population.x.nbytes + population.y.nbytes)
"""
    )
    assert found["data"] == 40_000 * 20 * (60 * 4 + 8)
    assert found["grown"] < found["data"] + 64 * MEGABYTE


def test_a_crowd_runs_from_the_command_line(tmp_path: Path) -> None:
    options = ["--data", "crowd", "--tree", "4x25", "--rounds", "1", "--set", "participation.devices=2", "--quiet"]
    extra = ["--set", "data.samples=8", "--set", "engine.store=disk", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["run", "permfl", *options, *extra])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "devices.safetensors").exists()
    assert not list((tmp_path / "run").glob("store-*"))


def test_models_of_a_deep_trees_absent_nodes_come_from_the_nearest_that_took_part() -> None:
    population = make_population("crowd", tree="3x4x5", samples=4)
    task = make_task("mclr", population.shape, population.classes)
    some = {tier: Link(Participation("count", 1)) for tier in range(3)}
    simulation = Simulation(PerMFL(team_steps=1, local_steps=2), population, task, rounds=1, links=some)
    simulation.step()
    expected = simulation.model()[None]
    for tier in (2, 1):
        store = simulation.stores[tier]
        above = expected[torch.from_numpy(simulation.tree.parents[tier])]
        expected = torch.where((store.last >= 0)[:, None], store.rows["model"], above)
        found = simulation.team_models(tier)
        assert found is not None
        assert torch.equal(found, expected)


def test_the_pool_of_a_crowd_lies_on_a_tree_without_a_copy() -> None:
    pool = crowd("2x3", samples=2, test_samples=1)
    population = make_population(pool, tree="2x3")
    assert isinstance(population, Population)
    assert population.x.data_ptr() == pool.x.ctypes.data
    with pytest.raises(BadInput, match="7 devices"):
        make_population(pool, tree="7")


def test_no_chunk_of_a_failed_round_writes_after_it_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(PerMFL):
        def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
            if 0 in node.ids.tolist():
                raise Diverged("the first chunk, in the main thread")
            time.sleep(0.2)
            return super().device(node, message, state)

    monkeypatch.setattr("palmette.learner.Learner.worth_a_thread", lambda learner, devices: True)
    people = make_population("digits", tree="2x4")
    simulation = Simulation(
        Failing(), people, make_task("mclr", people.shape, people.classes), rounds=1, chunk=2, threads=3
    )
    with pytest.raises(Diverged):
        simulation.step()
    left = simulation.stores[0].last.clone()
    time.sleep(0.5)
    assert torch.equal(simulation.stores[0].last, left)
