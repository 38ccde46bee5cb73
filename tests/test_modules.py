"""Modules that people bring: each runs on `auto` as plain torch would, or is refused in one line with the way out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import palmette as pm
from palmette.errors import BadInput
from palmette.learner import Epochs, Learner, LocalWork
from palmette.population import Population
from palmette.population.partition import Few, Iid
from palmette.task import Task
from zoo import (
    Ageing,
    Answers,
    Attention,
    Bag,
    Branch,
    Counting,
    Half,
    LoRA,
    Masked,
    Placed,
    Recurrent,
    Scaled,
    Tied,
    Transformer,
    group_norm,
    resnet,
)

SIZES = [30, 7, 12, 9]
WORDS = (5,)  # a shape that stands for tokens
SEQUENCE, FLAT, IMAGE = (5, 4), (6,), (1, 8, 8)
Make = Callable[[], nn.Module]


def chain(first: Make = lambda: nn.Linear(6, 5)) -> nn.Sequential:
    return nn.Sequential(first(), nn.ReLU(), nn.Linear(5, 3))


def calm(module: nn.Module) -> nn.Module:
    """Put the first layer, alone, into evaluation mode."""
    module.get_submodule("0").eval()
    return module


def double_first() -> nn.Module:
    module = chain()
    module[0].register_forward_hook(lambda layer, given, output: 2 * output)
    return module


RUNS: dict[str, tuple[tuple[int, ...], Make, str]] = {
    "LSTM": (SEQUENCE, lambda: Recurrent(nn.LSTM, 4, 6, 3), "fused"),
    "LSTM both ways": (SEQUENCE, lambda: Recurrent(nn.LSTM, 4, 6, 3, bidirectional=True), "loop"),
    "GRU": (SEQUENCE, lambda: Recurrent(nn.GRU, 4, 6, 3), "fused"),
    "GRU of two layers": (SEQUENCE, lambda: Recurrent(nn.GRU, 4, 6, 3, num_layers=2), "fused"),
    "RNN": (SEQUENCE, lambda: Recurrent(nn.RNN, 4, 6, 3), "vmap"),
    "attention": (SEQUENCE, lambda: Attention(4, 2, 3), "fused"),
    "attention with weights": (SEQUENCE, lambda: Attention(4, 2, 3, need_weights=True), "fused"),
    "transformer": (SEQUENCE, lambda: Transformer(4, 2, 3, layers=2), "fused"),
    "ResNet with GroupNorm": (IMAGE, lambda: resnet(3, width=4, norm=group_norm), "fused"),
    "ResNet with BatchNorm": (IMAGE, lambda: resnet(3, width=4), "vmap"),
    "Conv1d": (
        (4, 9),
        lambda: nn.Sequential(nn.Conv1d(4, 5, 3), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(15, 3)),
        "fused",
    ),
    "EmbeddingBag": (WORDS, Bag, "vmap"),
    "tied weights": (FLAT, Tied, "vmap"),
    "constant buffer": (SEQUENCE, Placed, "fused"),
    "constant buffer that is not saved": (SEQUENCE, lambda: Placed(persistent=False), "fused"),
    "path that depends on data": (FLAT, Branch, "loop"),
    "mask": (FLAT, Masked, "loop"),
    "parameters outside layers": (FLAT, Scaled, "vmap"),
    "no_grad inside": (FLAT, Half, "vmap"),
    "evaluation mode": (FLAT, lambda: chain().eval(), "fused"),
    "float64": (FLAT, lambda: chain().double(), "fused"),
    "float16": (FLAT, lambda: chain().half(), "fused"),
    "hook": (FLAT, double_first, "vmap"),
    "weight_norm": (FLAT, lambda: chain(lambda: parametrizations.weight_norm(nn.Linear(6, 5))), "vmap"),
    "spectral_norm that stays": (
        FLAT,
        lambda: calm(chain(lambda: parametrizations.spectral_norm(nn.Linear(6, 5)))),
        "vmap",
    ),
}
"""Shape of a sample, a module, and the backend that `auto` takes for it."""


def people(shape: tuple[int, ...], sizes: list[int] = SIZES) -> Population:
    random = np.random.default_rng(5)
    x: list[Any] = [random.normal(size=(size, *shape)).astype(np.float32) for size in sizes]
    if shape == WORDS:
        x = [random.integers(0, 11, (size, *shape)) for size in sizes]
    return Population.from_arrays(x, [random.integers(0, 3, size) for size in sizes], test=0.25, classes=3)


def learner(shape: tuple[int, ...], make: Make, backend: str = "auto", **options: Any) -> Learner:
    torch.manual_seed(1)  # modules draw from torch's own random numbers; the tests compare what comes after
    module = make()
    normed = any(isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d) for layer in module.modules())
    task = Task(module, buffers="own" if normed else None)
    return Learner(
        task, options.pop("people", people(shape)), batch_size=8, backend=backend, dtype=torch.float64, **options
    )


def work(of: Learner) -> LocalWork:
    ids = torch.arange(of.population.devices)
    return LocalWork(of, ids, 2, torch.full_like(ids, 4))


def descended(of: Learner, **options: Any) -> Tensor:
    with torch.no_grad():
        return work(of).descend(of.initial().repeat(of.population.devices, 1), lr=0.1, **options)


@pytest.mark.parametrize("name", RUNS)
def test_a_module_runs_as_plain_torch_would(name: str) -> None:
    shape, make, backend = RUNS[name]
    of = learner(shape, make)
    assert of.backend.name == backend
    close(descended(of, steps=3), descended(learner(shape, make, "loop"), steps=3))
    close(descended(of, steps=3, batch="full")[0], by_hand(of, steps=3))


def by_hand(of: Learner, steps: int) -> Tensor:
    """Train the first device as any torch program would."""
    module, layout = copy.deepcopy(of.task.module).double(), of.task.layout
    if not module.training:
        module.train()
    rate = torch.optim.SGD(module.parameters(), lr=0.1)
    count = int(of.samples[0])
    x, y = of.data.features(torch.arange(count)), of.data.targets(torch.arange(count))
    for _ in range(steps):
        rate.zero_grad()
        F.cross_entropy(module(x), y).backward()
        rate.step()
    return layout.flatten({name: value.detach() for name, value in module.named_parameters() if value.requires_grad})


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * max(1.0, float(b.abs().max())))


def test_what_torch_runs_device_by_device_is_told_in_our_words() -> None:
    # Warnings are errors in these tests: that vmap is chosen shows that torch's own are not passed on.
    told = learner(*RUNS["EmbeddingBag"][:2]).reason
    assert "torch has no stacked form of embedding_bag, embedding_bag_backward and calls it device by device" in told


def test_a_transformer_keeps_its_dropout_layers() -> None:
    def quiet() -> nn.Module:
        module = Transformer(4, 2, 3, dropout=0.3)
        for layer in module.modules():
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
        return module

    dropped, plain = (descended(learner(SEQUENCE, make), steps=2) for make in (quiet, lambda: Transformer(4, 2, 3)))
    close(dropped, descended(learner(SEQUENCE, quiet, "loop"), steps=2))
    assert not torch.allclose(dropped, plain)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.last(x * mask)


class Uncopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.cached = self.last.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # torch itself advises against it
        return chain(lambda: torch.nn.utils.weight_norm(nn.Linear(6, 5)))


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return nn.Sequential(torch.jit.script(nn.Linear(6, 5)), nn.Linear(5, 3))


def complex_valued() -> nn.Module:
    module = nn.Linear(6, 3)
    module.weight = nn.Parameter(torch.zeros(3, 6, dtype=torch.complex64))
    return module


ONE_OF_MANY = r"as in: outputs, _ = self.{}\(x\); return self.last\(outputs\[:, -1\]\)"
REFUSED: dict[str, tuple[tuple[int, ...], Make, str]] = {
    "bare LSTM": (SEQUENCE, lambda: nn.LSTM(4, 3, batch_first=True), "gave a tuple; .*" + ONE_OF_MANY.format("lstm")),
    "bare GRU": (SEQUENCE, lambda: nn.GRU(4, 3, batch_first=True), "gave a tuple; .*" + ONE_OF_MANY.format("gru")),
    "LSTM in a chain": (
        SEQUENCE,
        lambda: nn.Sequential(nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)),
        "Layer '0' is nn.LSTM, which gives a tuple and cannot stand in nn.Sequential. "
        + ".*"
        + ONE_OF_MANY.format("lstm"),
    ),
    "bare attention": (
        SEQUENCE,
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        r"as in: mixed, _ = self.attention\(x, x, x\); return self.last\(mixed.mean\(1\)\)",
    ),
    "LSTM with dropout": (
        SEQUENCE,
        lambda: Recurrent(nn.LSTM, 4, 6, 3, num_layers=2, dropout=0.5),
        "layer 'inner' is LSTM with dropout=0.5 between its layers.*nn.Dropout between them",
    ),
    "attention with dropout": (
        SEQUENCE,
        lambda: Transformer(4, 2, 3, dropout=0.1),
        "layer 'encoder.layers.0.self_attn' is MultiheadAttention with dropout=0.1.*layer.dropout = 0.0",
    ),
    "tuple": (FLAT, lambda: Answers(lambda y: (y, y)), "gave a tuple; it must give one tensor. Wrap it"),
    "dictionary": (
        FLAT,
        lambda: Answers(lambda y: {"logits": y, "loss": 0}),
        r"gave a dict; .* one of its values \(\['logits', 'loss'\]\), as in: return self.answers\(x\)\['logits'\]",
    ),
    "two inputs": (FLAT, TwoInputs, "argument: 'mask'. Palmette calls a model with one tensor, the samples; wrap one"),
    "wrong shape": (FLAT, lambda: nn.Linear(7, 3), r"cannot take samples of shape \(6,\): mat1 and mat2"),
    "an error of its own": (FLAT, lambda: Answers(lambda y: y.nothing), r"shape \(6,\): AttributeError: .*'nothing'"),
    "script": (FLAT, scripted, "layer '0' is .*compiled by torch.jit.*give the nn.Module it was made from"),
    "DataParallel": (FLAT, lambda: nn.DataParallel(nn.Linear(6, 3)), "the module inside it, model.module"),
    "lazy": (FLAT, lambda: chain(lambda: nn.LazyLinear(5)), "'0.weight' has no shape yet.*call the model once"),
    "complex": (FLAT, complex_valued, "'weight' is complex"),
    "old weight_norm": (FLAT, old_weight_norm, "use torch.nn.utils.parametrizations.weight_norm"),
    "what cannot be copied": (FLAT, Uncopied, r"cannot be copied \(copy.deepcopy\): Only Tensors created explicitly"),
    "spectral_norm": (
        FLAT,
        lambda: chain(lambda: parametrizations.spectral_norm(nn.Linear(6, 5))),
        "changes its buffer '0.parametrizations.weight.0._u' while training.*model.layer.eval",
    ),
    "buffer that counts": (FLAT, Counting, "changes its buffer 'seen' while training"),
    "forward that changes": (FLAT, Ageing, "gives another gradient when it is called again with the same samples"),
    "checkpoint": (FLAT, Checkpointed, "cannot be trained: .*leave torch.utils.checkpoint out"),
    "noise": (FLAT, lambda: Answers(lambda y: y + torch.randn_like(y)), "draws random numbers of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_in_one_line_with_the_way_out(name: str) -> None:
    shape, make, told = REFUSED[name]
    with pytest.raises(BadInput, match=told) as error:
        learner(shape, make)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "backend", "told"),
    [
        ("path that depends on data", "vmap", "its forward looks at the values of a tensor"),
        ("path that depends on data", "compile", "its forward looks at the values of a tensor"),
        ("mask", "vmap", "boolean mask"),
        ("RNN", "fused", r"layer 1 \(RNN\) has no fused form"),
        ("no_grad inside", "fused", None),
    ],
)
def test_what_a_named_backend_cannot_run_is_one_line(name: str, backend: str, told: str | None) -> None:
    why = "disagrees with plain autograd" if told is None else f"cannot run model 'module': .*{told}"
    with pytest.raises(BadInput, match=f"^backend '{backend}' {why}.*; use backend 'auto'$") as error:
        learner(*RUNS[name][:2], backend)
    assert len(str(error.value)) < 320


# -- batch normalisation and batches of one sample ---------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_devices_of_one_sample_cannot_train_batch_normalisation() -> None:
    few = people(FLAT, [9, 2, 2])
    with pytest.raises(
        BadInput,
        match=r"'device-1', 'device-2' train on one sample each, and batch normalisation needs two.*nn.GroupNorm",
    ):
        learner(FLAT, normed, people=few)
    # A channel of an image has many values, also of one sample.
    assert descended(learner(IMAGE, lambda: resnet(3, width=4), people=people(IMAGE, [9, 2])), steps=1).isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize("options", [{"steps": 1, "batch": "one"}, {"steps": Epochs(1)}])
def test_a_batch_of_one_sample_names_the_way_out(backend: str, options: dict[str, Any]) -> None:
    of = learner(FLAT, normed, backend, people=people(FLAT, [12, 30]))  # nine samples for training, in batches of eight
    with pytest.raises(
        BadInput, match=r"device-0.*: a batch of one sample, and batch normalisation needs two.*batch_size"
    ):
        descended(of, **options)


# -- what is said of settings that have no effect ----------------------------------------------------------------------


def test_a_place_for_statistics_that_are_not_there_is_told() -> None:
    (told,) = Learner(Task(chain(), buffers="own"), people(FLAT)).doubts
    assert told == "buffers = 'own' changes nothing, because no layer that trains has running statistics"
    assert not learner(FLAT, normed).doubts


def test_a_part_of_frozen_parameters_alone_is_refused() -> None:
    with pytest.raises(BadInput, match=r"parts.head = '2' names frozen parameters only, which belong to no part"):
        Task(chain(), parts={"head": "2"}, freeze="2")
    half = Task(chain(), parts={"head": "2"}, freeze="2.bias").layout
    assert half.parts == {"body": ("0.weight", "0.bias"), "head": ("2.weight",)}


# -- examples of the docs ----------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A frozen encoder that counts the samples it is given."""

    seen: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, 32), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        Encoder.seen += len(x)
        return self.inner(x)


def test_two_thousand_heads_over_a_frozen_encoder_take_seconds() -> None:
    random = np.random.default_rng(0)
    centres, labels = 2 * random.normal(size=(3, 12)), random.integers(0, 3, (2000, 8))
    x = (centres[labels] + random.normal(size=(2000, 8, 12))).astype(np.float32)
    own = (labels + np.arange(2000)[:, None]) % 3  # every device numbers the classes in its own way
    crowd = Population.from_arrays(list(x), list(own), tree="20x100", test=0.25)
    torch.manual_seed(0)
    task = Task(nn.Sequential(Encoder(), nn.Linear(32, 3)), freeze="0")
    Encoder.seen = 0
    method = pm.PerMFL(team_steps=2, local_steps=20, alpha=0.3, lam=0.01)
    simulation = pm.Simulation(method, crowd, task, rounds=2)
    simulation.step()
    assert simulation.learner.backend.name in ("native", "fused")
    assert len(simulation.learner.data.y) == 16_000 <= Encoder.seen < 16_100  # each sample once, and a few to try it on
    assert {entry.bytes_down for entry in simulation.ledger.entries.values()} == {20 * 4 * 99, 2 * 2000 * 4 * 99}
    found = pm.evaluate(simulation)
    assert found["PM"].by_samples("accuracy") > 0.8 > 0.5 > found["GM"].by_samples("accuracy")


@pytest.mark.parametrize("buffers", ["own", "averaged"])
def test_a_resnet_with_batch_normalisation_learns_both_ways(buffers: Any) -> None:
    some = pm.make_population("digits", tree="2x2", partition=Few(60, Iid()))
    torch.manual_seed(0)
    module = resnet(10, width=4, pool=2)
    task = Task(module, buffers=buffers)
    simulation = pm.Simulation(pm.HierFAVG(team_steps=2, local_steps=10, alpha=0.2), some, task, rounds=4)
    before = pm.evaluate(simulation)
    for _ in range(3):
        simulation.step()
    after = pm.evaluate(simulation)
    assert set(after) == {"PM", "TM", "GM"}
    for kind, scores in after.items():
        assert scores.by_samples("loss") < before[kind].by_samples("loss") - 0.2
    width, running = task.learned.width, sum(2 * layer.num_features for layer in norms(module))
    assert simulation.learner.width == width + (running if buffers == "averaged" else 0)
    assert {row.shape for row in simulation.stores[0].initial.values()} >= ({(running,)} if buffers == "own" else set())


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_adapters_learn_over_a_chain_that_stays(backend: str) -> None:
    def adapted() -> nn.Module:
        return nn.Sequential(LoRA(nn.Linear(6, 5), 2), nn.ReLU(), LoRA(nn.Linear(5, 3), 2))

    of = learner(FLAT, adapted, backend)
    assert of.task.layout.names == ("0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight")
    found = descended(of, steps=3, batch="full")
    close(found[0], by_hand(of, steps=3))
    assert not torch.equal(found[0], found[1])
