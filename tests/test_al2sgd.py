"""Async-AL2SGD+: its estimator as printed and as corrected, its constants, and the very minimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palmette.algorithms import AL2SGD, L2GD, PerMFL, algorithm
from palmette.blocks.katyusha import katyusha
from palmette.blocks.mixing import Coins, Pulls
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from problems import Floats, exchange_counts, quadratics, regression, simulate, task_of, tree_minimiser
from test_l2gd import TEAMS, UNEQUAL, coin, letters, means, named, outcomes, slope
from test_permfl import one_sample_each

GIVEN: dict[str, Any] = {"smoothness": 2.0, "convexity": 0.5, "batch_size": "full"}


def gradients(method: AL2SGD) -> tuple[Floats, Floats]:
    """The mean over all coins of what the devices moved along, and the gradient it should be."""
    population = regression(TEAMS)
    pulls = Pulls.on(population.tree, method.lam, method.gamma)
    coins = Coins.fair(population.tree, pulls, 2.0)
    constants = katyusha(max(coins.terms(pulls, 2.0)), 2.0 + pulls.device.max(), 0.5, method.refresh)
    generator = np.random.default_rng(0)
    y, z, ref = (generator.normal(size=(5, 3)) for _ in range(3))
    rows = {"model": y, "z": z, "ref": ref, "slope": slope(population, ref, *UNEQUAL)}

    def make(seed: int) -> Simulation:
        simulation = Simulation(method, population, task_of(population), rounds=1, seed=seed, dtype=torch.float64)
        for name, value in rows.items():
            simulation.stores[0].rows[name].copy_(torch.from_numpy(value))
        simulation.stores[2].rows["constants"].copy_(torch.tensor([[2.0, 1 / 0.5]]))
        for store in simulation.stores:
            store.last[:] = 0
        return simulation

    a1, a2 = constants["a1"], constants["a2"]
    theta = a1 * z + a2 * ref + (1 - a1 - a2) * y
    expected = np.zeros_like(theta)
    for chance, simulation in outcomes(make, (coins.between, coins.within)):
        expected += chance * (theta - simulation.stores[0].rows["model"].numpy()) / constants["eta"]
    return expected, slope(population, theta, *UNEQUAL)


def test_the_estimator_is_unbiased_over_all_coins() -> None:
    found, wanted = gradients(AL2SGD(**named(regression(TEAMS).tree), **GIVEN, iterations=1, refresh=0.2))
    np.testing.assert_allclose(found, wanted, atol=1e-11)


def test_the_printed_estimator_is_biased() -> None:
    method = AL2SGD(**named(regression(TEAMS).tree), **GIVEN, iterations=1, refresh=0.2, as_published=("estimator",))
    found, wanted = gradients(method)
    assert np.abs(found - wanted).max() > 0.05


def test_the_printed_estimator_still_ends_at_the_minimiser_because_its_bias_vanishes_with_the_reference() -> None:
    population = regression("2x2")
    method = AL2SGD(lam=0.5, gamma=0.3, **GIVEN, as_published=("estimator",))
    simulation = simulate(method, population, 4, threads=1, chunk=4)
    np.testing.assert_allclose(
        simulation.stores[0].rows["model"].numpy(), tree_minimiser(population, [0.5, 0.3])[0], atol=1e-3
    )


def test_constants_follow_corollary_4_4() -> None:
    # Lc = 4 and L_F = 3: eta = 1/16, a2 = 1/2; a1 = sqrt(eta mu a2 / rho) = sqrt(0.1/16 * 2.5) = 1/8; b2 = eta / (4 a1).
    assert katyusha(4.0, 3.0, 0.1, 0.2) == pytest.approx(
        {"eta": 1 / 16, "a1": 1 / 8, "a2": 0.5, "b1": 0.9875, "b2": 0.125}
    )
    # L_F decides, and a1 is cut at 1/2; b2 = 1 / max{2 mu, 4 a1 / eta}.
    assert katyusha(1.0, 2.0, 2.0, 0.01) == pytest.approx(
        {"eta": 1 / 8, "a1": 0.5, "a2": 0.25, "b1": 0.875, "b2": 1 / 16}
    )


def test_smoothness_of_single_samples_and_strong_convexity_are_estimated_on_the_devices() -> None:
    population = regression([1, 2], samples=8)
    simulation = simulate(AL2SGD(iterations=1), population, 1)
    smoothness, inverse = simulation.stores[2].rows["constants"][0].tolist()
    eigenvalues = [np.linalg.eigvalsh(form) for form, _ in quadratics(population)]
    assert 1 / inverse == pytest.approx(min(values[0] for values in eigenvalues), rel=1e-3)
    rows = [population.x[i * 8 : i * 8 + 7] for i in range(3)]
    squares = torch.cat([part.square().sum(1) for part in rows])
    assert min(abs(smoothness - squares)) < 1e-6  # the curvature of one sample is its squared norm
    assert smoothness >= squares.sort().values[-4]
    whole = simulate(AL2SGD(iterations=1, batch_size="full"), population, 1)
    assert whole.stores[2].rows["constants"][0, 0].item() == pytest.approx(max(v[-1] for v in eigenvalues), rel=1e-3)


def test_two_iterations_by_hand() -> None:
    # Losses 1/2 (theta - y)^2 with y = 1, 3 | 8, everything from zero; a = 1/3, C1 = 1/6, C2 = 1/3, L~ = 1.
    # Lc = L_F = 3/2: eta = 1/6, a2 = 1/2; mu = 0.24, rho = 1/2: a1 = sqrt(0.04) = 1/5; b2 = 1 / 4.8, b1 = 0.95.
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = AL2SGD(lam=0.5, gamma=0.25, smoothness=1.0, convexity=0.24, refresh=0.5, iterations=2)

    def falls(seed: int) -> tuple[bool, ...]:
        joint = [bool(coin(seed, "between", 0, 2, i, 1)[0] < 2 / 9) for i in range(2)]
        renew = bool(coin(seed, "refresh", 0, 2, 0, 1)[0] < 0.5)
        return (*joint, *(coin(seed, "within", 0, 1, 0, 2) < 1 / 7), renew)

    seed = next(seed for seed in range(10_000) if falls(seed) == (False, True, False, False, False))
    target = np.array([1.0, 3.0, 8.0])
    # A local iteration at theta = ref = 0: g is the slope -y.
    y, z = target / 6, target / 4.8
    theta = 0.2 * z + 0.3 * y  # = target * 11 / 120
    np.testing.assert_allclose(theta, target * 11 / 120)
    # All average: means 2 and 8 of the target within teams, 4 over all; g = -y + (1/2)(9/2) (1/3) [2 theta - both means].
    g = -target + 0.75 * 11 / 120 * (2 * target - np.array([2, 2, 8]) - 4)
    simulation = simulate(method, population, 1, seed=seed)
    np.testing.assert_allclose(simulation.stores[0].rows["model"].flatten(), theta - g / 6, atol=1e-14)
    np.testing.assert_allclose(simulation.stores[0].rows["z"].flatten(), 0.95 * z + 0.05 * theta - g / 4.8, atol=1e-14)
    np.testing.assert_allclose(simulation.stores[0].rows["model"].flatten(), [73 / 240, 31 / 40, 97 / 48], atol=1e-14)


@pytest.mark.parametrize("gamma", [[0.4, 0.15], [0.4, 0.0]], ids=["pulls", "one team with no pull"])
@pytest.mark.parametrize("printed", [False, True])
def test_a_run_with_unequal_pulls_and_teams_agrees_with_numpy(printed: bool, gamma: list[float]) -> None:
    population = regression(TEAMS, unequal=True)
    team, forms = population.tree.parents[0], quadratics(population)
    lam, given = named(population.tree)["lam"], {**GIVEN, "iterations": 12, "refresh": 0.25}
    c, a = letters(team, np.array(list(lam.values())), np.array(gamma))
    method = AL2SGD(
        lam=lam,
        gamma=dict(zip(population.tree.names(1), gamma, strict=True)),
        **{**given, "as_published": ("estimator",) if printed else ()},
    )
    simulation = simulate(method, population, 2, seed=3)
    pulls = Pulls.on(population.tree, method.lam, method.gamma)
    coins = Coins.fair(population.tree, pulls, 2.0)
    np.testing.assert_allclose(pulls.mix[team], a)
    k = katyusha(max(coins.terms(pulls, 2.0)), 2.0 + c.max(), 0.5, 0.25)
    p, q, tau = coins.between, coins.within[team], coins.tau[team]
    y = z = ref = np.zeros((5, 3))
    kinds = np.zeros(3, dtype=int)

    def local(rows: Floats) -> Floats:
        return np.stack([A @ x - b for (A, b), x in zip(forms, rows, strict=True)])

    for t in range(2):
        for i in range(12):
            theta = k["a1"] * z + k["a2"] * ref + (1 - k["a1"] - k["a2"]) * y
            own, common = (
                one - other for one, other in zip(means(theta, team, c, a), means(ref, team, c, a), strict=True)
            )
            apart, shared = theta - ref - own, theta - ref - common
            g = slope(population, ref, c, a)
            if coin(3, "between", t, 2, i, 1)[0] < p:
                pulled = a[:, None] * shared + (0 if printed else 1) * (tau * (1 - a))[:, None] * apart
                g = g + (c / p)[:, None] * pulled
                kinds[0] += 1
            else:
                meet = (coin(3, "within", t, 1, i, 2) < coins.within)[team][:, None]
                within = (c * (1 - tau) * (1 - a) / ((1 - p) * q))[:, None] * apart
                g = g + np.where(meet, within, (local(theta) - local(ref)) / ((1 - p) * (1 - q))[:, None])
                kinds[1] += int(meet.any())
            y, z = theta - k["eta"] * g, k["b1"] * z + (1 - k["b1"]) * theta - k["b2"] * g
            if coin(3, "refresh", t, 2, i, 1)[0] < 0.25:
                ref = y
                kinds[2] += 1
    assert (kinds > 2).all()
    for name, value in (("model", y), ("z", z), ("ref", ref), ("slope", slope(population, ref, c, a))):
        np.testing.assert_allclose(simulation.stores[0].rows[name].numpy(), value, atol=1e-12)
    own, common = means(y, team, c, a)
    np.testing.assert_allclose(simulation.model().numpy(), common, atol=1e-12)


@pytest.mark.parametrize(("tree", "seed"), [("2x2", 0), ("3x2", 1)])
def test_with_one_sample_per_step_it_ends_with_permfl_at_the_minimiser_to_1e_8(tree: str, seed: int) -> None:
    population, pulls = regression(tree, samples=20, seed=seed), {"lam": 1.0, "gamma": 0.1}
    theta, w, x = tree_minimiser(population, [1.0, 0.1])
    accelerated = simulate(AL2SGD(**pulls, refresh=0.2), population, 10, threads=1, chunk=6)
    solver: dict[str, Any] = {"alpha": 0.35, "local_steps": 60, "team_steps": 45, "batch_size": "full"}
    permfl = simulate(PerMFL(**pulls, **solver), population, 13, threads=1, chunk=6)
    for simulation in (accelerated, permfl):
        models = simulation.team_models()
        assert models is not None
        found = simulation.stores[0].rows["model"], models, simulation.model()[None]
        for mine, theirs in zip(found, (theta, w, x), strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-8, rtol=0)


def test_averages_are_counted_raw_and_coalesced_and_local_iterations_cost_no_exchange() -> None:
    sizes = [2, 1]
    population = one_sample_each([1.0, 3.0, 8.0], sizes)
    method = AL2SGD(lam=0.5, gamma=0.25, smoothness=1.0, convexity=0.24, refresh=0.05, iterations=200)
    simulation = simulate(method, population, 1)
    # C1 = 1/6, C2 = 1/3, L~ = 1: p_0 = 2/9, p_i = 1/7.
    joint = np.array([coin(0, "between", 0, 2, i, 1)[0] < 2 / 9 for i in range(200)])
    apart = np.stack([coin(0, "within", 0, 1, i, 2) < 1 / 7 for i in range(200)])
    renew = np.array([coin(0, "refresh", 0, 2, i, 1)[0] < 0.05 for i in range(200)])
    alone = apart[~joint]
    assert exchange_counts(simulation.stores) == {
        "between_raw": [int(joint.sum())],
        "between_coalesced": [int((joint & ~np.roll(joint, 1))[1:].sum() + joint[0])],
        "within_raw": alone.sum(0).tolist(),
        "within_coalesced": ((alone & ~np.roll(alone, 1, axis=0))[1:].sum(0) + alone[0]).tolist(),
    }
    # The first reference, every average, and two to have all up to date at a new reference and at the end: none for steps.
    assert simulation.ledger.totals()[2].exchanges == 1 + joint.sum() + 2 * (renew[:-1].sum() + 1)
    # A full gradient of every device at each reference, and two of single samples at a local iteration.
    steps = (~alone).sum(0) @ sizes
    assert simulation.device_steps == 3 * (1 + renew.sum()) + 2 * steps


def test_unequal_pulls_with_weight_decay_end_where_the_gradient_vanishes() -> None:
    population = regression(TEAMS)
    simulation = simulate(
        AL2SGD(**named(population.tree), **GIVEN), population, 5, task_of(population, l2=0.4), threads=1, chunk=5
    )
    theta = simulation.stores[0].rows["model"].numpy()
    np.testing.assert_allclose(slope(population, theta, *UNEQUAL) + 0.4 * theta, 0, atol=1e-8)


@pytest.mark.slow
def test_to_an_error_of_1e_2_it_needs_at_most_half_the_iterations_of_l2gd_at_any_constant_step() -> None:
    population, length = regression("2x3"), 20
    theta = tree_minimiser(population, [0.5, 0.3])[0]

    def iterations(name: str, most: int, **settings: Any) -> int:
        method = algorithm(name, lam=0.5, gamma=0.3, iterations=length, **settings)
        simulation = Simulation(
            method, population, task_of(population), rounds=99, dtype=torch.float64, threads=1, chunk=6
        )
        while simulation.round * length < most:
            simulation.step()
            if np.abs(simulation.stores[0].rows["model"].numpy() - theta).max() < 1e-2:
                return simulation.round * length
        return 10**9

    fast = iterations("al2sgd", 600)
    assert fast <= 600
    pulls = Pulls.on(population.tree, 0.5, 0.3)
    coins = Coins.fair(population.tree, pulls, 1.6)
    best = 0.5 / max(coins.terms(pulls, 1.6))
    for factor in (2.0, 1.0, 0.3, 0.1, 0.03, 0.01):  # none arrives in twice the time
        assert iterations("l2gd", 2 * fast - 1, eta=best * factor, smoothness=1.6) > 2 * fast - 1, factor


def test_other_depths_are_refused() -> None:
    with pytest.raises(BadInput, match="3 tiers"):
        simulate(AL2SGD(), regression("2x2x2"), 1)
    with pytest.raises(BadInput, match="3 tiers"):
        simulate(L2GD(), regression(3), 1)  # type: ignore[arg-type]
