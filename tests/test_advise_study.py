"""The study behind `palmette advise`: regrets by hand, a small run of the command, and a sample of very many devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import palmette as pm
from palmette.cli.app import app
from palmette.reproduce import own_names, read
from palmette.reproduce.advising_plots import regrets
from palmette.studies.advising.families import CONFIGURATIONS, FAMILIES, configurations
from palmette.studies.advising.outcome import ADVISOR, LABELS, Foretold, Outcome
from palmette.studies.advising.populations import CASES, case_of
from palmette.studies.advising.sampling import MOST, sampled

FAMILY_KEYS = [family.key for family in FAMILIES]


def test_the_halves_are_equal_and_of_every_kind() -> None:
    halves = {half: [case for case in CASES if case.half == half] for half in ("fixed", "judged")}
    assert len(CASES) >= 20
    assert len(halves["fixed"]) == len(halves["judged"])
    for cases in halves.values():
        assert {case.model for case in cases} == {"mclr", "linear", "dnn"}


def test_every_configuration_has_the_same_steps() -> None:
    made = list(configurations("classes", 3.0))
    assert len(made) == CONFIGURATIONS == 60
    for one in made:
        each = one.settings["local_steps"] * one.settings.get("team_steps", 1) + one.settings.get("personal_steps", 0)
        assert each * one.rounds + one.settings.get("tune_steps", 0) == 400


def made_up() -> Outcome:
    """Two seeds of one population: the first family has .7 and .9, the second .9 and .8, all others nothing."""
    scores = {key: [0.0, 0.0] for key in FAMILY_KEYS}
    scores |= {FAMILY_KEYS[0]: [0.7, 0.9], FAMILY_KEYS[1]: [0.9, 0.8], "ladder": [0.9, 0.86], ADVISOR: [0.8, 0.8]}
    case = case_of("digits-mixed")
    told = [
        Foretold(case, 0, "fedavg-tuned", 0.5, 0.4, 0.6, 0.55),
        Foretold(case, 0, "local", 0.7, 0.6, 0.8, 0.85),
    ]
    return Outcome(
        scores={case.name: scores}, foretold=told, seconds={(case.name, 0): (4.0, 0.1), (case.name, 1): (6.0, 0.4)}
    )


def test_regret_is_against_the_family_that_is_best_on_average() -> None:
    found, case = made_up(), case_of("digits-mixed")
    assert found.best(case) == FAMILY_KEYS[1]
    assert found.regret(case, ADVISOR) == pytest.approx(0.05)
    assert found.regret(case, "ladder") == pytest.approx(-0.03)
    assert found.cases("judged") == [case]
    assert found.cases("fixed") == []


def test_coverage_gains_and_costs_by_hand() -> None:
    found, cases = made_up(), [case_of("digits-mixed")]
    assert found.coverage(cases) == 0.5
    predicted, true, names = found.gains(cases)
    assert (predicted, true, names) == ([pytest.approx(0.2)], [pytest.approx(0.3)], ["digits-mixed"])
    assert found.cost(cases) == pytest.approx(0.05)


def test_nothing_of_the_picture_of_regrets_lies_outside_it_and_all_means_can_be_told_apart() -> None:
    kept = json.loads((Path(__file__).parents[1] / "docs" / "measured" / "advise.json").read_text(encoding="utf-8"))
    found = Outcome(scores={one["name"]: one["scores"] for one in kept["populations"]})
    figure = regrets(found)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in (axes.xaxis.label, *axes.texts, *axes.get_yticklabels()):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, text.get_text()
    zero = axes.transData.transform((0, 0))[0]
    means = [axes.transData.transform(one.get_offsets()[0])[0] for one in axes.collections[1::2]]
    assert min(abs(mean - zero) for mean in means) > 5  # pixels


@pytest.mark.slow
def test_the_command_runs_the_study_and_goes_on(tmp_path: Path) -> None:
    words = [
        "reproduce",
        "advise",
        "--only",
        "linear-teams",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    (population,) = told["populations"]
    assert set(population["scores"]) <= set(LABELS)
    assert population["best"] in FAMILY_KEYS
    assert {claim["verdict"] for claim in told["claims"]} <= {"holds", "does not hold"}
    assert all(Path(figure).is_file() for figure in told["figures"])
    before = (tmp_path / "advise-quick" / "classic" / "linear-teams-0.json").stat().st_mtime_ns
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "advise-quick" / "classic" / "linear-teams-0.json").stat().st_mtime_ns == before
    shown = CliRunner().invoke(app, words[:-1])
    assert "Regret" in shown.output
    assert "1 population with 1 seed" in shown.output


def test_a_population_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "advise", "--only", "linear-team", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "did you mean" in done.output or "linear-teams" in done.output


def test_our_own_study_is_listed_and_told_about() -> None:
    assert own_names() == ["advise"]
    assert read("advise").own == "advising"
    done = CliRunner().invoke(app, ["list", "experiments"])
    assert "advise" in done.output


def test_very_many_devices_are_sampled_from_every_team() -> None:
    people = pm.make_population("crowd", tree="6x200", seed=0, samples=4, test_samples=1)
    some, ids = sampled(people, 3)
    assert some.devices == len(ids) <= MOST
    assert np.bincount(people.tree.parents[0][ids]).tolist() == [MOST // 6] * 6
    first = some.x[: int(some.start[1])]
    assert torch.equal(first, people.x[int(people.start[ids[0]]) : int(people.start[ids[0] + 1])])
    assert torch.equal(sampled(people, 3)[1], ids)
    assert not torch.equal(sampled(people, 4)[1], ids)
    found = pm.advise(people)
    assert any("of 1,200 devices were looked at" in doubt for doubt in found.doubts)
    # Pulls are those of whole teams, whose samples are 2.4 times as many as in the sample.
    assert len(found.components.counts[1]) == 6
    assert found.components.counts[1].tolist() == [800.0] * 6


def test_very_many_teams_are_sampled_too() -> None:
    people = pm.make_population("crowd", tree="300x4", seed=0, samples=4, test_samples=1)
    assert 100 <= sampled(people, 0)[0].devices <= MOST
