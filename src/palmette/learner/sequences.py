"""Layers of sequences in the fused backend: tables of vectors, layer normalisation, attention.

Attention of one head is ``softmax(q k' / sqrt(d) + mask) v``, for the queries, keys and values of every sample. Those of all
samples and heads are one batched product. The linear layers around it are stages of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.learner.joins import spread
from palmette.learner.stages import Join, Stage, blend

_ops: Any = torch.ops.aten


class Embedding(Stage):
    """A table of vectors; the tables of all devices are looked up as one."""

    fresh = True

    def forward(self, x: Tensor) -> Tensor:
        """Look the tokens up."""
        n, words, width = self.own[0].shape
        low, high = x.aminmax()
        if int(low) < 0 or int(high) >= words:  # it would be another device's vector
            raise IndexError(f"a token is {int(low if low < 0 else high)}, and the table has {words} vectors")
        self._index = (x + torch.arange(n, device=x.device).mul_(words).view(n, *[1] * (x.dim() - 1))).flatten()
        return self.own[0].reshape(-1, width).index_select(0, self._index).view(*x.shape, width)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Add each gradient to its vector."""
        sink = self.sinks[0]
        if sink is not None:
            if beta != 1:
                sink.mul_(beta) if beta else sink.zero_()
            table = sink.view(-1, sink.shape[2])
            table.index_put_((self._index,), delta.reshape(-1, sink.shape[2]) * alpha, accumulate=True)
        return delta


class LayerNorm(Stage):
    """Layer normalisation with each device's own scale and shift."""

    fresh = True

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        self._x = x = x.contiguous()
        normal: Tensor
        normal, *self._kept = _ops.native_layer_norm(x, self.layer.normalized_shape, None, None, self.layer.eps)
        if not self.own:
            return normal
        self._value, scale = normal, spread(self.own[0], x)
        return normal * scale if len(self.own) == 1 else torch.addcmul(spread(self.own[1], x), normal, scale)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update scale and shift, and pass the gradient on."""
        scaled = delta * spread(self.own[0], delta) if self.own else delta
        for number, (sink, own) in enumerate(zip(self.sinks, self.own, strict=True)):
            if sink is not None:
                each = delta if number else delta * self._value
                blend(sink, each.flatten(1, delta.dim() - own.dim()).sum(1), beta, alpha)
        if self.place.first:
            return delta
        given = scaled.contiguous(), self._x, self.layer.normalized_shape, *self._kept, None, None, [True, False, False]
        result: Tensor = _ops.native_layer_norm_backward(*given)[0]
        return result


class Attend(nn.Module):
    """Attention of every place of a sequence to others, as a layer.

    Args:
        heads: Number of heads.
        mask: What is added to the scores ``(places, places)``; minus infinity where a place does not look.
        causal: Whether a place looks at itself and those before it alone.
        scale: Factor of the scores; one over the root of a head's size by default.
    """

    mask: Tensor | None

    def __init__(self, heads: int, mask: Tensor | None, *, causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, scale
        self.register_buffer("mask", mask)

    def added(self, places: int, others: int, like: Tensor) -> Tensor | None:
        """Return what is added to the scores of so many places that look at so many others."""
        mask = None if self.mask is None else self.mask.to(like)
        if self.causal:
            mask = like.new_full((places, others), -math.inf).triu_(1)
        if mask is not None and bool((mask == -math.inf).all(1).any()):
            raise ValueError("its attention has places that may look at none")
        return mask


class AttendApart(Attend):
    """The same where queries, keys and values come apart, their heads in a dimension of their own."""


class _Core:
    """The attention of matrices ``(many, places, size)``, remembering what its backward step needs."""

    _scores: Tensor | None = None

    def __init__(self, layer: Attend) -> None:
        self._layer = layer

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._given = query, key, value
        scale = self._layer.scale
        self._scale = 1 / math.sqrt(query.shape[2]) if scale is None else scale
        shape = (len(query), query.shape[1], key.shape[1])
        if self._scores is None or self._scores.shape != shape:
            self._scores, self._shares = query.new_empty(shape), query.new_empty(shape)
            self._mask = self._layer.added(*shape[1:], query)
        product = query, key.mT
        if self._mask is None:
            torch.baddbmm(self._scores, *product, beta=0, alpha=self._scale, out=self._scores)
        else:
            torch.baddbmm(self._mask, *product, alpha=self._scale, out=self._scores)
        _ops._softmax.out(self._scores, -1, False, out=self._shares)
        return torch.bmm(self._shares, value)

    def backward(self, delta: Tensor, into: Sequence[Tensor]) -> None:
        """Write the gradients of queries, keys and values into three memories."""
        assert self._scores is not None
        query, key, value = self._given
        torch.bmm(self._shares.mT, delta, out=into[2])
        torch.bmm(delta, value.mT, out=self._scores)
        slope = _ops._softmax_backward_data(self._scores, self._shares, -1, delta.dtype)
        torch.baddbmm(into[0], slope, key, beta=0, alpha=self._scale, out=into[0])
        torch.baddbmm(into[1], slope.mT, query, beta=0, alpha=self._scale, out=into[1])


class Attended(Stage):
    """Attention whose queries, keys and values come side by side, as the first linear layer of an attention gives them."""

    fresh = True
    _memory: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed values ``(n, batch, places, width)``."""
        n, batch, places, width = x.shape
        heads = self.layer.heads
        if self._memory is None:
            self._core = _Core(self.layer)
            self._memory = x.new_empty((2, 3, n * batch, heads, places, width // (3 * heads)))
        given = self._memory[0].copy_(x.view(n * batch, places, 3, heads, -1).permute(2, 0, 3, 1, 4))
        out = self._core.forward(*given.flatten(1, 2)).view(n, batch, heads, places, -1)
        return out.transpose(2, 3).flatten(3)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Return the gradients of queries, keys and values side by side."""
        assert self._memory is not None
        n, batch, places, _ = delta.shape
        heads, into = self.layer.heads, self._memory[1]
        each = delta.reshape(n * batch, places, heads, -1).transpose(1, 2).flatten(0, 1)
        self._core.backward(each, into.flatten(1, 2).unbind())
        return into.permute(1, 3, 0, 2, 4).reshape(n, batch, places, -1)


class AttendedApart(Join):
    """Attention of queries, keys and values that come apart, each ``(n, batch, heads, places, size)``."""

    fresh = True
    _core: _Core | None = None

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Return the mixed values, in the shape of the queries."""
        self._core, self._shapes = self._core or _Core(self.layer), [value.shape for value in values]
        shape = values[0].shape
        if any(value.dim() != 5 or value.shape[:3] != shape[:3] for value in values):
            raise ValueError("its attention is of values that are not samples x heads x places x size")
        result: Tensor = self._core.forward(*(value.flatten(0, 2) for value in values)).unflatten(0, shape[:3])
        return result

    def part(self, delta: Tensor, beta: float, alpha: float) -> Sequence[Tensor | None]:
        """Return the gradients of queries, keys and values."""
        assert self._core is not None
        found = [delta.new_empty(shape) for shape in self._shapes]
        self._core.backward(delta.flatten(0, 2), [each.flatten(0, 2) for each in found])
        return found
