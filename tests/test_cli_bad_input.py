"""What goes wrong at the command line: one line, the right exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.cli.failures import one_line_errors

ONE_ROUND = ["--rounds", "1", "--tree", "2x3"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def refused(*words: str, code: int = 2) -> str:
    """Return the one line that a command was refused with."""
    done = palmette(*words)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("palmette: ")
    assert "Traceback" not in done.stderr
    if code == 2:
        assert [other for other in done.stderr.splitlines() if other.startswith("palmette: ")] == [line]
    return str(line)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prmfl"], ["unknown algorithm 'prmfl'", "'permfl'"]),
        ([], ["name an algorithm", "permfl"]),
        (["permfl", "--data", "diggits"], ["no data set 'diggits'", "'digits'"]),
        (["permfl", "--model", "mclrr"], ["unknown model 'mclrr'", "'mclr'"]),
        (["permfl", "--set", "lamm=1"], ["unknown setting 'lamm'", "'lam'"]),
        (["permfl", "--set", "evalute_every=1"], ["'evalute_every'", "'evaluate_every'"]),
        (["permfl", "--set", "partition=iid"], ["'partition'", "'data.partition'"]),
        (["permfl", "--set", "data.partitoin=iid"], ["'data.partitoin'", "'data.partition'"]),
        (["permfl", "--set", "data.classes_per_devise=2"], ["'data.classes_per_device'"]),
        (["permfl", "--set", "model.hidden=[3]"], ["'model.hidden'", "model.start"]),
        (["permfl", "--set", "engine.bakend=loop"], ["engine.bakend", "'backend'"]),
        (["permfl", "--set", "engine.backend=lop"], ["backend must be"]),
        (["permfl", "--set", "engine.threads=0"], ["engine.threads", "equal to 1, not 0"]),
        (["permfl", "--set", "engine.threads=-1"], ["engine.threads", "equal to 1, not -1"]),
        (["permfl", "--set", "engine.threads=many"], ["engine.threads", "a whole number", "not 'many'"]),
        (["permfl", "--set", "threads=1"], ["'threads'", "'engine.threads'"]),
        (["groupperfl", "--set", "rates=[]"], ["rates", "at least 1"]),
        (["permfl", "--set", "engine.device=abacus"], ["engine.device", "'abacus'"]),
        (["permfl", "--set", "dta.alpha=1"], ["'dta.alpha'", "'data.alpha'"]),
        (["permfl", "--set", "data=mnist"], ["group", "data.name"]),
        (["permfl", "--set", "optimiser=adam"], ["group", "optimiser.momentum"]),
        (["fedadam", "--set", "eta=1"], ["unknown setting 'eta'", "'server_lr'"]),
        (["edge-mixing", "--tree", "2x2x2"], ["edge-mixing is defined on trees of 3 tiers; this one, 2x2x2, has 4"]),
        (["demlearn", "--set", "levels=60"], ["levels", "equal to 16, not 60"]),
        (["permfl", "--set", "alpha"], ["key=value", "'alpha'"]),
        (["permfl", "--set", "=1"], ["key=value"]),
        (["permfl", "--set", "data.name.x=1", "--data", "digits"], ["data.name", "'digits'"]),
        (["permfl", "--set", "preset=publishd"], ["preset 'publishd'", "'published'"]),
        (["permfl", "--set", "alpha=-1"], ["alpha", "greater than 0", "-1"]),
        (["permfl", "--set", "alpha=nan"], ["alpha", "finite", "nan"]),
        (["permfl", "--set", "team_steps=0"], ["team_steps", "1", "not 0"]),
        (["permfl", "--rounds", "0"], ["rounds", "1", "not 0"]),
        (["permfl", "--rounds", "many"], ["--rounds", "integer"]),
        (["permfl", "--seed", "-1"], ["seed", "not -1"]),
        (["permfl", "--set", "participation.devices=1.5"], ["fraction", "1.5"]),
        (["permfl", "--set", "participation.devises=0.5"], ["'devises'", "'devices'"]),
        (["permfl", "--set", "loss=1.5"], ["loss", "1.5"]),
        (["permfl", "--set", "data.test=1.5"], ["test = 1.5"]),
        (["permfl", "--set", "data.shift=rotte"], ["'rotte'", "'rotate'"]),
        (["permfl", "--tree", "40"], ["permfl needs teams"]),
        (["permfl", "--tree", "4y10"], ["'4y10'", "4x10"]),
        (["permfl", "--tree", "400x10"], ["too few"]),
        (["permfl", "--tree", "2x2x3", "--set", "team_steps=[1,2,3]"], ["team_steps has 3", "2 tiers of teams"]),
        (["permfl", "--model", "cnn", "--data", "synthetic"], ["cnn needs images"]),
        (["permfl", "--data", "mnist", "--set", "data.folder=nowhere"], ["mnist.npz", "nowhere"]),
        (["permfl", "--set", "data.folder=nowhere"], ["digits reads no files", "nowhere"]),
        (["permfl", "--data", "crowd", "--set", "data.folder=nowhere"], ["crowd reads no files"]),
        (["permfl", "--tree", "2x2", "--set", "alpha={devise-1 = 0.1}"], ["alpha", "'devise-1'", "'device-1'"]),
        (["permfl", "--tree", "1x2", "--set", "alpha={device-1 = 0.1}"], ["alpha leaves out 'device-0'"]),
        (["permfl", "--tree", "2x2", "--set", "eta={team-0 = 0.1, team-2 = 1}"], ["eta", "'team-2'", "tier 1"]),
        (["fedavg", "--tree", "1x1", "--set", "alpha={team-0 = 0.1}"], ["alpha", "'team-0'", "tier 0"]),
        (["l2gd", "--tree", "1x1", "--set", "lam={x = 0.1}"], ["lam", "'x'", "device-0"]),
        (["al2sgd", "--tree", "1x1", "--set", "gamma={team-0 = 0.1, y = 1}"], ["gamma", "'y'"]),
        (["l2gd", "--tree", "2x1", "--set", "within={team-0 = 0.1}"], ["within", "'team-1'"]),
        (["permfl", "--set", 'tree={"" = ["a", "b"]}'], ["empty name"]),
        (["permfl", "--set", 'tree={north = ["a", ""]}'], ["empty name"]),
        (["permfl", "--set", 'data.test="50%"'], ["test = '50%'", "0.25"]),
        (["permfl", "--set", "data.shift=[1]"], ["no shift [1]", "rotate"]),
        (["permfl", "--set", "data.teams={}"], ["no team formation {}", "random"]),
        (["permfl", "--set", "data.pixels={}"], ["pixels = {}", "'unit'"]),
        (["permfl", "--set", "data.alpha=1e400"], ["alpha = inf"]),
        (["permfl", "--set", f"data.alpha={10**400}"], ["alpha = 1000", "finite"]),
        (["permfl", "--set", f"engine.device={2**64}"], ["engine.device", str(2**64)]),
        (["permfl", "--set", "engine.device=[]"], ["engine.device", "[]"]),
        (["permfl", "--set", "engine.device=cuda:99"], ["engine.device", "'cuda:99'", "cpu"]),
        (["permfl", "--set", 'seed="luck"'], ["seed", "'luck'"]),
        (["permfl", "--set", "seed=true"], ["seed", "True"]),
        (["permfl", "--set", f"seed={2**64}"], ["seed", str(2**64)]),
        (["permfl", "--set", f"seed={'9' * 5000}"], ["seed", "999"]),
        (["permfl", "--set", f"alpha={'[' * 5000}"], ["alpha", "[["]),
        (["permfl", "--set", "data.name=1979-05-27"], ["1979-05-27"]),
        (["permfl", "--set", "a.b.c.d=1"], ["unknown setting 'a.b.c.d'"]),
        (["permfl", "--set", "[/bold]=1"], ["unknown setting '[/bold]'"]),
        (["permfl", "--set", "tree={north = 0, south = 2}"], ["devices of 'north' = 0", "at least 1"]),
        (["permfl", "--set", 'tree={north = ["a"], south = ["a"]}'], ["'a'", "names must differ"]),
        (["permfl", "--tree", "x".join(["1"] * 200)], ["at most 64 tiers"]),
        (["permfl", "--set", "participation.devices=1"], ["may mean one of 10", "'1 device'", "'100%'"]),
        (["permfl", "--set", 'participation.teams="1"'], ["may mean one of 4", "'1 team'", "'100%'"]),
        (["fedavg", "--tree", "10x1", "--set", "participation.devices=1"], ["one of 10 devices", "'1 device'"]),
        (["permfl", "--set", "participation.devices=2 teams"], ["counts teams", "'2 devices'"]),
        (["permfl", "--set", "participation.devices=[2]"], ["participation", "[2]"]),
        (["permfl", "--set", "local_steps=1e18"], ["years on one core", "lower local_steps = 1e+18"]),
        (["permfl", "--set", "team_steps=1e18"], ["years on one core", "lower team_steps = 1e+18"]),
        (["fedavg", "--set", "tune_steps=1e18"], ["years on one core", "lower tune_steps = 1e+18"]),
        (["pfedme", "--set", "prox_steps=1e18"], ["years on one core", "lower prox_steps = 1e+18"]),
        (["ditto", "--set", "personal_steps=1e18"], ["years on one core", "lower personal_steps = 1e+18"]),
        (["fedala", "--set", "first_weight_steps=1e18"], ["years on one core", "lower first_weight_steps = 1e+18"]),
        (["fedrep", "--model", "dnn", "--set", "head_steps=1e18"], ["years on one core", "lower head_steps = 1e+18"]),
        (["l2gd", "--set", "iterations=1e18"], ["years on one core", "lower iterations = 1e+18"]),
        (["fl", "--set", "local_epochs=1e300"], ["years on one core", "lower local_epochs"]),
        (["fl", "--set", "passes=1e18"], ["1e+18 rounds", "lower passes = 1e+18"]),
        (["permfl", "--rounds", "1000000000000"], ["1e+12 rounds", "lower rounds = 1e+12"]),
        (["fedavg", "--set", "batch_size=1e10"], ["one batch", "of memory", "lower batch_size = 1e+10"]),
        (["local", "--tree", "1000000000"], ["a tree of 1e+09 devices"]),
        (["permfl", "--data", "crowd", "--set", "data.samples=1000000000000"], ["of memory", "data.samples"]),
        (
            ["permfl", "--model", "dnn", "--set", "model.hidden=[10000000, 10000000]"],
            ["a layer of 10000000 x 10000000", "of memory", "smaller model"],
        ),
        (["permfl", "--config", "nowhere.toml"], ["no config file", "nowhere.toml"]),
        (["permfl", "--nosuch"], ["--nosuch"]),
    ],
    ids=" ".join,
)
def test_run_refuses(words: list[str], told: list[str]) -> None:
    line = refused("run", *words)
    for part in told:
        assert part in line
    assert not Path("runs").exists()


def test_all_problems_are_told_at_once() -> None:
    line = refused(
        "run", "permfl", "--rounds", "0", "--tree", "4y10", "--set", "alpha=-1", "--set", "lamm=1", "--model", "x"
    )
    for part in ("rounds", "4y10", "alpha", "lamm", "unknown model 'x'"):
        assert part in line


def test_an_unknown_command_or_topic_is_one_line() -> None:
    assert "'list'" in refused("lisst")
    assert "algorithms" in refused("list", "things")


@pytest.mark.parametrize(
    "text", ["algorithm = ", "\xff\xfe", "algorithm = 'permfl'\n[data]\nnme = 'digits'", "rounds = 'many'"]
)
def test_a_broken_config_file_is_refused(text: str) -> None:
    Path("c.toml").write_bytes(text.encode("latin-1"))
    refused("run", "permfl", "--config", "c.toml")


def mnist(folder: Path, labels: int = 10, cut: int | None = None) -> None:
    x, y = np.zeros((40, 28, 28), np.uint8), (np.arange(40) % labels).astype(np.uint8)
    np.savez(folder / "mnist.npz", x_train=x, x_test=x, y_train=y, y_test=y)
    data = (folder / "mnist.npz").read_bytes()
    (folder / "mnist.npz").write_bytes(data[:cut])


def test_a_truncated_data_file_is_refused_by_name(tmp_path: Path) -> None:
    mnist(tmp_path, cut=2000)
    assert "mnist.npz is damaged" in refused("run", "permfl", "--data", "mnist", "--set", f"data.folder={tmp_path}")


def test_labels_outside_the_classes_are_refused(tmp_path: Path) -> None:
    mnist(tmp_path, labels=12)
    assert "labels outside 0..9" in refused("run", "permfl", "--data", "mnist", "--set", f"data.folder={tmp_path}")


def test_folders_that_are_not_runs_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert "not a run" in refused("run", "local", *ONE_ROUND, "--out", "mine")
    assert "is a file" in refused("run", "local", *ONE_ROUND, "--out", "mine/thesis.tex")
    assert "cannot use" in refused("run", "local", *ONE_ROUND, "--out", "mine/thesis.tex/deeper")
    for verb in ("resume", "show"):
        assert "not the folder of a run" in refused(verb, "mine")
        assert "not the folder of a run" in refused(verb, "nowhere")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_folder_that_holds_a_run_is_not_run_over() -> None:
    assert palmette("run", "local", *ONE_ROUND, "--out", "one").exit_code == 0
    assert "holds a run already" in refused("run", "local", *ONE_ROUND, "--out", "one")


def test_a_damaged_run_is_refused() -> None:
    palmette("run", "local", *ONE_ROUND, "--out", "one")
    Path("one/metrics.parquet").write_bytes(b"PAR1 no more")
    assert "metrics.parquet" in refused("show", "one")
    Path("one/config.toml").write_text("algorithm = ")
    assert "config.toml" in refused("show", "one")


@pytest.mark.filterwarnings("default")  # the run warns of it beforehand
def test_divergence_fails_with_1_names_the_setting_and_its_bound_and_keeps_a_state() -> None:
    line = refused("run", "permfl", "--tree", "2x3", "--set", "alpha=1e9", "--out", "one", code=1)
    assert "Lower alpha from 1e+09 to at most 0." in line
    assert "is kept in one" in line
    assert Path("one/config.toml").exists()


def test_warnings_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_errors():
        warnings.simplefilter("always")
        warnings.warn("device x has no test sample", stacklevel=1)
    assert capsys.readouterr().err == "palmette: warning: device x has no test sample\n"


def test_bad_input_in_a_real_process_is_one_line_too() -> None:
    command = [sys.executable, "-c", "from palmette.cli.app import app; app()", "run", "prmfl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr
        == "palmette: unknown algorithm 'prmfl'; did you mean 'permfl'? All there are: palmette list algorithms\n"
    )


def test_a_setting_with_the_name_of_a_group_can_be_set() -> None:
    done = palmette("run", "pfedbayes", "--set", "optimiser=sgd", "--set", "local_steps=1", "--out", "here", *ONE_ROUND)
    assert done.exit_code == 0, done.output
    assert 'optimiser = "sgd"' in Path("here/config.toml").read_text(encoding="utf-8")
