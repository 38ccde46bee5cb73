"""Averaged running statistics are no weights: no method steps past them or compares models by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.task import Task

DEVICES = 4


def people(deviations: list[float], turned: bool) -> Population:
    """Return devices whose features have these deviations; the last two may have the labels turned round."""
    random = np.random.default_rng(5)
    one = random.normal(size=(16, 3))
    x = [(deviation * one).astype(np.float32) for deviation in deviations]
    y = [(one[:, 0] > 0) ^ (turned and device > 1) for device in range(DEVICES)]
    return Population.from_arrays(x, [label.astype(np.int64) for label in y], tree="2x2", test=0.25, classes=2)


def normed() -> Task:
    """Return a model whose statistics are those of the samples themselves."""
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 2)), buffers="averaged")


def run(name: str, deviations: list[float], rounds: int, given: dict[str, Any], turned: bool = False) -> Simulation:
    steps = {} if name == "fl" else {"local_steps": 2}
    method = algorithm(name, **{"batch_size": "full", **steps, **given})
    simulation = Simulation(method, people(deviations, turned), normed(), rounds=rounds, dtype=torch.float64)
    for _ in range(rounds):
        simulation.step()
    return simulation


def variances(rows: Tensor) -> Tensor:
    """Return the running variances, which are the last three numbers of a model."""
    return rows[..., -3:]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("fedavgm", {}),
        ("fedadam", {"server_lr": 0.3}),
        ("scaffold", {"server_lr": 3.0}),
        ("pfedme", {"beta": 3.0, "prox_steps": 2, "eta": 1.0}),
        ("pfedbayes", {"beta": 3.0}),
        ("fl", {"server_lr": 0.5, "clients": 4, "passes": 8}),
    ],
)
def test_a_server_that_steps_past_the_mean_averages_statistics(name: str, given: dict[str, Any]) -> None:
    after = run(name, [0.01] * DEVICES, 8, given)
    found = variances(after.model())
    assert bool((found > 0).all())
    assert bool((found < 0.1).all())  # towards the samples' own, from 1


def test_own_models_of_apfl_have_statistics_that_there_can_be() -> None:
    after = run("apfl", [0.01, 10.0, 10.0, 10.0], 3, {"mixing": 0.5, "learned": False})
    assert bool((variances(after.stores[0].read(torch.arange(DEVICES))["own"]) > 0).all())


def test_mixing_weights_are_learned_by_weights_alone() -> None:
    """Without weights that move, statistics that are far apart leave the mixing weight where it is."""
    after = run("apfl", [0.01, 10.0, 10.0, 10.0], 3, {"alpha": 1e-9})
    mixing = after.stores[0].read(torch.arange(DEVICES))["mixing"]
    torch.testing.assert_close(mixing, torch.full_like(mixing, 0.5), rtol=0, atol=1e-6)


def test_models_of_ifca_begin_apart_in_their_weights_alone() -> None:
    after = run("ifca", [0.01] * DEVICES, 1, {"clusters": 2, "spread": 2.0})
    assert bool((variances(after.stores[-1].rows["all"].view(2, -1)) > 0).all())


APART = [0.01, 10.0, 0.01, 10.0]  # by statistics devices 0 and 2 are alike, by what they learn 0 and 1


@pytest.mark.parametrize(
    ("name", "given", "row"),
    [("demlearn", {"levels": 1}, "group"), ("cfl", {"clusters": 2, "eps1": 9.0, "eps2": 0.01, "wait": 0}, "team")],
)
def test_groups_are_found_by_weights_alone(name: str, given: dict[str, Any], row: str) -> None:
    after = run(name, APART, 1, {"alpha": 0.001, **given}, turned=True)
    found = after.stores[-1].rows[row][0].tolist()
    assert (found[0] == found[1], found[2] == found[3], found[0] == found[2]) == (True, True, False)


@pytest.mark.parametrize(("name", "given"), [("fedamp", {}), ("heurfedamp", {"sigma": 1e6})])
def test_models_count_for_others_by_weights_alone(name: str, given: dict[str, Any]) -> None:
    after = run(name, APART, 1, {"alpha": 0.001, **given}, turned=True)
    state = {key: value.clone() for key, value in after.stores[-1].rows.items()}
    asked = next(after.algorithm.server(after.node(1, torch.zeros(1, dtype=torch.int64)), state))
    models = state["all"].view(DEVICES, -1)
    share = torch.linalg.lstsq(models.T, asked.message.rows[0][:, None]).solution[:, 0]
    assert float(share[1]) > 1.2 * float(share[2])


def test_means_are_amplified_and_their_statistics_are_not() -> None:
    found = [run("demlearn", APART, 1, {"levels": 1, "amplification": by}).model() for by in (1.0, 2.0)]
    torch.testing.assert_close(found[1][:-6], 4 * found[0][:-6])
    torch.testing.assert_close(found[1][-6:], found[0][-6:])


@pytest.mark.parametrize("name", ["apfl", "per-fedavg"])
def test_momentum_counts_within_a_round(name: str) -> None:
    found, task = [], Task(nn.Linear(3, 2))
    for momentum in (0.0, 0.9):
        optimiser = Optimiser(momentum=momentum)
        method = algorithm(name, batch_size="full", local_steps=4)
        simulation = Simulation(method, people(APART, True), task, rounds=1, optimiser=optimiser)
        simulation.step()
        found.append(simulation.model())
    assert not torch.allclose(*found, rtol=1e-4, atol=1e-6)


def test_momentum_that_cannot_be_kept_and_steps_that_tell_no_gradient_are_refused() -> None:
    kept = Optimiser(momentum=0.9, keep=True)
    with pytest.raises(BadInput, match="trains several at once"):
        Simulation(algorithm("apfl"), people(APART, True), Task(nn.Linear(3, 2)), rounds=1, optimiser=kept).step()
    with pytest.raises(BadInput, match="devices of ditto train several"):
        Simulation(algorithm("ditto"), people(APART, True), Task(nn.Linear(3, 2)), rounds=1, optimiser=kept)
    method = algorithm("per-fedavg", form="hessian-free")
    with pytest.raises(BadInput, match="plain gradient steps"):
        Simulation(method, people(APART, True), Task(nn.Linear(3, 2)), rounds=1, optimiser=Optimiser(momentum=0.9))
