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
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["check", *words])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
