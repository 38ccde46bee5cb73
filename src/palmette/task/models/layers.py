"""Layers whose weights are drawn from an addressed generator, and how large they may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from palmette.address import torch_generator
from palmette.errors import BadInput
from palmette.values import refuse_larger_than_memory, shown, whole

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
_COPIES = 4  # of a model at the same time: the server's, a device's, its gradient and its update


def bare(layer: Callable[..., nn.Module], *sizes: int, **options: object) -> nn.Module:
    """Make a layer and leave torch's global random numbers as they were; its weights are set afterwards."""
    check_room(*sizes)
    with torch.random.fork_rng(devices=[]):
        return layer(*sizes, **options)


def check_room(*sizes: int) -> None:
    """Refuse a layer that is larger than the machine's memory."""
    room = _COPIES * 4 * math.prod(sizes)
    what = f"{_COPIES} copies of a layer of {' x '.join(map(str, sizes))}, as training needs at least,"
    refuse_larger_than_memory(what, room, "use a smaller model or fewer classes")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a setting that is none of the words it may be."""
    words = list(known)
    if value not in words:
        raise BadInput(f"{name} must be {' or '.join(map(repr, words))}, not {shown(value)}")


def sizes(name: str, value: object) -> list[int]:
    """Return the sizes of layers, given as a list or as one number."""
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [whole(f"{name} size", size, 1) for size in given]


def zero(module: nn.Module) -> nn.Module:
    """Set all weights to zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


def draw(module: nn.Module, seed: int) -> nn.Module:
    """Draw weights and biases as torch's layers do by default: uniform within 1 / sqrt(fan in).

    Layers draw one after the other in the module's own order, those inside others too. Normalisation keeps its weights of one
    and biases of zero; recurrent layers count the hidden units as what comes in, and so does torch.
    """
    generator = torch_generator(seed, "initial weights")
    with torch.no_grad():
        for layer in module.modules():
            own = [] if isinstance(layer, _NORMS) else list(layer.parameters(recurse=False))
            for parameter in own:
                bound = 1 / math.sqrt(layer.hidden_size if isinstance(layer, nn.RNNBase) else own[0][0].numel())
                parameter.uniform_(-bound, bound, generator=generator)
    return module
