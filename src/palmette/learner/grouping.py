"""Group normalisation of many models at once, for images in any order of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palmette.learner.convolution import channels_last, room
from palmette.learner.normalising import joining, normalised, normalised_back
from palmette.learner.stages import Stage, blend

_ops: Any = torch.ops.aten


class GroupNorm(Stage):
    """Group normalisation with each device's own scale and shift of the channels."""

    fresh = True
    _memory: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        self._shape = x.shape
        images = x if x.dim() == 5 else x.reshape(*x.shape[:3], 1, -1)
        self._inside = images.shape[2] > 1 and images.transpose(0, 1).is_contiguous()
        return (self._by_torch(images) if self._inside else self._by_hand(images)).reshape(x.shape)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update scale and shift, and pass the gradient on."""
        images = delta if delta.dim() == 5 else delta.reshape(*delta.shape[:3], 1, -1)
        back = self._back_by_torch if self._inside else self._back_by_hand
        return back(images, beta, alpha).reshape(self._shape)

    # -- channels last in memory ---------------------------------------------------------------------------------------

    def _by_hand(self, x: Tensor) -> Tensor:
        images = channels_last(x)
        if self._memory is None:
            self._memory = [room(images, images.shape[1:]) for _ in range(3)]
            channels, pixels = x.shape[2], x.shape[3:].numel()
            self._join = joining(self.layer.num_groups, channels, x) / pixels
            self._weight = self.own[0] if self.own else x.new_ones((len(x), channels))
            self._bias = self.own[1] if len(self.own) > 1 else x.new_zeros((len(x), channels))
        out, centred, _ = self._memory
        given = _pixels(images), self._weight, self._bias, self._join, self.layer.eps
        self._kept = normalised(*given, _pixels(out), _pixels(centred))
        return out

    def _back_by_hand(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        assert self._memory is not None
        result = self._memory[2]
        given = _pixels(channels_last(delta)), *self._kept, self._weight, self._join
        for sink, each in zip(self.sinks, normalised_back(*given, _pixels(result)), strict=False):
            blend(sink, each.sum(1), beta, alpha)
        return result

    # -- channels before pixels, samples before devices, as grouped convolutions give them -----------------------------

    def _by_torch(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        self._flat = x.reshape(-1, x.shape[2], x.shape[3:].numel())
        self._sizes = *self._flat.shape, self.layer.num_groups
        value, *self._statistics = _ops.native_group_norm(self._flat, None, None, *self._sizes, self.layer.eps)
        self._value: Tensor = value.view(x.shape)
        result: Tensor = self._value
        if self.own:
            scale = self.own[0][..., None, None]
            result = (
                result * scale if len(self.own) == 1 else torch.addcmul(self.own[1][..., None, None], result, scale)
            )
        return result.transpose(0, 1)

    def _back_by_torch(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        delta = delta.transpose(0, 1)
        scaled = delta * self.own[0][..., None, None] if self.own else delta
        for number, sink in enumerate(self.sinks):
            if sink is not None:
                blend(sink, (delta if number else delta * self._value).sum((0, 3, 4)), beta, alpha)
        given = (
            scaled.reshape(self._flat.shape).contiguous(),
            self._flat,
            *self._statistics,
            None,
            *self._sizes,
            [True, False, False],
        )
        result: Tensor = _ops.native_group_norm_backward(*given)[0].view(delta.shape)
        return result.transpose(0, 1)


def _pixels(images: Tensor) -> Tensor:
    """View images ``(n, batch, channels, height, width)`` with their channels last as ``(n, batch, pixels, channels)``."""
    return images.permute(0, 1, 3, 4, 2).flatten(2, 3)
