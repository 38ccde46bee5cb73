"""Every layer of the fused backend has the gradient of plain autograd, in any shape."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from agreement import CPU, agree, drawn, task
from fused_models import MODELS, TOKENS
from palmette.learner import convolution
from palmette.learner.fused import FusedBackend
from palmette.learner.links import LAYERS, NotFused
from palmette.learner.lowering import lower
from palmette.task import Task


def samples(name: str, n: int, batch: int) -> tuple[Tensor, Tensor]:
    shape, _ = MODELS[name]
    labels = torch.arange(n * batch).reshape(n, batch) * 13 % 5
    if name in TOKENS:
        return torch.arange(n * batch * math.prod(shape)).reshape(n, batch, *shape) * 7 % 11, labels
    return drawn((n, batch, *shape)), labels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", MODELS)
def test_each_layer_has_the_gradient_of_autograd(name: str, dtype: torch.dtype) -> None:
    agree(task(MODELS[name][1]), *samples(name, 3, 6), dtype=dtype)
    agree(task(MODELS[name][1]), *samples(name, 1, 2), dtype=dtype)


@pytest.mark.parametrize("name", ["wide linear", "convolutions", "dropout", "reader"])
def test_samples_that_only_fill_up_a_batch_count_for_nothing(name: str) -> None:
    real = torch.tensor([6, 2, 1])[:, None]
    weight = (torch.arange(6) < real).to(torch.float64) / real
    agree(task(MODELS[name][1]), *samples(name, 3, 6), weight)


@pytest.mark.parametrize("way", [convolution.Direct, convolution.Columns, convolution.Grouped])
@pytest.mark.parametrize(
    "name", ["convolutions", "wide convolutions", "odd convolutions", "pools", "functions", "residual", "wide signals"]
)
def test_all_ways_to_convolve_agree(name: str, way: type[convolution.Way], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "choose", lambda *_, **__: way)
    for devices in (1, 3):
        agree(task(MODELS[name][1]), *samples(name, devices, 6))


@pytest.mark.parametrize(
    ("layer", "shape", "first", "way"),
    [
        (nn.Conv2d(1, 32, 3, padding=1), (1, 28, 28), True, convolution.Columns),
        (nn.Conv2d(3, 16, 3, padding=1), (3, 32, 32), True, convolution.Direct),
        (nn.Conv2d(8, 8, 3, padding=1), (8, 28, 28), False, convolution.Grouped),
        (nn.Conv2d(32, 64, 3, padding=1), (32, 14, 14), False, convolution.Direct),
        (nn.Conv2d(8, 16, 1, stride=2), (8, 14, 14), False, convolution.Columns),
    ],
)
def test_the_way_to_convolve_follows_from_the_sizes_and_not_from_the_number_of_devices(
    layer: nn.Conv2d, shape: tuple[int, ...], first: bool, way: type[convolution.Way]
) -> None:
    assert {convolution.choose(layer, torch.empty(n, 20, *shape), first=first) for n in (1, 2, 50)} == {way}


@pytest.mark.parametrize("together", [1, 150, 10_000])
@pytest.mark.parametrize("name", ["reader", "deep reader", "listener", "GRU reader", "GRU listener"])
def test_a_recurrent_layer_does_not_depend_on_how_many_devices_go_together(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palmette.learner.recurrent._TOGETHER", together)
    agree(task(MODELS[name][1]), *samples(name, 5, 6))


def test_every_layer_of_the_table_is_tested() -> None:
    seen = set()
    for _, module in MODELS.values():
        replica = task(module).replica(training=True, dtype=torch.float64, device=CPU)
        seen |= {type(link.layer) for link in lower(replica)}
    assert seen == set(LAYERS)


@pytest.mark.parametrize(("loss", "outputs"), [("squared", 1), ("squared", 3), ("logistic", 1), ("own", 1), ("own", 3)])
def test_each_loss_has_the_gradient_of_autograd(loss: str, outputs: int) -> None:
    chosen = (lambda output, target: (output - target).abs().pow(1.5).sum(1)) if loss == "own" else loss
    y = drawn((3, 6, outputs), 4)
    if loss == "logistic":
        y = y[..., 0].sign()
    agree(task([nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, outputs)], loss=chosen), drawn((3, 6, 12)), y)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 23),
    st.lists(st.integers(1, 24), min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid]),
)
def test_networks_of_any_shape_agree(n: int, batch: int, sizes: list[int], bias: bool, activation) -> None:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), activation()]
    y = torch.arange(n * batch).reshape(n, batch) % sizes[-1]
    agree(task(layers[:-1]), drawn((n, batch, sizes[0])), y)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.tuples(st.integers(1, 12), st.integers(1, 6)),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(4, 8),
)
def test_convolutions_of_any_shape_agree(
    n: int, batch: int, channels: tuple[int, int], kernel: int, stride: int, padding: int, side: int
) -> None:
    chain = [
        nn.Conv2d(channels[0], channels[1], kernel, stride, padding),
        nn.ReLU(),
        nn.Conv2d(channels[1], 2, 2),
        nn.Flatten(),
    ]
    outputs = nn.Sequential(*chain)(torch.zeros(1, channels[0], side, side)).shape[1] if side + 2 * padding > 4 else 0
    if not outputs:
        return
    y = torch.arange(n * batch).reshape(n, batch) % 5
    agree(task([*chain, nn.Linear(outputs, 5)]), drawn((n, batch, channels[0], side, side)), y)


class Shared(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.relu(self.inner(x)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


class Outside(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Shared(), "used twice"),
        (Tied(), "shared between layers"),
        (Outside(), "outside a layer"),
        (nn.Sequential(nn.Linear(5, 5), nn.Flatten(0)), "layer 2 .Flatten. joins the samples"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding="same"), nn.Flatten()), "layer 1 .Conv2d. pads"),
        (nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten()), "padding_idx"),
        (nn.LSTM(3, 4), "batch_first=False"),
        (nn.Sequential(nn.Linear(5, 5), nn.Bilinear(5, 5, 2)), "layer 2 .Bilinear. has no fused form"),
    ],
)
def test_what_cannot_be_fused_is_refused_with_the_reason(module: nn.Module, why: str) -> None:
    with pytest.raises(NotFused, match=why):
        FusedBackend(Task(module), torch.float32, CPU)
