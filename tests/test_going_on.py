"""Folders that are there already, runs that get more rounds, and runs that are looked at before their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import PerMFL
from palmette.cli.app import app
from palmette.protocol import Node, Server, State
from palmette.runs import execute, make_config
from palmette.runs.folder import CHECKPOINT, CONFIG, METRICS, PROGRESS, STATE, Folder
from palmette.runs.progress import Bars, Lines, watching
from palmette.testing.problems import task_for
from palmette.tree import Tree
from problems import regression
from test_contract import TABLE, unlike_first
from test_runs import DIGITS, Killer, contents

SCRIPT = "import sys; from palmette.runs import execute, make_config; execute(make_config({config!r}), {out!r})"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Stopper(Killer):
    """Presses Ctrl-C in round 2."""

    def round(self, done: int, scores: Any) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def everything(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


# -- folders that are there already ------------------------------------------------------------------------------------


def test_a_run_that_is_there_is_refused_unless_told_otherwise() -> None:
    execute(make_config(DIGITS), "one")
    before = everything("one")
    with pytest.raises(pm.BadInput, match=r"holds a run already; continue it .* exist = 'overwrite'"):
        execute(make_config(DIGITS), "one")
    assert everything("one") == before


def test_overwriting_leaves_what_is_not_the_runs(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    execute(make_config({**DIGITS, "rounds": 2}), "one")
    Path("one", "notes.md").write_text("keep me")
    Path("one", "models").mkdir()
    Path("one", "models", "devices.safetensors").write_text("and me")
    Path("one", "outline.json").symlink_to(outside)
    result = execute(make_config({**DIGITS, "seed": 1}), "one", exist="overwrite")
    assert result.config.seed == 1
    assert outside.read_text() == "mine"
    assert Path("one", "notes.md").read_text() == "keep me"
    assert Path("one", "models", "devices.safetensors").read_text() == "and me"
    assert not Path("one", "outline.json").is_symlink()
    assert contents(result.folder) == contents(execute(make_config({**DIGITS, "seed": 1}), "fresh").folder)


def test_what_is_not_a_run_is_never_overwritten() -> None:
    Path("site").mkdir()
    Path("site", CONFIG).write_text('title = "my site"\n')
    Path("site", METRICS).write_text("precious")
    execute(make_config({**DIGITS, "rounds": 1}), "one")
    Path("link").symlink_to("one")
    before = everything("one")
    for folder, words in (("site", "is not a run of this version"), ("link", "symbolic link")):
        with pytest.raises(pm.BadInput, match=words):
            execute(make_config(DIGITS), folder, exist="overwrite")
    assert Path("site", METRICS).read_text() == "precious"
    assert everything("one") == before
    Path("note").mkdir()
    Path("note", "a.txt").write_text("mine")
    with pytest.raises(pm.BadInput, match="is not a run"):
        execute(make_config(DIGITS), "note", exist="overwrite")


def test_a_bad_config_or_a_running_process_overwrites_nothing() -> None:
    execute(make_config({**DIGITS, "rounds": 1}), "one")
    before = everything("one")
    with pytest.raises(pm.BadInput, match="folde"):
        execute(make_config({**DIGITS, "data": {"name": "digits", "folde": 1}}), "one", exist="overwrite")
    busy = Folder.open(Path("one"))
    busy.lock()
    with pytest.raises(pm.BadInput, match="another process"):
        execute(make_config(DIGITS), "one", exist="overwrite")
    busy.unlock()
    assert everything("one") == before


def test_the_same_run_goes_on_and_is_read_when_it_is_finished() -> None:
    whole = execute(make_config(DIGITS), "whole", exist="resume")
    with pytest.raises(pm.runs.Interrupted):
        execute(make_config(DIGITS), "cut", observer=Stopper(99))
    rounds = []

    class Eyes(Killer):
        def round(self, done: int, scores: Any) -> None:
            rounds.append(done)

    on = execute(make_config(DIGITS), "cut", exist="resume", observer=Eyes(99))
    assert rounds == [3, 4]
    assert contents(on.folder) == contents(whole.folder)
    before = everything("cut")
    assert execute(make_config(DIGITS), "cut", exist="resume", observer=Killer(0)).summary() == on.summary()
    assert everything("cut") == before


def test_another_run_is_not_taken_for_this_one() -> None:
    population = pm.make_population("digits", tree="2x2")
    again: dict[str, Any] = {"out": "one", "exist": "resume", "rounds": 1}
    first = pm.run("permfl", population, settings={"alpha": 0.3}, **again)
    assert pm.run("permfl", population, settings={"alpha": 0.3}, **again).summary() == first.summary()
    for change, words in (
        (
            {"settings": {"alpha": 0.2}},
            r"differs: the setting alpha \(was 0.3, is 0.2\)\. Choose another folder or exist",
        ),
        ({"settings": {"alpha": 0.3}, "rounds": 2}, r"rounds \(was 1, is 2\).*palmette resume one --rounds"),
        ({"settings": {"alpha": 0.3}, "population": pm.make_population("digits", tree="2x2", seed=1)}, "data.seed"),
    ):
        with pytest.raises(pm.BadInput, match=words):
            pm.run(**{"algorithm": "permfl", "population": population, **again, **change})


def test_where_rows_lie_how_many_threads_there_are_and_what_is_kept_make_no_other_run() -> None:
    config = {**DIGITS, "engine": {"store": "disk"}}
    execute(make_config(config), "whole")
    with pytest.raises(pm.runs.Interrupted):
        execute(make_config(config), "cut", observer=Stopper(99))
    changed = {"store": "memory", "keep_state": False, "threads": 1, "check_steps": False}
    on = execute(make_config({**DIGITS, "engine": changed}), "cut", exist="resume")
    assert everything("cut")[METRICS] == everything("whole")[METRICS]
    assert (on.config.engine.store, on.config.engine.keep_state) == ("memory", False)
    assert on.config.engine.threads == on.timings["threads"] == 1
    assert not Path("cut", STATE).exists()
    with pytest.warns(UserWarning, match=r"finished and only read: engine.keep_state = True changes nothing"):
        assert execute(make_config(config), "cut", exist="resume").summary() == on.summary()


@pytest.mark.parametrize("exist", ["fail", "overwrite", "resume"])
def test_a_folder_whose_run_never_began_is_like_a_new_one(exist: Any) -> None:
    config = make_config({**DIGITS, "rounds": 1})
    text = config.to_toml()
    Path("cut").mkdir()
    Path("cut", CONFIG).write_text(text[: len(text) // 2] + "[")
    assert execute(config, "cut", exist=exist).finished


def test_rounds_and_a_population_of_another_kind_are_refused_with_a_sentence() -> None:
    execute(make_config({**DIGITS, "rounds": 1}), "one")
    for rounds in ("9", 1.5, True, 0):
        with pytest.raises(pm.BadInput, match=rf"rounds = {rounds!r} must be a whole number of at least 1"):
            pm.resume("one", rounds=rounds)  # type: ignore[arg-type]
    for population in (([1.0], [0]), "digits", None):
        with pytest.raises(pm.BadInput, match=r"not a population; make one with pm\.Population\.from_arrays"):
            pm.run("permfl", population)  # type: ignore[arg-type]
    with pytest.raises(pm.BadInput, match="is a list, not a population"):
        pm.rerun("one", population=[])  # type: ignore[arg-type]


def test_exist_is_an_option_and_needs_a_folder() -> None:
    words = ["run", "local", "--tree", "2x2", "--rounds", "1", "--quiet"]
    assert palmette(*words, "--out", "one").exit_code == 0
    assert palmette(*words, "--out", "one").exit_code == 2
    assert palmette(*words, "--out", "one", "--exist", "resume").exit_code == 0
    assert palmette(*words, "--out", "one", "--exist", "overwrite", "--seed", "4").exit_code == 0
    assert pm.load("one").config.seed == 4
    nowhere = palmette(*words, "--exist", "resume")
    assert nowhere.exit_code == 2
    assert "name it with out" in nowhere.stderr
    with pytest.raises(pm.BadInput, match="did you mean 'overwrite'"):
        execute(make_config(DIGITS), "one", exist="overwritten")  # type: ignore[arg-type]


# -- more rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "default:smoothness = auto"
)  # not all devices are there in the first round, and that is said
@pytest.mark.parametrize("name", unlike_first(TABLE))
def test_a_run_with_more_rounds_is_as_if_it_had_had_them_from_the_start(name: str) -> None:
    method = TABLE[name]
    population = regression([3, 2, 4], unequal=True)
    task = task_for(method, population)
    given: dict[str, Any] = {"seed": 3, "evaluate_every": 2}
    if method.name != "async-l2gd":
        given["participation"] = {"devices": "pass 2"}
    whole = pm.run(method, population, task, out="whole", rounds=5, **given)
    pm.run(method, population, task, out="short", rounds=3, **given)
    objects: dict[str, Any] = {"method": method, "population": population, "model": task}
    before = everything("short")
    if method.name in ("groupfl", "groupperfl", "ladder"):
        with pytest.raises(
            pm.BadInput, match="plans by the number of rounds, and the 3 rounds done were planned for 3"
        ):
            pm.resume("short", rounds=5, **objects)
        assert everything("short") == before
        return
    longer = pm.resume("short", rounds=5, **objects)
    assert contents(longer.folder) == contents(whole.folder)
    assert Path("short", CONFIG).read_bytes() == Path("whole", CONFIG).read_bytes()
    assert longer.config.rounds == longer.rounds_done == 5


@pytest.mark.parametrize("every", ["auto", 1, 2, 3])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_evaluations_are_those_of_a_run_that_was_never_short(every: int | str, first: int) -> None:
    config = {**DIGITS, "evaluate_every": every}
    whole = execute(make_config({**config, "rounds": 5}), "whole")
    execute(make_config({**config, "rounds": first}), "short")
    pm.resume("short", rounds=4)
    assert contents(pm.resume("short", rounds=5).folder) == contents(whole.folder)


def test_single_devices_of_many_are_listed_after_the_new_last_round_only() -> None:
    config = {
        **DIGITS,
        "data": {"name": "crowd", "samples": 2, "test_samples": 1},
        "tree": "2x600",
        "evaluate_every": 1,
    }
    config |= {"settings": {"team_steps": 1, "local_steps": 1}}
    whole = execute(make_config({**config, "rounds": 2}), "whole")
    execute(make_config({**config, "rounds": 1}), "short")
    assert contents(pm.resume("short", rounds=2).folder) == contents(whole.folder)


def test_a_longer_run_that_is_killed_goes_on_and_a_stopped_one_can_be_made_longer() -> None:
    whole = execute(make_config({**DIGITS, "rounds": 7}), "whole")
    execute(make_config(DIGITS), "short")
    with pytest.raises(ZeroDivisionError):
        pm.resume("short", rounds=7, observer=Killer(1))
    assert Path("short", CHECKPOINT).exists()
    assert not pm.runs.Result(Path("short")).finished
    assert contents(pm.resume("short").folder) == contents(whole.folder)
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), "cut", observer=Killer(2))
    assert contents(pm.resume("cut", rounds=7).folder) == contents(whole.folder)


def test_a_longer_run_that_is_killed_at_once_is_still_a_run() -> None:
    short = execute(make_config(DIGITS), "short")
    expected = contents(short.folder)
    with pytest.raises(ZeroDivisionError):
        pm.resume("short", rounds=7, observer=Killer(0))
    path = Path("short", CONFIG)
    path.write_text(path.read_text().replace("rounds = 7", "rounds = 4"))  # as if the kill came before the config
    assert contents(pm.resume("short").folder) == expected


def test_more_rounds_need_the_state_and_more_rounds() -> None:
    execute(make_config({**DIGITS, "rounds": 2, "engine": {"keep_state": False}}), "lean")
    assert not Path("lean", STATE).exists()
    with pytest.raises(pm.BadInput, match="kept no state to go on from"):
        pm.resume("lean", rounds=3)
    execute(make_config({**DIGITS, "rounds": 2}), "one")
    with pytest.raises(pm.BadInput, match="has 2 rounds; rounds = 1 would be fewer"):
        pm.resume("one", rounds=1)
    assert pm.resume("one", rounds=2).rounds_done == 2
    state = Path("one", STATE)
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(pm.PalmetteError, match="is damaged, so it cannot be continued; start a new run"):
        pm.resume("one", rounds=3)
    assert pm.load("one").rounds_done == 2


def test_other_samples_do_not_make_a_run_longer() -> None:
    population = regression("2x2")
    pm.run("permfl", population, "linear", rounds=1, out="one")
    before = everything("one")
    with pytest.raises(pm.BadInput, match="not the run"):
        pm.resume("one", rounds=2, population=regression("2x2", seed=1))
    kept = everything("one")
    assert {name: kept[name] for name in before if name != "log.txt"} == {
        name: value for name, value in before.items() if name != "log.txt"
    }


@pm.settings
class Fading(PerMFL):
    """Looks at the number of rounds in its last third only."""

    name: ClassVar[str] = "fading"

    def server(self, node: Node, state: State) -> Server:
        if node.round >= 2:
            assert node.rounds
        return super().server(node, state)


@pm.settings
class Halved(PerMFL):
    """Has two stages, each half of the rounds."""

    name: ClassVar[str] = "halved"

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        return 1 + (round_ >= rounds // 2)


def test_ones_own_algorithm_need_declare_nothing() -> None:
    population = pm.make_population("digits", tree="2x2")
    fading, halved = (kind(team_steps=1, local_steps=2) for kind in (Fading, Halved))
    for method, first, fine in ((fading, 2, True), (fading, 3, False), (halved, 1, False), (halved, 8, False)):
        folder = f"{method.name}-{first}"
        pm.run(method, population, rounds=first, out=folder)
        if fine:
            assert pm.resume(folder, rounds=9, method=method).finished
            continue
        with pytest.raises(pm.BadInput, match=f"{method.name} plans by the number of rounds"):
            pm.resume(folder, rounds=9 if first < 8 else 16, method=method)


def test_the_command_line_gives_more_rounds() -> None:
    words = ["run", "permfl", "--tree", "2x3", "--set", "local_steps=2", "--set", "team_steps=2", "--quiet"]
    palmette(*words, "--rounds", "2", "--out", "short")
    palmette(*words, "--rounds", "4", "--out", "whole")
    done = palmette("resume", "short", "--rounds", "4", "--json")
    assert done.exit_code == 0, done.stderr
    assert "going on after round 2" in done.stderr
    assert json.loads(done.stdout)["rounds"] == 4
    assert contents(Path("short")) == contents(Path("whole"))
    assert "unless you give it more --rounds" in palmette("resume", "short").stderr
    fewer = palmette("resume", "short", "--rounds", "3")
    assert fewer.exit_code == 2


# -- looking at a run before its end -----------------------------------------------------------------------------------


def test_a_run_under_way_can_be_looked_at() -> None:
    config = {**DIGITS, "rounds": 100_000, "evaluate_every": 1}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(config=config, out="one")])
    try:
        limit = time.monotonic() + 60
        while not Path("one", PROGRESS).exists() or pm.runs.Result(Path("one")).rounds_done < 1:
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        with pytest.warns(UserWarning, match="is still running. These are its numbers after"):
            result = pm.load("one")
        assert not result.finished
        assert result.running
        assert max(result.curve("PM")) == result.rounds_done >= 1
        assert "not finished, round" in repr(result)
        shown = palmette("show", "one")
        assert shown.exit_code == 0, shown.stderr
        assert "of 100000 rounds done; it is running now" in " ".join(shown.stdout.split())
        assert "device's own" in shown.stdout
        told = json.loads(palmette("show", "one", "--json").stdout)
        assert (told["finished"], told["running"]) == (False, True)
        assert 0 < told["models"]["PM"]["accuracy"] <= 1
    finally:
        process.kill()
        process.wait()
    assert not pm.runs.Result(Path("one")).running


def test_the_history_of_a_stopped_run_is_all_of_it_and_goes_with_the_end() -> None:
    with pytest.raises(pm.runs.Interrupted):
        execute(make_config(DIGITS), "one", observer=Stopper(99))
    stopped = pm.runs.Result(Path("one"))
    assert stopped.rounds_done == 2
    assert list(stopped.curve("GM")) == [0, 1, 2]
    assert stopped.summary()["rounds_done"] == 2
    with pytest.raises(pm.BadInput, match="not finished and has no models yet"):
        stopped.tensors()
    whole = pm.resume("one")
    assert not Path("one", PROGRESS).exists()
    assert stopped.curve("GM") == {round_: whole.curve("GM")[round_] for round_ in (0, 1, 2)}


def test_a_run_that_was_killed_before_anything_was_measured_shows_that() -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), "one", observer=Killer(0))
    Path("one", PROGRESS).unlink()
    shown = palmette("show", "one")
    assert "not finished: 0 of 4 rounds done" in shown.stdout
    assert "nothing was measured yet" in shown.stdout
    assert "not measured yet" in repr(pm.runs.Result(Path("one")))


def test_show_lists_the_runs_of_a_folder() -> None:
    execute(make_config(DIGITS), "runs/first")
    execute(
        make_config({**DIGITS, "algorithm": "local", "settings": {}, "participation": {}, "seed": 3}),
        "runs/more/second",
    )
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), "runs/third", observer=Killer(2))
    pm.run("permfl", regression("2x2"), "linear", rounds=1, out="runs/loss")
    Path("runs/broken").mkdir()
    Path("runs/broken", CONFIG).write_text("algorithm = 3")
    told = json.loads(palmette("show", "runs", "--json").stdout)
    lines = {Path(line["folder"]).name: line for line in told}
    assert set(lines) == {"first", "second", "third", "loss"}
    assert lines["first"]["finished"]
    assert not lines["third"]["finished"]
    assert (lines["second"]["algorithm"], lines["second"]["seed"], lines["second"]["rounds_done"]) == ("local", 3, 4)
    assert lines["first"]["models"]["TM"]["accuracy"] == pm.load("runs/first").last("TM")
    shown = palmette("show", "runs")
    assert "left out runs/broken" in shown.stderr
    for words in ("more/second", "permfl", "digits", "4/4", "finished", "stopped", "PM", "TM", "GM", "*"):
        assert words in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    Path("empty").mkdir()
    assert palmette("show", "empty").exit_code == 2


# -- progress of library runs ------------------------------------------------------------------------------------------


def test_scripts_are_quiet_unless_progress_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    population = pm.make_population("digits", tree="2x2")
    for progress in (None, False):
        pm.run("local", population, rounds=2, progress=progress)
        assert capsys.readouterr() == ("", "")
    pm.run("local", population, rounds=2, progress=True, out="shown")
    assert "local: round 2/2" in capsys.readouterr().err
    pm.resume("shown", rounds=3, progress=True)
    assert "going on after round 2" in capsys.readouterr().err


LIBRARY = """
import sys
import palmette as pm
population = pm.make_population("digits", tree="2x2")
pm.run("local", population, rounds=2, progress=False)
print("now", file=sys.stderr)
pm.run("local", population, rounds=2)
"""


def test_a_terminal_sees_a_library_run() -> None:
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", LIBRARY], stderr=side, stdout=subprocess.DEVNULL, env=environment)
    os.close(side)
    told = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # Linux tells the end of a terminal so
            break
        if not part:
            break
        told += part
    os.close(main)
    assert process.wait(timeout=60) == 0
    quiet, _, shown = told.partition(b"now")
    assert quiet == b""
    assert b"server asks" in shown


def test_a_notebook_gets_bars_where_it_can_draw_them_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("palmette.runs.progress.find_spec", lambda name: None)
    with watching("x", shown=None, console=Console(force_jupyter=True)) as observer:
        assert isinstance(observer, Lines)
    monkeypatch.setattr("palmette.runs.progress.find_spec", lambda name: object())
    monkeypatch.setattr("rich.live.Live.refresh", lambda self: None)
    with watching("x", shown=None, console=Console(force_jupyter=True)) as observer:
        assert isinstance(observer, Bars)
    with watching("x", shown=False, console=Console(force_jupyter=True)) as observer:
        assert observer is None


def test_an_observer_takes_the_place_of_progress() -> None:
    with pytest.raises(pm.BadInput, match="not both"):
        pm.run("local", pm.make_population("digits", tree="2x2"), rounds=1, observer=Killer(9), progress=True)
