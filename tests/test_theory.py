"""Theory: curvature against eigenvalues, PerMFL's conditions by hand, measured contraction against the bound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette.algorithms import PerMFL, algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import curvature, smoothness
from palmette.learner.smoothness import products
from palmette.population import make_population
from palmette.runs import run
from palmette.task import make_task
from palmette.theory import advice, check, measure, optimum, unchecked, warnings_of
from palmette.theory.conditions import down
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


def test_curvature_of_softmax_regression_is_its_known_bound() -> None:
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
    assert found.smoothness == pytest.approx(max(bounds) + 0.01)
    assert found.start == pytest.approx(0.2 * max(bounds) + 0.01)  # where all ten classes are equally likely
    assert found.convexity == 0.01
    assert found.exact


def test_an_automatic_step_is_the_largest_stable_one() -> None:
    simulation = prepared(algorithm("permfl", alpha="auto", lam=0.5))
    smooth = curvature(simulation.learner).smoothness
    assert vars(simulation.algorithm)["alpha"] == pytest.approx(1 / (smooth + 0.5))
    simulation.step()
    assert bool(simulation.model().isfinite().all())


def test_conditions_of_theorem_1_by_hand() -> None:
    given = {"alpha": 0.1, "lam": 4.0, "gamma": 10.0, "eta": 0.01, "beta": 0.05, "batch_size": "full"}
    simulation = prepared(PerMFL(**given, team_steps=100, local_steps=40))
    found = check(simulation)
    bent = curvature(simulation.learner, convexity=True)
    smooth, convex = bent.smoothness, bent.convexity
    rows = {one.what: one for one in found.conditions}
    assert rows["alpha"].high == pytest.approx(1 / (smooth + 4))
    assert rows["eta"].high == pytest.approx(1 / 28)
    assert rows["beta"].high == pytest.approx(1 / 20)
    assert rows["gamma"].low == 8
    assert rows["lam"].low == pytest.approx(2 * smooth)
    assert rows["eta"].diverges == pytest.approx(2 / 14)
    mu = 40 * convex / (14 * convex + 40)
    assert found.constants["mu_F~"] == pytest.approx(mu)
    assert found.rate == pytest.approx(1 - 0.05 * mu / 2)
    assert found.constants["effective server step s"] == pytest.approx(0.5 * 4 / 14 * (1 - (1 - 0.14) ** 100))
    assert found.holds
    assert 1 < rows["team_steps"].least <= 100
    assert 1 < rows["local_steps"].least <= 40


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
    assert warning.startswith("alpha = 50 is more than twice the largest stable value")
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
    given = {"lam": 30.0, "gamma": 61.0, "eta": 1 / 182, "beta": 1 / 122, "alpha": 0.02}
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
    assert rows["eta~"].high == pytest.approx(1 / (6 * top * (3 + 128 * top / mean)))  # half of what is printed
    assert rows["alpha"].high == pytest.approx(1 / (smooth + 25))
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
    found = check(prepared(algorithm("al2sgd", refresh=0.2, smoothness=40.0, convexity=0.5)))
    expected = found.constants["Lc"]
    assert found.wanted["iterations for 1e-3 by the order alone, its constant left out"] == pytest.approx(
        (5 + math.sqrt(expected / 0.1)) * math.log(1e3)
    )


def test_too_small_a_smoothness_is_warned_of_and_named_after_divergence() -> None:
    for method in (algorithm("l2gd", smoothness=0.1), algorithm("al2sgd", smoothness=0.1, convexity=0.05)):
        (warning,) = warnings_of(prepared(method))
        assert warning.startswith("smoothness = 0.1 is far below the curvature of the losses, 1.6")
        assert advice(prepared(method)).startswith("Raise smoothness from 0.1 to at least 1.7")
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
    assert f"to at most {down(found, 2)}" in advice(loaded)


def test_a_method_without_a_step_to_set_is_told_of_its_pulls() -> None:
    assert "lower the pulls" in advice(prepared(algorithm("al2sgd")))


def test_a_server_that_overshoots_its_edges_is_warned_of() -> None:
    (warning,) = warnings_of(prepared(algorithm("sfedhp", beta=3.0)))
    assert warning.startswith("beta = 3 is more than twice the largest stable value, 1")
    rows = {one.what: one for one in check(prepared(algorithm("sfedhp", beta=3.0))).conditions}
    assert rows["beta"].divergent
    assert warnings_of(prepared(algorithm("sfedhp", beta=3.0, eta=1e-4))) == []


def test_a_network_is_never_taken_for_convex_whatever_its_l2() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("dnn", population.shape, population.classes, l2=0.1)
    found = check(Simulation(PerMFL(), population, task, rounds=1, dtype=torch.float64))
    assert found.constants["mu_f"] == 0
    assert found.theorem.startswith("PerMFL, Theorem 2")
    assert "L_f is an estimate at the initial model from all devices" in found.notes[-1]


def test_settings_beyond_all_numbers_are_refused() -> None:
    for extreme in ({"smoothness": 1e308}, {"smoothness": 1e-300}):
        with pytest.raises(BadInput, match=r"so large or so small|lam and gamma are so large"):
            check(prepared(algorithm("al2sgd", **extreme)))


# -- automatic steps ------------------------------------------------------------------------------------------------------


def test_an_automatic_step_meets_the_theorem_on_the_most_curved_of_all_devices() -> None:
    population = regression("10x4")
    population.x[60 * 1 : 60 * 2] *= 4  # the second device, which an even choice of sixteen leaves out
    simulation = Simulation(algorithm("permfl", alpha="auto"), population, task_of(population), rounds=1)
    largest = max(float(np.linalg.eigvalsh(a)[-1]) for a, _ in quadratics(population))
    alpha = vars(simulation.algorithm)["alpha"]
    assert alpha == pytest.approx(1 / (largest + 0.1))
    assert alpha <= 1 / (largest + 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_devices_tell_l2gd_and_al2sgd_meets_the_theorems(dtype: torch.dtype) -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("mclr", population.shape, population.classes, l2=0.1)
    for name in ("l2gd", "al2sgd"):
        simulation = Simulation(algorithm(name, iterations=2), population, task, rounds=1, dtype=dtype)
        simulation.step()
        spectrum = Simulation(algorithm(name), population, task, rounds=1, dtype=torch.float64).learner.spectrum
        assert spectrum is not None
        if name == "l2gd":
            assert float(simulation.stores[2].rows["smoothness"][0, 0]) >= spectrum.largest
            continue
        smooth, inverse = simulation.stores[2].rows["constants"][0].double().tolist()
        assert smooth >= float(spectrum.batch_smoothness(torch.arange(6), 1).max())
        assert 1 / inverse <= 0.1
        assert 1 / inverse == pytest.approx(0.1, rel=1e-5)


def test_warnings_look_at_all_devices_and_tell_what_is_safe() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("mclr", population.shape, population.classes)
    simulation = Simulation(algorithm("permfl", alpha=1.0, lam=0.0), population, task, rounds=1)
    (warning,) = warnings_of(simulation)
    spectrum = simulation.learner.spectrum
    assert spectrum is not None
    assert f"stable value, {down(1 / spectrum.at_start, 2)}" in warning
    assert f"up to {down(1 / spectrum.largest, 2)} it is safe" in warning
    assert f"at most {down(1 / spectrum.largest, 2)}." in advice(simulation)


def test_a_run_that_nothing_is_wrong_with_is_not_looked_at_any_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("eigenvalues were solved for")

    simulation = prepared(PerMFL(alpha=0.01))
    monkeypatch.setattr(torch.linalg, "eigvalsh", refuse)
    assert warnings_of(simulation) == []


def test_a_rho_that_single_precision_takes_for_zero_is_what_is_blamed() -> None:
    population = regression("2x2")
    simulation = Simulation(algorithm("sfedhp", rho=1e-300, alpha=5.0), population, task_of(population), rounds=1)
    assert advice(simulation).startswith("Raise rho from 1e-300 to about")


def test_pulls_that_leave_no_local_step_are_refused() -> None:
    with pytest.raises(BadInput, match="there would be almost no local steps; lower lam and gamma"):
        prepared(algorithm("l2gd", lam=1e300))


def test_the_curvature_of_a_large_network_is_not_looked_for_before_a_run_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    people = make_population("digits", tree="2x2")
    task = make_task("vgg", people.shape, people.classes, channels=[4, 4], norm="none")
    weights = (
        64 * 4 * 9 + 16 * 4 * 36 + 10 * 16
    )  # places x channels x window, pooled after each convolution; then a linear layer
    assert products(task, people.features(torch.zeros(1, dtype=torch.int64))) == weights + 64 * 4 + 16 * 4 + 10
    simulation = Simulation(PerMFL(alpha=100.0), people, task, rounds=1)
    assert not unchecked(simulation)
    assert len(warnings_of(simulation)) == 1
    monkeypatch.setattr(smoothness, "_WORK", 1000)
    assert "takes long to find" in unchecked(simulation)
    assert warnings_of(simulation) == []
    run("permfl", people, task, rounds=1, settings={"local_steps": 1, "team_steps": 1}, out=tmp_path / "run")
    assert "are not held against the curvature" in (tmp_path / "run" / "log.txt").read_text()
