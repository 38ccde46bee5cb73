"""A sample of the devices is measured before the last round, and every number says which devices it is about."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.text import Text
from rich.console import Console
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import PerMFL
from palmette.cli.app import app
from palmette.engines.evaluation import measure_all, sample
from palmette.engines.simulate import Simulation
from palmette.page.run import run_data
from palmette.population import make_population
from palmette.report.tables import run_report, runs_table, unfinished_report
from palmette.runs import Result, execute, make_config
from palmette.task import make_task
from test_runs import Killer, contents

DEVICES, DRAWN = 40, 12
CROWD: dict[str, Any] = {
    "algorithm": "permfl",
    "settings": {"team_steps": 2, "local_steps": 2},
    "rounds": 4,
    "tree": "4x10",
    "data": {"name": "crowd", "samples": 4, "test_samples": 3},
    "participation": {"devices": 0.2},
    "evaluate_every": 1,
    "evaluate_on": DRAWN,
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def simulation(tree: str = "4x10", seed: int = 0) -> Simulation:
    people = make_population("crowd", tree=tree, samples=2, test_samples=1)
    task = make_task("mclr", people.shape, people.classes)
    return Simulation(PerMFL(team_steps=1, local_steps=1), people, task, rounds=2, seed=seed)


def shown(what: Any) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


# -- who is drawn -----------------------------------------------------------------------------------------------------------


def test_the_sample_is_drawn_by_the_seed_and_stays() -> None:
    one, again, other = simulation(), simulation(), simulation(seed=1)
    first = sample(one, DRAWN)
    assert first is not None
    assert len(first) == len(first.unique()) == DRAWN
    assert bool((first.diff() > 0).all())
    one.step()
    later, same, drawn = sample(one, DRAWN), sample(again, DRAWN), sample(other, DRAWN)
    assert later is not None
    assert same is not None
    assert drawn is not None
    assert torch.equal(first, later)
    assert torch.equal(first, same)
    assert not torch.equal(first, drawn)


def test_a_larger_sample_has_the_smaller_one_in_it() -> None:
    small, large = sample(simulation(), 5), sample(simulation(), 20)
    assert small is not None
    assert large is not None
    assert set(small.tolist()) < set(large.tolist())


@pytest.mark.parametrize("wanted", ["all", "auto", DEVICES, DEVICES + 1])
def test_few_devices_are_all_measured(wanted: int | str) -> None:
    assert sample(simulation(), wanted) is None


def test_of_more_than_ten_thousand_two_thousand_are_drawn_unless_all_are_asked_for() -> None:
    many = simulation("2x5001")
    drawn = sample(many, "auto")
    assert drawn is not None
    assert len(drawn) == 2000
    assert sample(many, "all") is None


def test_what_is_measured_on_a_sample_is_what_all_have_there() -> None:
    made = simulation()
    made.step()
    drawn = sample(made, DRAWN)
    assert drawn is not None
    part, whole = measure_all(made, who=drawn), measure_all(made)
    outside = torch.ones(DEVICES, dtype=torch.bool).index_fill(0, drawn, False)
    for kind, score in part.scores.items():
        assert score.sampled == DRAWN
        assert whole.scores[kind].sampled == 0
        torch.testing.assert_close(score.sums["loss"][drawn], whole.scores[kind].sums["loss"][drawn])
        assert bool((score.count[outside] == 0).all())


# -- what a run says --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return execute(make_config(CROWD), tmp_path_factory.mktemp("sampled") / "run")


def test_every_number_before_the_last_round_is_of_the_sample_and_the_last_of_both(finished: Result) -> None:
    rows = finished.metrics.to_pylist()
    early = {row["on"] for row in rows if row["round"] < 4 or row["when"] == "before"}
    assert early == {"sampled", "sampled participants", "sampled unseen"}
    last = {row["on"] for row in rows if row["round"] == 4 and row["when"] == "after"}
    assert last == early | {"all", "participants", "unseen"}
    single = [row for row in rows if row["tier"] == 0 and row["model"] == "PM" and row["metric"] == "loss"]
    assert sum(row["round"] == 4 and row["on"] == "all" for row in single) == DEVICES
    assert sum(row["round"] == 2 for row in single) == DRAWN
    assert "12 of 40 devices, drawn by the seed" in (finished.folder / "log.txt").read_text()


def test_curves_are_of_the_sample_in_all_rounds_and_the_last_number_of_everybody(finished: Result) -> None:
    assert finished.sampled
    assert (finished.on, finished.curve_on) == ("all", "sampled")
    curve, whole = finished.curve("PM", "loss"), finished.curve("PM", "loss", on="all")
    assert list(curve) == [0, 1, 2, 3, 4]
    assert list(whole) == [4]
    assert finished.last("PM", "loss") == whole[4] != curve[4]
    assert finished.best("PM", "loss")[0] == min(curve.values())
    assert finished.last("PM", "loss", on="sampled") == curve[4]


def test_a_device_outside_of_the_sample_has_its_last_number_and_one_inside_all(finished: Result) -> None:
    rows = finished.metrics.to_pylist()
    inside = next(row["node"] for row in rows if row["tier"] == 0 and row["on"] == "sampled")
    there = {row["node"] for row in rows if row["tier"] == 0 and row["on"] == "sampled"}
    outside = next(row["node"] for row in rows if row["tier"] == 0 and row["node"] not in there)
    assert list(finished.curve("PM", "loss", node=inside)) == [0, 1, 2, 3, 4]
    assert list(finished.curve("PM", "loss", node=outside)) == [4]
    assert finished.last("PM", "loss", node=inside) == pytest.approx(finished.curve("PM", "loss", node=inside)[4])


def test_tables_and_json_say_which_devices_a_number_is_about(finished: Result) -> None:
    text = shown(run_report(finished))
    assert "best (sampled)" in text
    assert (
        "The best and its round are about the sample of devices that was measured in every round (evaluate_on)" in text
    )
    told = finished.summary()
    assert told["on"] == {"models": "all", "best": "sampled"}
    assert told["models"]["PM"]["loss"] == finished.last("PM", "loss")


def test_the_figure_says_which_devices_its_curves_are_about(finished: Result) -> None:
    drawn = pm.figure(finished, "convergence")
    texts = [found.get_text() for found in drawn.findobj(Text)]
    assert any("of a sample of the devices" in text for text in texts)


def test_the_page_says_which_devices_curves_are_about(finished: Result) -> None:
    told = run_data(finished, None)
    assert (told["on"], told["sampled"]) == ("all", True)
    assert told["curves"]["kinds"]["PM"]["rounds"] == [0, 1, 2, 3, 4]
    assert [one["unseen"] for one in told["models"]] == [None] * 3  # nobody is kept out of training


def test_a_run_that_measures_everybody_says_nothing_of_samples() -> None:
    whole = execute(make_config({**CROWD, "rounds": 2, "evaluate_on": "all"}), "whole")
    assert not whole.sampled
    assert "on" not in whole.summary()
    assert "sampled" not in shown(run_report(whole))
    assert {row["on"] for row in whole.metrics.to_pylist()} == {"all", "participants", "unseen"}


def test_a_run_that_is_not_finished_says_that_its_numbers_are_of_the_sample() -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(CROWD), "cut", observer=Killer(2))
    cut = Result("cut")
    assert (cut.on, cut.curve_on) == ("sampled", "sampled")
    assert cut.last("PM", "loss") == cut.curve("PM", "loss")[cut.rounds_done]
    assert "test accuracy of a sample of the devices: PM" in repr(cut)
    assert cut.line()["on"] == {"models": "sampled"}
    assert "(sample)" in shown(runs_table([cut], Path()))
    assert "These numbers are about the sample of devices" in shown(unfinished_report(cut))


def test_devices_kept_out_of_training_are_kept_apart_in_the_sample_too() -> None:
    data = {**CROWD["data"], "unseen": 0.25}
    result = execute(make_config({**CROWD, "data": data, "evaluate_on": 20}), "run")
    assert (result.on, result.curve_on) == ("trained", "sampled trained")
    assert list(result.curve("GM", "loss")) == [0, 1, 2, 3, 4]
    assert result.last("GM", "loss") == result.curve("GM", "loss", on="trained")[4]


def test_held_out_samples_of_the_sample_choose_the_best_round() -> None:
    config = {**CROWD, "engine": {"held_out": 0.25}, "metrics": ["auc"]}
    result = execute(make_config(config), "run")
    chosen = result.curve("PM", "loss", on="sampled held-out")
    assert list(chosen) == [0, 1, 2, 3, 4]
    assert result.best("PM", "loss")[1] == min(chosen, key=lambda round_: chosen[round_])
    assert list(result.curve("PM", "auc")) == [0, 1, 2, 3, 4]


def test_counts_of_an_algorithm_are_those_of_all_after_the_last_round() -> None:
    config = {**CROWD, "algorithm": "l2gd", "settings": {"iterations": 5, "smoothness": 5.0}}
    given = {name: value for name, value in config.items() if name != "participation"}
    sampled = execute(make_config(given), "one")
    whole = execute(make_config({**given, "evaluate_on": "all"}), "two")
    assert sampled.reports == whole.reports
    assert sampled.last("GM", "between_raw") == whole.last("GM", "between_raw")
    assert sampled.curve("GM", "between_raw") == whole.curve("GM", "between_raw")


# -- the same bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3, "auto"])
def test_a_run_with_more_rounds_is_as_if_it_had_had_them_from_the_start(every: int | str) -> None:
    config = {**CROWD, "evaluate_every": every}
    whole = execute(make_config({**config, "rounds": 5}), "whole")
    execute(make_config({**config, "rounds": 1}), "short")
    pm.resume("short", rounds=3)
    assert contents(pm.resume("short", rounds=5).folder) == contents(whole.folder)


def test_a_killed_run_goes_on_to_the_same_bytes(finished: Result) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(CROWD), "cut", observer=Killer(3))
    assert contents(pm.resume("cut").folder) == contents(finished.folder)


def test_the_sample_changes_no_model(finished: Result) -> None:
    whole = execute(make_config({**CROWD, "evaluate_on": "all"}), "whole")
    here, there = contents(finished.folder), contents(whole.folder)
    models = [name for name in here if name.endswith(".safetensors")]
    assert models
    assert all(here[name] == there[name] for name in models)
    assert finished.last("PM", "loss") == whole.last("PM", "loss")


# -- the command line -------------------------------------------------------------------------------------------------------


def test_the_command_line_takes_a_number_of_devices() -> None:
    words = [
        "run",
        "permfl",
        "--data",
        "crowd",
        "--set",
        "data.samples=4",
        "--set",
        "data.test_samples=3",
        "--rounds",
        "2",
    ]
    words += ["--set", "evaluate_on=5", "--set", "settings.team_steps=1", "--out", "one", "--json"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["on"] == {"models": "all", "best": "sampled"}
    assert "(of 5 sampled devices)" in found.stderr


@pytest.mark.parametrize("value", ["0", "-1", "some"])
def test_other_words_are_refused_in_a_line(value: str) -> None:
    found = CliRunner().invoke(app, ["run", "permfl", "--set", f"evaluate_on={value}"])
    assert found.exit_code == 2
    assert "evaluate_on" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
