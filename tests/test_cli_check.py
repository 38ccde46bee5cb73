"""The command ``palmette check``: what a theorist sees."""

from __future__ import annotations

import json
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
    steps = ["lam=8", "gamma=18", "eta=0.019", "beta=0.027", "alpha=0.085"]
    words = [word for step in steps for word in ("--set", step)]
    done = CliRunner().invoke(app, ["check", "permfl", *SMALL, *words, "--measure", "--plot", "bound.png", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holds"] is True
    assert {row["what"] for row in told["conditions"]} == {"alpha", "eta", "beta", "gamma", "lam"}
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
        (["al2sgd", "iterations=8", "convexity=1", "smoothness=20"], "Lyapunov function Psi", "an iteration"),
        (
            ["sfedhp", "centre=device", "gamma_1=0", "gamma_2=0", "eta=1e-7", "team_steps=2"],
            "mean over rounds of F(x^t) - F*",
            "the least it can be",
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
    assert "no bound, as the theorem asks for eta~ at most" in " ".join(done.stdout.split())
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
