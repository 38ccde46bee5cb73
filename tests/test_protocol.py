"""The protocol's powers: four methods of other papers, checked against plain numpy."""

from __future__ import annotations

import numpy as np
import torch

from palmette import address
from palmette.algorithms import Scaffold
from palmette.links import Link, Participation
from palmette.population import Population
from problems import Floats, quadratics, regression, simulate
from programs import AsyncL2GD, TwoStages


def gradient_steps(
    population: Population, device: int, theta: Floats, steps: int, lr: float, extra: Floats | float = 0.0
) -> Floats:
    a, b = quadratics(population)[device]
    for _ in range(steps):
        theta = theta - lr * (a @ theta - b + extra)
    return theta


def test_scaffold_with_half_of_the_devices_agrees_with_numpy() -> None:
    population = regression("2x3")
    half = Participation("count", 3)
    simulation = simulate(Scaffold(local_steps=3, alpha=0.1, batch_size="full"), population, 4, links={0: Link(half)})
    n, d = population.devices, 3
    x, c, own = np.zeros(d), np.zeros(d), np.zeros((n, d))
    everybody = torch.from_numpy(population.tree.addresses[0])
    for t in range(4):
        drawn = half.draw(
            everybody,
            torch.zeros(n, dtype=torch.int64),
            seed=0,
            tier=1,
            round_=t,
            exchange=torch.zeros(1, dtype=torch.int64),
            turn=torch.tensor([t]),
        )
        assert int(drawn.sum()) == 3
        dx, dc = [], []
        for i in drawn.nonzero().flatten().tolist():
            y = gradient_steps(population, i, x, 3, 0.1, c - own[i])
            new = own[i] - c + (x - y) / 0.3
            dx.append(y - x)
            dc.append(new - own[i])
            own[i] = new
        x, c = x + np.mean(dx, 0), c + 3 / n * np.mean(dc, 0)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[0].rows["control"].numpy(), own, atol=1e-12)


def test_async_l2gd_agrees_with_numpy_and_local_steps_cost_no_exchange() -> None:
    population = regression([2, 3, 4])
    method = AsyncL2GD()
    rounds = 3
    simulation = simulate(method, population, rounds)
    team = population.tree.parents[0]
    theta = np.zeros((population.devices, 3))
    meetings = gatherings = 0
    for t in range(rounds):
        for i in range(method.iterations):

            def coins(purpose: str, tier: int, t: int = t, i: int = i) -> Floats:
                base = address.key(0, purpose, t, tier, i)
                nodes = torch.from_numpy(population.tree.addresses[tier])
                return address.uniform(address.mix(base, nodes)).numpy()

            mean = np.stack([theta[team == j].mean(0) for j in range(3)])[team]
            if coins("between", 2)[0] < method.between:
                gain = method.eta * method.c / method.between
                b = method.tau * (1 - method.a)
                theta = (1 - gain * (method.a + b)) * theta + gain * (method.a * theta.mean(0) + b * mean)
                gatherings += 1
                continue
            meet = coins("within", 1) < method.within
            meetings += int(meet.sum())
            s = method.eta * method.c * (1 - method.tau) * (1 - method.a) / ((1 - method.between) * method.within)
            lr = method.eta / ((1 - method.between) * (1 - method.within))
            theta = np.stack(
                [
                    (1 - s) * theta[j] + s * mean[j]
                    if meet[team[j]]
                    else gradient_steps(population, j, theta[j], 1, lr)
                    for j in range(len(theta))
                ]
            )
    np.testing.assert_allclose(simulation.stores[0].rows["model"].numpy(), theta, atol=1e-12)
    totals = simulation.ledger.totals()
    assert meetings > 5
    assert gatherings > 3
    assert totals[1].exchanges == meetings + 3 * (gatherings + rounds)  # the last exchange of a round flushes
    assert totals[2].exchanges == gatherings + rounds


def test_two_stages_share_first_and_part_later() -> None:
    population = regression([2, 4], unequal=True)
    simulation = simulate(TwoStages(), population, 5)
    n = population.train.numpy().astype(float)
    team = population.tree.parents[0]
    x, w = np.zeros(3), np.zeros((2, 3))
    for t in range(5):
        start = np.repeat(x[None], 2, 0) if t <= 2 else w
        theta = np.stack([gradient_steps(population, i, start[team[i]], 2, 0.1) for i in range(6)])
        w = np.stack([np.average(theta[team == j], axis=0, weights=n[team == j]) for j in range(2)])
        if t < 2:
            x = np.average(w, axis=0, weights=[n[team == j].sum() for j in range(2)])
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[1].rows["model"].numpy(), w, atol=1e-12)
    top = simulation.ledger.totals()[2]
    assert (top.exchanges, top.bytes_up) == (3, 2 * 2 * 3 * 8)  # two shared rounds up, one last broadcast, then silence
