"""Runs beside their theorems: optima and bounds by hand, measured curves under them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import AL2SGD, L2GD, L2GDCoin, SFedHP, algorithm
from palmette.blocks.mixing import Coins, Pulls
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link, Participation
from palmette.population import Population, make_population
from palmette.protocol import Algorithm
from palmette.task import make_task
from palmette.theory import Measured, check, measure, optimum
from palmette.theory.coins import Lyapunov
from palmette.theory.objectives import objective_of
from palmette.theory.optimum import minimiser, start_of
from problems import quadratics, regression, task_of, tree_minimiser
from test_l2gd import TEAMS, UNEQUAL, named, outcomes, slope
from test_l2gd import minimiser as direct
from test_permfl import one_sample_each

EXACT: dict[str, Any] = {"centre": "device", "gamma_1": 0.0, "gamma_2": 0.0, "batch_size": "full"}


def fresh(method: Algorithm, population: Population, rounds: int = 1, seed: int = 0, **options: Any) -> Simulation:
    task = task_of(population)
    options = {"threads": 1, **options}
    return Simulation(method, population, task, rounds=rounds, seed=seed, dtype=torch.float64, **options)


def measured(method: Algorithm, population: Population, rounds: int, seeds: int = 1, **options: Any) -> Measured:
    simulation = fresh(method, population, rounds, **options)
    others: Iterator[Simulation] = (fresh(method, population, rounds, seed, **options) for seed in range(1, seeds))
    return measure(simulation, check(simulation), others=others)


def under(found: Measured) -> bool:
    assert found.bound is not None
    return all(value <= bound for value, bound in zip(found.values, found.bound, strict=True))


# -- objectives and optima -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        algorithm("pfedmt", lam=0.7, gamma=0.4),
        L2GD(lam=0.7, gamma=0.4),
        SFedHP(lam_1=0.7, lam_2=1.3, gamma_1=0.2, gamma_2=0.3, rho=0.5),
        SFedHP(lam_1=0.7, lam_2=1.3, gamma_1=0.2, gamma_2=0.3, rho=0.5, centre="device"),
    ],
    ids=lambda method: f"{method.name}-{vars(method).get('centre', '')}",
)
def test_the_gradient_of_an_objective_is_that_of_its_value(method: Algorithm) -> None:
    objective = objective_of(fresh(method, regression(TEAMS, unequal=True)))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5 + objective.extra, 3, generator=generator, dtype=torch.float64)
    towards = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    ahead, behind = (float(objective(rows + step * towards)[0]) for step in (1e-5, -1e-5))
    assert float((objective(rows)[1] * towards).sum()) == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)


def test_the_optimum_of_l2gd_with_unequal_pulls_and_teams_agrees_with_linear_algebra() -> None:
    population = regression(TEAMS, unequal=True)
    simulation = fresh(AL2SGD(**named(population.tree)), population)
    objective = objective_of(simulation)
    theta = direct(population, *UNEQUAL)
    np.testing.assert_allclose(minimiser(objective, start_of(simulation, objective)).numpy(), theta, atol=1e-7)


def test_sfedhp_without_sparsity_has_permfls_optimum_or_pfedmes() -> None:
    population = regression([2, 3])
    edge = optimum(fresh(SFedHP(**{**EXACT, "centre": "edge"}, lam_1=0.5, lam_2=0.3), population))
    np.testing.assert_allclose(edge, tree_minimiser(population, [0.5, 0.3])[2][0], atol=1e-7)
    device = optimum(fresh(SFedHP(**EXACT, lam_1=0.5, lam_2=0.3), population))
    # A phi for every device leaves one pull of 0.5 * 0.3 / 0.8 to the server; teams of their own size weigh alike.
    np.testing.assert_allclose(device, tree_minimiser(population, [0.1875, 1e9])[2][0], atol=1e-6)


def test_sparsity_draws_the_optimum_to_zero() -> None:
    population = regression("2x3")
    plain, sparse = (
        optimum(fresh(SFedHP(**{**EXACT, "gamma_2": weight}), population)).abs().max() for weight in (0.0, 0.5)
    )  # the second is curved by 0.5 / rho around zero, which takes the Newton steps
    assert sparse < 1e-3 < plain


# -- bounds by hand ------------------------------------------------------------------------------------------------------


def test_the_noise_ball_of_l2gd_by_hand() -> None:
    # Losses 1/2 (theta - y)^2, y = 1, 3 | 8; lam 1/2, gamma 1/4: theta^ = 34/21, 62/21 | 52/7, means 16/7, 52/7 and 4.
    # Corollary 3.6: p_0 = 2/9, p_i = 1/7, eta = 1/3. sigma^2 = (2042 + 196 + 471) / 441 = 43/7.
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    found = measured(L2GD(lam=0.5, gamma=0.25, iterations=2), population, 2)
    start = (34**2 + 62**2 + 156**2) / 441
    assert found.values[0] == pytest.approx(start)
    assert found.ball == pytest.approx(2 / 3 * 43 / 7)
    assert found.bound == pytest.approx([start * (2 / 3) ** t + 2 / 3 * 43 / 7 for t in (0, 2, 4)])


def test_the_lyapunov_function_of_al2sgd_by_hand() -> None:
    # Lc = L_F = 3/2, mu = 0.24, rho = 1/2: a1 = 1/5, a2 = 1/2, b1 = 0.95, b2 = 1/4.8; C = 2 b1 b2 / a1 = 95/48.
    tree = one_sample_each([1.0, 3.0, 8.0], [2, 1]).tree
    found = Lyapunov.of(AL2SGD(lam=0.5, gamma=0.25, refresh=0.5), tree, 1.0, 0.24)
    assert (found.own, found.ref) == pytest.approx((95 / 48 * 0.4, 95 / 48 * 0.6 / 0.5))
    assert found.rate == pytest.approx(0.95)  # the largest of b1, 3/4 and 11/12


@pytest.mark.parametrize("refresh", [0.05, 0.5, 1.0])
def test_one_iteration_of_al2sgd_shrinks_its_lyapunov_function_by_the_rate_on_average(refresh: float) -> None:
    population = regression(TEAMS)
    method = AL2SGD(
        **named(population.tree), smoothness=2.0, convexity=0.5, batch_size="full", iterations=1, refresh=refresh
    )
    pulls = Pulls.on(population.tree, method.lam, method.gamma)
    coins = Coins.fair(population.tree, pulls, 2.0)
    found, objective = Lyapunov.of(method, population.tree, 2.0, 0.5), objective_of(fresh(method, population))
    best = torch.from_numpy(direct(population, *UNEQUAL))
    least = float(objective(best)[0])

    def psi(y: Tensor, z: Tensor, ref: Tensor) -> float:
        gaps = [float(objective(rows)[0]) - least for rows in (y, ref)]
        return float((z - best).square().sum()) + found.own * gaps[0] + found.ref * gaps[1]

    generator = torch.Generator().manual_seed(1)
    y, z, ref = (best + 0.5 * torch.randn(5, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    rows = {"model": y, "z": z, "ref": ref, "slope": torch.from_numpy(slope(population, ref.numpy(), *UNEQUAL))}

    def make(seed: int) -> Simulation:
        simulation = fresh(method, population, seed=seed)
        for name, value in rows.items():
            simulation.stores[0].rows[name].copy_(value)
        simulation.stores[2].rows["constants"].copy_(torch.tensor([[2.0, 2.0]]))
        for store in simulation.stores:
            store.last[:] = 0
        return simulation

    after = 0.0
    for chance, simulation in outcomes(make, (coins.between, coins.within)):
        y_next, z_next = (simulation.stores[0].rows[name] for name in ("model", "z"))
        after += chance * (refresh * psi(y_next, z_next, y_next) + (1 - refresh) * psi(y_next, z_next, ref))
    assert after <= found.rate * psi(y, z, ref)


def test_the_bound_of_sfedhp_by_hand() -> None:
    # Two pulls of 2 in series: F_ij(x) = 1/4 (x - y)^2, F_ij weighs 1/4, 1/4 | 1/2: x* = 5, sigma^2 = 2.375, F(0) - F* = 6.25.
    # theta^_ij(x) = (x + y) / 2, so the devices of the first edge are sqrt((1 + 9) / 8) from 0 on average, the other's is 4.
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = SFedHP(**EXACT, lam_1=2.0, lam_2=2.0, beta=50.0, eta=1e-5, team_steps=12, local_steps=2, alpha=0.1)
    found = measured(method, population, 1)
    assert found.quantity == "mean over rounds of F(x^t) - F*"
    assert found.values == pytest.approx([6.25])
    left = 0.7**2  # of a local error: 1 - 0.1 * (2 + 1), twice
    tau = left + 0.5 * 2 / 3 * (1 - left)
    delta = 0.0
    for start in (1.25**0.5, 4.0):
        drift = 12e-5 * 2 * start / (1 - 3 * 12e-5)  # lam_bar = 1
        delta += 0.5 * (tau * start + drift) ** 2
    overall, ratio = 12e-5 * 50, 2 / (0.5 * 50)
    ball = overall * (6 * (1 + 64 * ratio) * 2.375 + 128 * ratio * delta) + 8 * delta / 0.5
    assert found.ball == pytest.approx(ball)
    assert found.bound == pytest.approx([25 / overall + ball])


@pytest.mark.slow
def test_sfedhp_whose_devices_hardly_move_stays_under_its_bound() -> None:
    population = one_sample_each([5.0, 5.0, 5.0], [2, 1])
    method = SFedHP(**EXACT, lam_1=2.0, lam_2=2.0, beta=50.0, eta=1e-4, team_steps=1, local_steps=1, alpha=1e-9)
    found = measured(method, population, 100)
    assert found.values[-1] == pytest.approx(6.25)
    assert under(found)
    assert found.ball is not None
    assert found.ball > 6.25  # with a delta of zero the bound would come below the values
    # and a run that moves comes down
    moving = measured(replace(method, local_steps=40, alpha=0.05), population, 100)
    assert moving.values[-1] < 5.5
    assert under(moving)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batch_size": 1}, "mini-batch"),
        ({"inner": "nesterov"}, "accelerated"),
        ({"alpha": 0.28, "gamma_1": 0.01, "rho": 0.01}, "devices' error"),
    ],
)
def test_what_the_bound_of_sfedhp_would_need_to_know_is_said(changed: dict[str, Any], says: str) -> None:
    settings = {**EXACT, "lam_1": 2.0, "lam_2": 2.0, "eta": 1e-7, "schedule": "none", "zero_tol": 0.0, **changed}
    found = measured(SFedHP(**settings), regression("2x2"), 1)
    assert found.bound is None
    assert says in found.remarks[-1]


# -- runs under their bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [L2GD(lam=0.5, gamma=0.3), L2GDCoin(lam=0.5, gamma=0.3)], ids=lambda m: m.name)
def test_l2gd_stays_under_its_bound_and_ends_in_the_ball(method: Algorithm) -> None:
    found = measured(method, regression("2x3"), 2, seeds=3)
    assert len(found.runs) == 3
    assert "mean over 3 seeds" in " ".join(found.remarks)
    assert under(found)
    assert found.ball is not None
    assert found.values[-1] < found.ball < found.values[0] * 10


def test_a_decreasing_step_has_a_bound_that_goes_on_falling() -> None:
    found = measured(L2GD(lam=0.5, gamma=0.3, decrease=1.0, iterations=40), regression("2x2"), 6, seeds=2)
    assert found.ball is None
    assert under(found)
    assert found.bound is not None
    assert found.bound[-1] < 0.5 * found.bound[2]


def test_al2sgd_stays_under_its_bound_far_below_any_ball() -> None:
    population = regression("2x2")
    found = measured(AL2SGD(lam=0.5, gamma=0.3), population, 3, seeds=2)
    assert found.quantity.startswith("Lyapunov function")
    assert under(found)
    assert found.distance[-1] < 1e-2 * found.distance[0]


def test_automatic_constants_of_al2sgd_are_those_of_all_samples() -> None:
    population = regression("3x4")
    found = check(fresh(AL2SGD(lam=0.5, gamma=0.3), population))
    rows = torch.cat([population.x[i * 60 : i * 60 + 59] for i in range(12)])
    assert found.constants["L~"] == pytest.approx(float(rows.square().sum(1).max()))
    (row,) = (one for one in found.conditions if one.what == "convexity")
    least = min(float(np.linalg.eigvalsh(a)[0]) for a, _ in quadratics(population))
    assert row.value == pytest.approx(least)
    assert row.value <= least
    assert found.holds
    assert found.rate is not None


def test_psi_at_the_start_by_hand() -> None:
    # Losses 1/2 (theta - y)^2, y = 1, 3 | 8, lam 1/2, gamma 1/4: theta^ = 34/21, 62/21 | 52/7. At the start all rows are 0 and
    # F(0) - F* = 1/2 |theta^|^2 + 1/2 theta^' P theta^ with P theta^ = y - theta^ the pulls at the optimum.
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = AL2SGD(lam=0.5, gamma=0.25, refresh=0.5, smoothness=1.0, convexity=0.24, iterations=1, batch_size="full")
    found, weights = measured(method, population, 1), Lyapunov.of(method, population.tree, 1.0, 0.24)
    best, y = np.array([34 / 21, 62 / 21, 52 / 7]), np.array([1.0, 3.0, 8.0])
    gap = 0.5 * best @ best + 0.5 * best @ (y - best)
    assert found.values[0] == pytest.approx(best @ best + (weights.own + weights.ref) * gap)
    assert found.bound == pytest.approx([found.values[0], weights.rate * found.values[0]])


# -- where there is no bound ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        (L2GD(lam=0.5, gamma=0.3, iterations=5, batch_size=4), {}, "needs batch_size = full"),
        (L2GD(lam=0.5, gamma=0.3, iterations=5, eta=0.9), {}, "needs eta at most"),
        (
            L2GD(lam=0.5, gamma=0.3, iterations=5),
            {"links": {0: Link(Participation("count", 1))}},
            "participation = all",
        ),
        (
            AL2SGD(iterations=5, smoothness=40.0, as_published=("estimator",)),
            {},
            "as_published = []",
        ),
        (SFedHP(lam_1=2.0, lam_2=2.0, eta=1e-9), {}, "needs centre = device, schedule = none, zero_tol at most 0"),
        (algorithm("permfl", lam=4.0, gamma=9.0, alpha=0.1, eta=0.03, beta=0.05), {}, "needs batch_size = full"),
    ],
)
def test_without_a_theorem_the_distance_is_measured_and_the_reason_told(
    method: Algorithm, options: dict[str, Any], says: str
) -> None:
    found = measured(method, regression("2x2"), 1, **options)
    assert found.bound is None
    assert found.values == found.distance
    assert says in found.remarks[-1]


def test_what_has_no_single_optimum_or_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    population = make_population("digits", tree="2x3")
    simulation = Simulation(
        L2GD(), population, make_task("mclr", population.shape, population.classes), rounds=1, dtype=torch.float64
    )
    with pytest.raises(BadInput, match=r"model\.l2=0\.1"):
        measure(simulation, check(simulation))
    monkeypatch.setattr(sys.modules["palmette.theory.optimum"], "_LARGEST", 3000)
    with pytest.raises(BadInput, match="650 numbers for each of 6 devices, 3,900 in all; it takes up to 3,000"):
        optimum(simulation)


def test_pulls_beyond_the_direct_solver_are_refused() -> None:
    with pytest.raises(BadInput, match=r"stopped at a gradient of .* \(raise model\.l2\)"):
        optimum(fresh(SFedHP(lam_1=1e200), regression("2x2")))


def test_a_run_that_diverges_is_no_measurement() -> None:
    method = L2GD(lam=0.5, gamma=0.3, eta=1e6)
    with pytest.raises(BadInput, match="nothing to measure"):
        measured(method, regression("2x2"), 2)
