"""Advice without training: its choices, its predictions, what it says of costs, and the command line around it."""

from __future__ import annotations

import html
import io
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from palmette.algorithms import algorithm
from palmette.cli.advised import picture
from palmette.cli.app import app
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.population import Population, make_population
from palmette.studies.advising.advice import Advice
from palmette.studies.advising.advisor import advise as advise_by
from palmette.studies.advising.calibrating import CONSTANTS, predict, unforeseen
from palmette.studies.advising.predicting import SURROGATES, Foreseen, Held, foresee
from palmette.studies.advising.recipes import costs, recipe
from palmette.studies.advising.telling import not_first, percent, why
from palmette.studies.advising.trying import confirm
from palmette.task import make_task
from palmette.theory.components import components_of
from palmette.theory.surrogate import REAL, seen, solved
from palmette.tree import Tree


def advise(people: Population, model: Any = None, **how: Any) -> Advice:
    """Advise on numbers that were drawn without an intercept by the model that has none."""
    return advise_by(people, "linear" if model is None and people.classes is None else model, **how)


def linear(
    tree: str,
    spreads: tuple[float, ...],
    *,
    noise: float = 1.0,
    train: int = 15,
    tests: int = 30,
    features: int = 4,
    seed: int = 0,
    odd: float = 0.0,
) -> Population:
    """Draw linear models on a tree; spreads are the tiers' variances, the devices' first; the last device may be odd."""
    random, shape = np.random.default_rng(seed), Tree.parse(tree)
    theta = random.normal(size=(1, features))
    for tier in range(shape.top - 1, -1, -1):
        parent = shape.parents[tier]
        theta = theta[parent] + math.sqrt(spreads[tier]) * random.normal(size=(len(parent), features))
    theta[-1] += odd
    each = train + tests
    x = random.normal(size=(shape.devices, each, features))
    y = np.einsum("nmd,nd->nm", x, theta) + math.sqrt(noise) * random.normal(size=(shape.devices, each))
    return Population(
        tree=shape,
        x=torch.from_numpy(x.reshape(-1, features)).float(),
        y=torch.from_numpy(y.reshape(-1)).float(),
        start=torch.arange(shape.devices + 1) * each,
        train=torch.full((shape.devices,), train),
        source="drawn",
    )


@pytest.fixture(scope="module")
def digits() -> Population:
    return make_population("digits", tree="4x5", seed=0, shift="rotate")


@pytest.fixture(scope="module")
def turned(digits: Population) -> Advice:
    return advise(digits)


def test_an_advice_is_told_in_a_few_lines_and_shown_as_tables_in_a_notebook(turned: Advice) -> None:
    first, *others = repr(turned).splitlines()
    assert first == "Advice for digits: 20 devices, model mclr, 400 gradient steps on each device"
    assert [line.split()[0] for line in others] == ["personal", "team", "global"]
    prediction = turned.personal.prediction
    assert prediction is not None
    assert f"{prediction.score:.3f} ({prediction.low:.3f} to {prediction.high:.3f})" in others[0]
    page = turned._repr_html_()
    assert page.count("<table") == 2
    assert f"{prediction.score:.3f}</td>" in page
    assert html.escape(turned.personal.why) in page


def foreseen(people: Population) -> Foreseen:
    samples = seen(people)
    known = samples.moments()
    found, evidence = components_of(samples, known)
    return foresee(samples, known, found, evidence)


# -- what is chosen ----------------------------------------------------------------------------------------------------


def test_ladder_is_the_usual_advice_and_its_pulls_are_those_of_the_components() -> None:
    found = advise(linear("6x6", (0.5, 1.0)))
    assert found.personal.family == "ladder"
    settings = found.personal.recipe.settings
    assert settings["lam"] == pytest.approx(found.components.lam, rel=1e-3)
    assert settings["gamma"] == pytest.approx(found.components.gamma, rel=1e-3)
    assert settings["share"] == pytest.approx(found.components.share)
    taken = found.personal.recipe.rounds * settings["local_steps"] + settings["tune_steps"]
    assert taken == found.steps == 400


@pytest.mark.parametrize(
    ("spreads", "family"),
    [((20.0, 20.0), "local"), ((0.0, 20.0), "teams"), ((0.0, 0.0), "fedavg")],
    ids=["all own", "only teams differ", "nobody differs"],
)
def test_a_simpler_method_is_advised_at_the_corners(spreads: tuple[float, float], family: str) -> None:
    for seed in range(20):  # a ratio that is 0 in truth is found to be 0 about every second time
        people = linear("6x8", spreads, noise=0.5, train=60, seed=seed)
        if (found := advise(people)).personal.family == family:
            assert found.personal.why
            return
    raise AssertionError(f"{family} is never advised")


def test_a_pull_by_sample_is_given_by_name_where_devices_have_different_numbers_of_samples() -> None:
    people = linear("4x5", (1.0, 1.0))
    fewer = people.train.clone()
    fewer[0] = 5
    found = advise(replace(people, train=fewer))
    pulls = found.personal.recipe.settings["lam"]
    assert pulls["device-0"] == pytest.approx(3 * pulls["device-1"], rel=1e-3)


def test_advised_settings_can_be_run_for_all_kinds_of_models(turned: Advice, digits: Population) -> None:
    assert turned.team is not None
    for choice in (turned.personal, turned.team, turned.everybody):
        made = choice.recipe
        method = algorithm(made.algorithm, **made.settings)
        task = make_task("mclr", digits.shape, digits.classes)
        simulation = Simulation(method, digits, task, rounds=made.rounds, seed=0)
        simulation.step()


def test_team_models_are_advised_where_teams_differ(turned: Advice) -> None:
    assert turned.team is not None
    assert turned.team.recipe.model == "TM"
    assert turned.predictions["teams"].score > turned.predictions["fedavg"].score + 0.1
    assert turned.components.shares[1] > 0.5


@pytest.mark.parametrize("tree", ["12", "3x2x4"], ids=["without teams", "four tiers"])
def test_trees_of_other_depths_are_advised_on(tree: str) -> None:
    tiers = Tree.parse(tree).top
    people = linear(tree, (1.0,) * tiers)
    found = advise(people)
    assert (found.team is None) == (tiers == 1)
    assert ("teams" in found.predictions) == (tiers > 1)
    made = recipe("ladder", found.components, alpha=0.1, steps=400, local_steps=10)
    algorithm(made.algorithm, **made.settings).check(people.tree)


def test_a_network_is_advised_on_with_a_doubt(digits: Population) -> None:
    found = advise(digits, {"name": "dnn", "hidden": [8]})
    assert any("inputs only" in doubt for doubt in found.doubts)
    assert "ladder-directions" not in found.predictions


# -- what is predicted -------------------------------------------------------------------------------------------------


def test_no_test_sample_is_looked_at_and_the_same_advice_comes_twice(digits: Population, turned: Advice) -> None:
    place = torch.arange(len(digits.x)) - digits.start[:-1].repeat_interleave(digits.start.diff())
    tests = place >= digits.train.repeat_interleave(digits.start.diff())
    x, y = digits.x.clone(), digits.y.clone()
    x[tests], y[tests] = 0, 0
    again = advise(replace(digits, x=x, y=y)).as_dict() | {"seconds": 0.0}
    assert again == turned.as_dict() | {"seconds": 0.0}


def test_cross_validation_is_that_of_plain_refits() -> None:
    people = linear("2x3", (1.0, 1.0), train=10)
    found = foreseen(people)
    samples = seen(people)
    fold = (torch.arange(60) % 10 + samples.owner) % 5
    missed = torch.zeros(6, dtype=REAL)
    for left in range(5):
        rest = replace(samples, z=samples.z[fold != left], targets=samples.targets[fold != left])
        rest = replace(rest, owner=samples.owner[fold != left])
        models = solved(rest.moments(), samples.parents, found.ratios["both"])[0]
        for sample in (fold == left).nonzero().flatten():
            owner = int(samples.owner[sample])
            missed[owner] += float((samples.z[sample] @ models[owner] - samples.targets[sample]).square().sum())
    torch.testing.assert_close(found.held["both"].sums, missed)


def test_a_family_is_ahead_of_itself_by_nothing() -> None:
    found = foreseen(linear("3x4", (1.0, 1.0)))
    assert found.ahead("ladder", "ladder") == (0, 0)
    ahead, error = found.ahead("ladder", "fedavg")
    assert ahead > 2 * error > 0
    assert found.ahead("fedavg", "ladder")[0] == pytest.approx(-ahead)


def test_predicted_scores_are_near_those_of_the_model_that_samples_were_drawn_from() -> None:
    people = linear("10x8", (1.0, 1.0), noise=1.0, train=40)  # everybody's variance: 4 x (1 + 1 + their centre) + 1
    found = advise(people)
    noise_alone = 1 - 1 / float(people.y.double().var())
    assert found.predictions["ladder"].score == pytest.approx(noise_alone, abs=0.05)
    for one in found.predictions.values():
        assert one.low < one.score < one.high < 1


def test_intervals_are_wider_with_fewer_samples_and_never_leave_what_is_possible() -> None:
    held = Held(0.999, 0.03, torch.zeros(1))
    few, many = (predict("classes", "ladder", held, samples, samples) for samples in (30, 3000))
    assert few.low < many.low
    assert 0 < few.low < few.score < few.high < 1
    assert few.error > many.error
    sure = predict("classes", "ladder", Held(1.0, 0.0, torch.zeros(1)), 100, 0)
    assert sure.score < 1


def test_every_family_has_constants_for_every_kind_of_model() -> None:
    for families in CONSTANTS.values():
        assert set(families) == set(SURROGATES)
        assert all(one.spread > 0 for one in families.values())


def test_a_device_that_is_unlike_all_others_is_told_that_it_would_do_better_alone() -> None:
    odd = linear("4x10", (0.001, 0.001), train=60, odd=8.0)
    found = foreseen(odd)
    gained, error = found.each_ahead("local", "fedavg")
    assert int(gained.argmax()) == 39
    assert float(gained[39]) > 2 * float(error[39])
    alike = advise(linear("4x10", (0.01, 0.01), train=10))
    assert alike.losers == ()


@pytest.mark.parametrize(
    ("steps", "local_steps", "word"),
    [(20, 1, "fewer, models score less"), (100_000_000, 10, "200 to 4,000"), (400, 200, "at least 10 exchanges")],
)
def test_no_score_is_predicted_for_a_budget_far_from_those_studied(
    digits: Population, turned: Advice, steps: int, local_steps: int, word: str
) -> None:
    found = advise(digits, steps=steps, local_steps=local_steps)
    assert word in found.unforeseen
    assert not found.predictions
    assert found.personal.prediction is found.everybody.prediction is None
    assert found.as_dict()["personal"]["predicted"] is None
    assert set(found.ranked) == set(turned.ranked)
    assert not turned.unforeseen
    assert turned.ranked[0] == max(turned.predictions, key=lambda family: turned.predictions[family].score)


@pytest.mark.parametrize("budget", [(200, 10), (4000, 10), (400, 1), (400, 40)])
def test_scores_are_predicted_for_budgets_that_were_checked(budget: tuple[int, int]) -> None:
    assert not unforeseen(*budget)


def tiny(seed: int) -> Population:
    random = np.random.default_rng(seed)
    return Population.from_arrays(
        random.normal(size=(16, 3)).astype("float32"),
        np.array([0, 1] * 8),
        device=np.repeat(np.arange(4), 4),
        team=np.repeat(np.arange(2), 8),
    )


def test_no_family_is_predicted_to_score_less_than_chance() -> None:
    found = [one for seed in range(6) for one in advise(tiny(seed)).predictions.values()]
    assert min(one.score for one in found) == 0.5  # some would be below
    assert all(one.low <= one.score <= one.high for one in found)


def test_reasons_are_softer_where_there_is_a_doubt() -> None:
    sure = components_of(people := seen(linear("6x6", (0.0, 0.0), train=60)), people.moments())[0]
    unsure = replace(sure, doubts=("Little is known.",))
    assert "there is nothing that" in why("nobody differs", replace(sure, doubts=()))
    assert "As far as can be told" in why("nobody differs", unsure)
    assert "there is nothing" not in why("nobody differs", unsure)


def test_numbers_have_an_intercept_unless_the_model_says_otherwise(tmp_path: Path) -> None:
    """A table's label need not be centred."""
    people = linear("3x4", (0.3, 0.3), noise=0.1)
    high = Population(people.tree, people.x, people.y + 100, people.start, people.train)
    assert max(one.score for one in advise_by(high).predictions.values()) > 0.8
    assert max(one.score for one in advise(high).predictions.values()) < 0
    table = tmp_path / "high.csv"
    rows = [f"{n / 10},{device},{n / 5 * device + 50}" for device in range(6) for n in range(40)]
    table.write_text("\n".join(["x,device,y", *rows]))
    columns = ["--set", "data.device=device", "--set", "data.label=y"]
    done = CliRunner().invoke(app, ["advise", "--data", str(table), *columns])
    assert done.exit_code == 0, done.output
    assert "model mclr" in " ".join(done.stdout.split())
    assert "--model" not in done.stdout


def test_trees_without_teams_have_a_doubt_and_hear_nothing_of_teams() -> None:
    found = advise(linear("12", (1.0,)))
    assert any("no teams" in doubt for doubt in found.doubts)
    assert found.personal.family.startswith("ladder")
    assert "team" not in found.personal.why
    assert not {"share", "team_steps"} & set(found.personal.recipe.settings)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture(found))
    before = console.export_text().split("Doubts")[0]
    assert "team" not in before
    assert "gamma" not in before


def test_words_are_counted_and_shares_written_in_one_way() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.976)] == ["0 %", "less than 1 %", "98 %"]
    found = advise(linear("3x2x6", (0.5, 0.0, 0.0), train=10, seed=3), steps=20)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(picture(found))
    shown = console.export_text()
    assert "inf and inf" not in shown
    assert "gamma inf (the model above as it is)" in shown
    assert "ladder, 1 round:" in shown
    assert "98%" not in why("all own", replace(found.components, ratios=(1e3, 1.0, 1.0)))


@pytest.mark.parametrize(
    ("reason", "words"),
    [("both", "less than they may be wrong"), ("only teams differ", "differences shown above"), ("tried", "trial")],
)
def test_the_note_says_why_the_advised_method_is_not_the_first(turned: Advice, reason: str, words: str) -> None:
    assert words in not_first(replace(turned.personal, reason=reason))


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["4x5", "3x2x4"])
@pytest.mark.parametrize("family", ["ladder", "teams", "fedavg", "local"])
def test_costs_are_those_of_a_run(family: str, tree: str) -> None:
    people = linear(tree, (1.0,) * Tree.parse(tree).top, noise=30.0, features=20)
    task = make_task("linear", people.shape, None)
    samples = seen(people)
    found = components_of(samples, samples.moments())[0]
    made = recipe(family, found, alpha=0.01, steps=400, local_steps=10)
    simulation = Simulation(algorithm(made.algorithm, **made.settings), people, task, rounds=made.rounds, seed=0)
    for _ in range(made.rounds):
        simulation.step()
    counted = [one for _, one in sorted(simulation.ledger.totals().items()) if one.exchanges]
    told = costs(made, people.tree, task.layout)
    assert [one.exchanges for one in told] == [one.exchanges for one in counted]
    assert [one.bytes for one in told] == pytest.approx([one.bytes_down + one.bytes_up for one in counted], rel=0.05)


# -- trying ------------------------------------------------------------------------------------------------------------


def test_trying_trains_fewer_candidates_with_more_steps_on_training_samples_alone(digits: Population) -> None:
    advice = advise(digits, steps=80)
    task, lines = make_task("mclr", digits.shape, digits.classes), list[str]()
    tried = confirm(advice, task, local_steps=10, seed=0, told=lines.append)
    assert len(lines) == 4 + 3 + 2
    assert sorted(one.steps for one in tried.candidates) == [20, 40, 80, 80]
    assert tried.candidates[0].score == max(one.score for one in tried.candidates if one.steps == 80)
    assert tried.advice.personal.family == tried.candidates[0].family
    changed = digits.y.clone()
    place = torch.arange(len(changed)) - digits.start[:-1].repeat_interleave(digits.start.diff())
    changed[place >= digits.train.repeat_interleave(digits.start.diff())] = 0
    again = confirm(
        replace(advice, population=replace(digits, y=changed)), task, local_steps=10, seed=0, told=lines.append
    )
    assert again.candidates == tried.candidates


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_too_few_steps_and_text_are_refused(digits: Population) -> None:
    with pytest.raises(BadInput, match="too few"):
        advise(digits, steps=15)
    text = Population(
        tree=Tree.parse("2x2"),
        x=torch.randint(0, 5, (40, 6)),
        y=torch.randint(0, 5, (40,)),
        start=torch.arange(5) * 10,
        train=torch.full((4,), 8),
        classes=5,
    )
    with pytest.raises(BadInput, match="tokens of text"):
        advise(text, "charlstm")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize(
    "words", [["--set", "data.shift=rotate"], ["--tree", "6"], ["--model", "dnn", "--set", "model.hidden=[6]"]], ids=str
)
def test_the_last_line_is_a_command_that_runs_as_printed(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["advise", "--data", "digits", "--steps", "60", *words])
    assert done.exit_code == 0, done.output
    *lines, last = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    program, *command = shlex.split(last)
    assert program == "palmette"
    ran = CliRunner().invoke(app, [*command, "--json", "--quiet"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout.splitlines()[-1])["models"]["PM"]["accuracy"] > 0.3


@pytest.mark.usefixtures("somewhere")
def test_the_picture_says_what_differs_what_to_use_and_what_it_costs() -> None:
    done = CliRunner().invoke(app, ["advise", "--data", "digits", "--set", "data.shift=rotate"])
    for words in ("between teams", "noise within a device", "90 % interval", "A model for every device: Ladder"):
        assert words in done.stdout
    for words in ("A model for every team", "One model for everybody: FedAvg", "Better off alone", "teams - server"):
        assert words in done.stdout


@pytest.mark.usefixtures("somewhere")
def test_json_is_one_line_and_progress_goes_to_standard_error() -> None:
    done = CliRunner().invoke(app, ["advise", "--steps", "40", "--try", "--json"])
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert told["command"].startswith("palmette run ")
    assert len(told["tried"]["candidates"]) == 4
    assert sum(told["components"]["shares"]) == pytest.approx(1)
    assert done.stderr.count("learning rate") == 9


@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--set", "alpha=1"], "chooses the settings"),
        (["--set", "rounds=3"], "chooses the settings"),
        (["--steps", "3"], "too few"),
        (["--tree", "1x1"], "one device only"),
        (["--data", "nosuch"], "no data set"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], word: str) -> None:
    done = CliRunner().invoke(app, ["advise", *words])
    assert done.exit_code == 2
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
