"""Async-L2GD: its oracle, its coins, its counts, and where it ends up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from palmette import address
from palmette.algorithms import L2GD, L2GDCoin, PerMFL
from palmette.blocks.mixing import Coins, Pulls
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import curvature
from palmette.population import Population, make_population
from palmette.task import make_task
from palmette.tree import Tree
from problems import Floats, exchange_counts, quadratics, regression, simulate, task_of, tree_minimiser
from test_permfl import one_sample_each

TEAMS = [2, 3]
LAM = {"0": 0.3, "1": 0.8, "2": 0.5, "3": 0.2, "4": 1.1}
GAMMA = {"0": 0.4, "1": 0.15}


def named(tree: Tree) -> dict[str, Any]:
    """Unequal pulls by the names of the nodes of a tree of `TEAMS`."""
    lam = dict(zip(tree.names(0), LAM.values(), strict=True))
    return {"lam": lam, "gamma": dict(zip(tree.names(1), GAMMA.values(), strict=True))}


def coin(seed: int, purpose: str, round_: int, tier: int, i: int, size: int) -> Floats:
    """The addressed numbers that the nodes of a tier compare with their chances."""
    base = address.key(seed, purpose, round_, tier, i)
    nodes = torch.from_numpy(Tree.parse(size).addresses[0])  # those of so many nodes without names under one parent
    return address.uniform(address.mix(base, nodes)).numpy()


def letters(team: Floats, lam: Floats, gamma: Floats) -> tuple[Floats, Floats]:
    """c_ij, and a_i of each device's team, from the definitions."""
    m = np.array([gamma[i] * (team == i).sum() for i in range(len(gamma))])
    a = np.array([m[i] / (m[i] + lam[team == i].sum()) for i in range(len(gamma))])
    return lam, a[team]


def means(theta: Floats, team: Floats, c: Floats, a: Floats) -> tuple[Floats, Floats]:
    """tb_i of each device's team and tb, as double sums."""
    own = np.stack([np.average(theta[team == i], axis=0, weights=c[team == i]) for i in range(team.max() + 1)])
    return own[team], np.average(theta, axis=0, weights=a * c)


def slope(population: Population, theta: Floats, c: Floats, a: Floats) -> Floats:
    """The gradient of (2.1)."""
    own, common = means(theta, population.tree.parents[0], c, a)
    local = np.stack([A @ t - b for (A, b), t in zip(quadratics(population), theta, strict=True)])
    pull = ((1 - a) * c)[:, None] * (theta - own) + (a * c)[:, None] * (theta - common)
    return np.asarray(local + pull)


def minimiser(population: Population, c: Floats, a: Floats) -> Floats:
    """Solve for a vanishing gradient of (2.1), which is affine."""
    n, d = population.devices, len(quadratics(population)[0][1])
    zero = slope(population, np.zeros((n, d)), c, a).ravel()
    columns = [slope(population, e.reshape(n, d), c, a).ravel() - zero for e in np.eye(n * d)]
    return np.linalg.solve(np.stack(columns, 1), -zero).reshape(n, d)


UNEQUAL = letters(np.repeat([0, 1], TEAMS), np.array(list(LAM.values())), np.array(list(GAMMA.values())))


def outcomes(make: Any, chances: tuple[float, Floats]) -> Iterator[tuple[float, Simulation]]:
    """Run one iteration under seeds until every way the coins can fall has come up, each with its probability."""
    between, within = chances
    seen, total = set(), 0.0
    for seed in range(2000):
        joint = bool(coin(seed, "between", 0, 2, 0, 1)[0] < between)
        fell = coin(seed, "within", 0, 1, 0, len(within)) < within
        key = None if joint else tuple(fell.tolist())
        if key in seen:
            continue
        seen.add(key)
        chance = between if joint else (1 - between) * float(np.prod(np.where(fell, within, 1 - within)))
        total += chance
        simulation = make(seed)
        simulation.step()
        yield chance, simulation
        if len(seen) == 1 + 2 ** len(within):
            break
    assert total == pytest.approx(1)


def test_the_oracle_is_unbiased_over_all_coins_with_unequal_pulls_and_teams() -> None:
    population = regression(TEAMS)
    method = L2GD(**named(population.tree), between=0.3, within=0.4, eta=0.05, smoothness=1.0, iterations=1)
    start = np.random.default_rng(0).normal(size=(5, 3))

    def make(seed: int) -> Simulation:
        simulation = Simulation(method, population, task_of(population), rounds=1, seed=seed, dtype=torch.float64)
        simulation.stores[0].rows["model"].copy_(torch.from_numpy(start))
        simulation.stores[0].last[:] = 0
        return simulation

    expected = np.zeros_like(start)
    for chance, simulation in outcomes(make, (0.3, np.full(2, 0.4))):
        expected += chance * (start - simulation.stores[0].rows["model"].numpy()) / 0.05
    np.testing.assert_allclose(expected, slope(population, start, *UNEQUAL), atol=1e-12)


def test_a_run_with_unequal_pulls_teams_and_coins_agrees_with_numpy() -> None:
    population = regression(TEAMS, unequal=True)
    names = population.tree.names(1)
    within = np.array([0.5, 0.2])
    method = L2GD(
        **named(population.tree),
        **{"between": 0.3, "within": dict(zip(names, within, strict=True)), "eta": 0.06, "decrease": 0.5},
        **{"smoothness": 2.0, "iterations": 15},
    )
    simulation = simulate(method, population, 3, seed=4)
    team, (c, a), forms = population.tree.parents[0], UNEQUAL, quadratics(population)
    theta = np.zeros((5, 3))
    kinds = np.zeros(3, dtype=int)
    for t in range(3):
        eta = 0.06 / (1 + 0.5 * t)
        for i in range(15):
            own, common = means(theta, team, c, a)
            tau = (0.3 / (0.3 + 2 * 0.7 * within))[team]
            if coin(4, "between", t, 2, i, 1)[0] < 0.3:
                kinds[0] += 1
                pull = a[:, None] * (theta - common) + (tau * (1 - a))[:, None] * (theta - own)
                theta = theta - eta / 0.3 * c[:, None] * pull
                continue
            meet = (coin(4, "within", t, 1, i, 2) < within)[team]
            p = within[team]
            step = (eta * c * (1 - tau) * (1 - a) / (0.7 * p))[:, None] * (theta - own)
            gradient = np.stack([A @ x - b for (A, b), x in zip(forms, theta, strict=True)])
            theta = theta - np.where(meet[:, None], step, (eta / (0.7 * (1 - p)))[:, None] * gradient)
            kinds[1:] += [meet.any(), not meet.all()]
    assert (kinds > 5).all()
    np.testing.assert_allclose(simulation.stores[0].rows["model"].numpy(), theta, atol=1e-12)
    own, common = means(theta, team, c, a)
    np.testing.assert_allclose(simulation.model().numpy(), common, atol=1e-12)
    middle = np.average(own[[0, 2]], axis=0, weights=a[[0, 2]])  # sum a_i tb_i / sum a_i, which (2.2) equates with tb
    assert np.abs(middle - common).max() > 1e-3
    models = simulation.team_models()
    assert models is not None
    for j in range(2):
        i = int((team == j).argmax())
        np.testing.assert_allclose(models[j].numpy(), a[i] * common + (1 - a[i]) * own[i], atol=1e-12)


def test_three_iterations_by_hand() -> None:
    # Losses 1/2 (theta - y)^2, y = 1, 3 | 8; lam 1/2, gamma 1/4: a = 1/3, C1 = 1/6, C2 = 1/3, L = 1.
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = L2GD(lam=0.5, gamma=0.25, smoothness=1.0, iterations=3)
    pulls = Pulls.on(population.tree, 0.5, 0.25)
    coins = Coins.fair(population.tree, pulls, 1.0)
    assert (coins.between, *coins.within, *coins.tau) == pytest.approx((2 / 9, 1 / 7, 1 / 7, 1 / 2, 1 / 2))
    assert coins.terms(pulls, 1.0) == pytest.approx((1.5, 1.5, 1.5))

    def falls(seed: int) -> tuple[bool, ...]:
        joint = [bool(coin(seed, "between", 0, 2, i, 1)[0] < 2 / 9) for i in range(3)]
        return (*joint, *(coin(seed, "within", 0, 1, 0, 2) < 1 / 7), *(coin(seed, "within", 0, 1, 2, 2) < 1 / 7))

    # Local everywhere; then all average; then the first team averages while the second steps.
    wanted = (False, True, False, False, False, True, False)
    seed = next(seed for seed in range(10_000) if falls(seed) == wanted)
    # A local step is 1/3 / (7/9 * 6/7) = 1/2: theta = 1/2, 3/2, 4. Means 1 and 4, tb = 2.
    # Averaging: step 1/3 * 1/2 / (2/9) = 3/4 times [1/3 (theta - 2) + 1/3 (theta - own mean)].
    after = [0.5 - 0.75 * (-1.5 - 0.5) / 3, 1.5 - 0.75 * (-0.5 + 0.5) / 3, 4 - 0.75 * (2 + 0) / 3]
    assert after == pytest.approx([1.0, 1.5, 3.5])
    # Then 1/3 * 1/2 * 1/2 * 2/3 / (7/9 * 1/7) = 1/2 of the way to 1.25; and a local step of 1/2 to 8.
    simulation = simulate(method, population, 1, seed=seed)
    np.testing.assert_allclose(simulation.stores[0].rows["model"].flatten(), [1.125, 1.375, 5.75], atol=1e-14)
    assert simulation.model().item() == pytest.approx((1.125 + 1.375 + 5.75) / 3)
    models = simulation.team_models()
    assert models is not None
    assert models.flatten().tolist() == pytest.approx([2.75 / 3 + 2 / 3 * 1.25, 2.75 / 3 + 2 / 3 * 5.75])


def test_a_single_coin_by_hand() -> None:
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = L2GDCoin(lam=0.5, gamma=0.25, between=0.25, eta=0.3, smoothness=1.0, iterations=2)

    def falls(seed: int) -> list[bool]:
        return [bool(coin(seed, "between", 0, 2, i, 1)[0] < 0.25) for i in range(2)]

    seed = next(seed for seed in range(100) if falls(seed) == [False, True])
    # A step of 0.3 / 0.75 = 0.4: theta = 0.4, 1.2, 3.2; tb = 1.6; w = 1/3 tb + 2/3 tb_i = 16/15, 8/3; then 0.6 of the way.
    simulation = simulate(method, population, 1, seed=seed)
    expected = [0.4 * 0.4 + 0.6 * 16 / 15, 0.4 * 1.2 + 0.6 * 16 / 15, 0.4 * 3.2 + 0.6 * 8 / 3]
    np.testing.assert_allclose(simulation.stores[0].rows["model"].flatten(), expected, atol=1e-14)
    assert exchange_counts(simulation.stores)["within_raw"] == [0, 0]


@pytest.mark.parametrize(("gamma", "smoothness"), [(0.02, 0.7), (0.3, 2.0), (5.0, 1.3)])
def test_corollary_3_6_makes_the_three_terms_equal_and_no_other_coins_do_better(
    gamma: float, smoothness: float
) -> None:
    tree = Tree.parse("3x4")
    pulls = Pulls.on(tree, 0.6, gamma)
    a = gamma / (gamma + 0.6)
    c1, c2 = a * 0.6, (1 - a) * 0.6
    coins = Coins.fair(tree, pulls, smoothness)
    terms = coins.terms(pulls, smoothness)
    if c2 > c1:
        assert terms == pytest.approx([c1 + c2 + smoothness] * 3)
        assert coins.tau == pytest.approx([c1 / c2] * 3)
    else:
        assert (terms[0], terms[2]) == pytest.approx((2 * c1 + smoothness,) * 2)
        assert terms[1] <= terms[0]
        assert coins.within.tolist() == [0, 0, 0]
        assert coins.tau.tolist() == [1, 1, 1]
    for p in np.linspace(0.01, 0.95, 30):
        for q in np.linspace(0.0, 0.95, 30):
            other = Coins.fair(tree, pulls, smoothness, float(p), float(q))
            assert max(other.terms(pulls, smoothness)) >= max(terms) - 1e-9


def test_corollary_3_6_holds_with_unequal_pulls_and_teams() -> None:
    tree = Tree.parse(TEAMS)
    settings, (c, a) = named(tree), UNEQUAL
    pulls = Pulls.on(tree, settings["lam"], settings["gamma"])
    c1, c2, smoothness = (a * c).max(), ((1 - a) * c).max(), 1.7
    assert a[0] != a[-1]
    assert c2 > c1
    coins, total = Coins.fair(tree, pulls, smoothness), c1 + c2 + smoothness
    assert coins.between == pytest.approx(2 * c1 / total)
    assert coins.within == pytest.approx([(c2 - c1) / (c2 - c1 + smoothness)] * 2)
    assert coins.tau == pytest.approx([c1 / c2] * 2)
    assert coins.terms(pulls, smoothness) == pytest.approx([total] * 3)


def test_the_smoothness_that_is_not_given_is_estimated_on_the_devices_once() -> None:
    population = regression(TEAMS, unequal=True)
    simulation = simulate(L2GD(lam=0.5, gamma=0.3, iterations=1), population, 1, task_of(population, l2=0.4))
    found = simulation.stores[2].rows["smoothness"].item()
    largest = max(np.linalg.eigvalsh(form)[-1] for form, _ in quadratics(population))
    assert found == pytest.approx(largest + 0.4, rel=1e-2)
    asked = simulation.ledger.totals()[2].exchanges
    simulation.step()
    assert simulation.stores[2].rows["smoothness"].item() == found
    chance = Coins.fair(population.tree, Pulls.on(population.tree, 0.5, 0.3), found).between
    falls = [int(coin(0, "between", t, 2, 0, 1)[0] < chance) for t in range(2)]
    assert asked == 1 + 2 + falls[0]
    assert simulation.ledger.totals()[2].exchanges - asked == 2 + falls[1]


def test_local_iterations_in_a_row_cost_no_exchange() -> None:
    population = regression("2x2")
    crossed = []
    for iterations in (1, 400):  # no coin falls
        method = L2GD(lam=0.5, gamma=0.3, between=1e-12, within=0.0, eta=1e-14, smoothness=1.0, iterations=iterations)
        simulation = simulate(method, population, 1)
        assert simulation.device_steps == 4 * iterations
        crossed.append({tier: traffic.exchanges for tier, traffic in simulation.ledger.totals().items()})
    # Everybody up to date, up and down, whatever lies between.
    assert crossed[0] == crossed[1] == {1: 2, 2: 2}


def test_no_pull_between_teams_leaves_them_apart_and_needs_no_average_over_all() -> None:
    population = regression("2x2")
    simulation = simulate(L2GD(lam=0.5, gamma=0.0, smoothness=2.0, iterations=20), population, 1)
    assert exchange_counts(simulation.stores)["between_raw"] == [0]
    assert sum(exchange_counts(simulation.stores)["within_raw"]) > 0
    with pytest.raises(BadInput, match="teams never average with each other"):
        simulate(L2GD(lam=0.5, gamma=0.1, between=0.0), population, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l_of_a_softmax_is_its_curvature_at_the_start(dtype: torch.dtype) -> None:
    people = make_population("digits", tree="2x3")
    task = make_task("mclr", people.shape, people.classes)
    simulation = Simulation(L2GD(iterations=2), people, task, rounds=1, dtype=dtype)
    simulation.step()
    found = float(simulation.stores[-1].read(torch.zeros(1, dtype=torch.int64))["smoothness"])
    assert found == pytest.approx(curvature(simulation.learner, iterations=30).smoothness, rel=0.01)


def test_other_depths_and_missing_names_are_refused() -> None:
    with pytest.raises(BadInput, match="3 tiers"):
        simulate(L2GD(), regression("2x2x2"), 1)
    with pytest.raises(BadInput, match="leaves out"):
        simulate(L2GD(lam={"device-0": 1.0}), regression("1x2"), 1)


def test_exchanges_follow_proposition_3_2_raw_and_coalesced() -> None:
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    p, q, rounds, length = 0.3, 0.4, 2, 600
    method = L2GD(lam=0.5, gamma=0.25, between=p, within=q, smoothness=1.0, iterations=length)
    simulation = simulate(method, population, rounds, threads=1)
    counts, total = exchange_counts(simulation.stores), rounds * length
    expected = {
        **{"between_raw": p, "between_coalesced": p * (1 - p)},
        **{"within_raw": (1 - p) * q, "within_coalesced": (1 - p) * q * (1 - q)},
    }
    for name, chance in expected.items():
        for found in counts[name]:
            assert abs(found - chance * total) < 4 * np.sqrt(chance * total), (name, found, chance * total)
    # Not what one would count by asking for a local iteration just before: that is (1 - p)^2 q (1 - q).
    assert min(counts["within_coalesced"]) > 1.15 * (1 - p) ** 2 * q * (1 - q) * total
    # What crossed: every average, and at the end of a round all models up and the mean of all down.
    crossed = simulation.ledger.totals()
    assert crossed[2].exchanges == counts["between_raw"][0] + 2 * rounds
    assert crossed[1].exchanges == sum(counts["within_raw"]) + 2 * (counts["between_raw"][0] + rounds)


def test_counts_go_on_over_rounds_as_if_there_were_none() -> None:
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    method = L2GD(lam=0.5, gamma=0.25, between=0.6, within=0.5, smoothness=1.0, iterations=3)
    simulation = simulate(method, population, 12)
    fell = [bool(coin(0, "between", t, 2, i, 1)[0] < 0.6) for t in range(12) for i in range(3)]
    inside = [coin(0, "within", t, 1, i, 2) < 0.5 for t in range(12) for i in range(3)]
    apart = np.array([within for joint, within in zip(fell, inside, strict=True) if not joint])
    before = np.vstack([[False, False], apart[:-1]])
    assert exchange_counts(simulation.stores) == {
        "between_raw": [sum(fell)],
        "between_coalesced": [sum(now and not last for now, last in zip(fell, [False, *fell[:-1]], strict=True))],
        "within_raw": apart.sum(0).tolist(),
        "within_coalesced": (apart & ~before).sum(0).tolist(),
    }


def test_a_decreasing_step_and_permfl_end_at_the_minimiser_of_one_objective() -> None:
    population = regression("2x3")
    pulls: dict[str, Any] = {"lam": 0.5, "gamma": 0.3}
    theta, w, x = tree_minimiser(population, [0.5, 0.3])
    direct = minimiser(population, np.full(6, 0.5), np.full(6, 0.3 / 0.8))
    np.testing.assert_allclose(direct, theta, atol=1e-12)  # (2.1) and PerMFL's objective have one minimiser
    permfl = simulate(
        PerMFL(**pulls, alpha=0.5, local_steps=20, team_steps=10, batch_size="full"), population, 25, threads=1
    )
    l2gd = simulate(L2GD(**pulls, decrease=1.0), population, 30, threads=1)
    for simulation, error in ((permfl, 1e-4), (l2gd, 0.05)):
        models = simulation.team_models()
        assert models is not None
        found = simulation.stores[0].rows["model"], models, simulation.model()[None]
        for mine, theirs in zip(found, (theta, w, x), strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, atol=error)


def test_a_constant_step_ends_in_a_ball_that_shrinks_with_it_and_keeps_the_bound() -> None:
    population = one_sample_each([1.0, 3.0, 8.0], [2, 1])
    c, a = np.full(3, 0.5), np.full(3, 1 / 3)
    theta, team = minimiser(population, c, a), population.tree.parents[0]
    coins = Coins.fair(population.tree, Pulls.on(population.tree, 0.5, 0.25), 1.0)
    own, common = means(theta, team, c, a)
    p, q = coins.between, coins.within[0]
    noise = 2 / p * np.square(a[:, None] * 0.5 * (theta - common)).sum()
    noise += 2 * (2 / 3) ** 2 / (p + 2 * (1 - p) * q) * np.square(0.5 * (theta - own)).sum()
    noise += np.square(theta - [[1.0], [3.0], [8.0]]).sum() / ((1 - p) * (1 - q))
    errors = {}
    for eta, length in ((1 / 3, 8), (1 / 24, 32)):
        simulation = Simulation(
            L2GD(lam=0.5, gamma=0.25, smoothness=1.0, eta=eta, iterations=length),
            *(population, task_of(population)),
            **{"rounds": 40, "dtype": torch.float64, "threads": 1},  # type: ignore[arg-type]
        )
        tail = []
        for _ in range(40):
            simulation.step()
            tail.append(np.square(simulation.stores[0].rows["model"].numpy() - theta).sum())
        errors[eta] = float(np.mean(tail[10:]))
        assert errors[eta] <= 2 * eta * noise  # mu is 1
    assert 4 < errors[1 / 3] / errors[1 / 24] < 20  # eight times the step, about eight times the squared error
