"""Small modules of random layers in random orders, for hypothesis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

Draw = Callable[[st.SearchStrategy[Any]], Any]

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.SiLU)
MOST = 4  # layers of a kind of values


class Around(nn.Module):
    """A way around some layers; another layer goes along it where the sizes are not the same."""

    def __init__(self, inner: nn.Module, beside: nn.Module) -> None:
        super().__init__()
        self.inner, self.beside = inner, beside

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.beside(x)


class First(nn.Module):
    """The first of several outputs: the hidden units of a recurrent layer at every step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Attends(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Turned(nn.Module):
    """A signal ``(channels, places)`` as a sequence ``(places, channels)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Last(nn.Module):
    """The last place of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class Mean(nn.Module):
    """The mean over the places of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _divisor(draw: Draw, number: int) -> int:
    return draw(st.sampled_from([one for one in range(1, number + 1) if number % one == 0]))


def _activation(draw: Draw) -> nn.Module:
    return draw(st.sampled_from(ACTIVATIONS))()


def _norm(draw: Draw, channels: int) -> nn.Module:
    return nn.GroupNorm(_divisor(draw, channels), channels, affine=draw(st.booleans()))


def _convolution(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """A convolution that fits images or signals: odd sizes, padding, stride, dilation, groups."""
    inputs, *sides = shape
    make = nn.Conv2d if len(sides) == 2 else nn.Conv1d
    padding = [draw(st.integers(0, 2)) for _ in sides]
    kernel = [draw(st.integers(1, min(3, side + 2 * more))) for side, more in zip(sides, padding, strict=True)]
    room = [side + 2 * more - size for side, more, size in zip(sides, padding, kernel, strict=True)]
    dilation = [
        1 + (size > 1 and left >= size - 1 and draw(st.booleans())) for size, left in zip(kernel, room, strict=True)
    ]
    groups = _divisor(draw, inputs)
    outputs = groups * draw(st.integers(1, 3))
    stride = [draw(st.integers(1, 2)) for _ in sides]
    return make(inputs, outputs, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))


def _pool(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """The largest or the mean of windows, where there is room for them; else of single numbers."""
    sides = shape[1:]
    size = draw(st.integers(1, min(3, *sides)))
    padding = draw(st.integers(0, size // 2))
    stride = draw(st.integers(1, 3))
    largest = nn.MaxPool2d if len(sides) == 2 else nn.MaxPool1d
    mean = nn.AvgPool2d if len(sides) == 2 else nn.AvgPool1d
    return draw(st.sampled_from([largest, largest, mean]))(size, stride, padding, ceil_mode=draw(st.booleans()))


def _around(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """Convolutions of one line of channels with a way around them."""
    channels, image = shape[0], len(shape) == 3
    make = nn.Conv2d if image else nn.Conv1d
    wider = channels * draw(st.integers(1, 2))
    inner = [make(channels, wider, 3, padding=1, bias=draw(st.booleans()))]
    if draw(st.booleans()):
        inner += [_norm(draw, wider), _activation(draw), make(wider, wider, 3, padding=1)]
    beside = nn.Identity() if wider == channels and draw(st.booleans()) else make(channels, wider, 1, bias=False)
    return Around(nn.Sequential(*inner), beside)


def _placed(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """A layer of images or signals."""
    kind = draw(st.sampled_from(["convolution", "convolution", "pool", "norm", "activation", "around"]))
    if kind == "convolution":
        return _convolution(draw, shape)
    if kind == "pool":
        return _pool(draw, shape)
    if kind == "around":
        return _around(draw, shape)
    return _norm(draw, shape[0]) if kind == "norm" else _activation(draw)


def _sequential(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """A layer of sequences ``(places, width)``."""
    width = shape[-1]
    after, bias = draw(st.integers(1, 5)), draw(st.booleans())
    kind = draw(st.sampled_from(["linear", "norm", "activation", "lstm", "gru", "attention", "transformer"]))
    match kind:
        case "linear":
            return nn.Linear(width, after, bias=bias)
        case "norm":
            return nn.LayerNorm(width, elementwise_affine=bias)
        case "lstm" | "gru":
            make = nn.LSTM if kind == "lstm" else nn.GRU
            return First(make(width, after, draw(st.integers(1, 2)), bias=bias, batch_first=True))
        case "attention":
            attention = Attends(width, _divisor(draw, width))
            return Around(attention, nn.Identity()) if draw(st.booleans()) else attention
        case "transformer":
            settings = {"batch_first": True, "norm_first": bias, "dropout": 0.0}
            return nn.TransformerEncoderLayer(width, _divisor(draw, width), after, **settings)
    return _activation(draw)


def _flat(draw: Draw, shape: tuple[int, ...]) -> nn.Module:
    """A layer of plain numbers."""
    kind = draw(st.sampled_from(["linear", "activation", "around"]))
    if kind == "linear":
        return nn.Linear(shape[0], draw(st.integers(1, 9)), bias=draw(st.booleans()))
    if kind == "around":
        inner = nn.Sequential(nn.Linear(shape[0], shape[0]), _activation(draw))
        return Around(inner, nn.Identity() if draw(st.booleans()) else nn.Linear(shape[0], shape[0]))
    return _activation(draw)


def _after(layers: list[nn.Module], shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(nn.Sequential(*layers)(torch.zeros(2, *shape)).shape[1:])


@st.composite
def modules(draw: Draw, kind: str) -> tuple[tuple[int, ...], nn.Module]:
    """Draw the shape of a sample and a module that gives five numbers for it.

    Args:
        draw: Given by hypothesis.
        kind: ``"images"``, ``"signals"``, ``"sequences"`` or ``"numbers"``.
    """
    torch.manual_seed(0)
    side = st.integers(1, 7)
    rank = {"images": 3, "signals": 2, "sequences": 2, "numbers": 1}[kind]
    given = shape = tuple(draw(side) for _ in range(rank))
    layers: list[nn.Module] = []

    def add(make: Callable[[Draw, tuple[int, ...]], nn.Module]) -> None:
        nonlocal shape
        for _ in range(draw(st.integers(1, MOST))):
            layers.append(make(draw, shape))
            shape = _after(layers, given)

    if kind in ("images", "signals"):
        add(_placed)
        if kind == "signals" and draw(st.booleans()):
            layers.append(Turned())
            shape = _after(layers, given)
    if kind == "sequences" or isinstance(layers[-1:] and layers[-1], Turned):
        add(_sequential)
        layers.append(draw(st.sampled_from([nn.Flatten, Last, Mean]))())
    elif kind != "numbers":
        layers.append(nn.Flatten())
    shape = _after(layers, given) if layers else given
    add(_flat)
    layers.append(nn.Linear(math.prod(shape), 5))
    return given, nn.Sequential(*layers)
