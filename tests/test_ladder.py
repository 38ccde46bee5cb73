"""Ladder: each tier in its turn, steps implicit in the pull, and pulls that are found by a survey."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.algorithms import algorithm
from palmette.algorithms.ladder import Ladder
from palmette.blocks.survey import Survey
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner.directions import Directions
from palmette.population import Population
from palmette.reproduce.hierarchical import population as as_population
from palmette.task import make_task
from palmette.testing.problems import regression, simulate
from palmette.theory import hlm
from palmette.theory.components import components
from test_components import nested

QUIET: dict[str, Any] = {"batch_size": "full", "alpha": 0.2}


def solved(people: Population, ids: list[int], pull: float = 0.0, centre: torch.Tensor | None = None) -> torch.Tensor:
    """Solve ``mean_j f_j(w) + pull/2 |w - centre|^2`` over some devices, by samples; f is half the mean squared error."""
    left, right, total = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 0
    for i in ids:
        first, count = int(people.start[i]), int(people.train[i])
        x, y = people.x[first : first + count], people.y[first : first + count]
        left, right, total = left + x.T @ x, right + x.T @ y, total + count
    left, right = left / total + pull * torch.eye(3, dtype=torch.float64), right / total
    return torch.linalg.solve(left, right if centre is None else right + pull * centre)


def test_one_step_is_implicit_in_the_pull_by_hand() -> None:
    # One device with x = 1, y = 3 (twice): the gradient at theta is theta - 3.
    people = Population(
        tree=pm.Tree.parse("1x1"),
        x=torch.ones(3, 1, dtype=torch.float64),
        y=torch.full((3,), 3.0, dtype=torch.float64),
        start=torch.tensor([0, 3]),
        train=torch.tensor([2]),
    )
    given = {
        "share": 0.5,
        "gamma": 1.0,
        "lam": 3.0,
        "local_steps": 1,
        "tune_steps": 1,
        "alpha": 0.5,
        "batch_size": "full",
    }
    run = simulate(Ladder(**given), people, 2)
    x, w = (float(run.stores[tier].rows["model"]) for tier in (2, 1))
    assert x == pytest.approx(1.5)  # 0 - 0.5 (0 - 3)
    assert w == pytest.approx((1.5 - 0.5 * (1.5 - 3) + 0.5 * 1 * 1.5) / (1 + 0.5 * 1))  # 2.0
    theta = float(run.device_models(torch.tensor([0])))
    assert theta == pytest.approx((2 - 0.5 * (2 - 3) + 0.5 * 3 * 2) / (1 + 0.5 * 3))  # 2.2


def test_every_tier_ends_at_the_minimiser_of_its_own_objective() -> None:
    people = regression([2, 3], unequal=True)
    run = simulate(
        Ladder(share=0.5, lam=0.7, gamma=0.4, local_steps=1, tune_steps=300, **QUIET), people, 600, dtype=torch.float64
    )
    x = solved(people, [0, 1, 2, 3, 4])
    teams = [solved(people, ids, 0.4, x) for ids in ([0, 1], [2, 3, 4])]
    own = [solved(people, [i], 0.7, teams[i > 1]) for i in range(5)]
    for rows, wanted in (
        (run.stores[2].rows["model"], [x]),
        (run.stores[1].rows["model"], teams),
        (run.device_models(torch.arange(5)), own),
    ):
        torch.testing.assert_close(rows, torch.stack(wanted), atol=1e-9, rtol=0)


def test_an_infinite_pull_takes_the_model_above_as_it_is() -> None:
    run = simulate(Ladder(share=0.5, lam=math.inf, gamma=math.inf, local_steps=2), regression([2, 2]), 6)
    x = run.stores[2].rows["model"]
    assert torch.equal(run.device_models(torch.arange(4)), x.expand(4, -1))
    assert run.adapt_steps == 0
    assert run.algorithm.outline(run.tree, 6) == {"global_rounds": 6, "team_rounds": 0}


def test_with_everything_above_it_is_federated_averaging() -> None:
    people = regression([2, 3], unequal=True)
    given = {"local_steps": 3, "batch_size": 5, "alpha": 0.05}
    ladder = simulate(Ladder(share=0.5, lam=1.0, gamma=math.inf, **given), people, 5)
    fedavg = simulate(algorithm("fedavg", **given), people, 5)
    torch.testing.assert_close(ladder.stores[2].rows["model"], fedavg.stores[1].rows["model"])


@pytest.mark.parametrize("pull", [0.0, 1e3, 1e12])
def test_no_pull_is_too_strong(pull: float) -> None:
    run = simulate(Ladder(share=0.5, lam=pull, gamma=pull, local_steps=5, **QUIET), regression([2, 2]), 8)
    assert bool(run.device_models(torch.arange(4)).isfinite().all())


def test_pulls_by_name_are_each_nodes_own() -> None:
    people = regression("2x2")
    names = people.tree.names(0)
    lam = dict.fromkeys(names, math.inf) | {names[1]: 0.0}
    run = simulate(Ladder(share=0.5, lam=lam, gamma=1.0, local_steps=2), people, 4)
    rows, teams = run.device_models(torch.arange(4)), run.stores[1].rows["model"]
    assert torch.equal(rows[0], teams[0])
    assert not torch.equal(rows[1], teams[0])
    assert torch.equal(rows[2:], teams[1].expand(2, -1))


def test_directions_of_equal_strength_are_one_pull() -> None:
    layout = make_task("mclr", (6,), 3).layout
    rows = torch.randn(4, layout.width, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(4, 6, 2, dtype=torch.float64))[0]
    strength = torch.tensor([[0.1], [1.0], [10.0], [1e6]], dtype=torch.float64)
    pull = Directions(basis, strength.expand(4, 2), strength, strength)
    torch.testing.assert_close(pull.times(rows, layout), strength * rows)
    lr = torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(pull.damped(rows, layout, lr), rows / (1 + 0.3 * strength))


def test_a_strong_direction_stays_and_a_free_one_moves() -> None:
    people = regression("1x2")
    task = make_task("linear", people.shape, None)
    run = Simulation(Ladder(batch_size="full"), people, task, rounds=1, dtype=torch.float64)
    from palmette.protocol import Device

    node = Device(run.learner, torch.zeros(2, dtype=torch.int64), run.tree, torch.arange(2), **run._where())
    basis = torch.eye(3, dtype=torch.float64)[:, :1].expand(2, 3, 1)
    none, strong = torch.zeros(2, 1, dtype=torch.float64), torch.full((2, 1), 1e9, dtype=torch.float64)
    start = torch.ones(2, task.layout.width, dtype=torch.float64)
    moved = node.descend(start, steps=200, lr=0.3, pull=Directions(basis, strong, none, none), centre=start)
    torch.testing.assert_close(moved[:, 0], start[:, 0], atol=1e-6, rtol=0)
    gradient = node.gradient(moved, "full")
    torch.testing.assert_close(gradient[:, 1:], torch.zeros_like(gradient[:, 1:]), atol=1e-8, rtol=0)


# -- what a survey finds -----------------------------------------------------------------------------------------------


def drawn(spread: tuple[float, float, float], sizes: tuple[int, ...] = (12,) * 10, seed: int = 0) -> Population:
    return as_population(hlm.draw(sizes, samples=25, dimension=6, seed=seed, spread=spread))


def surveyed(method: Any, people: Population, model: str = "linear", **options: Any) -> Simulation:
    task = make_task(model, people.shape, people.classes, **options)
    run = Simulation(method, people, task, rounds=2, seed=3, threads=1)
    run.step()
    return run


def report_of(run: Simulation, tier: int) -> dict[str, torch.Tensor]:
    node = run.node(tier, torch.arange(run.tree.size(tier)))
    return run.algorithm.report(node, run.stores[tier].read(node.ids))


def pulls_of(run: Simulation, tier: int) -> torch.Tensor:
    return report_of(run, tier)["pull"].double()


@pytest.mark.parametrize("survey", ["moments", "sums"])
def test_pulls_follow_from_the_true_variances(survey: Any) -> None:
    people = drawn((3.0, 1.0, 2.0))
    run = surveyed(Ladder(survey=survey), people)
    # The pull of a mixed model: noise over the tier's variance, for the mean loss of n samples.
    assert pulls_of(run, 0).mean() == pytest.approx(2.0 / 1.0 / 25, rel=0.25)
    assert pulls_of(run, 1).mean() == pytest.approx(2.0 / 3.0 / (25 * 12), rel=0.35)


def test_both_ways_to_survey_find_the_same() -> None:
    people = drawn((0.5, 0.2, 1.0))
    one, other = (surveyed(Ladder(survey=way), people) for way in ("moments", "sums"))
    torch.testing.assert_close(pulls_of(one, 0), pulls_of(other, 0), rtol=1e-5, atol=0)
    torch.testing.assert_close(pulls_of(one, 1), pulls_of(other, 1), rtol=1e-5, atol=0)


def test_devices_that_are_alike_take_their_teams_model() -> None:
    people = drawn((1.0, 1e-9, 1.0), seed=4)
    run = surveyed(Ladder(), people)
    assert bool((pulls_of(run, 0) > 10).all())


@pytest.mark.parametrize("tree", ["30", "6x5", "3x2x5"])
@pytest.mark.parametrize("given", [{}, {"survey": "sums"}, {"directions": True}])
def test_the_ledger_counts_the_exchanges_that_the_outline_tells(tree: str, given: dict[str, Any]) -> None:
    people = regression(tree, samples=20)
    method = Ladder(local_steps=2, **given)
    run = surveyed(method, people)
    server, lowest = Survey(method.survey, method.directions).exchanges(people.tree)
    asked = {tier: entry.exchanges for (round_, tier), entry in run.ledger.entries.items() if round_ == 0}
    assert asked[people.tree.top] == server + 1  # and one of the round itself
    if people.tree.top > 1:
        assert asked[1] == (lowest + 1) * people.tree.size(1)
    width = run.task.layout.width
    for tier, (often, carried) in enumerate(
        Survey(method.survey, method.directions).carried(people.tree, run.task.layout)
    ):
        entry = run.ledger.entries[0, tier + 1]
        plan = 4 * 2 * people.tree.top if not method.directions else 4 * people.tree.top * (2 + 3)
        trained = (2 * 4 * width + plan) * people.tree.size(tier)  # the models of the round itself, and what was found
        assert entry.exchanges == often + people.tree.size(tier + 1)
        assert entry.bytes_up + entry.bytes_down - trained == pytest.approx(
            carried, rel=0.0 if people.tree.top < 3 else 0.07
        )
    told = method.outline(people.tree, 2)
    assert told["survey_exchanges_with_the_server"] == server


def test_a_deep_tree_finds_the_variance_of_every_tier() -> None:
    generator = np.random.default_rng(1)
    tree = pm.Tree.parse("12x6x8")
    region = 2.0 * generator.normal(size=(12, 4))
    team = np.repeat(region, 6, 0) + 1.0 * generator.normal(size=(72, 4))
    device = np.repeat(team, 8, 0) + 0.5 * generator.normal(size=(576, 4))
    x = generator.normal(size=(576, 12, 4))
    y = np.einsum("nmd,nd->nm", x, device) + generator.normal(size=(576, 12))
    people = Population(
        tree=tree,
        x=torch.from_numpy(x.reshape(-1, 4)),
        y=torch.from_numpy(y.reshape(-1)),
        start=torch.arange(577) * 12,
        train=torch.full((576,), 12),
    )
    run = surveyed(Ladder(), people)
    samples = (12, 12 * 8, 12 * 8 * 6)
    for tier, variance in enumerate((0.25, 1.0, 4.0)):
        assert 1.0 / float(pulls_of(run, tier).mean()) / samples[tier] == pytest.approx(variance, rel=0.45), tier


def test_a_network_and_the_logistic_loss_are_surveyed_too() -> None:
    people = pm.make_population("digits", tree="3x4", seed=0, shift="rotate")
    assert bool(pulls_of(surveyed(Ladder(), people, "dnn", hidden=[16]), 0).isfinite().all())
    two = Population.from_arrays(
        np.random.default_rng(0).normal(size=(240, 3)).astype("float32"),
        np.random.default_rng(1).integers(0, 2, 240),
        device=np.repeat(np.arange(12), 20),
        team=np.repeat(np.arange(3), 80),
    )
    assert bool(pulls_of(surveyed(Ladder(), two, "logistic"), 1).isfinite().all())


def test_participation_does_not_change_what_a_survey_finds() -> None:
    from palmette.links import Link, Participation

    people = drawn((3.0, 1.0, 2.0))
    task = make_task("linear", people.shape, None)
    links = {0: Link(Participation("fraction", 0.5))}
    run = Simulation(Ladder(), people, task, rounds=2, seed=3, threads=1, links=links)
    run.step()
    found = pulls_of(run, 0)
    told = ~found.isnan()
    assert 0 < int(told.sum()) < people.devices
    assert found[told].tolist() == pytest.approx(pulls_of(surveyed(Ladder(), people), 0)[told].tolist(), rel=1e-5)
    # Who was never told uses the model of its team.
    ids = (~told).nonzero().squeeze(1)
    teams = run.models_of(1, torch.from_numpy(run.tree.parents[0])[ids])
    assert torch.equal(run.device_models(ids), teams)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (Ladder(directions=True), "for linear models"),
        (algorithm("permfl", lam="auto"), None),
    ],
)
def test_what_a_network_cannot_have_is_refused(method: Any, told: str | None) -> None:
    people = pm.make_population("digits", tree="2x2", seed=0)
    if told is None:
        surveyed(method, people, "dnn", hidden=[8])
        return
    with pytest.raises(BadInput, match=told):
        surveyed(method, people, "dnn", hidden=[8])


def test_a_loss_of_ones_own_needs_pulls_by_number() -> None:
    people = regression("2x2")
    task = pm.Task(torch.nn.Linear(3, 1), loss=lambda output, target: (output[:, 0] - target).abs())
    with pytest.raises(BadInput, match="a loss of your own"):
        simulate(Ladder(), people, 1, task)


def test_directions_without_automatic_pulls_are_refused() -> None:
    with pytest.raises(BadInput, match="directions = true"):
        simulate(Ladder(lam=1.0, gamma=1.0, share=0.5, directions=True), regression("2x2"), 1)


# -- when there is a survey, and what a run says of it -----------------------------------------------------------------


def test_pulls_that_are_all_given_need_no_survey_and_the_global_model_has_half_the_rounds() -> None:
    people = regression("2x2")
    method = Ladder(lam=1.0, gamma=1.0, local_steps=2)
    run = simulate(method, people, 6)
    assert not method.surveys
    assert method.outline(people.tree, 6) == {"global_rounds": 3, "team_rounds": 3}
    assert all(entry.exchanges <= 2 for (_, tier), entry in run.ledger.entries.items() if tier == people.tree.top)
    assert "moments" not in run.stores[0].rows


@pytest.mark.parametrize("pull", [1e30, 1e38])
def test_a_huge_pull_of_teams_gives_them_no_turn(pull: float) -> None:
    people = regression("2x2")
    assert Ladder(lam=1.0, gamma=pull).outline(people.tree, 6) == {"global_rounds": 6, "team_rounds": 0}
    run = surveyed(Ladder(gamma=pull, local_steps=2), people)
    assert report_of(run, people.tree.top)["rounds_of_turn"].tolist() == [2]


def test_the_outline_says_that_a_survey_asks_everybody_and_that_the_turns_come_later() -> None:
    tree = pm.Tree.parse("2x2")
    told = Ladder().outline(tree, 6)
    assert "whatever the participation" in told["survey_asks"]
    assert "rounds of turn" in told["turns"]
    assert "whatever the participation" in algorithm("permfl", lam="auto").outline(tree, 6)["survey_asks"]
    # With gamma and share given, the turns are known before anybody is asked.
    known = Ladder(gamma=0.1, share=0.5).outline(tree, 6)
    assert (known["global_rounds"], known["team_rounds"]) == (3, 3)
    assert "survey_asks" in known
    assert "turns" not in Ladder().outline(pm.Tree.parse("4"), 6)


@pytest.mark.parametrize("tree", ["2x3", "2x2x2"])
def test_the_turns_that_a_survey_found_are_reported(tree: str) -> None:
    run = simulate(Ladder(local_steps=2), regression(tree, samples=20), 7)
    rounds = [report_of(run, tier)["rounds_of_turn"] for tier in range(1, run.tree.tiers)]
    assert sum(float(one.mean()) for one in rounds) == 7
    assert all(len(one.unique()) == 1 for one in rounds)
    assert rounds[-1].item() >= 1


def test_nodes_with_an_infinite_pull_are_counted() -> None:
    run = surveyed(Ladder(), drawn((1.0, 1e-12, 1.0), seed=1))
    told = report_of(run, 0)
    assert told["model_above_as_it_is"].tolist() == told["pull"].isnan().long().tolist()
    assert int(told["model_above_as_it_is"].sum()) == run.tree.devices
    assert int(report_of(run, 1)["model_above_as_it_is"].sum()) == 0


@pytest.mark.parametrize("tree", ["12x1", "1x12", "10x4x1", "10x1x4"])
@pytest.mark.parametrize("survey", ["moments", "sums"])
def test_tiers_that_cannot_be_told_apart_are_held_together_as_in_the_advice(tree: str, survey: Any) -> None:
    people = nested(tree, (0.5,) * pm.Tree.parse(tree).top, samples=20, seed=1)
    run, found = surveyed(Ladder(survey=survey), people), components(people)
    for tier in range(people.tree.top):
        taken = bool(report_of(run, tier)["model_above_as_it_is"].all())
        assert taken == (found.ratios[tier] == 0), tier
        if not taken:
            assert float(pulls_of(run, tier).mean()) == pytest.approx(found.pull(tier), rel=0.5)
    asked = Survey(survey).carried(people.tree, run.task.layout)
    for tier, (often, carried) in enumerate(asked):
        entry = run.ledger.entries[0, tier + 1]
        assert entry.exchanges == often + people.tree.size(tier + 1)
        assert entry.bytes_up + entry.bytes_down == pytest.approx(carried, rel=0.2)


# -- automatic pulls of other methods ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["permfl", "pfedmt", "l2gd", "l2gd-coin"])
def test_automatic_pulls_are_those_of_the_mixed_model(name: str) -> None:
    people = drawn((3.0, 1.0, 2.0))
    given: dict[str, Any] = {"iterations": 5} if name.startswith("l2gd") else {"local_steps": 1, "alpha": 0.05}
    run = surveyed(algorithm(name, lam="auto", gamma="auto", **given), people)
    assert pulls_of(run, 0).mean() == pytest.approx(2.0 / 25, rel=0.25)
    assert pulls_of(run, 1).mean() == pytest.approx(2.0 / 3.0 / (25 * 12), rel=0.35)


def test_permfl_takes_no_pull_that_would_hold_its_models_still() -> None:
    people = drawn((1e-9, 1e-9, 1.0))
    run = surveyed(algorithm("permfl", lam="auto", gamma="auto", alpha=0.25, local_steps=2, team_steps=5), people)
    assert pulls_of(run, 0).tolist() == pytest.approx([2.0] * people.devices)
    assert pulls_of(run, 1).tolist() == pytest.approx([0.4] * 10)


def test_a_theorem_wants_numbers() -> None:
    from palmette import theory

    people = regression("2x2")
    method = algorithm("permfl", lam="auto")
    run = Simulation(method, people, make_task("linear", people.shape, None), rounds=1)
    with pytest.raises(BadInput, match="pulls that are numbers"):
        theory.check(run)


def test_a_pull_below_zero_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(
        BadInput, match=r"greater than or equal to 0 or should be one value per node name, written \{name=value\}"
    ):
        algorithm("ladder", lam=-1)
    with pytest.raises(BadInput, match=r"or should be a list or should be one value per node name"):
        algorithm("ladder", gamma=-1)
