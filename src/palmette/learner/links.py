"""The links that a module is lowered to, and the layers that have a fused form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from palmette.learner import differentiated as d
from palmette.learner import sequences as q
from palmette.learner import shapes as f
from palmette.learner import stages as s
from palmette.learner.convolution import Conv1d, Conv2d
from palmette.learner.gated import Gru
from palmette.learner.grouping import GroupNorm
from palmette.learner.joins import Added, Plus, Shift, Shifted
from palmette.learner.pooling import MaxPool1d, MaxPool2d
from palmette.learner.recurrent import Lstm
from palmette.task import AddressedDropout
from palmette.task.models.text import Spelling

LAYERS: dict[type[nn.Module], type[s.Piece]] = {
    nn.Linear: s.Linear,
    nn.ReLU: s.Relu,
    nn.Tanh: s.Tanh,
    nn.Sigmoid: s.Sigmoid,
    nn.GELU: s.Gelu,
    nn.Flatten: f.Flatten,
    nn.MaxPool1d: MaxPool1d,
    nn.MaxPool2d: MaxPool2d,
    AddressedDropout: s.Dropout,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: q.LayerNorm,
    nn.Embedding: q.Embedding,
    nn.LSTM: Lstm,
    nn.GRU: Gru,
    Spelling: d.Spelled,
    f.Index: f.Select,
    f.Narrow: f.Narrowed,
    f.Reshape: f.Reshaped,
    f.Turn: f.Turned,
    f.Average: f.Averaged,
    Plus: Added,
    Shift: Shifted,
    q.Attend: q.Attended,
    q.AttendApart: q.AttendedApart,
    **dict.fromkeys((nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), d.Samplewise),
    **dict.fromkeys((nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Hardtanh, nn.ReLU6, nn.Mish), d.Elementwise),
}
"""The layers that have a fused form."""

FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.leaky_relu: nn.LeakyReLU,
    F.max_pool1d: nn.MaxPool1d,
    F.avg_pool1d: nn.AvgPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    **dict.fromkeys((torch.flatten, "flatten"), nn.Flatten),
}
"""Functions and methods that are one of these layers."""


class NotFused(Exception):  # noqa: N818 - reads as what it is
    """A module has no fused form; the text says why."""


@dataclass(frozen=True)
class Link:
    """One stage to be.

    Attributes:
        layer: The layer.
        names: The names of its parameters.
        inputs: The links whose outputs it takes, by their places in the list; -1 is what the samples are.
    """

    layer: nn.Module
    names: tuple[str, ...]
    inputs: tuple[int, ...]

    @property
    def stage(self) -> type[s.Piece]:
        """The stage that runs the layer."""
        return LAYERS[type(self.layer)]


def names_of(name: str, layer: nn.Module) -> tuple[str, ...]:
    """Return the names of a layer's parameters in the module it is part of."""
    return tuple(f"{name}.{own}" for own, _ in layer.named_parameters())


def check(layer: nn.Module, where: str) -> None:
    """Refuse layers, and settings of layers, that the stages do not know.

    Args:
        layer: The layer.
        where: Where it stands, as the beginning of a sentence.
    """
    title = type(layer).__name__
    if type(layer) not in LAYERS:
        raise NotFused(f"{where} ({title}) has no fused form")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise NotFused(f"{where} ({title}) has hooks")
    problem = None
    match layer:
        case nn.Flatten() if layer.start_dim < 1:
            problem = "joins the samples of a batch"
        case nn.Conv1d() | nn.Conv2d() if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            problem = "pads in a way that has no fused form"
        case nn.MaxPool1d() | nn.MaxPool2d() if layer.return_indices:
            problem = "returns indices"
        case nn.Embedding() if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
            problem = "has a setting (padding_idx, max_norm or scale_grad_by_freq) without a fused form"
        case nn.RNNBase() if layer.bidirectional or layer.proj_size or layer.dropout or not layer.batch_first:
            problem = "has a setting (bidirectional, proj_size, dropout or batch_first=False) without a fused form"
    if problem:
        raise NotFused(f"{where} ({title}) {problem}")
