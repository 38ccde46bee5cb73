"""Every layer of the fused backend has the gradient of plain autograd, in any shape."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from palmette.learner import convolution
from palmette.learner.backends import Feed, task_loss
from palmette.learner.fused import FusedBackend
from palmette.learner.links import LAYERS, NotFused
from palmette.learner.loop import LoopBackend
from palmette.learner.lowering import lower
from palmette.task import Task
from palmette.task.models.text import Spelling
from zoo import Attention, Transformer, group_norm, resnet

CPU = torch.device("cpu")


class Functional(nn.Module):
    """A module written with functions and methods instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 3 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.last(torch.tanh(x).view(x.size(0), -1))


class Reader(nn.Module):
    """An LSTM over embedded tokens that answers after the last one."""

    def __init__(self, layers: int = 1, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.lstm = kind(6, 7, layers, batch_first=True)
        self.last = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.table(x))
        return self.last(outputs[:, -1])


class Listener(nn.Module):
    """An LSTM without biases over numbers, whose outputs at all steps are looked at."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.lstm, self.last = kind(3, 4, 2, batch_first=True, bias=False), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0].flatten(1))


class Idle(nn.Module):
    """A module with a layer it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.last = nn.Linear(3, 3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


class Around(nn.Module):
    """Layers with ways around them, written in several forms; the first is read three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.around, self.act = nn.Linear(8, 8, bias=False), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        y = self.act(self.inner(x)) + x
        y += self.around(x)
        return self.last(torch.add(F.relu(y), y).add(y.view(y.size(0), -1).relu()))


class Attentive(nn.Module):
    """Attention written by hand, as in small GPTs: one linear layer, cut in three, heads in a dimension of their own."""

    def __init__(self, *, masked: bool = False, flat: bool = False) -> None:
        super().__init__()
        self.flat, self.inner, self.out = flat, nn.Linear(6, 18, bias=False), nn.Linear(6, 6)
        self.last, self.place = nn.Linear(6, 5), nn.Parameter(torch.ones(1, 4, 6))
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril() if masked else None)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.place
        samples, places, width = x.size()
        query, key, value = self.inner(x).chunk(3, dim=-1) if self.flat else self.inner(x).split(6, dim=2)
        if self.flat:
            query, key, value = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in (query, key, value))
        else:
            shape = samples, places, 2, width // 2
            query, key, value = (part.view(*shape).permute(0, 2, 1, 3) for part in (query, key, value))
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=self.mask, is_causal=self.mask is None and not self.flat, scale=0.4
        )
        x = x + self.out(y.transpose(1, 2).contiguous().view(samples, places, width))
        return self.last(x.mean(1))


class Reads(nn.Module):
    """Vectors of tokens and of places, layers of attention with a mask, and a linear layer at every place."""

    def __init__(self, *, norm_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 6), nn.Embedding(4, 6)
        options = {"dropout": dropout, "batch_first": True, "norm_first": norm_first}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 7, activation="gelu", **options) for _ in range(2))
        for layer in self.layers:
            layer.self_attn.dropout = 0.0
        self.norm, self.last = nn.LayerNorm(6), nn.Linear(6, 5)
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        value = self.tokens(x) + self.places.weight
        for layer in self.layers:
            value = layer(value, src_mask=self.mask, is_causal=True)
        return self.last(self.norm(value)).mean(dim=1, keepdim=False)


def placed() -> nn.Module:
    """A constant that is added, and values that are turned."""

    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.sin(torch.arange(24.0)).reshape(4, 6))
            self.inner, self.last = nn.Linear(4, 3), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            turned = torch.tanh(self.inner(torch.transpose(self.places + x, -1, -2)))
            return self.last(turned.permute(0, 2, 1).mean((-1,)))

    return Placed()


def tail(inputs: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(inputs, 5)]


MODELS: dict[str, tuple[tuple[int, ...], nn.Module | list[nn.Module]]] = {
    "linear alone": ((12,), nn.Linear(12, 5)),
    "linear without bias": ((12,), [nn.Linear(12, 5, bias=False)]),
    "wide linear": ((12,), [nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5)]),
    "linear on sequences": ((4, 6), [nn.Linear(6, 8), nn.Tanh(), *tail(32)]),
    "tanh twice": ((12,), [nn.Linear(12, 9), nn.Tanh(), nn.Tanh(), nn.Linear(9, 5)]),
    "relu first": ((12,), [nn.ReLU(), nn.Linear(12, 9), nn.Sigmoid(), nn.ReLU(), nn.Linear(9, 5)]),
    "gelu": ((12,), [nn.Linear(12, 9), nn.GELU(), nn.ReLU(), nn.Linear(9, 9), nn.GELU("tanh"), nn.Linear(9, 5)]),
    "elementwise": (
        (12,),
        [nn.Linear(12, 9), nn.SiLU(), nn.Linear(9, 9), nn.LeakyReLU(0.1), nn.Linear(9, 5), nn.ELU()],
    ),
    "more elementwise": (
        (12,),
        [nn.Linear(12, 9), nn.Softplus(), nn.Hardtanh(), nn.Linear(9, 5), nn.Mish(), nn.ReLU6()],
    ),
    "dropout": ((12,), [nn.Dropout(0.3), nn.Linear(12, 9), nn.Dropout(0.5), nn.ReLU(), nn.Linear(9, 5)]),
    "dropout of everything": ((12,), [nn.Dropout(0), nn.Linear(12, 9), nn.Dropout(1), nn.Linear(9, 5)]),
    "layer norm": ((4, 6), [nn.LayerNorm((4, 6)), nn.Linear(6, 8), nn.LayerNorm(8, bias=False), nn.ReLU(), *tail(32)]),
    "plain norm": ((6,), [nn.Linear(6, 8), nn.LayerNorm(8, elementwise_affine=False), nn.ReLU(), nn.Linear(8, 5)]),
    "group norm": ((2, 6, 6), [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), *tail(64)]),
    "convolutions": (
        (2, 9, 8),
        [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, (3, 2), stride=(1, 2)), *tail(16)],
    ),
    "wide convolutions": (
        (9, 6, 6),
        [
            nn.Conv2d(9, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 4, 3, bias=False),
            nn.ReLU(),
            *tail(4),
        ],
    ),
    "odd convolutions": (
        (4, 9, 9),
        [nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 2, dilation=2, padding=1, bias=False), *tail(294)],
    ),
    "pools": (
        (2, 9, 9),
        [nn.AvgPool2d(2), nn.Conv2d(2, 3, 2), nn.MaxPool2d(2, 1), nn.AdaptiveAvgPool2d((1, 2)), nn.ReLU(), *tail(6)],
    ),
    "normal pools": ((2, 6, 6), [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.ReLU(), *tail(16)]),
    "average pools": ((2, 8, 8), [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(), *tail(48)]),
    "group norm of signals": (
        (4, 6),
        [nn.GroupNorm(2, 4, affine=False), nn.Conv1d(4, 6, 3), nn.GroupNorm(3, 6), *tail(24)],
    ),
    "group norm of numbers": ((12,), [nn.Linear(12, 8), nn.GroupNorm(4, 8), nn.ReLU(), nn.Linear(8, 5)]),
    "signals": (
        (3, 20),
        [
            *(nn.Conv1d(3, 4, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 6, 3, stride=2, bias=False)),
            *(nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2), *tail(12)),
        ],
    ),
    "wide signals": (
        (20, 12),
        [
            nn.Conv1d(20, 8, 5, dilation=2),
            nn.MaxPool1d(3, 1, 1, ceil_mode=True),
            nn.Tanh(),
            nn.AdaptiveAvgPool1d(1),
            *tail(8),
        ],
    ),
    "nested": ((12,), [nn.Sequential(nn.Linear(12, 9), nn.ReLU()), nn.Sequential(nn.Linear(9, 5))]),
    "functions": ((2, 8, 8), Functional()),
    "reader": ((5,), Reader()),
    "deep reader": ((4,), Reader(2)),
    "listener": ((5, 3), Listener()),
    "GRU reader": ((4,), Reader(2, nn.GRU)),
    "GRU listener": ((5, 3), Listener(nn.GRU)),
    "speller": ((4,), [Spelling([chr(97 + n) * n for n in range(1, 12)], 3, 2, (1, 2), 5), *tail(16)]),
    "idle layer": ((12,), Idle()),
    "ways around": ((6,), Around()),
    "residual": ((2, 6, 6), resnet(5, inputs=2, width=2, norm=group_norm)),
    "wide residual": ((8, 6, 6), resnet(5, inputs=8, width=8, norm=nn.Identity)),
    "attention": ((4, 6), Attention(6, 2, 5)),
    "attention by hand": ((4, 6), Attentive()),
    "masked attention": ((4, 6), Attentive(masked=True)),
    "attention in three": ((4, 6), Attentive(flat=True)),
    "transformer": ((4, 6), Transformer(6, 2, 5, layers=2)),
    "causal transformer": ((4,), Reads(norm_first=False)),
    "transformer with dropout": ((4,), Reads(norm_first=True, dropout=0.3)),
    "constant places": ((4, 6), placed()),
}
TOKENS = ("reader", "deep reader", "GRU reader", "speller", "causal transformer", "transformer with dropout")


def task(module: nn.Module | list[nn.Module], **options) -> Task:
    return Task(nn.Sequential(*module) if isinstance(module, list) else module, **options)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(of: Task, x: Tensor, y: Tensor, weight: Tensor | None = None, dtype: torch.dtype = torch.float64) -> None:
    """Compare the fused gradient with that of plain autograd, and a folded step with the step."""
    n = len(x)
    rows = (0.3 * drawn((n, of.layout.width), 1)).to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    fused, loop = FusedBackend(of, dtype, CPU), LoopBackend(of, dtype, CPU)
    address = torch.arange(n) * 7919
    with torch.no_grad():
        expected = loop.gradient(task_loss, {"model": rows}, Feed(x, y, weight, address))[0]["model"]
        # Twice: the second use of the same memory must not see the first.
        for _ in range(2):
            found = fused.gradient(task_loss, {"model": rows}, Feed(x, y, weight, address))[0]["model"]
            scale = max(1.0, float(expected.abs().max()))
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)
        space, centre = fused.space(n, x.shape[1], fold=True), rows.flip(0)
        space.load(rows, centre)
        mean = 1.0 if weight is not None else 1 / x.shape[1]
        for _ in range(2):
            space.step(x, y, weight, address, 0.9, -0.1 * mean, 0.1)
        twice = 0.9 * rows - 0.1 * expected + 0.1 * centre
        second = loop.gradient(task_loss, {"model": twice}, Feed(x, y, weight, address))[0]["model"]
        stepped = 0.9 * twice - 0.1 * second + 0.1 * centre
        torch.testing.assert_close(space.store(), stepped, rtol=0, atol=tolerance * scale)


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
