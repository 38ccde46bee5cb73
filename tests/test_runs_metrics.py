"""The numbers in a run's metrics are about whom they say they are."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from palmette.algorithms import algorithm
from palmette.engines.evaluation import Scores, measure_all
from palmette.engines.simulate import Simulation
from palmette.learner import Learner
from palmette.population import Population
from palmette.protocol import ModelKind
from palmette.report.numbers import by_node
from palmette.report.tables import run_report
from palmette.runs import run
from palmette.task import Task, make_task
from problems import regression, simulate


class Witness:
    """An observer that keeps who had taken part by each round, and what was measured."""

    def __init__(self) -> None:
        self.seen: dict[int, Tensor] = {}
        self.scores: dict[int, dict[ModelKind, Scores]] = {}

    def begin(self, simulation: Simulation, rounds: int) -> None:
        self.simulation, self.took_part = simulation, torch.zeros(simulation.population.devices, dtype=torch.bool)
        plain = simulation._work  # what a chunk of devices goes through, and nobody else

        def watched(parcel: object, positions: slice) -> object:
            self.took_part[parcel.ids[positions]] = True  # type: ignore[attr-defined]
            return plain(parcel, positions)  # type: ignore[arg-type]

        simulation._work = watched  # type: ignore[method-assign, assignment]

    def exchange(self, tier: int) -> None:
        pass

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        self.seen[done] = self.took_part.clone()
        assert scores is not None
        self.scores[done] = scores

    def stopping(self) -> None:
        pass


def unequal(teams: list[int]) -> Population:
    """Devices whose numbers of samples and difficulties differ."""
    numbers = np.random.default_rng(3)
    device = np.repeat(np.arange(sum(teams)), 20 + 8 * np.arange(sum(teams)))
    x = numbers.normal(size=(len(device), 3)).astype(np.float32)
    y = ((x[:, 0] + 0.3 * device * numbers.normal(size=len(device))) > 0).astype(np.int64)
    return Population.from_arrays(x, y, tree=teams, device=device)


def test_unseen_devices_are_those_that_no_round_so_far_has_asked(tmp_path: Path) -> None:
    population, witness = unequal([4, 4, 4]), Witness()
    few = {"devices": 0.25, "teams": 0.34}  # one device of one team
    settings = {"team_steps": 1, "local_steps": 2}
    result = run(
        *("permfl", population),
        rounds=4,
        seed=1,
        participation=few,
        settings=settings,
        out=tmp_path / "run",
        evaluate_every=1,
        observer=witness,
        threads=1,
    )
    sizes = [int(seen.sum()) for _, seen in sorted(witness.seen.items())]
    assert sizes[0] == 1
    assert 1 < sizes[-1] <= 4
    for kind in ("PM", "GM"):
        curve = result.curve(kind, "loss", on="unseen")
        assert sorted(curve) == [1, 2, 3, 4]
        for done, value in curve.items():
            score, unseen = witness.scores[done][kind], ~witness.seen[done]
            expected = score.sums["loss"][unseen].sum() / score.count[unseen].sum()
            assert value == pytest.approx(float(expected), rel=1e-12)
        asked = result.curve(kind, "loss", on="participants")
        first = witness.scores[1][kind]
        expected = first.sums["loss"][witness.seen[1]].sum() / first.count[witness.seen[1]].sum()
        assert asked[1] == pytest.approx(float(expected), rel=1e-12)


def test_headline_numbers_are_of_the_devices_that_train_and_unseen_ones_stand_apart(tmp_path: Path) -> None:
    out = torch.tensor([False, True, False, False, False, True])
    population, witness = replace(unequal([2, 4]), unseen=out), Witness()
    result = run(
        *("permfl", population),
        rounds=3,
        settings={"team_steps": 1, "local_steps": 3},
        out=tmp_path / "run",
        evaluate_every=1,
        observer=witness,
        held_out=0.2,
        metrics=["auc"],
    )
    tests = population.tests.double()
    single = torch.tensor([result.last("PM", "loss", node=f"device-{i}") for i in range(6)], dtype=torch.float64)

    def mean(who: Tensor) -> float:
        return float((single[who] * tests[who]).sum() / tests[who].sum())

    assert result.on == "trained"
    assert result.last("PM", "loss") == pytest.approx(mean(~out), rel=1e-12)
    assert result.last("PM", "loss", on="all") == pytest.approx(mean(out | ~out), rel=1e-12)
    assert result.last("PM", "loss", on="unseen") == pytest.approx(mean(out), rel=1e-12)
    assert result.last("PM", "loss", weight="devices") == pytest.approx(float(single[~out].mean()), rel=1e-12)
    assert result.summary()["models"]["PM"]["loss"] == pytest.approx(mean(~out), rel=1e-12)
    assert witness.scores[3]["PM"].by_samples("loss") == pytest.approx(mean(~out), rel=1e-12)
    assert list(by_node(result, "PM", 0, "loss")) == ["device-0", "device-2", "device-3", "device-4"]
    teams = {"team-0": torch.arange(6) < 2, "team-1": torch.arange(6) >= 2}
    for name, value in by_node(result, "PM", 1, "loss").items():
        assert value == pytest.approx(mean(teams[name] & ~out), rel=1e-12)
    for metric in ("auc", "accuracy"):
        curves = [result.curve("PM", metric, on=on) for on in ("all", "trained", "unseen")]
        assert result.curve("PM", metric) == curves[1]
        assert curves[0][3] != curves[1][3]
    held = measure_all(witness.simulation, held_out=True).held_out["PM"]
    chosen = held.sums["loss"][~out].sum() / held.count[~out].sum()
    assert result.curve("PM", "loss", on="held-out")[3] == pytest.approx(float(chosen), rel=1e-12)
    screen = Console(file=io.StringIO(), width=100)
    screen.print(run_report(result, teams=True))
    assert "kept out of training count in the column unseen only" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_teams_number_is_the_mean_over_the_samples_of_its_own_devices(tmp_path: Path) -> None:
    population = unequal([2, 3])
    result = run("permfl", population, rounds=2, out=tmp_path / "run", evaluate_every=1)
    tests = population.tests.double()
    single = torch.tensor([result.last("PM", "loss", node=f"device-{i}") for i in range(5)], dtype=torch.float64)
    for team, members in (("team-0", slice(0, 2)), ("team-1", slice(2, 5))):
        expected = (single[members] * tests[members]).sum() / tests[members].sum()
        assert result.last("PM", "loss", node=team) == pytest.approx(float(expected), rel=1e-12)
        assert float(single[members].mean()) != pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("backend", ["fused", "vmap", "loop"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_training_score_leaves_out_the_held_out_samples(backend: str, shared: bool) -> None:
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(70, 2)), numbers.normal(size=70)
    population = Population.from_arrays(x, y, tree=[1, 2], device=np.repeat([0, 1, 2], [30, 24, 16]))
    task: Task = make_task("linear", population.shape, None)
    learner = Learner(task, population, held_out=0.25, dtype=torch.float64, backend=backend)
    ids, row = torch.arange(3), torch.randn(task.layout.width, dtype=torch.float64)
    rows, owner = (row[None], torch.zeros_like(ids)) if shared else (row.expand(3, -1), ids)
    losses = 0.5 * (population.x.double() @ row - population.y.double()).square()
    looked_at = 0
    for split in ("train", "held-out", "test"):
        found = learner.scorer.sums(rows, owner, ids, split)  # type: ignore[arg-type]
        for device in range(3):
            first, last = int(population.start[device]), int(population.start[device + 1])
            train = int(population.train[device])
            held = train // 4
            begin = {"train": first, "held-out": first + train - held, "test": first + train}[split]
            end = {"train": first + train - held, "held-out": first + train, "test": last}[split]
            assert float(found["count"][device]) == end - begin > 0
            assert float(found["loss"][device]) == pytest.approx(float(losses[begin:end].sum()), rel=1e-9)
            looked_at += end - begin
    assert looked_at == 70


@pytest.mark.parametrize("batch_size", [5, "full"])
def test_what_is_held_out_is_not_trained_on(batch_size: int | str) -> None:
    clean = regression([3, 2], unequal=True)
    held = clean.held_out(0.25)
    x = clean.x.clone()
    for device in range(clean.devices):
        end = int(clean.start[device] + clean.train[device])
        x[end - int(held[device]) : end] = torch.nan
    method = algorithm("permfl", team_steps=3, local_steps=20, batch_size=batch_size)
    models = [
        simulate(method, people, 2, held_out=0.25).device_models(torch.arange(clean.devices))
        for people in (clean, replace(clean, x=x))
    ]
    assert torch.equal(*models)
    whole = simulate(method, clean, 2, held_out=0.0).device_models(torch.arange(clean.devices))
    assert not torch.equal(models[0], whole)
