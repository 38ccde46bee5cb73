"""Convolutions of many models at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from palmette.learner.normalising import joining, normalised, normalised_back
from palmette.learner.stages import Place, Stage, blend

_ops: Any = torch.ops.aten

_NARROW = 64  # window entries up to which columns and one batched product beat torch's own convolution on a CPU


class Conv2d(Stage):
    """A two-dimensional convolution.

    Two ways. *Columns*: the windows of all devices are laid out as matrices and multiplied in one batched product; several
    times faster than a grouped convolution for few input channels, and the only stacked way that is fast on other devices
    than a CPU. *Direct*: torch's own convolution, device after device; best for many channels on a CPU, where one device's
    work is far larger than the call. Either way channels come last in memory, which torch's pooling is fastest on.
    """

    fresh = True

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        self._stacked = own[0][0, 0].numel() <= _NARROW or own[0].device.type != "cpu"
        self._out: Tensor | None = None
        self._back: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        self._shape = x.shape
        if self._stacked:
            return self._by_columns(x)
        layer, bias = self.layer, self.own[1] if len(self.own) > 1 else [None] * len(x)
        self._x = x = channels_last(x)
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        for i in range(len(x)):
            part = F.conv2d(x[i], self.own[0][i], bias[i], *settings)
            if self._out is None:
                self._out = _images(x, part.shape)
            self._out[i].copy_(part)
        assert self._out is not None
        return self._out

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and pass the gradient on."""
        if self._stacked:
            return self._back_by_columns(delta, beta, alpha)
        layer, delta = self.layer, channels_last(delta)
        if self._back is None and not self.place.first:
            self._back = _images(delta, self._shape[1:])
        wanted = [not self.place.first, self.sinks[0] is not None, len(self.own) > 1 and self.sinks[1] is not None]
        settings = layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
        for i in range(len(delta)):
            dx, *gradients = _ops.convolution_backward(
                *(delta[i], self._x[i], self.own[0][i], [layer.out_channels]), *settings, wanted
            )
            for sink, gradient in zip(self.sinks, gradients, strict=False):
                if sink is not None:
                    blend(sink[i], gradient, beta, alpha)
            if self._back is not None:
                self._back[i].copy_(dx)
        return delta if self._back is None else self._back

    # -- columns -------------------------------------------------------------------------------------------------------

    def _windows(self, padded: Tensor) -> Tensor:
        """View the windows of padded images as ``(n, channels, kernel height, kernel width, batch, height, width)``."""
        n, batch, channels, height, width = padded.shape
        (kh, kw), (sh, sw), (dh, dw) = self.layer.kernel_size, self.layer.stride, self.layer.dilation
        size = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
        a, b, c, d, e = padded.stride()
        return padded.as_strided((n, channels, kh, kw, batch, *size), (a, c, dh * d, dw * e, b, sh * d, sw * e))

    def _inside(self, padded: Tensor) -> Tensor:
        (ph, pw), (height, width) = self.layer.padding, self._shape[-2:]
        return padded[..., ph : ph + height, pw : pw + width]

    def _allocate(self, x: Tensor) -> Tensor:
        (ph, pw), (n, batch, channels, height, width) = self.layer.padding, x.shape
        self._padded = padded = x.new_zeros((n, batch, channels, height + 2 * ph, width + 2 * pw))
        self._columns = columns = x.new_empty(self._windows(padded).shape)
        groups, self._size = n * self.layer.groups, columns.shape[-2:]
        self._matrix = columns.view(groups, -1, columns.shape[-3:].numel())
        self._kernels = self.own[0].reshape(groups, -1, self._matrix.shape[1])
        self._kernel_sink = None if self.sinks[0] is None else self.sinks[0].view(self._kernels.shape)
        self._out = out = x.new_empty((groups, self._matrix.shape[2], self._kernels.shape[1]))
        return out

    def _by_columns(self, x: Tensor) -> Tensor:
        out = self._allocate(x) if self._out is None else self._out
        self._inside(self._padded).copy_(x)
        self._columns.copy_(self._windows(self._padded))
        torch.bmm(self._matrix.mT, self._kernels.mT, out=out)
        if len(self.own) > 1:
            out.add_(self.own[1].view(len(out), 1, -1))
        images = out.view(len(x), self.layer.groups, x.shape[1], *self._size, -1)
        return images.permute(0, 2, 1, 5, 3, 4).flatten(2, 3)

    def _back_by_columns(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        assert self._out is not None
        images = delta.unflatten(2, (self.layer.groups, -1)).permute(0, 2, 1, 4, 5, 3)
        flat = images.reshape(self._out.shape)
        back = delta
        if not self.place.first:
            columns = torch.bmm(self._kernels.mT, flat.mT).view(self._columns.shape)
            padded = torch.zeros_like(self._padded)
            windows = self._windows(padded)
            # Windows overlap, so they are added one offset of the kernel after the other.
            for i in range(columns.shape[2]):
                for j in range(columns.shape[3]):
                    windows[:, :, i, j].add_(columns[:, :, i, j])
            back = self._inside(padded)
        # This order of the product is up to ten times faster than the one that would leave nothing to turn.
        if self._kernel_sink is not None:
            blend(self._kernel_sink, torch.bmm(self._matrix, flat).mT, beta, alpha)
        if len(self.own) > 1:
            blend(self.sinks[1], flat.sum(1).view(len(delta), -1), beta, alpha)
        return back


class Conv1d(Conv2d):
    """A convolution over a signal: one over images of one line."""

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        assert isinstance(layer, nn.Conv1d)
        (kernel_size,), (stride,), (dilation,), padding = (
            layer.kernel_size,
            layer.stride,
            layer.dilation,
            layer.padding[0],
        )
        image = nn.Conv2d(
            *(layer.in_channels, layer.out_channels, (1, kernel_size), (1, stride), (0, int(padding)), (1, dilation)),
            groups=layer.groups,
            device="meta",  # for its settings only
        )
        kernel = None if sinks[0] is None else sinks[0].unsqueeze(3)
        super().__init__(image, [own[0].unsqueeze(3), *own[1:]], [kernel, *sinks[1:]], place)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return super().forward(x.unsqueeze(3)).squeeze(3)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and pass the gradient on."""
        return super().backward(delta.unsqueeze(3), beta, alpha).squeeze(3)


class GroupNorm(Stage):
    """Group normalisation with each device's own scale and shift of the channels."""

    fresh = True
    _memory: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        self._shape, channels = x.shape, x.shape[2]
        self._join = joining(self.layer.num_groups, channels, x)
        spread = [part.repeat_interleave(x.shape[1], 0) for part in self.own]
        self._weight = spread[0] if spread else x.new_ones(channels)
        bias = spread[1] if len(spread) > 1 else x.new_zeros(channels)
        images = channels_last(_as_images(x))
        if self._memory is None:
            self._memory = [_images(images, images.shape[1:]) for _ in range(3)]
        out, centred, _ = self._memory
        given = _pixels(images), self._weight, bias, self._join, self.layer.eps
        self._kept = normalised(*given, _pixels(out), _pixels(centred))
        return out.view(x.shape)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update scale and shift, and pass the gradient on."""
        assert self._memory is not None
        delta, result = channels_last(_as_images(delta)), self._memory[2]
        found = normalised_back(_pixels(delta), *self._kept, self._weight, self._join, _pixels(result))
        for sink, each in zip(self.sinks, found, strict=False):
            blend(sink, each.unflatten(0, delta.shape[:2]).sum(1), beta, alpha)
        return result.view(self._shape)


def _as_images(x: Tensor) -> Tensor:
    """View samples ``(n, batch, channels, ...)`` as images of one line, or none; images stay as they are."""
    return x if x.dim() == 5 else x.reshape(*x.shape[:3], 1, -1)


def _pixels(images: Tensor) -> Tensor:
    """View images ``(n, batch, channels, height, width)`` with their channels last as ``(n * batch, pixels, channels)``."""
    return images.permute(0, 1, 3, 4, 2).flatten(2, 3).flatten(0, 1)


def channels_last(x: Tensor) -> Tensor:
    """Return images ``(n, batch, channels, height, width)`` with the channels last in memory."""
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _images(like: Tensor, shape: torch.Size) -> Tensor:
    """Make room for each device's images ``(batch, channels, height, width)``, channels last in memory."""
    batch, channels, height, width = shape
    return like.new_empty((len(like), batch, height, width, channels)).permute(0, 1, 4, 2, 3)
