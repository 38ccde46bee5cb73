"""Methods in which devices look for others that are like them: FedAMP, HeurFedAMP, FedFomo and FedALA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palmette import address
from palmette.algorithms import algorithm
from palmette.algorithms.fedala import FedALA
from palmette.algorithms.fedamp import FedAMP, HeurFedAMP
from palmette.algorithms.fedfomo import FedFomo
from palmette.blocks.last_models import cosines, fits, squared_distances
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link
from palmette.population import Population
from palmette.protocol import Node
from palmette.task import make_task
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


def test_more_models_than_a_server_can_keep_are_refused() -> None:
    with pytest.raises(BadInput, match=r"keeps the last models of 9 devices, which would take .* take fewer devices"):
        fits(1 << 50, torch.zeros(1), "the last models of 9 devices")


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


# -- FedFomo ----------------------------------------------------------------------------------------------------------------


def forms_and_held_out(population: Population, share: float) -> list[tuple[Floats, Floats, Floats, Floats]]:
    """Each device's normal equations on what it trains on, and the samples that it holds out."""
    made, held = [], population.held_out(share)
    for i in range(population.devices):
        lo = int(population.start[i])
        end = lo + int(population.train[i])
        cut = end - int(held[i])
        x, y = population.x[lo:end].numpy(), population.y[lo:end].numpy()
        n = cut - lo
        made.append((x[:n].T @ x[:n] / n, x[:n].T @ y[:n] / n, x[n:], y[n:]))
    return made


def pair_numbers(population: Population, t: int) -> Floats:
    """The random number of every pair of devices in a round, by which ties are broken."""
    names = torch.from_numpy(population.tree.addresses[0])
    base = address.mix(address.key(0, "fedfomo", t), names)
    numbers: Floats = address.uniform(address.mix(base[:, None], names)).numpy()
    return numbers


def test_every_device_takes_from_others_what_lowers_its_loss_on_held_out_samples() -> None:
    """Four rounds by hand, always the most helpful models; the device that is mostly absent may still be of help."""
    population = regression("2x2", unequal=True)
    method = FedFomo(others=2, epsilon=0.0, local_steps=3, alpha=0.1, batch_size="full")
    simulation = simulate(method, population, 4, links=ABSENT)
    forms = forms_and_held_out(population, 0.2)

    def loss(i: int, row: Floats) -> float:
        return float(((forms[i][2] @ row - forms[i][3]) ** 2).mean() / 2)

    theta, phi, affinity, known = np.zeros((4, 3)), np.zeros((4, 3)), np.zeros((4, 4)), list[int]()
    for t in range(4):
        there, new, ties = [0, 1, 2, 3] if t == 1 else [0, 2, 3], theta.copy(), pair_numbers(population, t)
        for i in there:
            others = sorted((q for q in known if q != i), key=lambda q: (-affinity[i, q], ties[i, q]))[:2]
            start = theta[i]
            if len(known) > 1:
                weights = {}
                for q in [*others, i]:
                    far = float(np.linalg.norm(theta[q] - phi[i]))
                    weights[q] = (loss(i, phi[i]) - loss(i, theta[q])) / far if far else 0.0
                for q in others:
                    affinity[i, q] += weights[q]
                positive = {q: max(w, 0.0) for q, w in weights.items()}
                start = phi[i] + sum(w * (theta[q] - phi[i]) for q, w in positive.items()) / (
                    sum(positive.values()) or 1
                )
            phi[i] = new[i] = start
            for _ in range(3):
                new[i] = new[i] - 0.1 * (forms[i][0] @ new[i] - forms[i][1])
        theta, known = new, sorted({*known, *there})
    assert (affinity != 0).any()
    np.testing.assert_allclose(kept(simulation), theta, atol=1e-12)
    np.testing.assert_allclose(kept(simulation, "before"), phi, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[1].rows["affinity"].numpy().reshape(4, 4), affinity, atol=1e-12)


def server_node(devices: int, round_: int) -> Node:
    simulation = Simulation(FedFomo(), regression(str(devices)), make_task("linear", (3,), None), rounds=9)
    simulation.round = round_
    return simulation.node(1, torch.zeros(1, dtype=torch.int64))


def test_fedfomo_sends_the_most_helpful_models_and_at_times_any() -> None:
    others = ~torch.eye(40, dtype=torch.bool)
    others[:, 7] = False  # never answered
    affinity = torch.arange(40.0).expand(40, 40).clone()
    greedy = FedFomo(epsilon=0.0)._chosen(server_node(40, 0), affinity, others, 3)
    assert greedy[0].tolist() == [39, 38, 37]
    assert greedy[38].tolist() == [39, 37, 36]  # not itself
    anything = FedFomo(epsilon=1.0, decay=0.25)
    drawn = anything._chosen(server_node(40, 0), affinity, others, 3)
    assert len(drawn.unique()) > 25
    assert all(len(set(row)) == 3 and i not in row and 7 not in row for i, row in enumerate(drawn.tolist()))
    assert anything._chosen(server_node(40, 4), affinity, others, 3)[0].tolist() == [39, 38, 37]  # the chance fell to 0


def test_fedfomo_sends_some_models_down_and_one_with_their_weights_up() -> None:
    simulation = simulate(FedFomo(others=2), regression("2x3"), 2, dtype=torch.float32)
    assert bytes_of(simulation, 0) == (0, 6 * 3 * 4)  # there is nothing to send yet
    assert bytes_of(simulation, 1) == (6 * 2 * 3 * 4, 6 * (3 + 2) * 4)


# -- FedALA -----------------------------------------------------------------------------------------------------------------


def test_every_device_learns_how_much_of_the_global_model_to_take_over() -> None:
    """Four rounds by hand: nothing in a device's first round, three steps on its weights in its second, one in later ones."""
    population = regression("2x2", unequal=True)
    given: dict[str, Any] = {"local_steps": 2, "alpha": 0.1, "batch_size": "full"}
    method = FedALA(first_weight_steps=3, weight_steps=1, weight_lr=20.0, **given)
    task = make_task("linear", population.shape, None)  # one layer: everything is higher
    simulation = simulate(method, population, 4, task, links=ABSENT)
    theta, weights, turns, x = np.zeros((4, 3)), np.ones((4, 3)), np.zeros(4, int), np.zeros(3)
    n, clipped = population.train.numpy().astype(float), 0
    for t in range(4):
        there = [0, 1, 2, 3] if t == 1 else [0, 2, 3]
        for i in there:
            a, b = quadratics(population)[i]
            for _ in range((0, 3, 1, 1)[min(turns[i], 3)]):
                slope = a @ (theta[i] + weights[i] * (x - theta[i])) - b
                free = weights[i] - 20.0 * slope * (x - theta[i])
                weights[i] = np.clip(free, 0, 1)
                clipped += int((weights[i] != free).sum())
            start = theta[i] + weights[i] * (x - theta[i]) if turns[i] else x
            theta[i] = steps(population, i, start, 2, 0.1, 0.0, start)
            turns[i] += 1
        x = np.average(theta[there], axis=0, weights=n[there])
    assert clipped
    assert ((weights > 0) & (weights < 1)).any()
    np.testing.assert_allclose(kept(simulation), theta, atol=1e-12)
    np.testing.assert_allclose(kept(simulation, "weights"), weights, atol=1e-12)
    np.testing.assert_allclose(simulation.model(), x, atol=1e-12)


def test_fedala_takes_the_lower_layers_of_the_global_model_as_they_are() -> None:
    population = regression("3")
    task = make_task("dnn", population.shape, None, hidden=[4])
    method = FedALA(first_weight_steps=2, local_steps=1, alpha=1e-12, weight_lr=50.0, batch_size="full")
    simulation = simulate(method, population, 2, task, stop=1)
    # Devices far from the global model.
    simulation.stores[0].rows["model"] += torch.tensor([[-1.0], [0.5], [-0.5]], dtype=torch.float64)
    x, layout = simulation.model().clone(), simulation.task.layout
    simulation.step()
    rows = simulation.stores[0].rows["model"]
    torch.testing.assert_close(layout.cut(rows, "body"), layout.cut(x, "body").expand(3, -1), atol=1e-9, rtol=0)
    assert simulation.stores[0].rows["weights"].shape == (3, 4 + 1)
    assert not torch.allclose(layout.cut(rows, "higher"), layout.cut(x, "higher"), atol=1e-2)


def test_fedala_without_steps_on_the_weights_is_fedavg() -> None:
    population = regression([3, 2], unequal=True)
    given = {"local_steps": 5, "alpha": 0.1, "batch_size": 4}
    still = algorithm("fedala", first_weight_steps=0, weight_steps=0, **given)
    task = make_task("dnn", population.shape, None, hidden=[4])
    one = simulate(still, population, 3, task, dtype=torch.float32)
    other = simulate(algorithm("fedavg", **given), population, 3, task, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())
    assert bytes_of(one, 2) == bytes_of(other, 2) == (5 * 21 * 4, 5 * 21 * 4)
