"""Torch's attention and transformer layers as links of their parts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palmette.learner.joins import Plus
from palmette.learner.links import FUNCTIONS, NotFused, names_of
from palmette.learner.sequences import Attend

Add = Callable[..., int]
"""Adds a link, ``(layer, names of its parameters, *inputs)``, and returns its number."""


class Given(NamedTuple):
    """What a layer of attention is called with, besides the sequence.

    Attributes:
        mask: What is added to the scores.
        causal: Whether the call says that the mask is the one that hides what comes later.
    """

    mask: Tensor | None
    causal: bool


def arguments(layer: nn.Module, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a layer is called with, by name; what is left out, or is no setting, is not there."""
    given = inspect.signature(type(layer).forward).bind(layer, *args, **options).arguments
    return {name: value for name, value in given.items() if name != "self" and value is not None}


def scores(mask: Tensor, *, blocked: bool) -> Tensor:
    """Return a mask as what is added to the scores of attention.

    Args:
        mask: The mask: numbers, or yes and no for every pair of places.
        blocked: Whether yes means that a place does not look; else that it does.
    """
    if mask.dim() != 2:
        raise NotFused(f"its attention has a mask of {mask.dim()} dimensions; one of 2 has a fused form")
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(mask if blocked else ~mask, -math.inf)


def expand(add: Add, name: str, layer: nn.Module, x: int, given: Given) -> int:
    """Add the links of a layer with attention, and return the number of the last.

    Args:
        add: Adds a link.
        name: The layer's name in its module.
        layer: A key of `ENCODERS`.
        x: The link that gives the sequence.
        given: What else it is called with.
    """
    for part in layer.modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise NotFused(f"{name} ({type(part).__name__}) has hooks")
    return ENCODERS[type(layer)](add, name, layer, x, given)


def _attention(add: Add, name: str, layer: Any, x: int, given: Given) -> int:
    odd = layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn or layer.dropout
    if odd or not layer.batch_first or not layer._qkv_same_embed_dim:
        raise NotFused(
            f"{name} (MultiheadAttention) has a setting (kdim, vdim, add_bias_kv, add_zero_attn, dropout or "
            "batch_first=False) without a fused form"
        )
    mask, width = given.mask, layer.embed_dim
    if given.causal and (mask is None or not torch.equal(mask == -math.inf, _later(len(mask)))):
        raise NotFused(f"{name} (MultiheadAttention) is said to be causal, and its mask is not")
    bias = layer.in_proj_bias is not None
    first = tuple(f"{name}.{one}" for one in ("in_proj_weight", "in_proj_bias")[: 1 + bias])
    x = add(nn.Linear(width, 3 * width, bias=bias, device="meta"), first, x)
    x = add(Attend(layer.num_heads, mask), (), x)
    last = names_of(f"{name}.out_proj", layer.out_proj)
    return add(nn.Linear(width, width, bias=len(last) > 1, device="meta"), last, x)


def _layer(add: Add, name: str, layer: Any, x: int, given: Given) -> int:
    def one(own: str, value: int) -> int:
        part = getattr(layer, own)
        return add(part, names_of(f"{name}.{own}", part), value)

    def attend(value: int) -> int:
        return one("dropout1", _attention(add, f"{name}.self_attn", layer.self_attn, value, given))

    def feed(value: int) -> int:
        value = one("linear1", value)
        if isinstance(layer.activation, nn.Module):
            value = one("activation", value)
        elif layer.activation in FUNCTIONS:
            value = add(FUNCTIONS[layer.activation](), (), value)
        else:
            raise NotFused(f"{name} (TransformerEncoderLayer) has an activation without a fused form")
        return one("dropout2", one("linear2", one("dropout", value)))

    for norm, way in (("norm1", attend), ("norm2", feed)):
        found = add(Plus(), (), x, way(one(norm, x) if layer.norm_first else x))
        x = found if layer.norm_first else one(norm, found)
    return x


def _layers(add: Add, name: str, layer: Any, x: int, given: Given) -> int:
    for number, part in enumerate(layer.layers):
        if type(part) is not nn.TransformerEncoderLayer:
            raise NotFused(f"{name} (TransformerEncoder) has layers of a kind of their own ({type(part).__name__})")
        x = _layer(add, f"{name}.layers.{number}", part, x, given)
    return x if layer.norm is None else add(layer.norm, names_of(f"{name}.norm", layer.norm), x)


def _later(places: int) -> Tensor:
    return torch.ones(places, places, dtype=torch.bool).triu(1)


ENCODERS: dict[type[nn.Module], Callable[..., int]] = {
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _layer,
    nn.TransformerEncoder: _layers,
}
"""Layers of torch's that are several links."""
