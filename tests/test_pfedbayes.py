"""pFedBayes: the divergence and its gradient by hand, two rounds by hand, what is sent, and what it becomes at its ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import palmette as pm
from palmette import address
from palmette.algorithms import PFedBayes
from palmette.blocks.gaussians import divergence
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Batch, Learner, LocalWork, Optimiser
from palmette.links import Link
from palmette.population import Population
from palmette.task import Task, make_task
from palmette.testing import regression, simulate, task_of
from problems import Floats, quadratics

STILL = -60.0  # a rho whose deviation is below any round-off


def soft(rho: Floats) -> Floats:
    return np.log1p(np.exp(rho))


# -- the divergence ----------------------------------------------------------------------------------------------------


def test_the_divergence_and_its_gradient_are_those_of_torch_and_of_a_hand() -> None:
    m, s, n, t = (
        torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in ([1.0, -2], [0.5, 2], [0.5, 1], [1.5, 1])
    )
    found = divergence(m, s, n, t)
    normal = torch.distributions.Normal
    torch.testing.assert_close(found, torch.distributions.kl_divergence(normal(m, s), normal(n, t)).sum())
    found.backward()
    gap = (m - n).detach()
    for leaf, expected in (
        (m, gap / t**2),
        (n, -gap / t**2),
        (s, s / t**2 - 1 / s),
        (t, 1 / t - (s**2 + gap**2) / t**3),
    ):
        torch.testing.assert_close(leaf.grad, expected.detach())


# -- noise -------------------------------------------------------------------------------------------------------------


def test_addressed_noise_is_standard_normal_and_that_of_its_address() -> None:
    drawn = address.normal(torch.tensor(7), 200_001, torch.float64)
    assert drawn.shape == (200_001,)
    for moment, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs(float(drawn.pow(moment).mean()) - expected) < 0.05
    assert torch.equal(drawn, address.normal(torch.tensor(7), 200_001, torch.float64))
    assert abs(float((drawn * address.normal(torch.tensor(8), 200_001, torch.float64)).mean())) < 0.01
    assert abs(float((drawn[:-1] * drawn[1:]).mean())) < 0.01
    torch.testing.assert_close(
        address.normal(torch.tensor(7), 9, torch.float32).double(),
        address.normal(torch.tensor(7), 9, torch.float64),
        rtol=1e-4,
        atol=1e-5,
    )


def noises(backend: str, ids: list[int]) -> torch.Tensor:
    """Return what two steps of an objective drew for some devices."""
    people = regression("4", samples=5)
    of = Learner(task_of(people), people, seed=3, batch_size=2, backend=backend, dtype=torch.float64)
    chosen = torch.tensor(ids)
    work = LocalWork(of, chosen, 1, torch.zeros_like(chosen))

    def objective(rows: Any, batch: Batch) -> torch.Tensor:
        row = rows["model"]
        return -(row * (batch.normal(row) + 10 * batch.normal(row))).sum()

    return work.minimise(objective, {"model": torch.zeros(len(ids), 3, dtype=torch.float64)}, steps=2, lr=1.0)["model"]


def test_noise_belongs_to_a_device_whatever_is_computed_beside_it() -> None:
    whole = noises("loop", [0, 1, 2, 3])
    assert len(set(whole.flatten().tolist())) == whole.numel()
    for backend in ("vmap", "fused"):
        torch.testing.assert_close(noises(backend, [0, 1, 2, 3]), whole)
        torch.testing.assert_close(noises(backend, [2, 0]), whole[[2, 0]])


def test_there_is_no_noise_where_models_are_measured() -> None:
    people = regression("2", samples=5)
    batch = Batch(people.x, people.y, None, task_of(people), task_of(people).module, {})
    with pytest.raises(pm.PalmetteError, match=r"noise in an objective of node.minimise alone"):
        batch.normal(people.x)


# -- an optimiser for other objectives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_minimise_takes_the_steps_of_an_optimiser(name: str) -> None:
    people = regression("3", samples=8, unequal=True)
    of = Learner(task_of(people), people, seed=0, batch_size="full", dtype=torch.float64)
    ids = torch.arange(3)
    start = torch.ones(3, 3, dtype=torch.float64)
    rule = Optimiser(name="adam") if name == "adam" else Optimiser(momentum=0.9, weight_decay=0.1)
    work = LocalWork(of, ids, 0, torch.zeros_like(ids))
    steps = torch.tensor([4, 2, 3])
    found = work.minimise(lambda rows, batch: batch.loss(rows["a"]), {"a": start}, steps=steps, lr=0.1, optimiser=rule)
    expected = work.optimise(start, rule, steps=steps, lr=0.1)[0]
    torch.testing.assert_close(found["a"], expected)
    assert work.device_steps == 18


# -- by hand -----------------------------------------------------------------------------------------------------------


def by_hand(people: Population, method: PFedBayes, rounds: int, start: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Run the recursion in numpy, for distributions so narrow that the noise is nothing: devices' and global mu and rho."""
    forms, counts = quadratics(people), people.train.numpy()
    mu, rho = np.tile(start, (people.devices, 1)), np.full((people.devices, len(start)), method.rho)
    z, zr = start.copy(), np.full(len(start), method.rho)
    for _ in range(rounds):
        copies = []
        for i, (a, b) in enumerate(forms):
            w, wr, k = z.copy(), zr.copy(), method.zeta / counts[i]
            for _ in range(method.local_steps):
                s, t, gap = soft(rho[i]), soft(wr), mu[i] - w
                slope, other = 1 / (1 + np.exp(-rho[i])), 1 / (1 + np.exp(-wr))
                moved = (
                    a @ mu[i] - b + k * gap / t**2,
                    k * (s / t**2 - 1 / s) * slope,
                    -k * gap / t**2,
                    k * (1 / t - (s**2 + gap**2) / t**3) * other,
                )
                mu[i], rho[i] = mu[i] - method.alpha * moved[0], rho[i] - method.alpha * moved[1]
                w, wr = w - method.eta * moved[2], wr - method.eta * moved[3]
            copies.append((w, wr))
        z = (1 - method.beta) * z + method.beta * np.mean([one for one, _ in copies], 0)
        zr = (1 - method.beta) * zr + method.beta * np.mean([one for _, one in copies], 0)
    return mu, rho, z, zr


def test_two_rounds_are_those_done_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "normal", lambda self, like: torch.zeros_like(like))
    people = regression("3", samples=6, unequal=True)
    given: dict[str, Any] = {"alpha": 0.05, "eta": 0.02, "zeta": 0.7, "rho": 1.5, "beta": 0.8, "local_steps": 3}
    method = PFedBayes(**given, optimiser="sgd", batch_size="full")
    task = make_task("linear", people.shape, None)
    found = simulate(method, people, 2, task)
    mu, rho, z, zr = by_hand(people, method, 2, task.initial(torch.float64).numpy())
    devices = found.stores[0].rows
    for value, expected in ((devices["model"], mu), (devices["rho"], rho)):
        np.testing.assert_allclose(value, expected, rtol=1e-9)
    server = found.stores[1].rows
    for value, expected in ((server["model"][0], z), (server["rho"][0], zr)):
        np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_a_step_of_the_objective_sees_the_noise() -> None:
    """With one step and zeta = 0 the mean moves by the gradient at a sample, and rho by that times the noise."""
    people = regression("3", samples=6)
    seen: list[torch.Tensor] = []
    given: dict[str, Any] = {"local_steps": 1, "zeta": 0.0, "rho": 0.3, "optimiser": "sgd", "batch_size": "full"}
    plain = Batch.normal

    def watched(self: Batch, like: torch.Tensor) -> torch.Tensor:
        seen.append(plain(self, like))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "normal", watched)
        found = simulate(PFedBayes(**given, alpha=0.1), people, 1, backend="loop")
    start = task_of(people).initial(torch.float64).numpy()
    for i, (a, b) in enumerate(quadratics(people)):
        noise = seen[i].numpy()
        gradient = a @ (start + soft(np.full(3, 0.3)) * noise) - b
        np.testing.assert_allclose(found.stores[0].rows["model"][i], start - 0.1 * gradient)
        slope = 1 / (1 + np.exp(-0.3))
        np.testing.assert_allclose(found.stores[0].rows["rho"][i], 0.3 - 0.1 * gradient * noise * slope)
    assert len(seen) == 3


# -- its ends ----------------------------------------------------------------------------------------------------------


def digits() -> tuple[Population, Task]:
    people = pm.make_population("digits", tree="2x3")
    return people, make_task("mclr", people.shape, people.classes)


def test_without_noise_and_divergence_every_device_trains_alone() -> None:
    people, task = digits()
    method = PFedBayes(zeta=0.0, rho=STILL, optimiser="sgd", alpha=0.05)
    one, other = (simulate(each, people, 3, task) for each in (method, pm.Local()))
    ids = torch.arange(people.devices)
    torch.testing.assert_close(one.device_models(ids), other.device_models(ids), rtol=1e-12, atol=1e-12)
    assert torch.equal(one.model(), task.initial(torch.float64))


def test_a_large_divergence_holds_all_devices_together() -> None:
    """The distributions and their copies meet, so the more the divergence counts, the nearer devices are to the mean."""
    people, apart = regression("4", samples=10), []
    for zeta in (0.001, 0.3, 30.0):
        method = PFedBayes(zeta=zeta, alpha=0.03, eta=0.03, local_steps=6, batch_size="full", rho=-1.0)
        simulation = simulate(method, people, 4)
        apart.append(float((simulation.device_models(torch.arange(4)) - simulation.model()).norm()))
    assert apart[0] > apart[1] > apart[2]


def test_large_batches_that_come_in_blocks_count_the_divergence_once() -> None:
    """More than 512 samples are taken block by block; what is no mean over samples must not be added for each."""
    few = regression("2", samples=300, seed=1)
    many = Population(
        few.tree,
        torch.cat([few.x[:299].repeat(4, 1), few.x[:4], few.x[300:599].repeat(4, 1), few.x[:4]]),
        torch.cat([few.y[:299].repeat(4), few.y[:4], few.y[300:599].repeat(4), few.y[:4]]),
        few.start * 4,
        few.train * 4,
        None,
    )
    given: dict[str, Any] = {"rho": STILL / 20, "optimiser": "sgd", "alpha": 0.05, "eta": 0.001, "batch_size": "full"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "normal", lambda self, like: torch.zeros_like(like))
        one = simulate(PFedBayes(zeta=0.01, **given), few, 1)
        other = simulate(PFedBayes(zeta=0.04, **given), many, 1)  # as much for each of four times the samples
    torch.testing.assert_close(one.device_models(torch.arange(2)), other.device_models(torch.arange(2)))


# -- traffic, absence --------------------------------------------------------------------------------------------------


def test_twice_a_model_goes_each_way() -> None:
    people, task = digits()
    simulation = Simulation(PFedBayes(local_steps=1), people, task, rounds=1)
    simulation.step()
    (entry,) = simulation.ledger.entries.values()
    assert (entry.exchanges, entry.bytes_down, entry.bytes_up) == (1, 6 * 8 * 650, 6 * 8 * 650)
    assert list(simulation.kinds) == ["PM", "GM"]


def test_an_absent_device_keeps_its_distribution_and_one_that_never_came_fits_the_global_one() -> None:
    people, task = digits()
    gone = Link(absences=lambda round_, tier, exchange, children: (children == 4) | ((children == 1) & (round_ > 0)))
    simulation = Simulation(PFedBayes(local_steps=3), people, task, rounds=2, links={0: gone})
    simulation.step()
    before = {name: rows.clone() for name, rows in simulation.stores[0].rows.items()}
    simulation.step()
    after = simulation.stores[0].rows
    for name, rows in before.items():
        assert torch.equal(rows[1], after[name][1])
        assert not torch.equal(rows[0], after[name][0])
    models = simulation.device_models(torch.arange(people.devices))
    assert not torch.equal(models[4], simulation.model())
    assert simulation.adapt_steps == 3


@pytest.mark.parametrize("rho", [float("nan"), float("-inf"), -200.0])
def test_a_deviation_that_there_cannot_be_is_refused(rho: float) -> None:
    with pytest.raises(BadInput, match="rho"):
        pm.algorithm("pfedbayes", rho=rho)
