"""The command ``palmette check``: what a theorist sees."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palmette.cli.app import app

SMALL = ["--tree", "2x3", "--set", "model.l2=0.1", "--rounds", "2", "--set", "batch_size=full"]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_check_tells_what_holds_and_what_does_not_in_80_columns() -> None:
    done = CliRunner().invoke(app, ["check", "permfl", "--set", "preset=published", *SMALL])
    assert done.exit_code == 0, done.output
    assert "Theorem 1 (strongly convex)" in done.stdout
    assert "effective server step s" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_check_as_json_with_a_measured_run_and_its_plot() -> None:
    steps = ["lam=31", "gamma=63", "eta=0.0053", "beta=0.0079", "alpha=0.021", "team_steps=20", "local_steps=10"]
    words = [word for step in steps for word in ("--set", step)]
    done = CliRunner().invoke(app, ["check", "permfl", *SMALL, *words, "--measure", "--plot", "bound.png", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holds"] is True
    asked = {"alpha", "eta", "beta", "gamma", "lam", "team_steps", "local_steps"}
    assert {row["what"] for row in told["conditions"]} == asked
    assert len(told["measured"]["distance"]) == 3
    assert told["measured"]["distance"][2] <= told["measured"]["bound"][2]
    assert Path("bound.png").read_bytes().startswith(b"\x89PNG")


TINY = [
    "--tree",
    "2x2",
    "--set",
    "data.partition=few",
    "--set",
    "model.l2=1",
    "--rounds",
    "2",
    "--set",
    "batch_size=full",
    "--measure",
]
TINY += ["--seeds", "2", "--plot", "bound.png"]


@pytest.mark.parametrize(
    ("words", "quantity", "remark"),
    [
        (["l2gd", "iterations=8"], "squared distance of the device models", "noise ball"),
        (["l2gd-coin", "iterations=8"], "squared distance of the device models", "noise ball"),
        (["al2sgd", "iterations=8"], "Lyapunov function Psi", "an iteration"),
        (
            ["sfedhp", "centre=device", "gamma_1=0", "gamma_2=0", "eta=1e-7", "team_steps=2", "alpha=0.02"],
            "mean over rounds of F(x^t) - F*",
            "delta^2",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_method_is_measured_beside_its_own_bound(words: list[str], quantity: str, remark: str) -> None:
    settings = [word for setting in words[1:] for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["check", words[0], *TINY, *settings, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])["measured"]
    assert told["quantity"].startswith(quantity)
    assert remark in told["remarks"][0]
    assert len(told["runs"]) == (1 if words[0] == "sfedhp" else 2)
    assert len(told["distance"]) == 3
    assert all(value <= bound for value, bound in zip(told["values"], told["bound"], strict=True))
    assert Path("bound.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_a_table_of_80_columns_with_its_bound() -> None:
    done = CliRunner().invoke(app, ["check", "l2gd", *TINY, "--set", "iterations=8"])
    assert done.exit_code == 0, done.output
    assert "measured: squared distance of the device models to the optimum" in done.stdout
    assert "│     2 │         16 │" in done.stdout
    said = " ".join(done.stdout.split())
    assert "the mean over 2 seeds" in said
    assert "the bound allows" in said
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_settings_outside_the_theorem_are_measured_without_a_bound_and_it_is_said() -> None:
    done = CliRunner().invoke(app, ["check", "sfedhp", *TINY, "--set", "gamma_1=0", "--set", "gamma_2=0"])
    assert done.exit_code == 0, done.output
    assert "there is no bound, as the theorem needs centre = device, eta~ at most" in " ".join(done.stdout.split())
    assert "measured: squared distance of the global model to the optimum" in done.stdout
    assert Path("bound.png").exists()


def test_a_network_falls_under_the_theorem_for_losses_that_are_not_convex() -> None:
    done = CliRunner().invoke(app, ["check", "permfl", "--tree", "2x3", "--model", "dnn", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["theorem"].startswith("PerMFL, Theorem 2")
    assert told["rate"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedavg"], "no theorem of fedavg"),
        (["permfl", "--plot", "x.png"], "--measure"),
        (["permfl", "--measure", "--plot", "nowhere/x.png"], "no folder nowhere"),
        (["permfl", "--model", "dnn", "--tree", "2x3", "--measure"], "convex model"),
        (["permfl", "--set", "gamma=0"], "above 0"),
        (["l2gd", "--seeds", "3"], "--measure"),
        (["l2gd", "--measure", "--seeds", "0"], "--seeds"),
        (["l2gd", "--measure", "--plot", "."], "is a folder"),
        (["l2gd", "--measure", "--tree", "2x3"], "model.l2=0.1"),
        (["al2sgd", "--model", "dnn", "--tree", "2x3", "--measure"], "convex model"),
        (["l2gd", "--tree", "2x1", "--set", "model.l2=1", "--set", "eta=1e300", "--measure"], "nothing to measure"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["check", *words])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_failing_conditions_are_an_exit_code_only_where_it_is_asked_for() -> None:
    words = ["check", "permfl", "--tree", "2x2", "--set", "model.l2=0.1"]
    loose, strict = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--strict"]))
    assert (loose.exit_code, strict.exit_code) == (0, 1)
    assert loose.stdout == strict.stdout
    assert "nothing is promised, as" in loose.stdout
    assert "every round" not in loose.stdout.split("nothing is promised")[1].split("note ")[0]
    held = CliRunner().invoke(app, ["check", "l2gd", "--tree", "2x2", "--set", "model.l2=0.1", "--strict"])
    assert held.exit_code == 0, held.output
    assert "the bound is multiplied by" in held.stdout


@pytest.mark.parametrize("name", ["permfl", "pfedmt", "l2gd", "l2gd-coin", "al2sgd", "sfedhp"])
def test_suggested_options_can_be_pasted_and_make_all_conditions_hold(name: str) -> None:
    words = [
        "check",
        name,
        "--tree",
        "2x2",
        "--rounds",
        "3",
        "--set",
        "model.l2=0.1",
        "--set",
        "participation.devices=0.5",
    ]
    words += ["--set", 'as_published=["device-pull"]'] if name == "permfl" else []
    done = CliRunner().invoke(app, [*words, "--suggest"])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    lines = done.stdout.split("settings that meet the theorem:\n")[1].splitlines()
    many = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
    pasted = shlex.split("\n".join(lines[:many]).replace("\\\n", " "))
    told = CliRunner().invoke(app, [*words, *pasted, "--strict", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout.splitlines()[-1])["holds"] is True
    assert "participation.devices=all" in pasted


def test_suggestions_are_in_the_json_too() -> None:
    done = CliRunner().invoke(app, ["check", "al2sgd", "--tree", "2x2", "--suggest", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])["suggest"]
    assert told["settings"] == {}
    assert "--set model.l2=0.1" in told["obstacle"]


def test_a_long_measurement_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.cli.check._SECONDS", 0.0)
    done = CliRunner().invoke(app, ["check", "l2gd", *TINY, "--set", "iterations=2"])
    assert done.exit_code == 0, done.output
    assert "looking for the optimum: gradient 1 has a largest entry of" in done.stderr
    assert "seed 1: round 2 of 2" in done.stderr
