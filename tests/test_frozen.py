"""Frozen parameters are not trained, not sent, kept once."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palmette.algorithms import algorithm
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Learner
from palmette.population import make_population
from palmette.runs import run
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


# -- a frozen beginning is computed once -----------------------------------------------------------------------------------


class Encoded(nn.Module):
    """An encoder that torch.fx cannot follow, and a head."""

    def __init__(self, *, dropout: float = 0.0, norm: bool = False, noise: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(8, 10)  # registered before what runs before it
        inner: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(dropout)]
        self.encoder = _Branching(nn.Sequential(*inner, *([nn.BatchNorm1d(8)] if norm else [])), noise)
        self.encoder.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.relu(self.encoder(x)))
        return result


class _Branching(nn.Module):
    def __init__(self, inner: nn.Module, noise: bool) -> None:
        super().__init__()
        self.inner, self.noise = inner, noise

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.inner(x if float(x.sum()) > -1e9 else -x)
        return value + 0.001 * value.flip(0) if self.noise and self.training else value


def simulated(
    module: nn.Module, method: str = "permfl", dtype: torch.dtype = torch.float64, **options: Any
) -> Simulation:
    population = make_population("digits", tree="2x3")
    task = make_task(module, population.shape, population.classes, **options)
    return Simulation(
        algorithm(method, **({"team_steps": 2} if method == "permfl" else {})), population, task, rounds=2, dtype=dtype
    )


def test_features_of_a_frozen_beginning_are_computed_once_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cached in (True, False):
        if not cached:
            monkeypatch.setattr("palmette.learner.learner.apart", lambda *_: None)
        simulation = simulated(Encoded())
        simulation.step()
        found.append((simulation, evaluate(simulation)))
    (once, scores), (anew, expected) = found
    assert (once.learner.backend.name, anew.learner.backend.name) == ("fused", "loop")
    assert once.learner.data.shape == (8,)
    assert once.learner.told == ["the frozen beginning (1 layer) is computed once: 1797 samples of 8 features"]
    torch.testing.assert_close(once.model(), anew.model(), rtol=0, atol=1e-10)
    for kind, score in scores.items():
        torch.testing.assert_close(score.sums["loss"], expected[kind].sums["loss"], rtol=1e-9, atol=0)


def test_large_features_lie_on_disk_and_are_the_same() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task(Encoded(), population.shape, population.classes)
    memory, disk = (Learner(task, population, memory=room) for room in (1 << 30, 1000))
    assert torch.equal(memory.data.source[0], disk.data.source[0])
    # Only mapped memory tells where it lies; nothing of it has a name on the disk any more.
    assert disk.data.source[0].untyped_storage().data_ptr() % mmap.PAGESIZE == 0


@pytest.mark.parametrize("how", [{"dropout": 0.1}, {"norm": True}, {"noise": True}], ids=str)
def test_what_changes_at_every_step_turns_the_cache_off_and_is_said(how: Any, tmp_path: Path) -> None:
    module = Encoded(**how)
    simulation = simulated(module, buffers="own") if "norm" in how else simulated(module)
    assert simulation.learner.data.shape == (1, 8, 8)
    (told,) = simulation.learner.doubts
    assert told.startswith("the frozen layers are computed anew at every step, because dropout, batch normalisation or")
    # In evaluation mode it gives the same values at every step.
    module.encoder.eval()
    steady = simulated(module)
    assert steady.learner.data.shape == (8,)
    assert steady.learner.doubts == []
    if "dropout" in how:
        people = simulation.population
        module.encoder.train()
        with pytest.warns(UserWarning, match="the frozen layers are computed anew at every step"):
            run("fedavg", people, module, rounds=1, out=tmp_path / "run")
        assert "computed anew at every step" in (tmp_path / "run" / "log.txt").read_text()


def test_a_chain_with_frozen_layers_in_the_middle_agrees_on_all_backends() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 10))
    population = make_population("digits", tree="2x3")
    task = make_task(module, population.shape, population.classes, freeze="3")
    found = []
    for backend in ("loop", "vmap", "fused"):
        simulation = Simulation(algorithm("fedavg"), population, task, rounds=1, backend=backend, dtype=torch.float64)
        simulation.step()
        found.append(simulation.model())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-10)
    assert task.layout.names == ("1.weight", "1.bias", "5.weight", "5.bias")
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_adapters_over_a_frozen_chain_run() -> None:
    class Lora(nn.Module):
        def __init__(self, layer: nn.Linear, rank: int) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x) + self.up(self.down(x))
            return result

    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), Lora(nn.Linear(64, 12), 2), nn.ReLU(), Lora(nn.Linear(12, 10), 2))
    population = make_population("digits", tree="2x3")
    task = make_task(module, population.shape, population.classes)
    simulation = Simulation(algorithm("fedavg", alpha=0.2), population, task, rounds=5)
    before = evaluate(simulation)["PM"].by_samples("loss")
    for _ in range(5):
        simulation.step()
    assert simulation.learner.backend.name == "vmap"
    assert simulation.learner.width == 2 * (64 + 12) + 2 * (12 + 10)
    assert evaluate(simulation)["PM"].by_samples("loss") < before - 0.3
