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
from palmette.learner import Learner, LocalWork
from palmette.population import make_population
from palmette.runs import run
from palmette.task import make_task
from zoo import LoRA


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
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), LoRA(nn.Linear(64, 12), 2), nn.ReLU(), LoRA(nn.Linear(12, 10), 2))
    population = make_population("digits", tree="2x3")
    task = make_task(module, population.shape, population.classes)
    simulation = Simulation(algorithm("fedavg", alpha=0.2), population, task, rounds=5)
    before = evaluate(simulation)["PM"].by_samples("loss")
    for _ in range(5):
        simulation.step()
    assert simulation.learner.backend.name == "fused"
    assert simulation.learner.width == 2 * (64 + 12) + 2 * (12 + 10)
    assert evaluate(simulation)["PM"].by_samples("loss") < before - 0.3


class Headed(nn.Module):
    """A frozen encoder, something between, and a head."""

    def __init__(self, between: Any, encoder: nn.Module | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        frozen = encoder or nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
        self.encoder, self.head = frozen.requires_grad_(False), head or nn.Linear(8, 10)
        self.between, self.drop = between, nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.between(self, self.encoder(x)))
        return result


def test_dropout_after_an_encoder_leaves_the_encoder_to_be_computed_once() -> None:
    people, module = make_population("digits", tree="2x3"), Headed(lambda self, value: self.drop(value))
    ids, moved = torch.arange(6), {}
    for backend in ("loop", "vmap", "fused", "without"):
        module.drop.p = 0.0 if backend == "without" else 0.4
        task = make_task(module, people.shape, people.classes)
        of = Learner(task, people, backend=backend.replace("without", "fused"), batch_size=8, dtype=torch.float64)
        assert (of.data.shape, of.doubts) == ((8,), [])
        work = LocalWork(of, ids, 0, torch.zeros_like(ids))
        moved[backend] = work.descend(of.initial().repeat(6, 1), steps=2, lr=0.1)
    for backend in ("vmap", "fused"):
        torch.testing.assert_close(moved[backend], moved["loop"], rtol=0, atol=1e-10)
    assert (moved["without"] - moved["loop"]).abs().max() > 1e-3  # the rest still drops


def test_a_forward_that_looks_at_training_is_not_followed_in_one_of_its_ways_alone() -> None:
    module = Headed(lambda self, value: value if self.training else 3 * value)
    simulation = simulated(module)
    assert "looks at self.training" in simulation.learner.doubts[0]
    assert simulation.learner.backend.name == "vmap"
    people = simulation.population
    first = int(people.start[0] + people.train[0])
    index = torch.arange(first, int(people.start[1]))
    output = module.double().eval()(people.features(index, torch.float64)).detach()
    expected = float(nn.functional.cross_entropy(output, people.y[index], reduction="sum"))
    assert float(evaluate(simulation)["GM"].sums["loss"][0]) == pytest.approx(expected, rel=1e-9)


def test_noise_that_a_trace_would_fix_is_refused() -> None:
    with pytest.raises(BadInput, match="draws random numbers of its own while training"):
        simulated(Headed(lambda self, value: value + torch.randn(8)))


@pytest.mark.parametrize("frozen", [True, False])
def test_buffers_that_training_changes_without_a_place_are_refused(frozen: bool) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).requires_grad_(not frozen)
            self.head = nn.Linear(8, 10)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen += 1
            result: Tensor = self.head(self.inner(x)) * (1 + self.seen)
            return result

    with pytest.raises(BadInput, match=r"changes its buffer 'seen' while training.*evaluation\s+mode"):
        simulated(Counting())
    assert simulated(nn.Sequential(Counting().eval(), nn.Identity())).learner.width


def test_features_that_cannot_be_kept_are_computed_anew_and_said() -> None:
    whole = simulated(Headed(lambda self, value: value.argmax(-1), head=nn.Embedding(8, 10)))
    assert whole.learner.data.shape == (8,)  # before the largest is taken; its number is no feature
    people = make_population("digits", tree="2x3")
    sequence = nn.LSTM(8, 4)  # takes the samples of a batch for steps in time
    module = Headed(lambda self, value: value[0].flatten(1), sequence, nn.Linear(32, 10))
    task = make_task(nn.Sequential(nn.Flatten(1, 2), module), people.shape, people.classes)
    assert "depends on the samples beside it" in Learner(task, people, backend="loop").doubts[0]


def test_a_dropout_in_evaluation_mode_drops_on_no_backend() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))
    module[2].eval()
    people = make_population("digits", tree="2x3")
    task, ids = make_task(module, people.shape, people.classes), torch.arange(6)
    found = []
    for backend in ("loop", "fused"):
        of = Learner(task, people, backend=backend, dtype=torch.float64)
        found.append(LocalWork(of, ids, 0, torch.zeros_like(ids)).descend(of.initial().repeat(6, 1), steps=2, lr=0.1))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)
