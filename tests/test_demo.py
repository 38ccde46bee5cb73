"""The demo: fair, true on all its seeds, readable, and well-behaved when it is stopped or may not write."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.cli.demo import run_demo, show_demo
from palmette.report.numbers import Comparison, Entry
from palmette.runs import load
from palmette.studies.demo import CASES, CONTESTANTS, SEEDS, STEPS, Case, Contestant, config_of
from palmette.studies.study import Study

pytestmark = pytest.mark.xdist_group("demo")
QUICK = [Contestant("local", "Local training", "local", {"PM": "It is alone."})]
COMMAND = [sys.executable, "-c", "from palmette.cli.app import app; app()", "demo"]

Shown = tuple[dict[str, Comparison], str, Path]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    base = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    found = run_demo(base, seeds=SEEDS[:1], quiet=True, jobs=1, console=console)
    assert isinstance(console.file, io.StringIO)
    return {case.key: one for case, one in zip(CASES, found, strict=True)}, console.file.getvalue(), base / "demo"


def models(comparison: Comparison) -> Mapping[str, Entry]:
    return {f"{entry.name} {entry.kind}": entry for entry in comparison.entries}


def ahead(comparison: Comparison, one: str, other: str) -> float:
    """The least lead of one model over another on any seed."""
    entries = models(comparison)
    return min(a - b for a, b in zip(entries[one].values, entries[other].values, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_every_device_takes_as_many_steps_with_every_method_and_on_the_same_samples(case: Case, demo: Shown) -> None:
    samples = set()
    for contestant in CONTESTANTS:
        for seed in SEEDS[:1]:
            result = load(demo[2] / case.key / f"{contestant.key}-{seed}")
            tuning = result.config.settings["tune_steps"] if contestant.tuned else 0
            assert result.timings["device_steps"] + 40 * tuning == 40 * STEPS, contestant.key
            samples.add((seed, str(result.config.data), str(result.config.tree), str(result.config.participation)))
    assert len(samples) == 1


def test_the_demo_is_a_study_that_shows_itself_again(demo: Shown) -> None:
    study, console = Study(demo[2]), Console(file=io.StringIO(), width=80, highlight=False)
    assert study.finished
    assert study.plan.kind == "demo"
    show_demo(study, console=console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == demo[1]


def test_where_all_are_alike_one_model_is_best(demo: Shown) -> None:
    alike = demo[0]["alike"]
    assert alike.best.kind == "GM"
    assert ahead(alike, "FedAvg GM", "Local training PM") > 0.15
    assert ahead(alike, "FedAvg GM", "FedAvg in each team TM") > 0.005


def test_where_teams_are_apart_each_is_best_by_itself(demo: Shown) -> None:
    apart = demo[0]["apart"]
    assert apart.best.kind in ("TM", "PM")
    assert ahead(apart, "FedAvg in each team TM", "FedAvg GM") > 0.12
    assert ahead(apart, "FedAvg in each team TM", "FedAvg + fine-tuning PM") > 0.05
    assert ahead(apart, "FedAvg in each team TM", "Local training PM") > 0.08
    assert "each team" in apart.best.name or apart.best.name == "PerMFL"  # on one seed
    assert apart.best.mean - models(apart)["FedAvg in each team TM"].mean < 0.03


def test_where_teams_are_related_tiers_with_personal_models_are_best(demo: Shown) -> None:
    related = demo[0]["related"]
    assert related.best.kind == "PM"
    for other in ("FedAvg + fine-tuning PM", "FedAvg in each team + fine-tuning PM", "Hierarchical FedAvg TM"):
        assert ahead(related, "PerMFL PM", other) > 0, other
    assert related.best.mean - models(related)["PerMFL PM"].mean < 0.01


def test_where_each_device_has_a_task_of_its_own_nobody_is_better_than_alone(demo: Shown) -> None:
    own = demo[0]["own"]
    assert own.best.mean - models(own)["Local training PM"].mean < 0.01
    assert ahead(own, "Local training PM", "FedAvg GM") > 0.02


def test_the_demo_explains_its_words_before_it_uses_them(demo: Shown) -> None:
    text = demo[1]
    table = text.index("test accuracy in %")
    assert text.index("personal model") < text.index("team model") < text.index("global model") < table
    assert all(case.title in text[:table] for case in CASES)
    assert all(contestant.label in text[table:] for contestant in CONTESTANTS)
    assert f"each device takes {STEPS} gradient steps" in " ".join(text.split())
    assert "dear" not in text


def test_the_demo_ends_with_a_plot_a_page_and_where_everything_is(demo: Shown) -> None:
    _, text, folder = demo
    assert (folder / "demo.png").stat().st_size > 10_000
    assert str(folder / "demo.png") in text
    assert f"page  {folder / 'report.html'}" in text
    assert f"open  palmette report {folder} --open" in text
    page = (folder / "report.html").read_text()
    assert all(case.about in page for case in CASES)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {case.key for case in CASES}
    (line,) = (line for line in text.splitlines() if line.startswith("next"))
    assert load(line.split()[-1]).config.algorithm == "permfl"


def test_the_demo_can_be_read_at_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_demo(Path("runs"), contestants=QUICK, seeds=(0, 1), quiet=True, jobs=1, console=Console(file=io.StringIO()))
    for width in (60, 80):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        show_demo(Study(Path("runs/demo")), QUICK, console=console)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert ("standard deviation" in text) == ("±" in text.split("Mean of")[0]) == (width == 80)


def test_a_second_demo_takes_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        run_demo(
            tmp_path,
            cases=CASES[:1],
            contestants=QUICK,
            seeds=(0,),
            quiet=True,
            jobs=1,
            console=Console(file=io.StringIO()),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "demo-2"}


def test_settings_that_do_not_come_to_the_steps_are_refused() -> None:
    hierfavg = next(one for one in CONTESTANTS if one.key == "hierfavg")
    with pytest.raises(AssertionError, match="does not come to"):
        config_of(CASES[0], hierfavg, {"team_steps": 7})


# -- as a process ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_at_once_and_says_what_is_kept(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(COMMAND, cwd=tmp_path, text=True, **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    assert "population" in process.stdout.readline()  # told before anything is loaded
    # Two runs go on at once, and either may be done first.
    assert re.match(r"1/96 alike/(local|fedavg), seed 0: PM ", process.stderr.readline())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("palmette: the demo was stopped with ")
    assert last.endswith("go on with: palmette resume runs/demo")


# -- where it may not write ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_one_may_not_write_to_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o500)
    done = CliRunner().invoke(app, ["demo", "--quiet"])
    tmp_path.chmod(0o700)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "start the demo where you may write" in done.stderr


def test_a_file_in_the_way_of_the_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("in the way")
    done = CliRunner().invoke(app, ["demo", "--quiet"])
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"cannot make a folder in {tmp_path / 'runs'}" in done.stderr
