"""Runs: folders that explain themselves, come back as data, and survive being killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import palmette
from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged, PalmetteError
from palmette.protocol import Algorithm, ModelKind
from palmette.runs import Interrupted, execute, load, make_config, resume, run
from palmette.runs.folder import CHECKPOINT, Folder
from palmette.runs.journal import Journal
from palmette.task import make_task
from palmette.testing.problems import task_for
from problems import regression
from test_contract import TABLE, UNLIKE

DIGITS: dict[str, Any] = {
    "algorithm": "permfl",
    "rounds": 4,
    "settings": {"team_steps": 2, "local_steps": 3, "alpha": 0.3},
    "tree": "2x5",
    "participation": {"devices": 0.5},
    "evaluate_every": 1,
}
LASTING = ("*.safetensors", "metrics.parquet", "traffic.parquet", "outline.json")


class Killer:
    """An observer that brings the run down in the middle of a round, as kill -9 would."""

    def __init__(self, after: int) -> None:
        self.after, self.left = after, 2

    def begin(self, simulation: Simulation, rounds: int) -> None:
        pass

    def exchange(self, tier: int) -> None:
        if self.after <= 0:
            self.left -= 1
            if not self.left:
                raise ZeroDivisionError

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        self.after -= 1

    def stopping(self) -> None:
        pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for pattern in LASTING for path in folder.glob(pattern)}


def test_the_number_of_threads_is_a_setting_that_is_kept_and_changes_no_byte(tmp_path: Path) -> None:
    one, two = (
        execute(make_config({**DIGITS, "engine": {"threads": threads}}), tmp_path / f"{threads}") for threads in (1, 2)
    )
    assert contents(one.folder) == contents(two.folder)
    assert (one.config.engine.threads, one.timings["threads"]) == (1, 1)
    assert "threads = 2" in (two.folder / "config.toml").read_text()
    other = execute(make_config({**DIGITS, "engine": {"threads": 2}}), tmp_path / "given", threads=3)
    assert other.timings["threads"] == 3  # who calls knows better
    assert "threads" not in execute(make_config(DIGITS), tmp_path / "none").config.to_toml()


def test_a_small_run_does_without_sympy(tmp_path: Path) -> None:
    code = """
import sys
import palmette as pm
people = pm.make_population("digits", tree="2x2")
for number, model in enumerate(("mclr", "dnn")):
    pm.run("permfl", people, model, rounds=1, settings={"team_steps": 1, "local_steps": 1}, out=f"{sys.argv[1]}/{number}")
assert "sympy" not in sys.modules, "a second or more to import"
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings(
    "default:smoothness = auto"
)  # not all devices are there in the first round, and that is said
@pytest.mark.parametrize("method", [TABLE[name] for name in UNLIKE], ids=UNLIKE)
def test_a_killed_run_resumes_to_the_very_same_bytes(method: Algorithm, tmp_path: Path) -> None:
    population = regression([3, 2, 4], unequal=True)
    task = task_for(method, population)
    given: dict[str, Any] = {"rounds": 4, "seed": 3, "evaluate_every": 1}
    if method.name != "async-l2gd":
        given["participation"] = {"devices": "pass 2"}
    whole = run(method, population, task, out=tmp_path / "whole", **given)
    with pytest.raises(ZeroDivisionError):
        run(method, population, task, out=tmp_path / "cut", observer=Killer(2), **given)
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    resumed = resume(tmp_path / "cut", method=method, population=population, model=task)
    expected = contents(whole.folder)
    assert set(expected) >= {"metrics.parquet", "traffic.parquet"}
    assert contents(resumed.folder) == expected


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    whole = execute(make_config(DIGITS), tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(0))
    assert contents(resume(tmp_path / "cut").folder) == contents(whole.folder)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = execute(make_config(DIGITS), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    again = resume(tmp_path / "run")
    assert again.summary() == first.summary()
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before


def test_the_resolved_config_runs_again_to_the_same_bytes(tmp_path: Path) -> None:
    first = execute(make_config(DIGITS), tmp_path / "first")
    second = execute(make_config(palmette.runs.read_config(tmp_path / "first" / "config.toml")), tmp_path / "second")
    assert contents(first.folder) == contents(second.folder)
    assert (first.folder / "config.toml").read_bytes() == (second.folder / "config.toml").read_bytes()


SCRIPT = """
import sys
from palmette.runs import execute, make_config
execute(make_config({config!r}), {out!r})
"""


def start(config: dict[str, Any], out: Path) -> subprocess.Popen[str]:
    script = SCRIPT.format(config=config, out=str(out))
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)


def wait_for_checkpoint(process: subprocess.Popen[str], out: Path) -> None:
    deadline = time.monotonic() + 60
    while not (out / CHECKPOINT).exists():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)


LONG = {**DIGITS, "rounds": 120, "evaluate_every": 40}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> palmette.Result:
    return execute(make_config(LONG), tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])  # Ctrl-C is pressed in test_cli.py
def test_a_process_ended_by_a_signal_resumes_to_the_very_same_bytes(
    number: signal.Signals, tmp_path: Path, long: palmette.Result
) -> None:
    process = start(LONG, tmp_path / "cut")
    wait_for_checkpoint(process, tmp_path / "cut")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert number == signal.SIGKILL or "stopped after round" in errors
    with pytest.warns(UserWarning, match="not finished; go on with 'palmette resume"):
        unfinished = load(tmp_path / "cut")
    assert not unfinished.finished
    with pytest.raises(BadInput, match="not finished and has no models yet"):
        unfinished.module("GM")
    assert contents(resume(tmp_path / "cut").folder) == contents(long.folder)


# -- what lies in the folder -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> palmette.Result:
    return execute(make_config(DIGITS), tmp_path_factory.mktemp("runs") / "run")


def test_a_result_takes_its_folder_as_text_too(result: palmette.Result) -> None:
    again = palmette.Result(str(result.folder))
    assert again.folder == result.folder
    assert again.last("GM") == result.last("GM")
    assert again.names("GM") == result.names("GM")


def test_the_summary_has_the_fixed_shape(result: palmette.Result) -> None:
    summary = json.loads(json.dumps(result.summary()))
    assert list(summary) == [
        "algorithm", "rounds", "seed", "models", "best", "device_steps", "device_steps_per_second", "traffic", "folder",
    ]  # fmt: skip
    assert summary["device_steps"] == 4 * 2 * 3 * (2 + 2)  # rounds, team steps, local steps, half of five in two teams
    links = summary["traffic"]["links"]
    assert [link["tier"] for link in links] == [1, 2]
    assert [link["exchanges"] for link in links] == [16, 4]
    assert links[1]["bytes_up"] == 4 * 2 * 650 * 4
    assert set(summary["models"]) == {"PM", "TM", "GM"}
    assert 0 < summary["models"]["PM"]["accuracy"] <= summary["best"]["PM"]["accuracy"] <= 1


def test_metrics_say_what_was_measured(result: palmette.Result) -> None:
    table = result.metrics
    assert table.column_names == [
        "round",
        "when",
        "model",
        "tier",
        "node",
        "on",
        "weight",
        "statistic",
        "metric",
        "value",
    ]
    for column, values in {
        "model": {"PM", "TM", "GM"},
        "on": {"all", "participants", "unseen"},
        "weight": {"samples", "devices", "nodes"},
        "statistic": {"mean", "spread", "worst-decile"},
        "when": {"before", "after"},
        "metric": {"accuracy", "loss", "distance"},
    }.items():
        assert set(table[column].to_pylist()) == values, column
    assert max(table["round"].to_pylist()) == 4
    after, before = result.curve("GM"), result.curve("GM", when="before")
    assert all(before[round_] == after[round_ - 1] for round_ in before)
    assert len(result.curve("PM", node="device-3")) == len(after)


def test_means_in_the_table_agree_with_single_devices(result: palmette.Result) -> None:
    config = result.config
    population = config.population()
    single = torch.tensor([result.last("PM", node=name) for name in population.tree.names(0)])
    tests = population.tests.double()
    assert result.last("PM") == pytest.approx(float((single * tests).sum() / tests.sum()))
    assert result.last("PM", weight="devices") == pytest.approx(float(single.mean()))
    assert result.last("PM", weight="devices", statistic="worst-decile") == pytest.approx(float(single.min()))
    assert result.last("PM", weight="devices", statistic="spread") == pytest.approx(float(single.std(correction=0)))


def test_models_come_back_as_modules_that_predict_as_measured(result: palmette.Result) -> None:
    population = result.config.population()
    first, train = int(population.start[3]), int(population.train[3])
    test = torch.arange(first + train, int(population.start[4]))
    for kind, node in (("PM", "device-3"), ("TM", "team-0"), ("GM", None)):
        module = result.module(kind, node)  # type: ignore[arg-type]
        with torch.no_grad():
            right = module(population.features(test)).argmax(1) == population.y[test]
        if kind == "PM":
            assert float(right.double().mean()) == pytest.approx(result.last("PM", node="device-3"))
    with pytest.raises(BadInput, match="device-3"):
        result.module("PM", "devise-3")


def test_every_device_model_can_be_saved_to_a_file_of_its_own(result: palmette.Result, tmp_path: Path) -> None:
    paths = result.save_models(tmp_path / "models")
    assert [path.name for path in paths] == [f"device-{i}.safetensors" for i in range(10)]


def test_lasting_files_hold_no_time_stamps(result: palmette.Result) -> None:
    text = b"".join(contents(result.folder).values())
    assert str(time.localtime().tm_year).encode() not in text
    assert pq.read_schema(result.folder / "metrics.parquet").metadata is None


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_diverging_run_keeps_the_last_good_round_and_says_what_to_lower(tmp_path: Path) -> None:
    config = {
        **DIGITS,
        "rounds": 50,
        "settings": {"alpha": 1e6, "lam": 1.0, "gamma": 1.0, "local_steps": 2, "team_steps": 1},
    }
    with (
        pytest.warns(UserWarning, match="alpha = 1e\\+06 is more than twice the largest stable value"),
        pytest.raises(Diverged, match=r"Lower alpha from 1e\+06 to at most 0\.\d+.*state after round \d+ is kept"),
    ):
        execute(make_config(config), tmp_path / "run")
    kept = Journal(Folder(tmp_path / "run")).load()
    assert kept is not None
    assert all(bool(rows.isfinite().all()) for one in kept for rows in one.tensors.values() if rows.is_floating_point())


def test_the_last_good_round_is_kept_even_where_checkpoints_are_rare(tmp_path: Path) -> None:
    given = {"alpha": 0.75, "local_steps": 1, "tune_steps": 1}
    config = {"algorithm": "fedavg", "rounds": 400, "settings": given, "tree": "2x5", "evaluate_every": 10}
    config |= {"model": {"name": "mclr", "l2": 3.0}}
    with pytest.warns(UserWarning, match="alpha = 0.75"), pytest.raises(Diverged, match="the loss grew") as told:
        execute(make_config(config), tmp_path / "run")
    kept = Journal(Folder(tmp_path / "run")).load()
    assert kept is not None
    done = kept[-1].round
    assert f"state after round {done} is kept" in str(told.value)
    assert done % 10 == 0  # the last round that was measured and found sane
    assert done >= 10


def test_without_test_samples_a_run_still_runs(tmp_path: Path) -> None:
    config = {**DIGITS, "data": {"name": "digits", "test": 0.0}}
    with pytest.warns(UserWarning, match="test"):
        result = execute(make_config(config), tmp_path / "run")
    assert len(result.tensors("PM")) == 2


def test_team_participation_is_not_dropped_in_silence_by_a_method_without_teams(tmp_path: Path) -> None:
    config = {**DIGITS, "algorithm": "fedavg", "settings": {}, "participation": {"teams": 1}}
    with pytest.warns(UserWarning, match="fedavg knows no teams"):
        execute(make_config(config), tmp_path / "run")


def test_a_metric_of_ones_own_is_best_when_it_is_largest(tmp_path: Path) -> None:
    population = palmette.make_population("digits", tree="2x3")
    base = make_task("mclr", population.shape, population.classes)
    hits = {"hit": lambda output, target: (output.argmax(-1) == target).to(output.dtype)}
    task = palmette.Task(base.module, metrics=hits)
    result = run("permfl", population, task, rounds=2, out=tmp_path / "run", evaluate_every=1)
    curve = result.curve("PM", "hit")
    assert result.best("PM", "hit")[0] == max(curve.values()) > curve[0]
    worst = result.last("PM", "hit", weight="devices", statistic="worst-decile")
    assert worst <= result.last("PM", "hit", weight="devices")


def test_too_large_a_team_step_is_named(tmp_path: Path) -> None:
    config = {**DIGITS, "rounds": 60, "settings": {"alpha": 0.1, "eta": 400.0, "local_steps": 2, "team_steps": 6}}
    with (
        pytest.warns(UserWarning, match="eta = 400"),
        pytest.raises(Diverged, match=r"Lower eta from 400 to at most 9\b"),
    ):
        execute(make_config(config), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "permfk"}, "did you mean 'permfl'"),
        ({"rounds": 0}, "rounds"),
        ({"settings": {"alpha": -1}}, "alpha"),
        ({"settings": {"alpha": float("nan")}}, "alpha"),
        ({"settings": {"aplha": 1}}, "did you mean 'alpha'"),
        ({"participation": {"devices": 1.5}}, "at most 1"),
        ({"participation": {"devises": 0.5}}, "did you mean 'devices'"),
        ({"tree": "4y10"}, "cannot read the tree"),
        ({"tree": "10"}, "needs teams"),
        ({"data": {"name": "digit"}}, "did you mean 'digits'"),
        ({"data": {"name": "digits", "folde": 1}}, "folde"),
        ({"model": {"name": "mclrr"}}, "did you mean 'mclr'"),
        ({"model": {"name": "mclr", "hiden": 3}}, "hiden"),
        ({"engine": {"backend": "fast"}}, "backend"),
        ({"engine": {"chunks": 3}}, "did you mean 'chunk'"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"round": 3}, "did you mean 'rounds'"),
    ],
)
def test_bad_configs_are_refused_before_a_folder_is_made(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        execute(make_config({**DIGITS, **change}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_all_problems_of_a_config_are_told_at_once() -> None:
    bad = {
        **DIGITS,
        "rounds": -1,
        "tree": "x",
        "settings": {"alpha": -1, "wrong": 2},
        "participation": {"teams": "none"},
    }
    with pytest.raises(BadInput) as told:
        make_config(bad)
    assert all(word in str(told.value) for word in ("rounds", "tree", "alpha", "'wrong'", "participation"))


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not a run"):
        execute(make_config(DIGITS), tmp_path)
    with pytest.raises(BadInput, match="is a file"):
        execute(make_config(DIGITS), tmp_path / "note.txt")
    with pytest.raises(BadInput, match=r"no config\.toml"):
        load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_an_algorithm_of_ones_own_runs_and_resumes_only_with_itself(tmp_path: Path) -> None:
    population = regression("2x2")
    method = TABLE["two-stages"]
    made = run(method, population, make_task("linear", population.shape, None), rounds=2, out=tmp_path / "run")
    assert list(made.config.given) == ["algorithm", "data"]
    assert made.config.given["algorithm"].object.endswith("programs.TwoStages")
    assert made.config.settings["first"] == 2
    with pytest.raises(BadInput, match=r"algorithm of this run was an object of your own \(.*programs.TwoStages, hash"):
        made.config.method()


def test_interrupting_is_not_a_failure_of_the_run() -> None:
    assert issubclass(Interrupted, PalmetteError)


def test_personal_models_that_diverge_at_once_end_the_run(tmp_path: Path) -> None:
    config = make_config({"algorithm": "fedavg", "settings": {"alpha": 1e30}, "tree": "2x2", "rounds": 3})
    with pytest.warns(UserWarning, match="expect divergence"), pytest.raises(Diverged, match="after round 0 is kept"):
        execute(config, tmp_path / "run")
