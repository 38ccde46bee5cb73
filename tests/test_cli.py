"""The command line as a person and as a script use it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from palmette.algorithms import FAMILIES
from palmette.cli.app import app
from palmette.cli.configure import configure, literal
from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.runs import execute, execution, load
from palmette.runs.folder import claimed
from palmette.runs.progress import Bars, Lines, watching

TINY = ["--tree", "2x3", "--rounds", "2", "--set", "local_steps=2", "--set", "team_steps=2"]
COMMAND = [sys.executable, "-c", "from palmette.cli.app import app; app()"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def fits(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80


# -- run, show, list -------------------------------------------------------------------------------------------------------


def test_run_ends_in_a_table_with_models_links_speed_backend_folder_and_the_next_command() -> None:
    done = palmette("run", "permfl", *TINY)
    assert done.exit_code == 0, done.stderr
    for word in ("PM", "TM", "GM", "worst tenth", "teams - devices", "server - teams", "device-steps", "native"):
        assert word in done.stdout
    assert "runs/permfl-digits-1" in done.stdout
    assert "palmette run fedavg --config runs/permfl-digits-1/config.toml" in done.stdout
    assert fits(done.stdout)
    assert "round 2/2" in done.stderr


def test_the_next_command_runs_the_other_method_on_the_same_samples() -> None:
    palmette("run", "permfl", *TINY, "--set", "data.shift=rotate", "--seed", "3")
    done = palmette("run", "fedavg", "--config", "runs/permfl-digits-1/config.toml", "--json")
    assert done.exit_code == 0, done.stderr
    assert "defaults" in done.stderr
    mine, other = (load(f"runs/{name}-digits-1").config for name in ("permfl", "fedavg"))
    assert (mine.data, mine.tree, mine.seed, mine.rounds) == (other.data, other.tree, other.seed, other.rounds)
    assert "lam" not in other.settings


def test_a_resolved_config_runs_again_to_the_same_bits() -> None:
    palmette("run", "permfl", *TINY, "--out", "one")
    done = palmette("run", "--config", "one/config.toml", "--out", "two", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert Path("one/devices.safetensors").read_bytes() == Path("two/devices.safetensors").read_bytes()


def test_json_is_the_last_line_and_alone_on_standard_output() -> None:
    done = palmette("run", "permfl", *TINY, "--out", "one", "--json")
    told = json.loads(done.stdout)
    assert told["folder"] == "one"
    assert set(told["models"]) == {"PM", "TM", "GM"}
    assert json.loads(palmette("show", "one", "--json").stdout) == told


def test_quiet_shows_the_result_and_no_progress() -> None:
    done = palmette("run", "local", "--tree", "2x3", "--rounds", "1", "--quiet")
    assert done.stderr == ""
    assert "PM" in done.stdout


def test_passes_decide_the_rounds_and_their_plan_is_told_at_the_start_and_at_the_end() -> None:
    words = ["--tree", "2x3", "--set", "passes=2", "--set", "group_passes=1"]
    done = palmette("run", "groupperfl", *words)
    assert done.exit_code == 0, done.stderr
    assert "6 devices, 3 rounds" in done.stderr
    for text in (done.stderr, " ".join(done.stdout.split())):
        assert "stage 1 rounds 2; stage 2 rounds 1; downloads per client 3" in text
    assert fits(done.stdout)
    shorter = palmette("run", "groupperfl", *words, "--rounds", "2", "--json")
    told = json.loads(shorter.stdout)["extra"]["outline"]
    assert (told["planned_rounds"], told["stage_1_rounds"], told["stage_2_rounds"]) == (3, 1, 1)
    assert "fitted into the 2 given" in shorter.stderr


def test_what_an_algorithm_reports_is_shown_and_is_data() -> None:
    words = ["--tree", "2x3", "--rounds", "1", "--set", "team_steps=2", "--out", "one"]
    shown = palmette("run", "sfedhp", *words)
    assert shown.exit_code == 0, shown.stderr
    for word in ("sfedhp reports", "density", "encoded bytes", "paper bytes", "phi density"):
        assert word in shown.stdout
    assert fits(shown.stdout)
    told = json.loads(palmette("show", "one", "--json").stdout)["extra"]["metrics"]
    assert set(told["density"]) == {"PM", "TM", "GM"}
    assert told["paper_bytes"]["GM"] > told["encoded_bytes"]["GM"] > 0


def test_show_tells_team_by_team_and_fits() -> None:
    palmette("run", "permfl", *TINY, "--out", "one")
    shown = palmette("show", "one")
    assert shown.exit_code == 0
    assert "team-1" in shown.stdout
    assert fits(shown.stdout)


def test_later_sources_of_settings_win() -> None:
    Path("c.toml").write_text('algorithm = "permfl"\nrounds = 3\nseed = 5\n[settings]\nlam = 0.2\nalpha = 0.1\n')
    made = configure(
        "permfl", file=Path("c.toml"), options={"rounds": 4, "seed": None}, assignments=["lam=1", "rounds=6"]
    )
    assert (made.rounds, made.seed, made.settings["lam"], made.settings["alpha"]) == (6, 5, 1, 0.1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("true", True),
        ("[10, 5]", [10, 5]),
        ('"a b"', "a b"),
        ("published", "published"),
        ("pass 5", "pass 5"),
        ("50%", "50%"),
        ("{a = 1}", {"a": 1}),
        ("1\nother = 2", "1\nother = 2"),
        ("2020-01-01", "2020-01-01"),
        ("", ""),
    ],
)
def test_set_values_are_toml_else_text(text: str, value: object) -> None:
    assert literal(text) == value
    assert type(literal(text)) is type(value)


def test_set_reaches_every_group() -> None:
    assignments = [
        "preset=published",
        "team_steps=[3]",
        "data.partition=iid",
        "model.l2=0.5",
        "participation.devices=0.5",
    ]
    assignments += ["engine.backend=loop", "loss=0.1", "evaluate_every=5", "model.hidden=[7]", "settings.lam=2"]
    made = configure("permfl", file=None, options={"model.name": "dnn"}, assignments=assignments)
    assert made.settings == {"preset": "published", "team_steps": [3], "lam": 2}
    assert made.data.model_dump()["partition"] == "iid"
    assert (made.model.l2, made.model.model_dump()["hidden"]) == (0.5, [7])
    assert (made.participation, made.engine.backend, made.loss, made.evaluate_every) == (
        {"devices": 0.5},
        "loop",
        0.1,
        5,
    )


@pytest.mark.parametrize("topic", ["algorithms", "datasets", "models", "experiments"])
def test_list_is_readable_and_is_data(topic: str) -> None:
    shown, data = palmette("list", topic), palmette("list", topic, "--json")
    assert shown.exit_code == data.exit_code == 0
    assert fits(shown.stdout)
    for entry in json.loads(data.stdout):
        assert entry["name"] in shown.stdout
        assert entry["summary"]
    assert json.loads(data.stdout) or "no experiments yet" in shown.stdout


def test_list_algorithms_gives_each_its_paper_and_settings() -> None:
    entries = {entry["name"]: entry for entry in json.loads(palmette("list", "algorithms", "--json").stdout)}
    assert "Banerjee" in entries["permfl"]["paper"]
    assert entries["permfl"]["settings"]["team_steps"] == 10
    assert entries["permfl"]["family"] == "Personal models on a tree of teams"
    assert entries["permfl"]["models"] == ["PM", "TM", "GM"]
    assert entries["local"]["models"] == ["PM"]


def test_list_algorithms_is_short_and_in_families() -> None:
    lines = palmette("list", "algorithms").stdout.splitlines()
    for family, kinds in FAMILIES.items():
        at = lines.index(next(line for line in lines if line.strip() == family))
        body = lines[at + 1 : next(number for number in range(at, len(lines)) if not lines[number].strip())]
        assert [line.split()[0] for line in body if not line.startswith(" ")] == [kind.name for kind in kinds]
        assert len(body) <= 2.5 * len(kinds), "the first sentence of an algorithm has to be short"
    assert next(line for line in lines if line.startswith("permfl ")).split()[1:5] == ["PM", "TM", "GM", "*"]
    assert next(line for line in lines if line.startswith("fedavg ")).split()[1:4] == ["PM", "GM", "Federated"]


@pytest.mark.parametrize("command", [(), ("run",), ("resume",), ("show",), ("list",), ("demo",)])
def test_help_has_an_example_and_fits(command: tuple[str, ...]) -> None:
    done = palmette(*command, "--help")
    assert done.exit_code == 0
    assert f"palmette {command[0] if command else 'demo'}" in done.stdout.split("Usage", 1)[1].split("\n", 1)[1]
    assert fits(done.stdout)


def test_new_folders_are_numbered_and_claimed_at_once(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with claimed(None, tmp_path, "demo", first=0) as path:
            (path / "kept").touch()
            names.append(path.name)
    assert names == ["demo", "demo-2", "demo-3"]
    with claimed(None, tmp_path, "x") as one, claimed(None, tmp_path, "x") as two:
        assert (one.name, two.name) == ("x-1", "x-2")
    assert not one.exists()  # nothing came of it


def test_the_command_line_itself_does_not_load_torch() -> None:
    folder = str(Path(configure.__code__.co_filename).parents[1])
    # The package's own __init__ is left out: what it loads is not the command line's doing.
    bare = f"import sys, types; m = types.ModuleType('palmette'); m.__path__ = [{folder!r}]"
    look = "sys.modules['palmette'] = m; import palmette.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"{bare}; {look}"], check=False).returncode == 0


# -- stopping and going on -------------------------------------------------------------------------------------------------


def start(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"{word!r} was never told; exit code {process.wait()}")


def test_a_stopped_run_leaves_130_and_resumes_to_its_end() -> None:
    words = ["--tree", "2x3", "--rounds", "80", "--set", "local_steps=5", "--set", "team_steps=5"]
    process = start("run", "permfl", *words, "--out", "one", "--set", "evaluate_every=50")
    wait_for(process, "round 1/80")
    refused = palmette("resume", "one")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "palmette resume one" in errors
    assert "Traceback" not in errors
    assert refused.exit_code == 2
    assert "another process" in refused.stderr
    unfinished = palmette("show", "one")
    assert unfinished.exit_code == 0
    assert "of 80 rounds done; go on with: palmette resume one" in unfinished.stdout
    assert json.loads(palmette("show", "one", "--json").stdout)["finished"] is False
    done = palmette("resume", "one", "--json")
    assert done.exit_code == 0, done.stderr
    assert "going on after round" in done.stderr
    assert load("one").curve()[80] == json.loads(done.stdout)["models"]["PM"]["accuracy"]


def test_resuming_a_finished_run_says_so() -> None:
    palmette("run", "permfl", *TINY, "--out", "one")
    before = {path.name: path.read_bytes() for path in Path("one").iterdir()}
    again = palmette("resume", "one")
    assert again.exit_code == 0
    assert "finished" in again.stderr
    assert {path.name: path.read_bytes() for path in Path("one").iterdir()} == before


def test_a_pipe_that_closes_early_is_no_traceback() -> None:
    process = start("list", "algorithms")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert "Traceback" not in errors


def test_a_terminal_gets_nested_bars() -> None:
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", "COLUMNS": "80"}
    words = [*COMMAND, "run", "permfl", *TINY]
    process = subprocess.Popen(words, stderr=side, stdout=subprocess.DEVNULL, env=environment)
    os.close(side)
    seen, limit = b"", time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            seen += (part := os.read(main, 65536))
        except OSError:  # Linux tells the end of a terminal so
            break
        if not part:
            break
    os.close(main)
    assert process.wait(timeout=60) == 0, seen
    for word in (b"rounds", b"server asks", b"teams ask", b"PM"):
        assert word in seen
    assert b"round 2/2" not in seen


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_drawing_gets_lines(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with watching("x", console=Console(force_terminal=True, file=io.StringIO())) as observer:
        assert isinstance(observer, Bars)
    monkeypatch.setenv(variable, value)
    with watching("x", console=Console(force_terminal=True, file=io.StringIO())) as observer:
        assert isinstance(observer, Lines)


def test_bars_know_the_exchanges_of_a_round_after_the_first_and_fit() -> None:
    console = Console(force_terminal=True, color_system=None, width=80, file=io.StringIO())
    assert isinstance(console.file, io.StringIO)
    bars = Bars("a method with a long name")
    pictures = []

    class Eyes(Bars):
        def exchange(self, tier: int) -> None:
            bars.exchange(tier)
            console.print(bars.picture())
            pictures.append(console.file.getvalue())  # type: ignore[attr-defined]
            console.file.truncate(0)
            console.file.seek(0)

    eyes = Eyes("")
    eyes.begin, eyes.round = bars.begin, bars.round  # type: ignore[method-assign]
    execute(
        configure("permfl", file=None, options={"tree": "2x3"}, assignments=["rounds=2", "team_steps=3"]), observer=eyes
    )
    asked = [next(line for line in picture.splitlines() if "teams ask" in line) for picture in pictures]
    assert [line.split()[-2] for line in asked] == ["1/?", "2/?", "3/?", "3/?", "1/3", "2/3", "3/3", "3/3"]
    assert "PM" not in pictures[0]
    assert "test after round 1" in pictures[-1]
    assert fits("\n".join(pictures))


def test_a_run_is_told_before_the_curvature_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()  # finding it takes minutes where a network meets many samples
    told: list[str] = []

    def look(simulation: Simulation) -> list[str]:
        told.append(screen.getvalue())
        return []

    monkeypatch.setattr(execution, "warnings_of", look)
    config = configure("permfl", file=None, options={"tree": "2x3"}, assignments=["rounds=1", "data.unseen=0.2"])
    execute(config, observer=Lines("x", Console(file=screen, width=80)))
    assert told[0].startswith("x: 6 devices (1 of them unseen), 1 round")


def test_lines_say_from_which_round_a_score_is() -> None:
    console = Console(file=io.StringIO(), width=80)
    lines = Lines("x", console)
    scores: Any = {"PM": Scores("PM", {"accuracy": torch.tensor([1.0])}, torch.tensor([2.0]))}
    lines.round(1, scores)
    lines._told = -10.0
    lines.round(2, None)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == ["x: round 1/0  PM 0.500", "x: round 2/0  PM 0.500 (after round 1)"]


def test_listed_experiments_are_those_that_can_be_reproduced() -> None:
    done = palmette("list", "experiments")
    assert done.exit_code == 0
    assert "l2gd-table1" in done.stdout
    assert "palmette reproduce" in done.stdout
    assert "samples come to devices" not in done.stdout  # that belongs to the data sets
    assert fits(done.stdout)
