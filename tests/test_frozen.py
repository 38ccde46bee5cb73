"""Frozen parameters are not trained, not sent, kept once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.population import make_population
from palmette.task import make_task


def half_frozen() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize("backend", ["auto", "vmap", "loop"])
def test_a_frozen_layer_stays_and_the_rest_learns(backend: str) -> None:
    module = half_frozen()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    population = make_population("digits", tree="2x3")
    task = make_task(module, population.shape, population.classes)
    simulation = Simulation(algorithm("fedavg"), population, task, rounds=2, backend=backend)
    simulation.step()
    assert task.layout.names == ("3.weight", "3.bias")
    assert simulation.learner.width == 90
    assert not torch.equal(simulation.model(), task.initial())
    assert {name: torch.equal(value, before[name]) for name, value in module.state_dict().items()} == dict.fromkeys(
        before, True
    )
    # Six devices are sent 90 numbers of four bytes each, and send as many.
    assert [(e.bytes_down, e.bytes_up) for e in simulation.ledger.entries.values()] == [(6 * 360, 6 * 360)]


def test_gradients_are_those_of_the_module_itself() -> None:
    module, population = half_frozen(), make_population("digits", tree="1x1")
    task = make_task(module, population.shape, population.classes)
    method = algorithm("fedavg", local_steps=1, alpha=1.0, batch_size="full")
    simulation = Simulation(method, population, task, rounds=1, dtype=torch.float64)
    simulation.step()
    module = module.double()
    x = population.features(torch.arange(int(population.train[0])), torch.float64)
    loss = nn.functional.cross_entropy(module(x), population.y[: len(x)])
    slope = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(module[3].parameters()))])
    torch.testing.assert_close(simulation.model(), task.initial(torch.float64) - slope)


def test_a_module_with_nothing_to_learn_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match=r"no parameters to learn: all of them are frozen \(requires_grad=False, or"):
        make_task(nn.Linear(3, 2).requires_grad_(False), (3,), 2)
