"""What a theorem is about: its conditions, how many steps PerMFL's needs, printed limits, suggested settings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from palmette.algorithms import PerMFL, algorithm
from palmette.cli.configure import literal
from palmette.engines.simulate import Simulation
from palmette.links import Link, Participation
from palmette.population import make_population
from palmette.task import make_task
from palmette.theory import Check, Condition, check, measure, suggest
from palmette.theory.conditions import down, up
from palmette.theory.inner import Begin, Levels, begin
from palmette.theory.objectives import Nested
from problems import regression, task_of
from test_theory import prepared

# -- what a theorem is not about ------------------------------------------------------------------------------------------

HOLD = {"lam": 4.0, "gamma": 9.0, "alpha": 0.15, "eta": 1 / 26, "beta": 1 / 18, "team_steps": 40, "local_steps": 25}


def rows_of(found: Check) -> dict[str, Condition]:
    return {one.what: one for one in found.conditions}


@pytest.mark.parametrize("name", ["permfl", "pfedmt"])
def test_settings_that_meet_the_theorem_have_a_rate(name: str) -> None:
    population = regression([2, 3], unequal=True)
    method = algorithm(name, **HOLD, batch_size="full")
    found = check(Simulation(method, population, task_of(population), rounds=20, dtype=torch.float64))
    assert found.holds
    assert found.rate is not None
    assert found.wanted
    assert any("weighted by samples" in note for note in found.notes) == (name == "pfedmt")


@pytest.mark.parametrize(
    ("name", "changed", "what"),
    [
        ("permfl", {"as_published": ["device-pull"]}, "as_published"),
        ("permfl", {"as_published": ["stale-teams"]}, "as_published"),
        ("pfedmt", {"as_published": ["line-12"]}, "as_published"),
        ("permfl", {"batch_size": 20}, "batch_size"),
        ("permfl", {"team_steps": 1, "local_steps": 1}, "team_steps"),
        ("permfl", {"local_steps": 1}, "local_steps"),
        ("permfl", {"beta": 0.06}, "beta"),
        ("l2gd", {"batch_size": 4}, "batch_size"),
        ("l2gd", {"eta": 0.5}, "eta"),
        ("al2sgd", {"as_published": ["estimator"]}, "as_published"),
        ("al2sgd", {"convexity": 0.9}, "convexity"),
        ("al2sgd", {"smoothness": 2.0}, "smoothness"),
    ],
)
def test_no_rate_is_told_while_a_condition_fails(name: str, changed: dict[str, object], what: str) -> None:
    start = {**HOLD, "batch_size": "full"} if name in ("permfl", "pfedmt") else {"lam": 0.5, "gamma": 0.2}
    assert check(prepared(algorithm(name, **start))).rate is not None
    found = check(prepared(algorithm(name, **{**start, **changed})))
    assert not rows_of(found)[what].holds
    assert not found.holds
    assert found.rate is None
    assert found.wanted == {}


@pytest.mark.parametrize(
    "link", [Link(Participation("count", 1)), Link(Participation("fraction", 0.5)), Link(loss=0.1)]
)
def test_absent_nodes_are_outside_every_theorem(link: Link) -> None:
    population = regression("3x4")
    for method in (algorithm("permfl", **HOLD, batch_size="full"), algorithm("l2gd"), algorithm("al2sgd")):
        simulation = Simulation(
            method, population, task_of(population), rounds=20, dtype=torch.float64, links={0: link}
        )
        found = check(simulation)
        assert not found.holds
        assert found.rate is None


@pytest.mark.parametrize("all_of_them", [Participation("fraction", 1.0), Participation("count", 4)])
def test_asking_for_all_in_other_words_is_asking_for_all(all_of_them: Participation) -> None:
    population = regression("3x4")
    method, links = algorithm("permfl", **HOLD, batch_size="full"), {0: Link(all_of_them)}
    assert check(Simulation(method, population, task_of(population), rounds=20, dtype=torch.float64, links=links)).holds


def test_tiny_steps_are_no_way_around_the_theorem() -> None:
    tiny = {**HOLD, "team_steps": 1, "local_steps": 1, "alpha": 1e-6, "eta": 1e-6, "beta": 1e-3}
    found = check(prepared(algorithm("permfl", **tiny, batch_size="full")))
    assert not found.holds
    assert rows_of(found)["team_steps"].least > 1000


def test_the_fewest_team_and_local_steps_keep_a_run_under_its_bound_and_fewer_are_refused() -> None:
    generator, needed = np.random.default_rng(5), 0
    for seed in range(4):
        population = regression([2, 1, 3], seed=seed, unequal=True)
        loose = algorithm("pfedmt" if seed % 2 else "permfl", **{**HOLD, "alpha": 0.03}, batch_size="full")
        rounds = int(generator.integers(2, 12))
        simulation = Simulation(loose, population, task_of(population), rounds=rounds, dtype=torch.float64)
        team = int(rows_of(check(simulation))["team_steps"].least) + 1
        second = replace(loose, team_steps=team)
        simulation = Simulation(second, population, task_of(population), rounds=rounds, dtype=torch.float64)
        local = int(rows_of(check(simulation))["local_steps"].least)
        exact = Simulation(
            replace(second, local_steps=local), population, task_of(population), rounds=rounds, dtype=torch.float64
        )
        found = check(exact)
        assert found.holds
        measured = measure(exact, found)
        assert measured.bound is not None
        assert all(value <= bound for value, bound in zip(measured.values, measured.bound, strict=True))
        if local == 1:
            continue
        needed += 1
        fewer = replace(second, local_steps=local - 1)
        assert not check(Simulation(fewer, population, task_of(population), rounds=rounds, dtype=torch.float64)).holds
    assert needed


def test_without_strong_convexity_the_gradient_stays_under_the_bound_of_the_proof() -> None:
    population = make_population("digits", tree="2x2")
    task = make_task("mclr", population.shape, population.classes)
    first = Simulation(algorithm("permfl"), population, task, rounds=8, dtype=torch.float64)
    settings = {name: literal(text) for name, text in suggest(first).settings.items()}
    simulation = Simulation(algorithm("permfl", **settings), population, task, rounds=8, dtype=torch.float64)
    found = check(simulation)
    assert found.holds
    assert found.rate is None
    assert found.theorem.startswith("PerMFL, Theorem 2")
    method = simulation.algorithm
    assert isinstance(method, PerMFL)
    objective, slopes = Nested(simulation, method.lam, float(settings["gamma"]), weighted=False), []
    first_value = begin(objective, simulation.model(), found.constants["L_f"], 0.0).value
    for _ in range(8):
        slopes.append(begin(objective, simulation.model(), found.constants["L_f"], 0.0).slope ** 2)
        simulation.step()
    last_value = begin(objective, simulation.model(), found.constants["L_f"], 0.0).value
    assert np.mean(slopes) <= 4 * (first_value - last_value) / (float(settings["beta"]) * 8)


# -- limits and suggestions -----------------------------------------------------------------------------------------------


def test_the_limit_beyond_which_l2gd_diverges_by_hand() -> None:
    found = rows_of(check(prepared(algorithm("l2gd", lam=0.5, gamma=0.2, smoothness=2.0))))["eta"]
    c1, c2 = 0.5 * 0.2 / 0.7, 0.5 * 0.5 / 0.7
    assert found.high == pytest.approx(0.5 / (c1 + c2 + 2.0))
    assert found.diverges == pytest.approx(2 / (c1 + c2 + 2.0))  # four times as long
    assert rows_of(check(prepared(algorithm("l2gd", lam=0.5, gamma=0.2, smoothness=2.0, eta=0.81))))["eta"].divergent
    assert not rows_of(check(prepared(algorithm("l2gd", lam=0.5, gamma=0.2, smoothness=2.0, eta=0.79))))[
        "eta"
    ].divergent


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("permfl", {"lam": 1.0, "gamma": 1.0, "alpha": 3.0, "eta": 3.0, "beta": 3.0}),
        ("permfl", {**HOLD, "batch_size": "full", "team_steps": 1}),
        ("permfl", {**HOLD, "batch_size": "full", "local_steps": 1}),
        ("l2gd", {"eta": 3.0}),
        ("al2sgd", {"convexity": 3.0, "smoothness": 0.3}),
        ("sfedhp", {"alpha": 3.0, "beta": 30.0, "rho": 1e-5}),
    ],
)
def test_a_printed_limit_passes_when_it_is_typed_back(name: str, given: dict[str, object]) -> None:
    found = check(prepared(algorithm(name, **given)))
    tried = 0
    for one in found.conditions:
        if one.holds or one.unknown or one.what not in given:
            continue
        text = one.allowed.removeprefix("at most ").removeprefix("at least ")
        again = check(prepared(algorithm(name, **{**given, one.what: literal(text)})))
        assert rows_of(again)[one.what].holds, (one.what, one.allowed)
        tried += 1
    assert tried
    for setting, limit in found.largest.items():
        again = check(prepared(algorithm(name, **{**given, setting: literal(down(limit))})))
        assert rows_of(again)[setting].holds


def test_limits_are_rounded_inwards_and_values_stay_on_their_side() -> None:
    assert (down(0.123456), up(0.123456), up(8.0, strict=True)) == ("0.1234", "0.1235", "8.008")
    assert (down(0.05), up(0.05), down(26.0), up(1234567.8)) == ("0.05", "0.05", "26", "1.235e+6")
    assert Condition("eta", 0.05, high=0.02).yours == "0.05"
    tight = Condition("eta", 0.123456, high=0.123456)
    assert (tight.yours, tight.allowed, tight.holds) == ("0.1234", "at most 0.1234", True)
    assert Condition("lam", 8.0, low=8.0).allowed == "at least 8.008"
    assert not Condition("lam", 8.0, low=8.0).holds


def test_theorem_3_of_sfedhp_asks_for_what_its_proof_needs_of_lam() -> None:
    population = make_population("digits", tree="2x2")
    task = make_task("mclr", population.shape, population.classes)
    method = algorithm("sfedhp", gamma_1=0.0, gamma_2=0.0, lam_1=35.0, lam_2=100.0)
    found = check(Simulation(method, population, task, rounds=1, dtype=torch.float64))
    row, smooth = rows_of(found)["lam_h"], found.constants["L_f"]
    assert row.value == pytest.approx(3500 / math.hypot(35, 100))
    assert row.least == pytest.approx(math.sqrt(16 * smooth**2 + 1))
    assert not row.holds


@pytest.mark.parametrize(
    ("name", "l2", "given"),
    [
        ("permfl", 0.1, {"preset": "published"}),
        ("pfedmt", 0.1, {"as_published": ["line-12"], "gamma": 0.0}),
        ("permfl", 0.0, {}),
        ("l2gd", 0.1, {"eta": 5.0, "batch_size": 3}),
        ("l2gd-coin", 0.1, {"smoothness": 0.1}),
        ("al2sgd", 0.1, {"convexity": 3.0, "as_published": ["estimator"]}),
        ("sfedhp", 0.1, {}),
        ("sfedhp", 0.0, {"rho": 1e-6}),
    ],
)
def test_suggested_settings_meet_the_theorem_when_they_are_typed(
    name: str, l2: float, given: dict[str, object]
) -> None:
    population = make_population("digits", tree="2x2")
    task = make_task("mclr", population.shape, population.classes, l2=l2)
    links = {0: Link(Participation("count", 1))}
    first = Simulation(algorithm(name, **given), population, task, rounds=4, dtype=torch.float64, links=links)
    found = suggest(first)
    assert not found.obstacle
    assert found.settings.pop("participation.devices") == "all"
    assert found.settings.pop("loss") == "0"
    settings = {key: literal(text) for key, text in found.settings.items()}
    again = check(Simulation(algorithm(name, **{**given, **settings}), population, task, rounds=4, dtype=torch.float64))
    assert again.holds, again.conditions
    if l2 and name != "sfedhp":
        assert f"{again.rate:.6g}" in " ".join(found.achieves)


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("l2gd", "mclr", "model.l2=0.1"),
        ("al2sgd", "mclr", "strongly convex"),
        ("l2gd", "dnn", "dnn has no closed form"),
    ],
)
def test_what_stands_in_the_way_of_a_theorem_is_said(name: str, model: str, says: str) -> None:
    population = make_population("digits", tree="2x2")
    task = make_task(model, population.shape, population.classes)
    found = suggest(Simulation(algorithm(name), population, task, rounds=1, dtype=torch.float64))
    assert found.settings == {}
    assert says in found.obstacle


def test_what_team_and_local_steps_leave_of_the_error_by_hand() -> None:
    # e(4, 1) = 0.8 and e(4, 2) = 4/3, so c = 1/3; with r = 0.3, d = 12 + 0.8 - 0.4 = 12.4 and q = 1 - 0.02 * 12.4 = 0.752.
    # e(12, 0.8) = 0.75 and e(12, 4/3) = 1.2, so a_0 moves by 0.1 of what x does, and H by 1/3 * 12 / 12.8.
    at = Begin(apart=2.0, spread=3.0, slope=1.0, value=5.0)
    found = Levels(1.0, 2.0, 4.0, 12.0, (0.1, 0.1), (0.02, 0.04), 1 / 24, 10, at)
    stays, per = 0.752**2, 4 / 12.4 * 0.3
    follows = 12 / 12.8
    assert found._error(2, 0.3) == pytest.approx((stays, 2 * stays, 3 * per, 0.1 * stays, per / 3 * follows, follows))
    assert found.device == pytest.approx(0.5)  # 1 - 0.1 (4 + 1); the most curved direction is left 0.4 of
    assert replace(found, alpha=(0.01, 0.1)).device == pytest.approx(0.95)


def test_warm_teams_need_no_more_team_steps_for_more_rounds() -> None:
    at = Begin(apart=2.0, spread=3.0, slope=1.0, value=5.0)
    first = Levels(1.0, 2.0, 4.0, 12.0, (0.1, 0.1), (0.02, 0.04), 1 / 24, 10, at)
    needed = {
        warm: [replace(first, rounds=rounds, warm=warm).team_steps() for rounds in (10, 100, 1000)]
        for warm in (False, True)
    }
    assert needed[False] == sorted(set(needed[False]))  # K must grow with T: it is what the theorem says
    assert len(set(needed[True])) == 1
    assert needed[True][0] < needed[False][-1]
    flat = replace(first, convex=-0.1)
    assert replace(flat, warm=True).team_steps() < flat.team_steps()


def test_the_error_of_warm_teams_by_hand() -> None:
    # As above with r = 0: q = 1 - 0.02 * 12.8 = 0.744; the prox moves by 12 / 12.8 of what x does. phi is curved between
    # e(12, 0.8) = 0.75 and e(12, 4/3) = 1.2, and x* is at least 1 / 1.2 away. Followed for two rounds in plain numbers:
    at = Begin(apart=2.0, spread=3.0, slope=1.0, value=5.0)
    warm = Levels(1.0, 2.0, 4.0, 12.0, (0.1, 0.1), (0.02, 0.04), 1 / 24, 2, at, warm=True)
    for steps in range(1, 40):
        left, distance = 0.744**steps, 1.0
        error = left * 2.0 * 1.2
        moved = (1.2 * distance + 12 * error) / 24
        one = (1 - 0.75 / 24) * distance + 0.5 * error
        error = left * (error + 12 / 12.8 * moved)
        two = (1 - 0.75 / 24) * one + 0.5 * error
        shrinks = 0.75 * (1 - left * (1 + 12 / 12.8 * 0.5)) > 12 * left * 12 / 12.8 * 1.2 / 24
        fall = 1 - 0.75 / 48
        assert warm.enough(steps, 0.0) == (shrinks and one <= (2 * fall) ** 0.5 and two <= (2 * fall**2) ** 0.5), steps
    assert not warm.enough(2, 0.0)
    assert warm.enough(5, 0.0)


def test_the_shortest_steps_decide_how_many_are_needed() -> None:
    simulation = prepared(algorithm("permfl", **HOLD, batch_size="full"))
    even = rows_of(check(simulation))
    devices = dict.fromkeys(simulation.tree.names(0), 0.15) | {simulation.tree.names(0)[2]: 0.01}
    found = rows_of(check(prepared(algorithm("permfl", **{**HOLD, "alpha": devices}, batch_size="full"))))
    assert found["local_steps"].least > 5 * even["local_steps"].least
    assert found["alpha"].value == 0.15
    teams = dict.fromkeys(simulation.tree.names(1), 1 / 26) | {simulation.tree.names(1)[1]: 0.005}
    found = rows_of(check(prepared(algorithm("permfl", **{**HOLD, "eta": teams}, batch_size="full"))))
    assert found["team_steps"].least > 5 * even["team_steps"].least
