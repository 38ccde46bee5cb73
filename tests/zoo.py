"""Modules of the kinds that people bring: recurrent, attending, residual, and ones written in unusual ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer (`nn.LSTM`, `nn.GRU`, `nn.RNN`) that answers after the last step of a sequence."""

    def __init__(self, kind: Callable[..., nn.RNNBase], inputs: int, hidden: int, outputs: int, **options: Any) -> None:
        super().__init__()
        self.inner = kind(inputs, hidden, batch_first=True, **options)
        self.last = nn.Linear(hidden * (2 if self.inner.bidirectional else 1), outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.inner(x)
        return self.last(outputs[:, -1])


class Attention(nn.Module):
    """Self-attention over a sequence, then the mean."""

    def __init__(self, width: int, heads: int, outputs: int, *, need_weights: bool = False) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(width, heads, batch_first=True), nn.Linear(width, outputs)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=self.need_weights)
        return self.last(mixed.mean(1))


class Transformer(nn.Module):
    """Layers of a transformer's encoder, then the mean over the sequence."""

    def __init__(self, width: int, heads: int, outputs: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=dropout, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(one, layers), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(x).mean(1))


class Residual(nn.Module):
    """Two convolutions with normalisation and a way around them."""

    def __init__(self, inputs: int, channels: int, norm: Callable[[int], nn.Module], stride: int = 1) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), norm(channels)
        self.two, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels)
        around = nn.Conv2d(inputs, channels, 1, stride, bias=False)
        self.around = nn.Identity() if inputs == channels and stride == 1 else around

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return F.relu(inner + self.around(x))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(4, channels), channels)


def resnet(
    outputs: int,
    *,
    inputs: int = 1,
    width: int = 8,
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    blocks: int = 2,
    pool: int = 1,
) -> nn.Sequential:
    """A small ResNet: each block halves the image and doubles the channels, but for the first."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    for block in range(blocks):
        before, after = width << max(0, block - 1), width << block
        layers.append(Residual(before, after, norm, 2 if block else 1))
    features = (width << (blocks - 1)) * pool**2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten(), nn.Linear(features, outputs))


class Bag(nn.Module):
    """The mean of the vectors of a text's words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(11, 5, mode="mean"), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.bag(x))


class Tied(nn.Module):
    """Two layers with one weight, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class Placed(nn.Module):
    """A constant buffer: the encoding of positions."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("places", torch.sin(torch.arange(20.0)).reshape(5, 4), persistent=persistent)
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x + self.places).flatten(1))


class Branch(nn.Module):
    """A path that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Masked(nn.Module):
    """Samples chosen by a mask, and written to in place."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(x).clone()
        y[x[:, 0] > 0] *= 2
        return y


class Scaled(nn.Module):
    """Parameters outside any layer, in a list and in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.weights = nn.ParameterList([torch.linspace(-1, 1, 30).reshape(6, 5), torch.ones(5, 3).tril()])
        self.more = nn.ParameterDict({"shift": torch.zeros(3), "heat": torch.tensor(1.5)})

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu((x * self.scale) @ self.weights[0])
        return self.more["heat"] * (inner @ self.weights[1] + self.more["shift"])


class Answers(nn.Module):
    """A layer whose answer a function wraps up: in a tuple, a dictionary or anything else."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.last, self.answer = nn.Linear(6, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.last(x))


class Counting(nn.Module):
    """A forward that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.last(x)


class Ageing(nn.Module):
    """A forward that does something else every time it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(x) * self.calls


class Half(nn.Module):
    """A layer that autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x)
        return self.last(x)


class LoRA(nn.Module):
    """A frozen linear layer with a learned correction of low rank, which is zero at first."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))
