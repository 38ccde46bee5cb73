"""The largest of windows, of many models at once; torch is several times as fast where channels come last in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.learner.convolution import channels_last
from palmette.learner.stages import Place, Stage

_ops: Any = torch.ops.aten


class MaxPool2d(Stage):
    """The largest of every window."""

    fresh = True

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        names = "kernel_size", "stride", "padding", "dilation", "ceil_mode"
        self._settings = [getattr(layer, name) for name in names]
        self._memory: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Take the largest."""
        self._x = images = channels_last(x).flatten(0, 1)
        if self._memory is None:
            self._memory = *_ops.max_pool2d_with_indices(images, *self._settings), torch.empty_like(images)
        else:
            out, where, _ = self._memory
            _ops.max_pool2d_with_indices.out(images, *self._settings, out=out, indices=where)
        result: Tensor = self._memory[0].unflatten(0, x.shape[:2])
        return result

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Send each gradient back to where the largest was."""
        assert self._memory is not None
        _, where, back = self._memory
        images = channels_last(delta).flatten(0, 1)
        _ops.max_pool2d_with_indices_backward.grad_input(images, self._x, *self._settings, where, grad_input=back)
        result: Tensor = back.unflatten(0, delta.shape[:2])
        return result


class MaxPool1d(MaxPool2d):
    """The largest of every window of a signal: of images of one line."""

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        *sizes, rounds_up = self._settings
        across = 1, 1, 0, 1  # kernel, stride, padding and dilation
        self._settings = [
            *((one, *(size if isinstance(size, tuple) else (size,))) for one, size in zip(across, sizes, strict=True)),
            rounds_up,
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Take the largest."""
        return super().forward(x.unsqueeze(3)).squeeze(3)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Send each gradient back to where the largest was."""
        return super().backward(delta.unsqueeze(3), beta, alpha).squeeze(3)
