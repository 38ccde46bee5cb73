"""Methods in which devices look for others that are like them: FedAMP, HeurFedAMP, FedFomo and FedALA."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palmette.algorithms import algorithm
from palmette.algorithms.fedamp import FedAMP, HeurFedAMP
from palmette.blocks.last_models import cosines, squared_distances
from palmette.engines.simulate import Simulation
from palmette.links import Link
from palmette.population import Population
from problems import Floats, quadratics, regression, simulate

ABSENT = {0: Link(absences=lambda round_, tier, exchange, children: (children == 1) & (round_ != 1))}
"""Device 1 takes part in round 1 alone."""


def steps(population: Population, i: int, start: Floats, count: int, lr: float, pull: float, centre: Floats) -> Floats:
    """Full gradient steps of one device, by its normal equations."""
    a, b = quadratics(population)[i]
    row = start
    for _ in range(count):
        row = row - lr * (a @ row - b + pull * (row - centre))
    return row


def kept(simulation: Simulation, name: str = "model") -> Floats:
    rows: Floats = simulation.stores[0].rows[name].numpy().copy()
    return rows


def bytes_of(simulation: Simulation, round_: int) -> tuple[int, int]:
    """Bytes down and up in a round, on the only link."""
    entry = simulation.ledger.entries[round_, 2]
    return entry.bytes_down, entry.bytes_up


# -- what models have in common ---------------------------------------------------------------------------------------------


def test_distances_and_cosines_of_nearly_equal_models_are_exact() -> None:
    rows = 1e4 + torch.tensor([[0.0, 0.0], [3e-3, 4e-3], [0.0, 1e-2]], dtype=torch.float64)
    wanted = torch.tensor([[0, 25e-6, 1e-4], [25e-6, 0, 45e-6], [1e-4, 45e-6, 0]], dtype=torch.float64)
    torch.testing.assert_close(squared_distances(rows), wanted, rtol=1e-6, atol=1e-12)
    angles = cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(angles[0], torch.tensor([1, 0.5**0.5, 0], dtype=torch.float64))


# -- FedAMP and HeurFedAMP --------------------------------------------------------------------------------------------------


def fedamp_weights(theta: Floats, known: list[int], strength: float, sigma: float) -> Floats:
    n = len(theta)
    xi = np.zeros((n, n))
    for i in range(n):
        others = [q for q in known if q != i]
        for q in others:
            xi[i, q] = strength / len(others) * np.exp(-((theta[i] - theta[q]) ** 2).sum() / sigma)
        xi[i, i] = 1 - xi[i].sum()
    return xi


def heur_weights(theta: Floats, known: list[int], own: float, sigma: float) -> Floats:
    n = len(theta)
    xi = np.zeros((n, n))
    for i in range(n):
        others = [q for q in known if q != i]
        size = np.linalg.norm(theta, axis=1)
        alike = {q: np.exp(sigma * theta[i] @ theta[q] / max(size[i] * size[q], 1e-300)) for q in others}
        for q in others:
            xi[i, q] = (1 - own) * alike[q] / sum(alike.values())
        xi[i, i] = own if others else 1.0
    return xi


@pytest.mark.parametrize("kind", ["fedamp", "heurfedamp"])
def test_every_device_is_pulled_to_a_cloud_model_of_its_own(kind: str) -> None:
    """Four rounds by hand; the device that is mostly absent counts from its first answer on, with its last model."""
    population = regression("2x2")
    common = {"local_steps": 2, "alpha": 0.1, "lam": 0.7, "batch_size": "full"}
    given = {"strength": 0.8, "sigma": 1.5} if kind == "fedamp" else {"own": 0.3, "sigma": 4.0}
    simulation = simulate(algorithm(kind, **common, **given), population, 4, links=ABSENT)
    theta, known = np.zeros((4, 3)), list[int]()
    for t in range(4):
        weights = fedamp_weights if kind == "fedamp" else heur_weights
        cloud = weights(theta, known, *given.values()) @ theta
        there = [0, 1, 2, 3] if t == 1 else [0, 2, 3]
        new = theta.copy()
        for i in there:
            new[i] = steps(population, i, theta[i], 2, 0.1, 0.7, cloud[i])
        theta, known = new, sorted({*known, *there})
    np.testing.assert_allclose(kept(simulation), theta, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[1].rows["all"].numpy().reshape(4, 3), theta, atol=1e-12)
    np.testing.assert_allclose(simulation.model(), theta.mean(0), atol=1e-12)  # what a new device would begin from


def test_heurfedamp_with_self_weight_one_and_no_pull_is_local_training() -> None:
    population = regression([3, 2], unequal=True)
    common = {"local_steps": 5, "alpha": 0.1, "batch_size": 4}
    one = simulate(algorithm("heurfedamp", own=1.0, lam=0.0, **common), population, 3, dtype=torch.float32)
    other = simulate(algorithm("local", **common), population, 3, dtype=torch.float32)
    assert np.array_equal(kept(one), kept(other))


def test_fedamps_mean_sigma_is_the_mean_squared_distance_between_devices_that_answered() -> None:
    population = regression("4")
    method = FedAMP(local_steps=2, alpha=0.1, batch_size="full")
    simulation = simulate(method, population, 2, links=ABSENT, stop=1)
    theta, known = kept(simulation), [0, 2, 3]
    apart = [((theta[i] - theta[q]) ** 2).sum() for i in known for q in known if i != q]
    simulation.step()
    xi = fedamp_weights(theta, known, 0.9, float(np.mean(apart)))
    wanted = [steps(population, i, theta[i], 2, 0.1, method.lam, (xi @ theta)[i]) for i in range(4)]
    np.testing.assert_allclose(kept(simulation), np.stack(wanted), atol=1e-12)


@pytest.mark.parametrize("method", [FedAMP(), HeurFedAMP()], ids=["fedamp", "heurfedamp"])
def test_message_passing_sends_a_model_down_and_one_up(method: FedAMP) -> None:
    simulation = simulate(method, regression("2x3"), 2, dtype=torch.float32)
    assert [bytes_of(simulation, t) for t in range(2)] == [(6 * 3 * 4, 6 * 3 * 4)] * 2
    assert tuple(simulation.kinds) == ("PM",)
