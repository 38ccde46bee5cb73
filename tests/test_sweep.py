"""Trying settings: chosen on validation samples only, the same however often a sweep is stopped, readable as maps."""

from __future__ import annotations

import builtins
import io
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import palmette as pm
from palmette.cli.app import app
from palmette.cli.sweep import read_grid
from palmette.population.validation import for_choosing
from palmette.protocol.settings import Between
from palmette.report.study_plots import plot_study
from palmette.report.study_tables import study_report
from palmette.runs import make_config
from palmette.studies.study import Study
from palmette.studies.tuning import best, space_of

TINY = {"name": "crowd", "samples": 12, "test_samples": 6}
OPTIONS = [
    "--data",
    "crowd",
    "--set",
    "data.samples=12",
    "--set",
    "data.test_samples=6",
    "--tree",
    "2x2",
    "--jobs",
    "1",
    "-q",
]
FEW = {"local_steps": 2, "team_steps": 2}
GRID = {"alpha": [0.1, 2.0], "lam": [0.1, 1.0]}


def command(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("sweep") / "s"
    given: dict[str, Any] = {"tree": "2x2", "rounds": 2, "seeds": 2, "settings": FEW, "jobs": 1, "progress": False}
    return pm.sweep("permfl", TINY, grid=GRID, out=out, **given)


def test_validation_samples_are_training_samples_and_no_test_sample_is_left() -> None:
    whole = pm.make_population("digits", tree="2x2", seed=3)
    part = for_choosing(whole, 0.25)
    assert (part.train + part.tests).tolist() == whole.train.tolist()
    assert (part.tests == whole.held_out(0.25)).all()
    for device in range(4):
        first, count = int(whole.start[device]), int(whole.train[device])
        mine = slice(int(part.start[device]), int(part.start[device + 1]))
        assert (part.x[mine] == whole.x[first : first + count]).all()
        assert (part.y[mine] == whole.y[first : first + count]).all()
    config = make_config(
        {"algorithm": "local", "tree": "2x2", "seed": 3, "data": {"name": "digits", "validation": 0.25}}
    )
    assert (config.population().x == part.x).all()
    again = config.resolved(config.method(), config.population(), config.task(config.population()))
    assert again.data.validation == 0.25
    assert (again.population().x == part.x).all()


def test_a_grid_is_run_point_by_point_and_every_seed_chooses_its_best(swept: Study) -> None:
    told = swept.summary()
    assert [one["settings"] for one in told["points"]] == [
        {"alpha": a, "lam": b} for a in GRID["alpha"] for b in GRID["lam"]
    ]
    for one in told["chosen"]:
        seed = str(one["seed"])
        scores = [point["models"]["PM"]["by_seed"][seed] for point in told["points"]]
        assert one["score"] == max(scores)
        assert told["points"][scores.index(max(scores))]["settings"] == one["settings"]
        run = swept.run("chosen", one["seed"])
        assert run is not None
        assert {key: run.config.settings[key] for key in GRID} == one["settings"]
        assert run.config.data.validation is None
    for arm in swept.points:
        point = swept.run(arm.name, 0)
        assert point is not None
        assert point.config.data.validation == 0.25


def test_test_samples_have_no_part_in_the_choice(swept: Study, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(96, 4)).astype("float32")
    people = pm.Population.from_arrays(
        x, (x[:, 0] > 0).astype("int64"), device=np.repeat(list("abcd"), 24), team=np.repeat([0, 1], 48)
    )
    chosen = []
    for name, change in (("a", 0), ("b", 1)):
        y = people.y.clone()
        for device in range(4):  # other labels of the test samples
            y[people.start[device] + people.train[device] : people.start[device + 1]] ^= change
        other = pm.Population(people.tree, people.x, y, people.start, people.train, classes=2)
        given: dict[str, Any] = {"rounds": 2, "settings": FEW, "progress": False, "out": tmp_path / name}
        found = pm.sweep("permfl", other, grid={"alpha": [0.01, 3.0]}, **given)
        chosen.append((found.summary()["chosen"], found.summary()["methods"][0]["models"]["PM"]["mean"]))
    assert chosen[0][0] == chosen[1][0]
    assert chosen[0][1] != chosen[1][1]


def test_a_sweep_goes_on_and_is_shown_with_its_map(swept: Study, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(swept.folder, cut)
    shutil.rmtree(cut / "runs/point-2-1")
    shutil.rmtree(cut / "runs/chosen-1")
    done = command("resume", str(cut), "-q")
    assert done.exit_code == 0
    assert (cut / "results.json").read_bytes() == (swept.folder / "results.json").read_bytes()
    assert "alpha \\ lam" in done.output
    assert done.output.count("chose alpha=") == 2
    assert "Test samples had no part in the choice" in " ".join(done.output.split())


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_grids_of_any_number_of_settings_are_drawn(keys: int, swept: Study, tmp_path: Path) -> None:
    grid = dict(list({"alpha": [0.1, 2.0], "lam": [0.1, 1.0], "gamma": [0.01, 0.1]}.items())[:keys])
    told = swept.summary()
    models = [one["models"] for one in told["points"]]
    places = list(product(*grid.values()))
    points = [
        {"settings": dict(zip(grid, place, strict=True)), "models": models[number % len(models)]}
        for number, place in enumerate(places)
    ]
    points[-1] = {**points[-1], "models": {}}  # one that diverged
    summary = {**told, "grid": grid, "points": points}
    assert plot_study(summary, tmp_path / "p.png").stat().st_size > 10_000
    console = Console(file=io.StringIO(), width=80)
    console.print(study_report(summary, "s"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("validation accuracy in % of PM") == (2 if keys == 3 else 1)
    assert "diverged" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_grid_that_diverges_everywhere_says_so_and_ends(tmp_path: Path) -> None:
    words = ["sweep", "local", *OPTIONS, "--set", "local_steps=2", "--rounds", "2", "--grid", "alpha=1e30,1e31"]
    done = command(*words, "--out", str(tmp_path / "s"), "--plot", str(tmp_path / "p.png"))
    assert done.exit_code == 1
    assert "p.png was not drawn: no run came to its end" in done.output
    assert Study(tmp_path / "s").finished
    assert not (tmp_path / "p.png").exists()


def test_tuning_tries_the_given_settings_first_and_keeps_what_did_best(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["compare", "permfl", *OPTIONS, "--set", "local_steps=2", "--set", "permfl.team_steps=2", "--rounds", "2"]
    words += ["--tune", "3", "--seeds", "1", "--json", "--no-local"]
    told = []
    for name in ("a", "b"):
        done = command(*words, "--out", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        told.append({**json.loads(done.stdout.splitlines()[-1]), "study": ""})
        if name == "a":
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            shutil.rmtree(tmp_path / "b/tries/permfl-tuned-0/003")
            shutil.rmtree(tmp_path / "b/runs/permfl-tuned-0")
    assert told[0] == told[1]  # what was cut off came out the same
    tries = [one for one in told[0]["tries"] if one["method"] == "permfl-tuned"]
    assert len(tries) == 3
    assert tries[0]["settings"] == {"alpha": 0.05, "lam": 0.1, "gamma": 0.01}
    kept = next(one for one in told[0]["methods"] if one["method"] == "permfl-tuned")["settings"]["0"]
    winner = max(tries, key=lambda one: one["score"])
    assert {key: kept[key] for key in winner["settings"]} == winner["settings"]
    assert [one["method"] for one in told[0]["methods"]] == ["permfl", "permfl-tuned"]
    assert told[0]["against"] == "permfl-tuned"


def test_the_first_seed_can_choose_settings_for_all(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["compare", "local", *OPTIONS, "--set", "local_steps=2", "--rounds", "2", "--tune", "3", "--seeds", "2"]
    words += ["--tune-on", "first", "--tuned-only", "--json", "--out", str(tmp_path / "a")]
    words += ["--search", "alpha=0.5..0.9", "--search", "local.alpha=0.02..0.03"]  # a method's own range counts
    first = command(*words)
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout.splitlines()[-1])
    assert [one["method"] for one in told["methods"]] == ["local-tuned"]
    assert [one["seed"] for one in told["tries"]] == [0, 0, 0]
    assert all(0.02 <= one["settings"]["alpha"] <= 0.03 for one in told["tries"][1:])  # the first are the given ones
    best = max(told["tries"], key=lambda one: one["score"])["settings"]
    assert [kept["alpha"] for kept in told["methods"][0]["settings"].values()] == [best["alpha"]] * 2
    assert "with seed 0, for all seeds" in " ".join(told["notes"])
    shutil.rmtree(tmp_path / "a/runs/local-tuned-1")  # as if stopped before it: what the first chose is found again
    assert json.loads(command(*words).stdout.splitlines()[-1])["methods"] == told["methods"]
    other = command(*[word for word in words if word not in ("--tune-on", "first")])
    assert other.exit_code == 2
    assert "settings are chosen on the first seed" in other.output


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tune-on", "first"], "say how many, as in --tune 4"),
        (["--tuned-only"], "say how many, as in --tune 4"),
        (["--search", "alpha=0.01..0.1"], "say how many, as in --tune 4"),
        (["--tune", "2", "--search", "beta=0.01..0.1"], "--search beta: no method searches it; there is alpha"),
        (["--tune", "2", "--search", "fedavg.alpha=0.01..0.1"], "--search fedavg.alpha: no method searches it"),
        (["--tune", "2", "--search", "alpha=1..0.1"], "--search alpha=1..0.1: a range goes from"),
        (["--tune", "2", "--tune-on", "last"], "--tune-on takes each or first, not 'last'"),
    ],
)
def test_how_to_tune_is_refused_where_it_means_nothing(more: list[str], says: str) -> None:
    pytest.importorskip("optuna")
    done = command("compare", "local", *more)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_steps_stay_equal_whatever_tuning_tries(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = ["sweep", "fedavg", *OPTIONS, "--set", "local_steps=2", "--set", "tune_steps=2", "--steps", "12"]
    done = command(*words, "--tune", "4", "--grid", "tune_steps=4,6", "--out", str(tmp_path / "s"))
    assert done.exit_code == 0, done.output
    found = Study(tmp_path / "s")
    runs = [run for _, run in found.tries(found.plan.arm("fedavg-tuned"), 0)]
    assert len(runs) == 3  # of 4 wanted: there are no others
    for run in runs:
        assert run is not None
        assert run.timings["device_steps"] + run.timings["adapt_steps"] == 4 * 12
    assert len({run.config.rounds for run in runs if run is not None}) == 3


def test_without_optuna_tuning_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    done = command("compare", "permfl", *OPTIONS, "--tune", "2", "--out", str(tmp_path / "s"))
    assert (done.exit_code, done.output) == (
        2,
        "palmette: --tune needs Optuna, which is not installed: pip install 'palmette[tune]'\n",
    )


@pytest.mark.parametrize("name", sorted(pm.ALGORITHMS))
def test_every_algorithm_declares_what_is_searched_around_its_defaults(name: str) -> None:
    method = pm.algorithm(name)
    assert method.search
    for key, one in method.search.items():
        assert isinstance(one, Between)
        assert one.low <= vars(method)[key] <= one.high, key
        low = pm.algorithm(name, **{key: int(one.low) if one.whole else one.low})
        assert vars(low)[key] == one.low


def test_a_method_that_declares_nothing_is_searched_around_its_numbers() -> None:
    class Own(pm.PerMFL):
        search = {}  # noqa: RUF012

    found = space_of(make_config({"algorithm": "permfl"}), Own(alpha=0.2), {})
    assert found["alpha"] == {"low": 0.02, "high": 2.0}
    assert set(found) == {"alpha", "lam", "gamma"}


def test_the_first_of_equals_is_chosen_and_none_where_all_diverged() -> None:
    assert best([0.1, 0.5, 0.5], lower=False) == 1
    assert best([0.3, float("nan"), 0.1], lower=True) == 2
    assert best([float("nan")], lower=True) is None


def test_grids_are_read_as_they_are_typed() -> None:
    assert read_grid(["beta=0.1,0.3,1", "gamma=[0.1, 0.2],[1,2]", "weights=samples,equal"]) == {
        "beta": [0.1, 0.3, 1],
        "gamma": [[0.1, 0.2], [1, 2]],
        "weights": ["samples", "equal"],
    }
    assert read_grid(["alpha=0.01..1", "tune_steps=5..80"]) == {
        "alpha": {"low": 0.01, "high": 1},
        "tune_steps": {"low": 5, "high": 80, "whole": True},
    }


BAD = {
    "permfl": "name what to try, as in --grid alpha=0.03,0.1,0.3",
    "permfl --grid beta=": "--grid beta has no value to try",
    "permfl --grid beta": "--grid takes KEY=VALUES",
    "permfl --grid bta=1,2": "permfl has no such setting; did you mean 'beta'",
    "permfl --grid alpha=-1,1": "alpha: should be",
    "permfl --grid alpha=0.1..1": "only --tune N can search",
    "permfl --grid seed=1,2": "repeat everything with --seeds N",
    "permfl --grid data.alpha=1,2": "settings are chosen for one population",
    "permfl --grid alpha=1 --grid alpha=2": "is given twice",
    "permfl --grid rounds=0": "rounds: should be",
    "nobody --grid alpha=1": "unknown algorithm 'nobody'",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("sweep", *words.split())
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1), done.output
    assert BAD[words] in done.output
    assert not (tmp_path / "runs").exists()
