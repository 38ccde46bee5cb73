"""Theory: curvature against eigenvalues, PerMFL's conditions by hand, measured contraction against the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from palmette.algorithms import PerMFL, algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import curvature
from palmette.population import make_population
from palmette.task import make_task
from palmette.theory import advice, check, measure, optimum, warnings_of
from problems import quadratics, regression, simulate, task_of, tree_minimiser


def prepared(method: object, tree: str = "3x4", l2: float = 0.0) -> Simulation:
    population = regression(tree)
    return Simulation(method, population, task_of(population, l2), rounds=20, dtype=torch.float64)  # type: ignore[arg-type]


def test_curvature_of_quadratics_is_their_extreme_eigenvalues() -> None:
    simulation = prepared(PerMFL(), l2=0.3)
    values = np.concatenate([np.linalg.eigvalsh(a) for a, _ in quadratics(simulation.population)]) + 0.3
    found = curvature(simulation.learner, iterations=40, convexity=True)
    assert found.smoothness == pytest.approx(values.max(), rel=1e-6)
    assert found.convexity == pytest.approx(values.min(), rel=1e-6)


def test_curvature_of_softmax_regression_is_at_most_its_known_bound() -> None:
    population = make_population("digits", tree="2x5")
    task = make_task("mclr", population.shape, population.classes, l2=0.01)
    simulation = Simulation(PerMFL(), population, task, rounds=1, dtype=torch.float64)
    found = curvature(simulation.learner, convexity=True)
    bounds = []
    for i in range(10):
        lo = int(population.start[i])
        x = population.features(torch.arange(lo, lo + int(population.train[i])), torch.float64).flatten(1)
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        bounds.append(0.5 * float(torch.linalg.matrix_norm(x, 2) ** 2) / len(x))
    assert 0.1 * max(bounds) < found.smoothness <= max(bounds) + 0.01 + 1e-9
    assert found.convexity == 0.01


def test_an_automatic_step_is_the_largest_stable_one() -> None:
    simulation = prepared(algorithm("permfl", alpha="auto", lam=0.5))
    smooth = curvature(simulation.learner).smoothness
    assert vars(simulation.algorithm)["alpha"] == pytest.approx(1 / (smooth + 0.5))
    simulation.step()
    assert bool(simulation.model().isfinite().all())


def test_conditions_of_theorem_1_by_hand() -> None:
    simulation = prepared(PerMFL(alpha=0.1, lam=4.0, gamma=10.0, eta=0.01, beta=0.05, team_steps=10))
    found = check(simulation)
    bent = curvature(simulation.learner, devices=64, iterations=12, convexity=True)
    smooth, convex = bent.smoothness, bent.convexity
    rows = {one.what: one for one in found.conditions}
    assert rows["alpha"].high == pytest.approx(1 / (smooth + 4))
    assert rows["eta"].high == pytest.approx(1 / 28)
    assert rows["beta"].high == pytest.approx(1 / 20)
    assert rows["gamma"].low == 8
    assert rows["lam"].low == pytest.approx(2 * smooth)
    mu = 40 * convex / (14 * convex + 40)
    assert found.constants["mu_F~"] == pytest.approx(mu)
    assert found.rate == pytest.approx(1 - 0.05 * mu / 2)
    assert found.constants["effective server step s"] == pytest.approx(0.5 * 4 / 14 * (1 - (1 - 0.14) ** 10))
    assert found.holds
    mu_team = 4 * convex / (4 + convex)
    inner = math.log(1 - 0.01 * (mu_team + 10) / 2)
    assert found.wanted["K"] == pytest.approx(math.log(1 - 0.05 * mu / 2) / inner * 20)
    assert found.wanted["L"] == pytest.approx(inner / math.log(1 - 0.1 * convex) * 10)


def test_published_steps_break_the_published_conditions() -> None:
    found = check(prepared(algorithm("permfl", preset="published")))
    broken = {one.what for one in found.conditions if not one.holds}
    assert "beta" in broken  # 0.6 against 1 / (2 * 1.5)
    assert "lam" in broken
    assert found.rate is None


def test_permfl_contracts_at_least_as_fast_as_its_rate() -> None:
    method = algorithm(
        "permfl",
        alpha=0.17,
        lam=4.0,
        gamma=9.0,
        eta=1 / 26,
        beta=1 / 18,
        local_steps=25,
        team_steps=60,
        batch_size="full",
    )
    population = regression("3x4")
    simulation = simulate(method, population, 1)
    found = check(simulation)
    assert found.holds
    assert found.rate is not None
    exact = tree_minimiser(population, [4.0, 9.0])[2][0]
    start = float(np.sum(exact**2))
    for done in range(1, 9):
        error = float(np.sum((simulation.model().numpy() - exact) ** 2))
        assert error <= 2 * found.rate**done * start
        simulation.step()
    assert error < 0.9 * start


def test_a_step_far_too_large_is_warned_of_and_named_after_divergence() -> None:
    simulation = prepared(PerMFL(alpha=50.0))
    (warning,) = warnings_of(simulation)
    assert warning.startswith("alpha = 50 is more than twice the stable")
    assert advice(simulation).startswith("Lower alpha from 50 to at most 0.")
    assert warnings_of(prepared(PerMFL(alpha=0.1))) == []


def test_what_has_no_theorem_is_refused() -> None:
    with pytest.raises(BadInput, match="no theorem of fedavg"):
        check(prepared(algorithm("fedavg")))
    with pytest.raises(BadInput, match="three tiers"):
        check(prepared(algorithm("permfl"), tree="2x2x2"))


@pytest.mark.parametrize("name", ["permfl", "pfedmt"])
def test_the_direct_solver_agrees_with_linear_algebra(name: str) -> None:
    population = regression([2, 3], unequal=True)
    method = algorithm(name, lam=0.5, gamma=0.3)
    simulation = Simulation(method, population, task_of(population), rounds=1, dtype=torch.float64)
    exact = tree_minimiser(population, [0.5, 0.3], weighted=name == "pfedmt")[2][0]
    np.testing.assert_allclose(optimum(simulation).numpy(), exact, atol=1e-7)


def test_a_run_on_digits_comes_near_the_optimum_and_stays_under_the_bound() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("mclr", population.shape, population.classes, l2=0.1)
    given = {"lam": 8.0, "gamma": 18.0, "eta": 1 / 52, "beta": 1 / 36, "alpha": 0.085}
    method = algorithm("permfl", **given, local_steps=20, team_steps=20, batch_size="full")
    simulation = Simulation(method, population, task, rounds=10, dtype=torch.float64)
    checked = check(simulation)
    measured = measure(simulation, checked)
    assert checked.holds
    assert measured.bound is not None
    assert all(distance <= bound for distance, bound in zip(measured.distance, measured.bound, strict=True))
    assert measured.distance[-1] < measured.distance[0]


def test_the_direct_solver_refuses_networks_and_single_precision() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("dnn", population.shape, population.classes)
    with pytest.raises(BadInput, match="convex model"):
        optimum(Simulation(PerMFL(), population, task, rounds=1, dtype=torch.float64))


def test_sfedhp_is_held_against_its_theorem_and_its_own_experiments_fail_it() -> None:
    found = check(prepared(algorithm("sfedhp", preset="published")))
    smooth = found.constants["L_f"]
    rows = {one.what: one for one in found.conditions}
    mean = 25 * 25 * found.constants["mu_f"] / (50 * found.constants["mu_f"] + 625)
    top = 25 + 0.001 / 6e-5
    assert found.constants["L_F"] == pytest.approx(top)
    assert rows["eta~"].value == pytest.approx(1.0)  # 0.05 * 1 * 20
    assert rows["eta~"].high == pytest.approx(1 / (3 * top * (3 + 128 * top / mean)))
    assert rows["alpha"].high == pytest.approx(1 / (smooth + 25 + 0.001 / 6e-5))
    assert not rows["eta~"].holds


def test_l2gd_with_automatic_settings_meets_its_theorem() -> None:
    found = check(prepared(algorithm("l2gd", lam=0.5, gamma=0.2, smoothness=2.0)))
    assert found.holds
    c1, c2 = 0.5 * 0.2 / 0.7, 0.5 * 0.5 / 0.7
    assert found.constants["Lc"] == pytest.approx(c1 + c2 + 2.0)  # Corollary 3.6 equalises the three terms
    assert found.constants["p_0"] == pytest.approx(2 * c1 / (c1 + c2 + 2.0))
    assert found.largest["eta"] == pytest.approx(1 / (2 * (c1 + c2 + 2.0)))
    mu = found.constants["mu_f"]
    assert found.rate == pytest.approx((1 - found.largest["eta"] * mu) ** 100)
    assert not check(prepared(algorithm("l2gd", eta=3.0))).holds


def test_al2sgd_tells_how_many_iterations_it_needs() -> None:
    found = check(prepared(algorithm("al2sgd", refresh=0.2, smoothness=4.0, convexity=0.5)))
    expected = found.constants["Lc"]
    assert found.wanted["iterations to 1e-6, up to a constant"] == pytest.approx(
        (5 + math.sqrt(expected / 0.1)) * math.log(1e6)
    )


def test_too_small_a_smoothness_is_warned_of_and_named_after_divergence() -> None:
    for method in (algorithm("l2gd", smoothness=0.1), algorithm("al2sgd", smoothness=0.1, convexity=0.05)):
        (warning,) = warnings_of(prepared(method))
        assert warning.startswith("smoothness = 0.1 is far below the estimated 1.6")
        assert advice(prepared(method)).startswith("Raise smoothness from 0.1 to at least 1.6")
    (row,) = (one for one in check(prepared(method)).conditions if one.what == "smoothness")
    assert row.divergent
    assert warnings_of(prepared(algorithm("al2sgd", smoothness=1.0))) == []
    assert check(prepared(algorithm("l2gd", smoothness=0.1))).conditions[0].divergent


def test_coins_of_ones_own_are_part_of_what_a_step_may_be() -> None:
    fair, loaded = (
        prepared(algorithm("l2gd", eta=0.2, lam=0.01, gamma=0.001, **coins)) for coins in ({}, {"between": 0.9})
    )
    assert warnings_of(fair) == []
    (warning,) = warnings_of(loaded)  # its local steps are ten times as long
    assert "eta = 0.2 is more than twice" in warning
    found = check(loaded).largest["eta"]
    assert f"to at most {found:.2g}" in advice(loaded)


def test_a_method_without_a_step_to_set_is_told_of_its_pulls() -> None:
    assert "lower the pulls" in advice(prepared(algorithm("al2sgd")))


def test_a_server_that_overshoots_its_edges_is_warned_of() -> None:
    (warning,) = warnings_of(prepared(algorithm("sfedhp", beta=3.0)))
    assert warning.startswith("beta = 3 is more than twice the stable 1")
    rows = {one.what: one for one in check(prepared(algorithm("sfedhp", beta=3.0))).conditions}
    assert rows["beta"].divergent
    assert warnings_of(prepared(algorithm("sfedhp", beta=3.0, eta=1e-4))) == []


def test_a_network_is_never_taken_for_convex_whatever_its_l2() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("dnn", population.shape, population.classes, l2=0.1)
    found = check(Simulation(PerMFL(), population, task, rounds=1, dtype=torch.float64))
    assert found.constants["mu_f"] == 0
    assert found.theorem.startswith("PerMFL, Theorem 2")
    assert "local estimate" in found.notes[-1]


def test_settings_beyond_all_numbers_are_refused() -> None:
    for extreme in ({"smoothness": 1e308}, {"smoothness": 1e-300}):
        with pytest.raises(BadInput, match="so large or so small"):
            check(prepared(algorithm("al2sgd", **extreme)))
