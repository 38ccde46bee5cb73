"""Running statistics of batch normalisation: each device's own, or averaged; alike on every backend, saved and loaded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palmette as pm
from palmette.engines.separate import run_separately
from palmette.errors import BadInput
from palmette.learner import Learner, LocalWork
from palmette.population import Population
from palmette.task import Task
from test_backends import SIZES, close, population, rows, work


def normed(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(48, 4), nn.BatchNorm1d(4, momentum=0.3), nn.ReLU(), nn.Linear(4, 3)),
    )


def learner(backend: str, buffers: str, module: nn.Module | None = None) -> Learner:
    task = Task(module or normed(), buffers=buffers)  # type: ignore[arg-type]
    return Learner(task, population(), seed=3, batch_size=8, backend=backend, dtype=torch.float64)


def test_without_a_place_both_are_offered() -> None:
    with pytest.raises(
        BadInput, match=r"layer '1' is BatchNorm2d.*buffers='own'.*buffers='averaged'.*model.buffers=own"
    ):
        Task(normed())
    with pytest.raises(BadInput, match="buffers must be 'own' or 'averaged', not 'mine'"):
        Task(normed(), buffers="mine")  # type: ignore[arg-type]


def test_what_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(BadInput, match="momentum=None"):
        Task(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)), buffers="own")
    with pytest.raises(BadInput, match="without running statistics"):
        Task(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)), buffers="own")


def test_averaged_statistics_are_a_part_of_the_row_and_own_ones_are_not() -> None:
    averaged, own = Task(normed(), buffers="averaged"), Task(normed(), buffers="own")
    assert averaged.layout.width == own.layout.width + 14
    assert averaged.layout.parts["buffers"] == tuple(f"{i}.running_{what}" for i in (1, 6) for what in ("mean", "var"))
    assert averaged.initial()[-14:].tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 4 + [1.0] * 4
    assert own.running is not None
    assert own.initial_running().tolist() == averaged.initial()[-14:].tolist()


def by_hand(module: nn.Module, row: Tensor, of: Learner, device: int, steps: int, lr: float) -> nn.Module:
    """Train one device as anybody would, on all its training samples at every step."""
    module = copy.deepcopy(module).double().train()
    with torch.no_grad():
        for name, value in of.task.layout.unflatten(row).items():
            dict([*module.named_parameters(), *module.named_buffers()])[name].copy_(value)
    first, count = int(of.population.start[device]), int(of.population.train[device])
    x = of.population.features(torch.arange(first, first + count), torch.float64)
    y = of.population.y[first : first + count]
    sgd = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(steps):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        sgd.step()
    return module


@pytest.mark.parametrize("buffers", ["own", "averaged"])
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_descent_is_that_of_a_plain_training_loop(backend: str, buffers: str) -> None:
    of = learner(backend, buffers)
    doing, start = work(of), rows(of)
    if buffers == "averaged":
        start[:, of.task.learned.width :] = of.initial()[of.task.learned.width :]
    found = doing.descend(start, steps=3, lr=0.1, batch="full")
    for device in range(len(SIZES)):
        module = by_hand(of.task.module, start[device], of, device, 3, 0.1)
        for name, value in of.task.named(found[device]).items():
            close(value, dict([*module.named_parameters(), *module.named_buffers()])[name].detach())
        if buffers == "own":
            assert of.task.running is not None
            for name, value in of.task.running.unflatten(doing.kept["running"][device]).items():
                close(value, dict(module.named_buffers())[name])


@pytest.mark.parametrize("buffers", ["own", "averaged"])
@pytest.mark.parametrize("batch", ["next", "same", "full"])
def test_backends_agree(batch: Any, buffers: str) -> None:
    found = []
    for backend in ("loop", "vmap"):
        of = learner(backend, buffers)
        doing, start = work(of), of.initial() + 0.01 * rows(of).abs()
        after = doing.descend(start, steps=torch.tensor([3, 0, 5, 2, 1]), lr=0.05, pull=0.3, centre=start, batch=batch)
        slope = doing.gradient(after, batch)
        loss = doing.loss(after)
        kept = doing.kept.get("running", torch.zeros(5, 1, dtype=torch.float64))
        found.append(torch.cat([after, slope, loss[:, None], kept], 1))
    close(found[1], found[0])
    assert found[0].isfinite().all()


def test_a_gradient_leaves_the_statistics_alone() -> None:
    for buffers in ("own", "averaged"):
        of = learner("vmap", buffers)
        doing = work(of)
        before = {name: value.clone() for name, value in doing.kept.items()}
        slope = doing.gradient(rows(of).abs())
        assert all(torch.equal(value, before[name]) for name, value in doing.kept.items())
        if buffers == "averaged":
            assert not slope[:, of.task.learned.width :].any()


def images(tree: str = "2x2", size: int = 24) -> Population:
    random = np.random.default_rng(1)
    devices = int(tree.split("x")[0]) * int(tree.split("x")[1])
    x = [
        random.normal(loc=device, scale=1 + device, size=(size, 1, 8, 8)).astype(np.float32)
        for device in range(devices)
    ]
    return Population.from_arrays(x, [random.integers(0, 3, size) for _ in x], tree=tree, test=0.25, classes=3)


def sent(buffers: str, **method: Any) -> pm.Simulation:
    simulation = pm.Simulation(
        pm.algorithm("permfl", team_steps=2, local_steps=2, alpha=0.02, **method),
        *(images(), Task(normed(), buffers=buffers)),  # type: ignore[arg-type]
        rounds=2,
    )
    for _ in range(2):
        simulation.step()
    return simulation


def test_own_statistics_cross_no_link_and_averaged_ones_do() -> None:
    bytes_up = {
        buffers: sum(entry.bytes_up for entry in sent(buffers).ledger.entries.values())
        for buffers in ("own", "averaged")
    }
    width, exchanges = Task(normed(), buffers="own").layout.width, 2 * (4 * 2 + 2)  # of four devices twice, two teams
    assert bytes_up == {"own": 4 * width * exchanges, "averaged": 4 * (width + 14) * exchanges}


def test_every_device_has_its_own_statistics_and_is_measured_with_them() -> None:
    simulation = sent("own")
    running = simulation.running(torch.arange(4))
    assert running is not None
    # Device 2 has the mean 2 and twice the spread of device 0's: its first statistics are further from the beginning.
    assert len({round(float(row[3]), 3) for row in running}) == 4
    scores = pm.evaluate(simulation)
    assert set(scores) == {"PM", "TM", "GM"}
    task, people = simulation.task, simulation.population
    module = copy.deepcopy(task.module).eval()
    state = {**task.layout.unflatten(simulation.model()), **task.running.unflatten(running[3])}  # type: ignore[union-attr]
    module.load_state_dict(state, strict=False)
    first = int(people.start[3] + people.train[3])
    index = torch.arange(first, int(people.start[4]))
    right = module(people.features(index, torch.float32)).argmax(1) == people.y[index]
    assert float(scores["GM"].sums["accuracy"][3]) == float(right.sum())


@pytest.mark.parametrize("buffers", ["own", "averaged"])
def test_separate_nodes_are_the_simulation_bit_for_bit(buffers: str) -> None:
    stacked = pm.Simulation(
        pm.algorithm("permfl", team_steps=2, local_steps=2, alpha=0.02),
        *(images(), Task(normed(), buffers=buffers)),  # type: ignore[arg-type]
        **{"rounds": 2, "chunk": 1},
    )
    machines = run_separately(stacked, 2)
    for _ in range(2):
        stacked.step()
    for number, machine in enumerate(machines[0]):
        kept = stacked.stores[0].read(torch.tensor([number]))
        assert set(kept) == set(machine.state)
        assert all(torch.equal(kept[name], machine.state[name]) for name in kept)


@pytest.mark.parametrize("buffers", ["own", "averaged"])
def test_a_run_is_saved_resumed_and_loads_into_a_plain_module(buffers: str, tmp_path: Path) -> None:
    people, task = images(), Task(normed(), buffers=buffers)  # type: ignore[arg-type]
    settings = {"team_steps": 2, "local_steps": 2, "alpha": 0.02}
    short = pm.run("permfl", people, task, rounds=1, settings=settings, out=tmp_path / "short")
    longer = pm.runs.resume(short.folder, rounds=3, population=people, model=task)
    whole = pm.run("permfl", people, task, rounds=3, settings=settings, out=tmp_path / "whole")
    for file in ("devices.safetensors", "teams.safetensors", "global.safetensors", "frozen.safetensors"):
        assert (longer.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    states = [whole.state_dict("PM", name) for name in whole.names("PM")]
    assert len({float(state["1.running_var"][0]) for state in states}) == 4
    plain = normed(1)
    plain.load_state_dict(states[2])  # strict: every name of a plain module is there, and no other
    made = whole.module("PM", whole.names("PM")[2], into=normed(1))
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(plain.eval()(x), made.eval()(x))
    assert torch.equal(plain[6].running_mean, states[2]["6.running_mean"])
    if buffers == "own":
        # Nobody above the devices knows statistics, so these models come with those of the beginning.
        assert whole.state_dict("GM")["1.running_mean"].tolist() == [0.0] * 3
    else:
        assert whole.state_dict("GM")["1.running_mean"].abs().min() > 0
    files = whole.save_models(tmp_path / "out")
    assert len(files) == 4


def test_a_layer_in_evaluation_mode_stays_so_and_has_no_moving_statistics() -> None:
    module = normed()
    module[1].eval()
    task = Task(module, buffers="own")
    assert task.running is not None
    assert task.running.names == ("6.running_mean", "6.running_var")
    assert {"1.running_mean", "1.running_var"} <= set(task.frozen)
    replica = task.replica(training=True, dtype=torch.float32, device=torch.device("cpu"))
    assert [layer.training for layer in replica] == [True, False, True, True, True, True, True, True, True]
    # A module that is in evaluation mode as a whole, as a loaded one is, trains as a whole.
    assert len(Task(normed().eval(), buffers="own").running.names) == 4  # type: ignore[union-attr]


def test_tied_weights_are_one_parameter_and_are_saved_under_both_names(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.outer.weight = self.inner.weight
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.outer(torch.relu(self.inner(x))) * self.scale
            return result

    torch.manual_seed(0)
    people = Population.from_arrays(torch.randn(12, 6), torch.arange(12) % 3, device=[0, 1] * 6, classes=3)
    task = Task(Tied())
    assert task.layout.names == ("inner.weight",)
    assert task.tied == {"outer.weight": "inner.weight"}
    result = pm.run("fedavg", people, task, rounds=1, out=tmp_path / "run")
    state = result.state_dict("GM")
    assert set(state) == {"inner.weight", "outer.weight", "scale"}
    assert torch.equal(state["inner.weight"], state["outer.weight"])
    plain = Tied()
    plain.load_state_dict(state)
    assert torch.equal(plain.outer.weight, state["inner.weight"])
    result.save_models(tmp_path / "out", "GM")


def test_running_statistics_of_any_layer_see_no_samples_that_only_fill_up() -> None:
    def module() -> nn.Module:
        torch.manual_seed(0)
        norm = nn.InstanceNorm2d(1, affine=True, track_running_stats=True)
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(64, 3))

    found = []
    for backend in ("loop", "vmap"):
        of = learner(backend, "own", module())
        doing = work(of)
        found.append((doing.descend(rows(of), steps=3, lr=0.1, batch="full"), doing.kept["running"]))
    close(found[1][0], found[0][0])
    close(found[1][1], found[0][1])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_full_batch_of_many_samples_is_one_batch(backend: str) -> None:
    torch.manual_seed(0)
    people = Population.from_arrays(
        [torch.randn(700, 1, 8, 8), torch.randn(40, 1, 8, 8)], [torch.arange(700) % 3, torch.arange(40) % 3], test=0.1
    )
    task = Task(normed(), buffers="averaged")
    of = Learner(task, people, batch_size="full", backend=backend, dtype=torch.float64)
    start = of.initial().repeat(2, 1)
    found = LocalWork(of, torch.arange(2), 0, torch.zeros(2, dtype=torch.int64)).descend(start, steps=2, lr=0.1)
    for device in range(2):
        expected = by_hand(normed(), start[device], of, device, 2, 0.1)
        there = dict([*expected.named_parameters(), *expected.named_buffers()])
        for name, value in task.layout.unflatten(found[device]).items():
            torch.testing.assert_close(value, there[name].detach(), rtol=0, atol=1e-9)


def test_a_batch_of_one_sample_is_refused_with_the_way_out() -> None:
    for backend in ("loop", "vmap"):
        of = learner(backend, "own")
        with pytest.raises(
            BadInput, match=r"a batch of one sample, and batch normalisation needs two\. Choose a batch_size"
        ):
            work(of).descend(rows(of), steps=1, lr=0.1, batch="one")


def test_models_of_all_are_measured_a_few_devices_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = sent("own")
    expected = pm.evaluate(simulation)["GM"].sums["loss"]
    monkeypatch.setattr("palmette.engines.evaluation._DEVICES", 3)
    most, scorer = [0], simulation.learner.scorer
    whole = scorer.sums

    def noting(rows: Any, owner: Any, ids: Tensor, *more: Any) -> Any:
        most.append(len(ids))
        return whole(rows, owner, ids, *more)

    monkeypatch.setattr(scorer, "sums", noting)
    torch.testing.assert_close(pm.evaluate(simulation)["GM"].sums["loss"], expected)
    assert max(most) == 3


def test_statistics_that_nothing_moves_are_said(tmp_path: Path) -> None:
    people, task = images(), Task(normed(), buffers="averaged")
    settings = {"batch_size": 4, "smoothness": 500.0, "convexity": 0.1, "iterations": 3}
    with pytest.warns(UserWarning, match="al2sgd") as told:
        pm.run("al2sgd", people, task, rounds=1, settings=settings, optimiser={"momentum": 0.5}, out=tmp_path / "still")
    said = [str(one.message) for one in told]
    assert any(text.startswith("optimiser.* does not apply to al2sgd") for text in said)
    assert any(text.startswith("the running statistics of the model stay as they began: al2sgd takes") for text in said)


def test_what_is_used_is_not_said_to_be_unused(tmp_path: Path) -> None:
    task = Task(normed(), buffers="own")
    pm.run(
        "fedavg", images(), task, rounds=1, optimiser={"momentum": 0.5}, out=tmp_path / "run"
    )  # warnings are errors here
    assert "warning" not in (tmp_path / "run" / "log.txt").read_text()


def test_a_layer_with_two_names_is_saved_under_both(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.norm, self.last = nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.again(self.norm(self.flat(x))))
            return result

    result = pm.run("fedavg", images(), Task(Twice(), buffers="own"), rounds=1, out=tmp_path / "run")
    plain = Twice()
    plain.load_state_dict(result.state_dict("PM", result.names("PM")[1]))
    assert plain.again.running_mean is not None
    assert plain.again.running_mean.abs().max() > 0


def test_an_averaged_variance_below_zero_counts_as_zero() -> None:
    of = learner("vmap", "averaged")
    rows_ = of.initial().repeat(5, 1)
    rows_[:, -4:] = -0.1
    assert work(of).loss(rows_).isfinite().all()
