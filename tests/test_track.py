"""Trackers are told every number once and can do no harm: the real ones, offline, and ones that fail."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import palmette as pm
from palmette.cli.app import app
from palmette.runs import Result, make_config
from palmette.runs.tracking import kept
from palmette.track import Place, Start
from palmette.track.tracker import TRACKERS

pytestmark = pytest.mark.xdist_group("track")  # they share runs
SETTINGS = {"team_steps": 2, "local_steps": 2}
ALL = list(TRACKERS)
OWN = ("config.toml", "identity.json", "metrics.parquet", "traffic.parquet", "devices.safetensors",
       "teams.safetensors", "global.safetensors")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the real trackers from the network and in a folder of their own, and end the process that one of them starts."""
    place = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "WANDB_MODE": "offline", "WANDB_DIR": str(place), "WANDB_ERROR_REPORTING": "false",
            "MLFLOW_TRACKING_URI": f"sqlite:///{place / 'mlflow.db'}", "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        yield
        if "wandb" in sys.modules:
            import wandb

            wandb.teardown()


@pytest.fixture(scope="module")
def people() -> pm.Population:
    return pm.make_population("digits", tree="2x3", shift="rotate")


@pytest.fixture(scope="module")
def plain(people: pm.Population, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nobody tracks."""
    return pm.run(
        "permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=tmp_path_factory.mktemp("plain") / "run"
    )


@pytest.fixture(scope="module")
def tracked(people: pm.Population, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same run under all trackers, which was stopped after two rounds and went on with two more."""
    out = tmp_path_factory.mktemp("tracked") / "run"
    with pytest.raises(KeyboardInterrupt):
        pm.run("permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=out, observer=Stop(3), track=ALL)
    return pm.resume(out, population=people, track=ALL)


class Stop:
    """Ends a run at once, as a second Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self._at = at

    def begin(self, simulation: Any, rounds: int) -> None: ...
    def exchange(self, tier: int) -> None: ...
    def stopping(self) -> None: ...

    def round(self, done: int, scores: Any) -> None:
        if done == self._at:
            raise KeyboardInterrupt


class Notes:
    """A tracker that takes notes, and fails where it is told to."""

    def __init__(self, fail: str = "", error: BaseException | None = None) -> None:
        self.starts: list[Start] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ends: list[tuple[str, int, dict[str, float]]] = []
        self._fail, self._error, self.calls = fail, error or RuntimeError("no\nroute to host"), 0

    def _maybe(self, what: str) -> None:
        self.calls += 1
        if what == self._fail:
            raise self._error

    def begin(self, start: Start) -> Place:
        self._maybe("begin")
        self.starts.append(start)
        return Place(start.key or "first", "my notes")

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._maybe("log")
        self.rounds.append((round_, dict(numbers)))

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        self._maybe("end")
        self.ends.append((how, round_, dict(numbers)))


def same_run(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in OWN)


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_tracker_is_told_settings_numbers_traffic_and_the_end(
    people: pm.Population, plain: Result, tmp_path: Path
) -> None:
    notes = Notes()
    result = pm.run("permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=tmp_path / "run", track=notes)
    assert same_run(result.folder, plain.folder)
    (start,) = notes.starts
    assert (start.name, start.folder, start.key, start.logged) == ("run", tmp_path / "run", None, -1)
    assert start.settings["settings.team_steps"] == 2
    assert start.settings["data.name"] == "digits"
    assert start.config == (result.folder / "config.toml").read_text(encoding="utf-8")
    assert [round_ for round_, _ in notes.rounds] == [0, 1, 2, 3, 4]
    for kind in ("PM", "TM", "GM"):
        for metric in ("accuracy", "loss"):
            told = {round_: numbers[f"{kind}/{metric}"] for round_, numbers in notes.rounds}
            assert told == result.curve(kind, metric)
            worst = {round_: numbers[f"{kind}/{metric}_worst_tenth"] for round_, numbers in notes.rounds}
            assert worst == result.curve(kind, metric, weight="devices", statistic="worst-decile")
    last = notes.rounds[-1][1]
    assert last["PM/distance"] == result.last("PM", "distance")
    for link, told in zip(("teams", "server"), result.summary()["traffic"]["links"], strict=True):
        for key in ("exchanges", "bytes_up", "bytes_down"):
            assert last[f"traffic/{link}/{key}"] == told[key]
    assert not [name for name in notes.rounds[0][1] if name.startswith("traffic")]
    ((how, done, summary),) = notes.ends
    assert (how, done) == ("finished", 4)
    assert summary["best/PM/accuracy"] == result.best("PM")[0]
    assert summary["device_steps"] == result.timings["device_steps"]


def test_numbers_are_of_the_devices_that_train_and_those_of_unseen_ones_are_named_so(tmp_path: Path) -> None:
    notes = Notes()
    people = pm.make_population("digits", tree="2x4", unseen=0.25)
    result = pm.run(
        "fedavg", people, rounds=2, settings={"local_steps": 2}, out=tmp_path / "run", track=[notes], held_out=0.2
    )
    last = notes.rounds[-1][1]
    assert last["PM/accuracy"] == result.last("PM")
    assert last["unseen/PM/accuracy"] == result.last("PM", on="unseen")
    assert last["held-out/GM/accuracy"] == result.last("GM", on="held-out")


def test_numbers_of_a_sample_of_the_devices_are_named_so(tmp_path: Path) -> None:
    notes = Notes()
    people = pm.make_population("digits", tree="2x4", unseen=0.25)
    given: dict[str, Any] = {"settings": {"local_steps": 2}, "evaluate_on": 5, "evaluate_every": 1}
    result = pm.run("fedavg", people, rounds=2, out=tmp_path / "run", track=[notes], **given)
    (_, first), (_, last) = notes.rounds[-2:]
    assert "PM/accuracy" not in first
    assert first["sampled/PM/accuracy"] == result.curve("PM")[1]
    assert last["PM/accuracy"] == result.last("PM")
    assert last["sampled/PM/accuracy"] == result.curve("PM")[2]
    assert last["PM/distance"] == result.last("PM", "distance", on="all")
    assert last["sampled/PM/distance"] == result.last("PM", "distance", on="sampled")


def test_an_observer_of_ones_own_is_told_as_well(people: pm.Population, tmp_path: Path) -> None:
    heard = []

    class Ears(Stop):
        def round(self, done: int, scores: Any) -> None:
            heard.append(done)

    notes = Notes()
    pm.run(
        "permfl",
        people,
        rounds=2,
        settings=SETTINGS,
        evaluate_every=1,
        out=tmp_path / "r",
        observer=Ears(0),
        track=notes,
    )
    assert heard == [1, 2]
    assert [round_ for round_, _ in notes.rounds] == [0, 1, 2]


# -- the real ones -----------------------------------------------------------------------------------------------------


def test_the_files_of_a_tracked_run_are_those_of_any_other(tracked: Result, plain: Result) -> None:
    assert same_run(tracked.folder, plain.folder)
    assert set(kept(tracked.folder)) == set(ALL)
    log = (tracked.folder / "log.txt").read_text(encoding="utf-8")
    assert "failed" not in log
    for name in ALL:
        assert log.count(f"tracked by {name}: ") == 2
    assert pm.runs.verify(tracked.folder).sound


def test_tensorboard_has_every_round_once(tracked: Result) -> None:
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    texts: dict[str, str] = {}
    files = sorted((tracked.folder / "tensorboard").iterdir())
    assert len(files) == 2
    for file in files:
        for data in tf_records(file):
            event = Event.FromString(data)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    assert event.step not in found.setdefault(value.tag, {})
                    found[value.tag][event.step] = value.simple_value
                else:
                    texts[value.tag] = value.tensor.string_val[0].decode()
    assert found["PM/accuracy"] == pytest.approx(tracked.curve("PM"))
    assert found["traffic/server/bytes_up"][4] > found["traffic/server/bytes_up"][1]
    assert found["summary/best/GM/accuracy"][4] == pytest.approx(tracked.best("GM")[0])
    assert 'algorithm = "permfl"' in texts["config/text_summary"]
    assert str(tracked.folder) in texts["run/text_summary"]
    assert texts["end/text_summary"] == "finished"


def tf_records(file: Path) -> Iterator[bytes]:
    data, at = file.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack("<Q", data[at : at + 8])
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def test_mlflow_has_one_run_with_every_round_once(tracked: Result) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    key = kept(tracked.folder)["mlflow"]["key"]
    run = client.get_run(key)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert client.get_experiment(run.info.experiment_id).name == "palmette"
    assert run.data.params["settings.team_steps"] == "2"
    assert run.data.tags["palmette.folder"] == str(tracked.folder)
    history = client.get_metric_history(key, "PM/accuracy")
    assert [(one.step, one.value) for one in history] == list(tracked.curve("PM").items())
    assert run.data.metrics["summary/best/PM/accuracy"] == tracked.best("PM")[0]


def test_weights_and_biases_has_one_run_with_every_round_once(tracked: Result) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    key = kept(tracked.folder)["wandb"]["key"]
    files = sorted(Path(os.environ["WANDB_DIR"]).glob(f"wandb/offline-run-*-{key}/run-{key}.wandb"))
    assert files
    found: dict[int, float] = {}
    settings: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for data in (data for file in files for data in level_records(file)):
        record = Record.FromString(data)
        settings |= pairs(record.config.update)
        summary |= pairs(record.summary.update)
        if record.WhichOneof("record_type") == "history":
            numbers = pairs(record.history.item)
            assert numbers["_step"] not in found
            found[numbers["_step"]] = numbers["PM/accuracy"]
        elif record.WhichOneof("record_type") == "run":
            assert (record.run.project, record.run.display_name, record.run.run_id) == ("palmette", "run", key)
    assert found == pytest.approx(tracked.curve("PM"))
    assert (settings["settings.team_steps"], settings["folder"]) == (2, str(tracked.folder))
    assert summary["end"] == "finished"


def pairs(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def level_records(file: Path) -> Iterator[bytes]:
    """Read a log of records in blocks of 32 kB, each piece of a record with its checksum, length and kind."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield whole
            whole = b""


def test_a_run_given_more_rounds_goes_on_in_the_trackers(people: pm.Population, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    out = tmp_path / "run"
    pm.run("permfl", people, rounds=1, settings=SETTINGS, evaluate_every=1, out=out, track="mlflow")
    first = kept(out)["mlflow"]["key"]
    result = pm.resume(out, rounds=3, population=people, track=["mlflow"])
    assert kept(out)["mlflow"]["key"] == first
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    assert [one.step for one in client.get_metric_history(first, "GM/loss")] == list(result.curve("GM", "loss"))
    assert client.get_run(first).info.status == "FINISHED"
    pm.run("permfl", people, rounds=1, settings=SETTINGS, evaluate_every=1, out=out, exist="overwrite", track="mlflow")
    assert kept(out)["mlflow"]["key"] != first  # another run, though it lies in the same folder


def test_names_that_mlflow_refuses_are_written_otherwise() -> None:
    from palmette.track.flow import _name

    assert _name("PM/my metric: <a$b>") == "PM/my metric: _a_b_"


def test_who_is_not_logged_in_is_told_and_not_asked(
    people: pm.Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    class Settings:
        mode = "online"

    class Setup:
        settings = Settings

    monkeypatch.setattr(wandb, "setup", Setup)
    monkeypatch.setattr(wandb, "login", lambda **how: how["prompt"])
    with pytest.warns(UserWarning, match=r"wandb failed at its start \(.*nobody is logged in.*WANDB_MODE=offline\)"):
        result = pm.run(
            "permfl", people, rounds=1, settings=SETTINGS, evaluate_every=1, out=tmp_path / "r", track="wandb"
        )
    assert result.finished


# -- stops and failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", ["begin", "log", "end"])
@pytest.mark.parametrize(
    "error", [RuntimeError("no\nroute to host"), OSError(28, "No space left on device"), SystemExit(3)]
)
def test_a_tracker_that_fails_is_told_of_once_and_the_run_is_the_same(
    fail: str, error: BaseException, people: pm.Population, plain: Result, tmp_path: Path
) -> None:
    bad, good = Notes(fail, error), Good()
    with pytest.warns(UserWarning, match=r"the tracker Notes failed .*; the run goes on without it") as heard:
        result = pm.run(
            "permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=tmp_path / "run", track=[bad, good]
        )
    assert len(heard) == 1
    assert "\n" not in str(heard[0].message)
    assert bad.calls == {"begin": 1, "log": 2, "end": 7}[fail]  # not once more after it failed
    assert same_run(result.folder, plain.folder)
    assert (result.folder / "log.txt").read_text(encoding="utf-8").count("the tracker Notes failed") == 1
    assert [round_ for round_, _ in good.rounds] == [0, 1, 2, 3, 4]
    assert good.ends[0][0] == "finished"


class Good(Notes):
    """One that works, beside one that does not."""


def test_a_tracker_that_cannot_be_made_or_be_remembered_does_no_harm(
    people: pm.Population, plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palmette.runs.files import Files

    def full(self: Files, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    write_json = Files.write_json
    monkeypatch.setattr(
        Files,
        "write_json",
        lambda self, name, value: (full if name == "trackers.json" else write_json)(self, name, value),
    )
    with pytest.warns(UserWarning, match="the tracker Notes failed at its start"):
        result = pm.run(
            "permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=tmp_path / "one", track=Notes()
        )
    assert same_run(result.folder, plain.folder)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # it is there and cannot be loaded
    monkeypatch.delitem(sys.modules, "palmette.track.board", raising=False)
    monkeypatch.setattr("palmette.track.tracker.find_spec", lambda name: object())
    with pytest.warns(UserWarning, match="the tracker tensorboard failed at its start"):
        assert pm.run(
            "permfl", people, rounds=4, settings=SETTINGS, evaluate_every=1, out=tmp_path / "two", track="tensorboard"
        ).finished


def test_a_warning_of_a_tracker_is_its_own_affair(people: pm.Population, tmp_path: Path) -> None:
    import warnings

    class Deprecated(Notes):
        def begin(self, start: Start) -> Place:
            warnings.warn("old", DeprecationWarning, stacklevel=1)
            return super().begin(start)

    pm.run("permfl", people, rounds=1, settings=SETTINGS, evaluate_every=1, out=tmp_path / "r", track=Deprecated())


def test_a_stopped_run_says_so_and_what_was_logged_is_not_logged_again(people: pm.Population, tmp_path: Path) -> None:
    first, second = Notes(), Notes()
    with pytest.raises(KeyboardInterrupt):
        pm.run(
            "permfl",
            people,
            rounds=4,
            settings=SETTINGS,
            evaluate_every=1,
            out=tmp_path / "r",
            observer=Stop(3),
            track=first,
        )
    assert first.ends == [("stopped", 3, {})]
    logged = [round_ for round_, _ in first.rounds]
    with pytest.warns(UserWarning, match="was tracked by Notes and is not now; --track Notes goes on with it"):
        pm.resume(tmp_path / "r", population=people, rounds=5)
    pm.resume(tmp_path / "r", population=people, rounds=6, track=second)
    assert second.starts[0].key == "first"
    assert second.starts[0].logged == logged[-1]
    assert [round_ for round_, _ in second.rounds] == list(range(logged[-1] + 1, 7))  # those in between too


def test_a_run_that_diverges_says_so(people: pm.Population, tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(pm.Diverged), pytest.warns(UserWarning, match="alpha"):
        pm.run("permfl", people, rounds=30, settings={"alpha": 1e20}, out=tmp_path / "r", track=notes)
    assert notes.ends[0][0] == "diverged"
    rounds = [round_ for round_, _ in notes.rounds]
    assert rounds == sorted(set(rounds))


# -- from the command line, and in studies -----------------------------------------------------------------------------

RUN = ["run", "permfl", "--tree", "2x3", "--rounds", "2", "--set", "team_steps=2", "-q"]


def test_a_tracker_that_is_missing_is_told_in_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("palmette.track.tracker.find_spec", lambda name: None)
    for words in (RUN, ["compare", "permfl"], ["sweep", "permfl", "--grid", "lam=0.1"], ["resume", "."]):
        for name in ALL:
            done = CliRunner().invoke(app, [*words, "--track", name])
            assert done.exit_code == 2
            assert f"--track {name} needs " in done.stderr
            assert f"pip install 'palmette[{name}]'" in done.stderr
            assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_tracker_is_refused(people: pm.Population, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*RUN, "--track", "tensorbord", "--out", str(tmp_path / "r")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--track tensorbord: there is no such tracker; did you mean 'tensorboard'?" in done.stderr
    for wrong in (5, [5], Notes, [None]):
        with pytest.raises(pm.BadInput, match="is no tracker"):
            pm.run("permfl", people, out=tmp_path / "r", track=wrong)  # type: ignore[arg-type]
    with pytest.raises(pm.BadInput, match="a study is tracked by trackers with a name"):
        pm.compare(["permfl"], people, out=tmp_path / "s", track=[Notes()])  # type: ignore[list-item]
    assert not (tmp_path / "r").exists()


def test_a_run_of_the_command_line_says_where_it_is_tracked(tmp_path: Path) -> None:
    out = tmp_path / "a run"
    words = [word for word in RUN if word != "-q"]
    done = CliRunner().invoke(app, [*words, "--track", "tensorboard", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert f"palmette: tracked by tensorboard: tensorboard --logdir '{out}'" in done.stderr
    assert json.loads(done.stdout)["folder"] == str(out)
    assert list((out / "tensorboard").glob("events.*"))


def test_every_run_of_a_study_is_tracked_under_its_name(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    out = tmp_path / "my-study"
    words = [
        "compare",
        "permfl",
        "fedavg",
        "--tree",
        "2x3",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--no-local",
        "--jobs",
        "2",
    ]
    done = CliRunner().invoke(app, [*words, "-q", "--track", "tensorboard", "--track", "mlflow", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    for name in ("permfl-0", "fedavg-0"):
        assert list((out / "runs" / name / "tensorboard").glob("events.*"))
        run = client.get_run(kept(out / "runs" / name)["mlflow"]["key"])
        assert (run.info.run_name, run.data.tags["palmette.study"]) == (f"my-study/{name}", "my-study")


@pytest.mark.slow
def test_a_process_beside_this_one_tracks_as_well(tmp_path: Path) -> None:
    from palmette.studies.helper import Helper
    from palmette.studies.trials import Trial

    config = make_config({"algorithm": "local", "tree": "2x3", "rounds": 1})
    helper = Helper()
    try:
        assert helper.ready()
        trial = Trial("local", 0, tmp_path / "local-0", config, track=("tensorboard",), study="mine")
        outcome = helper.run(trial, lambda rounds: None, lambda done, rounds, scores: None)
    finally:
        helper.end()
    assert (outcome.end, outcome.message, outcome.warnings) == ("done", "", ())
    (file,) = (tmp_path / "local-0" / "tensorboard").iterdir()
    assert b"mine/local-0" in file.read_bytes()


def test_a_sweep_is_tracked_too(tmp_path: Path) -> None:
    pm.sweep(
        "permfl",
        "digits",
        grid={"lam": [0.1, 0.2]},
        tree="2x3",
        rounds=1,
        seeds=1,
        jobs=1,
        out=tmp_path / "s",
        track="tensorboard",
    )
    assert len(list(tmp_path.glob("s/runs/**/tensorboard"))) == 3


@pytest.mark.slow
def test_trackers_are_loaded_only_when_they_are_used(tmp_path: Path) -> None:
    code = (
        "import sys, palmette as pm; p = pm.make_population('digits', tree='2x3'); "
        f"pm.run('local', p, rounds=1, out={str(tmp_path / 'r')!r}); "
        "import palmette.cli.app; assert not {'mlflow', 'wandb', 'tensorboardX', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_link_in_a_runs_folder_is_not_followed(people: pm.Population, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(KeyboardInterrupt):
        pm.run("permfl", people, rounds=3, settings=SETTINGS, evaluate_every=1, out=tmp_path / "r", observer=Stop(2))
    (tmp_path / "r" / "tensorboard").symlink_to(elsewhere)
    with pytest.warns(UserWarning, match="tensorboard is a symbolic link"):
        pm.resume(tmp_path / "r", population=people, track="tensorboard")
    assert list(elsewhere.iterdir()) == []
