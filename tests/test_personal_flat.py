"""Ditto, APFL, Per-FedAvg and pFedMe: plain numpy, what each is the same as, what it sends, and who is absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import APFL, Ditto, FedAvg, Local, PerFedAvg, PFedMe, algorithm
from palmette.engines.evaluation import evaluate, measure
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link
from palmette.links.ledger import Traffic
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.tree import Tree
from problems import Floats, quadratics, regression, simulate, tree_minimiser

K, ALPHA = 3, 0.1
STEPS: dict[str, Any] = {"local_steps": K, "alpha": ALPHA, "batch_size": "full"}
Form = tuple[Floats, Floats]


def away(*devices: int) -> Link:
    """A link on which some devices are never heard of."""
    gone = torch.tensor(devices)
    return Link(absences=lambda round_, tier, exchange, children: torch.isin(children, gone))


def gradient(form: Form, row: Floats) -> Floats:
    found: Floats = form[0] @ row - form[1]
    return found


def mean(population: Population, rows: list[Floats]) -> Floats:
    found: Floats = np.average(np.stack(rows), axis=0, weights=population.train.numpy())
    return found


def personal(simulation: Simulation) -> Tensor:
    return simulation.device_models(torch.arange(simulation.population.devices))


# -- against plain numpy -----------------------------------------------------------------------------------------------


def test_ditto_agrees_with_numpy() -> None:
    population = regression([3, 2], unequal=True)
    forms, x = quadratics(population), np.zeros(3)
    v = [np.zeros(3) for _ in forms]
    for _ in range(3):
        rows = []
        for i, form in enumerate(forms):
            theta = x
            for _ in range(K):
                theta = theta - ALPHA * gradient(form, theta)
            for _ in range(2):
                v[i] = v[i] - ALPHA * (gradient(form, v[i]) + 0.7 * (v[i] - x))
            rows.append(theta)
        x = mean(population, rows)
    simulation = simulate(Ditto(**STEPS, personal_steps=2, lam=0.7), population, 3)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)
    np.testing.assert_allclose(personal(simulation).numpy(), np.stack(v), atol=1e-13)


@pytest.mark.parametrize("learned", [True, False])
def test_apfl_agrees_with_numpy(learned: bool) -> None:
    population = regression([3, 2], unequal=True)
    forms, x = quadratics(population), np.zeros(3)
    v, a = [np.zeros(3) for _ in forms], [0.4] * len(forms)
    for _ in range(4):
        rows = []
        for i, form in enumerate(forms):
            w, mixing = x, a[i]
            for step in range(K):
                u = mixing * v[i] + (1 - mixing) * w
                if learned and step == 0:
                    a[i] = float(np.clip(mixing - ALPHA * (v[i] - w) @ gradient(form, u), 0, 1))
                v[i] = v[i] - ALPHA * mixing * gradient(form, u)
                w = w - ALPHA * gradient(form, w)
                mixing = a[i]
            rows.append(w)
        x = mean(population, rows)
    simulation = simulate(APFL(**STEPS, mixing=0.4, learned=learned), population, 4)
    mixed = np.stack([one * row + (1 - one) * x for one, row in zip(a, v, strict=True)])
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)
    np.testing.assert_allclose(personal(simulation).numpy(), mixed, atol=1e-13)
    np.testing.assert_allclose(measure(simulation)[1]["mixing"]["PM"].numpy(), a, atol=1e-13)
    assert (len(set(a)) > 1) == learned


@pytest.mark.parametrize(("form", "gradients"), [("first-order", 2), ("hessian-free", 4)])
def test_per_fedavg_agrees_with_numpy(form: Any, gradients: int) -> None:
    population = regression([3, 2], unequal=True)
    forms, x = quadratics(population), np.zeros(3)
    for _ in range(3):
        rows = []
        for one in forms:
            theta = x
            for _ in range(K):
                q = gradient(one, theta - 0.2 * gradient(one, theta))
                theta = theta - ALPHA * (q if form == "first-order" else q - 0.2 * one[0] @ q)  # exact on a quadratic
            rows.append(theta)
        x = mean(population, rows)
    method = PerFedAvg(local_steps=K, alpha=0.2, beta=ALPHA, form=form, batch_size="full", tune_steps=2)
    simulation = simulate(method, population, 3)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-9 if gradients == 4 else 1e-13)
    assert simulation.device_steps == 3 * 5 * K * gradients
    tuned = [row - 0.2 * gradient(one, row) for one in forms for row in [x - 0.2 * gradient(one, x)]]
    np.testing.assert_allclose(personal(simulation).numpy(), np.stack(tuned), atol=1e-9)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_pfedme_agrees_with_numpy(weights: Any) -> None:
    population = regression([3, 2], unequal=True)
    forms, x = quadratics(population), np.zeros(3)
    for _ in range(3):
        rows, own = [], []
        for form in forms:
            theta = w = x
            for _ in range(4):
                for _ in range(K):
                    theta = theta - ALPHA * (gradient(form, theta) + 0.7 * (theta - w))
                w = w - 0.5 * 0.7 * (w - theta)
            rows.append(w)
            own.append(theta)
        x = 0.2 * x + 0.8 * (mean(population, rows) if weights == "samples" else np.mean(rows, 0))
    method = PFedMe(
        local_steps=4, prox_steps=K, alpha=ALPHA, lam=0.7, eta=0.5, beta=0.8, weights=weights, batch_size="full"
    )
    simulation = simulate(method, population, 3)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)
    np.testing.assert_allclose(personal(simulation).numpy(), np.stack(own), atol=1e-13)
    assert simulation.device_steps == 3 * 5 * 4 * K


# -- what is the same as what ------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"local_steps": 7, "batch_size": 5}


def mixed_sizes() -> Population:
    """Devices of different sizes; some have more samples than the steps of a round take, some fewer."""
    return regression([3, 2], unequal=True, samples=20)


def test_ditto_without_a_pull_is_fedavg_beside_local_training_bit_for_bit() -> None:
    population = mixed_sizes()
    ditto, fedavg, local = (
        simulate(method, population, 3, dtype=torch.float32)
        for method in (Ditto(**SMALL, personal_steps=7, lam=0), FedAvg(**SMALL), Local(**SMALL))
    )
    assert torch.equal(ditto.model(), fedavg.model())
    assert torch.equal(personal(ditto), personal(local))
    pulled = simulate(Ditto(**SMALL, personal_steps=7, lam=0.5), population, 3, dtype=torch.float32)
    assert torch.equal(pulled.model(), fedavg.model())  # whatever the pull, the global model is FedAvg's
    assert not torch.equal(personal(pulled), personal(local))


def test_apfl_with_all_weight_on_the_own_model_is_local_training_bit_for_bit() -> None:
    population = mixed_sizes()
    apfl, fedavg, local = (
        simulate(method, population, 3, dtype=torch.float32)
        for method in (APFL(**SMALL, mixing=1, learned=False), FedAvg(**SMALL), Local(**SMALL))
    )
    assert torch.equal(personal(apfl), personal(local))
    torch.testing.assert_close(apfl.model(), fedavg.model())


def test_apfl_without_weight_on_the_own_model_is_fedavg() -> None:
    apfl = simulate(APFL(**SMALL, mixing=0, learned=False), mixed_sizes(), 3)
    torch.testing.assert_close(apfl.model(), simulate(FedAvg(**SMALL), mixed_sizes(), 3).model())
    assert torch.equal(personal(apfl), apfl.model().expand(5, -1))


@pytest.mark.parametrize("form", ["first-order", "hessian-free"])
def test_per_fedavg_without_adaptation_is_fedavg(form: Any) -> None:
    fedavg = simulate(FedAvg(**SMALL, alpha=0.07), mixed_sizes(), 3)
    other = simulate(PerFedAvg(**SMALL, alpha=0, beta=0.07, form=form), mixed_sizes(), 3)
    torch.testing.assert_close(other.model(), fedavg.model(), atol=1e-13, rtol=0)
    assert torch.equal(personal(other), other.model().expand(5, -1))


def test_pfedme_with_an_exact_prox_reaches_the_optimum_of_the_moreau_envelope() -> None:
    population = regression("4")
    lam = 0.5
    own, best = tree_minimiser(population, [lam])
    method = PFedMe(local_steps=1, prox_steps=150, alpha=0.5, lam=lam, eta=1 / lam, beta=1, batch_size="full")
    simulation = simulate(method, population, 60)
    np.testing.assert_allclose(simulation.model().numpy(), best[0], atol=1e-8)
    np.testing.assert_allclose(personal(simulation).numpy(), own, atol=1e-8)


def test_per_fedavg_adapts_on_training_samples() -> None:
    # Nothing of the test samples reaches a personal model.
    population = regression([3, 2])
    one = simulate(PerFedAvg(**SMALL), population, 2)
    for i in range(population.devices):
        population.y[int(population.start[i] + population.train[i])] += 100
    assert torch.equal(personal(simulate(PerFedAvg(**SMALL), population, 2)), personal(one))


# -- what it costs -----------------------------------------------------------------------------------------------------

METHODS: list[Algorithm] = [Ditto(), APFL(), PerFedAvg(), PFedMe()]
STEPS_OF_A_ROUND = {"ditto": 40, "apfl": 40, "per-fedavg": 40, "pfedme": 100}
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@every_method
def test_a_round_sends_one_model_down_and_one_up(method: Algorithm) -> None:
    simulation = simulate(method, regression("2x3"), 1)
    assert simulation.ledger.totals() == {2: Traffic(1, 6 * 3 * 8, 6 * 3 * 8)}
    assert simulation.device_steps == 6 * STEPS_OF_A_ROUND[method.name]
    assert set(evaluate(simulation)) == {"PM", "GM"}


# -- who is absent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Ditto(), APFL(), PFedMe()], ids=lambda method: method.name)
def test_a_device_that_is_left_out_keeps_what_it_has(method: Algorithm) -> None:
    gone = Link(absences=lambda round_, tier, exchange, children: (children == 2) & (round_ > 0))
    one, three = (simulate(method, regression("2x3"), 3, stop=stop, links={0: gone}) for stop in (1, 3))
    for name, rows in one.stores[0].rows.items():
        assert torch.equal(rows[2], three.stores[0].rows[name][2])
        assert not torch.equal(rows[1], three.stores[0].rows[name][1])


@every_method
def test_the_mean_is_over_those_that_answered(method: Algorithm) -> None:
    population = regression("5", unequal=True)
    end = int(population.start[3])
    kept = Population(
        tree=Tree.parse("3"),
        x=population.x[:end],
        y=population.y[:end],
        start=population.start[:4],
        train=population.train[:3],
    )
    lost, alone = simulate(method, population, 2, links={0: away(3, 4)}), simulate(method, kept, 2)
    torch.testing.assert_close(lost.model(), alone.model(), atol=1e-13, rtol=0)


def test_a_device_that_never_took_part_has_a_model_made_from_the_global_one() -> None:
    population = regression("5")
    forms = quadratics(population)
    for method in (
        Ditto(lam=0.3, personal_steps=2, **STEPS),
        PFedMe(lam=0.3, local_steps=1, prox_steps=2, alpha=ALPHA),
    ):
        full = type(method)(**{**vars(method), "batch_size": "full"})
        simulation = simulate(full, population, 2, links={0: away(4)})
        x = simulation.model().numpy()
        v = x - ALPHA * gradient(forms[4], x)
        v = v - ALPHA * (gradient(forms[4], v) + 0.3 * (v - x))
        np.testing.assert_allclose(personal(simulation)[4].numpy(), v, atol=1e-13)
    apfl = simulate(APFL(), population, 2, links={0: away(4)})
    assert torch.equal(personal(apfl)[4], apfl.model())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("apfl", {"mixing": 1.5}, "mixing: should be less than or equal to 1, not 1.5"),
        ("per-fedavg", {"form": "exact"}, "form: should be 'first-order' or 'hessian-free', not 'exact'"),
        ("ditto", {"lam": -1}, "lam: should be greater than or equal to 0, not -1"),
        ("pfedme", {"lam": 0}, "lam: should be greater than 0, not 0"),
    ],
)
def test_values_that_make_no_sense_are_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        algorithm(name, **settings)
