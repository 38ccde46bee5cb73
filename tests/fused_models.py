"""Modules of every layer that the fused backend knows, in the forms that people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from palmette.task.models.text import Spelling
from zoo import Attention, Transformer, group_norm, resnet


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
