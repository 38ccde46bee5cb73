"""Theory: curvature against eigenvalues, PerMFL's conditions by hand, measured contraction against the bound."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from palmette.algorithms import PerMFL, algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import curvature, smoothness
from palmette.learner.footprint import footprint
from palmette.learner.smoothness import looked_at
from palmette.population import Population, make_population
from palmette.runs import run
from palmette.task import Task, make_task
from palmette.theory import advice, check, compared, measure, optimum, warnings_of
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
    assert "L_f is estimated on all 6 devices, up to 64 samples of each, at the initial model" in found.notes[-1]


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


# -- the estimate of a network before a run ---------------------------------------------------------------------------------


def network(**options: Any) -> tuple[Population, Task]:
    people = make_population("digits", tree="2x2")
    return people, make_task("vgg", people.shape, people.classes, channels=[4, 4], norm="none", **options)


def test_the_products_and_values_of_a_sample_are_counted_layer_by_layer() -> None:
    people, task = network()
    weights = (
        64 * 4 * 9 + 16 * 4 * 36 + 10 * 16
    )  # places x channels x window, pooled after each convolution; then a linear layer
    made = 64 * 4 + 16 * 4 + 10
    found = footprint(task, people.features(torch.arange(2)))
    assert found.products == weights + made  # a bias each
    windows = 64 * 9 + 16 * 36
    assert found.values >= made + windows
    assert found == footprint(task, people.features(torch.arange(1)))


def test_an_estimate_is_said_and_a_run_that_wants_none_says_so_too(tmp_path: Path) -> None:
    people, task = network()
    simulation = Simulation(PerMFL(alpha=1000.0), people, task, rounds=1)
    (warning,) = warnings_of(simulation)
    assert warning.startswith("alpha = 1000 is more than twice the largest stable value, ")
    told = "step sizes are held against the curvature of the losses at the initial model, estimated on all 4 devices"
    assert compared(simulation).startswith(told)
    settings = {"local_steps": 1, "team_steps": 1, "alpha": 2.5, "lam": 0.0}
    with pytest.warns(UserWarning, match="more than twice"):
        first = run("permfl", people, task, rounds=1, settings=settings, out=tmp_path / "one")
    assert told in (first.folder / "log.txt").read_text()
    assert first.timings["seconds"]["estimate"] > 0
    second = run("permfl", people, task, rounds=1, settings=settings, out=tmp_path / "two", check_steps=False)
    assert "(engine.check_steps = false)" in (second.folder / "log.txt").read_text()
    assert second.timings["seconds"]["estimate"] < first.timings["seconds"]["estimate"]
    assert second.metrics.equals(first.metrics)


def test_an_automatic_step_of_a_network_says_what_was_looked_at(tmp_path: Path) -> None:
    people, task = network()
    settings = {"local_steps": 1, "team_steps": 1, "alpha": "auto", "lam": 0.5}
    result = run("permfl", people, task, rounds=1, settings=settings, out=tmp_path / "run")
    assert (
        "alpha = auto follows from the curvature of the losses at the initial model, estimated on all 4"
        in (result.folder / "log.txt").read_text()
    )
    smooth = curvature(Simulation(PerMFL(), people, task, rounds=1).learner).smoothness
    assert result.config.settings["alpha"] == pytest.approx(1 / (smooth + 0.5))


def test_a_model_beyond_the_work_of_an_estimate_is_looked_at_less_and_at_last_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    people = make_population("digits", tree="4x10")
    task = make_task("dnn", people.shape, people.classes, hidden=[20])
    learner = Simulation(PerMFL(), people, task, rounds=1).learner
    each = footprint(task, people.features(torch.arange(2))).products
    assert looked_at(learner) == (16, 40, int(learner.samples.max()))
    monkeypatch.setattr(smoothness, "_WORK", each * 7 * 200)
    assert looked_at(learner) == (12, 40, 16)
    assert curvature(learner).devices == 12
    monkeypatch.setattr(smoothness, "_WORK", each * 7)
    assert looked_at(learner) == (2, 40, 16)
    simulation = Simulation(PerMFL(alpha=1000.0), people, task, rounds=1)
    assert "which takes long to find" in compared(simulation)
    assert warnings_of(simulation) == []
    tuned = Simulation(PerMFL(alpha="auto"), people, task, rounds=1)  # who asks for it gets it
    assert "estimated on 2 of 40 devices, up to 16 samples of each" in tuned.looked[0].sentence


def test_an_estimate_is_the_same_every_time_and_close_to_the_largest_eigenvalue() -> None:
    people = make_population("digits", tree="4x10")
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 10)))
    learner = Simulation(PerMFL(), people, task, rounds=1, dtype=torch.float64).learner
    row, exact = learner.initial(), 0.0
    for device in range(0, 40, 5):
        index = torch.arange(int(people.train[device])) + people.start[device]
        x, y = people.features(index, torch.float64), people.y[index]

        def loss(row: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return nn.functional.cross_entropy(functional_call(task.module, task.named(row), (x,)), y)

        exact = max(exact, float(torch.linalg.eigvalsh(hessian(loss, row))[-1]))
    first = curvature(learner)
    assert (first.devices, first.exact) == (16, False)
    assert first == curvature(learner)
    assert 0.8 * exact < first.smoothness
    # Sixteen evenly chosen devices have these eight among them.
    assert curvature(learner, iterations=40).smoothness > 0.99 * exact
