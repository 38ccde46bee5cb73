"""Chains of linear layers take their steps in one compiled call, with the very bits of the same steps one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from chains import CHAINS, learner, trained
from palmette.learner import Epochs, Learner, dense
from palmette.learner.fused import FusedBackend
from palmette.learner.lowering import dense_layers, lower
from palmette.task import Task

OTHERS: dict[str, list[nn.Module]] = {
    "two activations": [nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, 5)],
    "dropout": [nn.Flatten(), nn.Linear(12, 5), nn.Dropout(0.3), nn.Linear(5, 5)],
    "an activation first": [nn.Flatten(), nn.ReLU(), nn.Linear(12, 5)],
    "convolution": [nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(4, 5)],
    "gelu": [nn.Flatten(), nn.Linear(12, 5), nn.GELU()],
}


@pytest.mark.parametrize("few", [False, True], ids=["full batches", "short batches"])
def test_epochs_in_one_call_have_the_bits_of_single_steps(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    of = learner(CHAINS["narrow"](5), few=few)
    found = trained(of, steps=Epochs(9.5))
    monkeypatch.setattr(dense, "compiled", lambda: dense.descend)
    assert torch.equal(found, trained(of, steps=Epochs(9.5)))
    monkeypatch.setattr("palmette.learner.fused.Space.alone", lambda space, samples: False)
    assert torch.equal(found, trained(of, steps=Epochs(9.5)))


@pytest.mark.parametrize("batch", ["next", "same", "full"])
@pytest.mark.parametrize("few", [False, True], ids=["full batches", "small devices"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared", "logistic"])
@pytest.mark.parametrize("chain", CHAINS)
def test_one_call_has_the_bits_of_single_steps(
    chain: str, loss: str, few: bool, batch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = learner(CHAINS[chain](5 if loss == "cross-entropy" else 1), loss=loss, few=few)
    found = trained(of, batch)
    again = trained(of, batch)  # torch optimises a program after its first run
    monkeypatch.setattr(dense, "compiled", lambda: dense.descend)
    plain = trained(of, batch)
    monkeypatch.setattr("palmette.learner.fused.Space.alone", lambda space, samples: False)
    single = trained(of, batch)
    assert torch.equal(found, again)
    assert torch.equal(found, plain)
    assert torch.equal(found, single)
    assert not torch.equal(found, trained(of, batch, steps=39))


def test_this_torch_compiles_it() -> None:
    assert isinstance(dense.compiled(), torch.jit.ScriptFunction)


def test_a_torch_that_cannot_compile_it_runs_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str) -> None:
        raise RuntimeError("not in this version")

    monkeypatch.setattr(torch.jit, "CompilationUnit", refuse)
    dense.compiled.cache_clear()
    try:
        assert dense.compiled() is dense.descend
    finally:
        dense.compiled.cache_clear()


def test_samples_that_do_not_lie_in_one_piece_are_learned_alike() -> None:
    of = learner(chain := CHAINS["one layer"](5))
    scattered = replace(of.population, x=of.population.x.transpose(2, 3).contiguous().transpose(2, 3))
    assert not scattered.x.is_contiguous()
    for memory in (0, 1 << 20):
        other = Learner(Task(nn.Sequential(*chain)), scattered, batch_size=6, backend="fused", memory=memory)
        assert torch.equal(trained(other), trained(of))


def test_threads_do_not_disturb_each_other() -> None:
    of = learner(CHAINS["narrow"](5))
    expected = trained(of)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, expected) for found in pool.map(lambda _: trained(of), range(24)))


@pytest.mark.parametrize("chain", CHAINS)
def test_which_chains_are_dense(chain: str) -> None:
    module = nn.Sequential(*CHAINS[chain](5))
    layers = dense_layers(lower(Task(module).replica(training=True, dtype=torch.float32, device=torch.device("cpu"))))
    assert layers is not None
    assert [layer.weight for layer in layers] == [
        f"{i}.weight" for i, layer in enumerate(module) if isinstance(layer, nn.Linear)
    ]


@pytest.mark.parametrize("chain", OTHERS)
def test_other_chains_step_one_by_one(chain: str) -> None:
    of = learner(OTHERS[chain])
    assert isinstance(of.backend, FusedBackend)
    assert not of.backend.space(4, 6, fold=True).alone(of.data)
    assert trained(of).isfinite().all()


def test_weight_decay_reaches_a_layer_that_is_never_used() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.used = nn.Linear(2, 2), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x.flatten(1))

    of = learner([nn.Flatten(), nn.Linear(12, 5)])
    task = Task(Idle(), l2=0.5)
    idle = trained(Learner(task, of.population, batch_size=6, backend="fused"), steps=1)
    start = task.initial() + torch.arange(4.0)[:, None] / 100
    torch.testing.assert_close(idle[:, :6], start[:, :6] - 0.1 * (0.5 * start + 0.2 * (start - start.flip(0)))[:, :6])


def test_a_linear_layer_on_sequences_is_not_dense() -> None:
    of = learner([nn.Linear(3, 5), nn.Flatten(), nn.Linear(20, 5)])
    assert not of.backend.space(4, 6, fold=True).alone(of.data)
