"""Convolutions of many models at once.

There are three ways, and which one is fastest depends on the sizes of a layer (docs/reference/models.md has the measurements):

- *Columns*: the windows of all devices are laid out as matrices and multiplied in one batched product. For the first layer,
  whose windows are small, and the only stacked way that is fast on other devices than a CPU.
- *Grouped*: one convolution of torch's with a group of channels for every device. For small images.
- *Direct*: torch's own convolution, device after device. For the others, where one device's work is far larger than the call.

Channels come last in memory for columns and direct, which torch's pooling is fastest on; grouped, devices lie inside samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from palmette.learner.stages import Place, Stage, blend

_ops: Any = torch.ops.aten

_NARROW = 16  # window entries up to which columns are the way of a first layer
_WIDER = 40  # window entries up to which they are of a first layer that is little work
_OUTPUTS = 16  # outputs from which on they are: products with fewer columns are slow
_FIRST = 8_000_000  # multiplications of one device's call that are little work for a first layer ...
_POINT = 1_000_000  # ... and for a layer of one pixel
_ODD = 1_500_000  # multiplications up to which devices are groups ...
_LAST = 3_000_000  # ... where channels come in eights, which torch has kernels for, and last in memory ...
_EVEN = 20_000_000  # ... and where they come in eights and not last


class Way(ABC):
    """One way to convolve.

    Args:
        stage: The stage, for its settings, parameters and sinks.
        x: The first images.
    """

    def __init__(self, stage: Conv2d, x: Tensor) -> None:
        self._stage, self._layer, self._shape = stage, stage.layer, x.shape

    @property
    def _bias(self) -> Tensor | None:
        return self._stage.own[1] if len(self._stage.own) > 1 else None

    @property
    def _wanted(self) -> list[bool]:
        """Whether the gradients of images, kernels and bias are wanted."""
        sinks = self._stage.sinks
        return [not self._stage.place.first, sinks[0] is not None, len(sinks) > 1 and sinks[1] is not None]

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""

    @abstractmethod
    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and return the gradient of the images."""


class Direct(Way):
    """Device after device."""

    _out: Tensor | None = None
    _back: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        layer, kernels, bias = self._layer, self._stage.own[0], self._bias
        self._x = x = channels_last(x)
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        for i in range(len(x)):
            part = F.conv2d(x[i], kernels[i], None if bias is None else bias[i], *settings)
            if len(x) == 1:
                return part[None]
            if self._out is None:
                self._out = room(x, part.shape)
            self._out[i].copy_(part)
        assert self._out is not None
        return self._out

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and return the gradient of the images."""
        layer, delta, wanted = self._layer, channels_last(delta), self._wanted
        if self._back is None and wanted[0] and len(delta) > 1:
            self._back = room(delta, self._shape[1:])
        settings = layer.stride, layer.padding, layer.dilation, False, [0, 0], layer.groups
        result = delta if self._back is None else self._back
        for i in range(len(delta)):
            given = delta[i], self._x[i], self._stage.own[0][i], [layer.out_channels]
            dx, *gradients = _ops.convolution_backward(*given, *settings, wanted)
            for sink, gradient in zip(self._stage.sinks, gradients, strict=False):
                if sink is not None:
                    blend(sink[i], gradient, beta, alpha)
            if self._back is not None:
                self._back[i].copy_(dx)
            elif wanted[0]:
                result = dx[None]
        return result


class Grouped(Way):
    """All devices in one call, each a group of channels; in memory the samples come first."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        n, layer, bias = len(x), self._layer, self._bias
        self._x = x.transpose(0, 1).flatten(1, 2)
        given = self._x, self._stage.own[0].flatten(0, 1), None if bias is None else bias.flatten()
        out = F.conv2d(*given, layer.stride, layer.padding, layer.dilation, n * layer.groups)
        result: Tensor = out.unflatten(1, (n, -1)).transpose(0, 1)
        return result

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and return the gradient of the images."""
        n, layer, wanted = len(delta), self._layer, self._wanted
        settings = layer.stride, layer.padding, layer.dilation, False, [0, 0], n * layer.groups
        given = delta.transpose(0, 1).flatten(1, 2), self._x, self._stage.own[0].flatten(0, 1), [n * layer.out_channels]
        dx, *gradients = _ops.convolution_backward(*given, *settings, wanted)
        for sink, gradient in zip(self._stage.sinks, gradients, strict=False):
            if sink is not None:
                blend(sink, gradient.view(sink.shape), beta, alpha)
        return dx.unflatten(1, (n, -1)).transpose(0, 1) if wanted[0] else delta


class Columns(Way):
    """All windows laid out as the columns of a matrix.

    A bias is one more entry of every window, which is one: the products that make the output and the gradient of the kernels
    then make its part too.
    """

    def __init__(self, stage: Conv2d, x: Tensor) -> None:
        super().__init__(stage, x)
        (ph, pw), (n, batch, channels, height, width) = self._layer.padding, x.shape
        self._padded = x.new_zeros((n, batch, channels, height + 2 * ph, width + 2 * pw))
        windows, own = self._windows(self._padded), stage.own
        self._size, self._groups = windows.shape[-2:], n * self._layer.groups
        self._inside_bias = len(own) > 1 and self._layer.groups == 1
        entries, places = own[0][0, 0].numel(), windows.shape[-3:].numel()
        self._matrix = x.new_ones((self._groups, entries + self._inside_bias, places))
        self._columns = self._matrix[:, :entries].view(windows.shape)
        self._kernels = x.new_empty((self._groups, own[0].shape[1] // self._layer.groups, self._matrix.shape[1]))
        self._out = x.new_empty((self._groups, places, self._kernels.shape[1]))

    def _windows(self, padded: Tensor) -> Tensor:
        """View the windows of padded images as ``(n, channels, kernel height, kernel width, batch, height, width)``."""
        n, batch, channels, height, width = padded.shape
        (kh, kw), (sh, sw), (dh, dw) = self._layer.kernel_size, self._layer.stride, self._layer.dilation
        size = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
        a, b, c, d, e = padded.stride()
        return padded.as_strided((n, channels, kh, kw, batch, *size), (a, c, dh * d, dw * e, b, sh * d, sw * e))

    def _inside(self, padded: Tensor) -> Tensor:
        (ph, pw), (height, width) = self._layer.padding, self._shape[-2:]
        return padded[..., ph : ph + height, pw : pw + width]

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        self._inside(self._padded).copy_(x)
        self._columns.copy_(self._windows(self._padded))
        entries, out, bias = self._stage.own[0][0, 0].numel(), self._out, self._bias
        self._kernels[..., :entries].copy_(self._stage.own[0].view(*self._kernels.shape[:2], entries))
        if self._inside_bias and bias is not None:
            self._kernels[..., entries].copy_(bias)
        torch.bmm(self._matrix.mT, self._kernels.mT, out=out)
        if bias is not None and not self._inside_bias:
            out.add_(bias.view(self._groups, 1, -1))
        images = out.view(len(x), self._layer.groups, x.shape[1], *self._size, -1)
        return images.permute(0, 2, 1, 5, 3, 4).flatten(2, 3)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and return the gradient of the images."""
        sinks, entries = self._stage.sinks, self._stage.own[0][0, 0].numel()
        images = delta.unflatten(2, (self._layer.groups, -1)).permute(0, 2, 1, 4, 5, 3)
        flat, back, wanted = images.reshape(self._out.shape), delta, self._wanted
        if wanted[0]:
            columns = torch.bmm(self._kernels[..., :entries].mT, flat.mT).view(self._columns.shape)
            padded = torch.zeros_like(self._padded)
            windows = self._windows(padded)
            # Windows overlap, so they are added one offset of the kernel after the other.
            for i in range(columns.shape[2]):
                for j in range(columns.shape[3]):
                    windows[:, :, i, j].add_(columns[:, :, i, j])
            back = self._inside(padded)
        if wanted[1] or wanted[2]:
            # This order of the product is up to ten times faster than the one that would leave nothing to turn.
            found = torch.bmm(self._matrix, flat)
            if sinks[0] is not None:
                blend(sinks[0].view(*self._kernels.shape[:2], entries), found[:, :entries].mT, beta, alpha)
            if wanted[2]:
                total = found[:, entries] if self._inside_bias else flat.sum(1)
                blend(sinks[1], total.reshape(len(delta), -1), beta, alpha)
        return back


class Conv2d(Stage):
    """A two-dimensional convolution."""

    fresh = True
    _way: Way | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        if self._way is None:
            self._way = choose(self.layer, x, first=self.place.first)(self, x)
        return self._way.forward(x)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the kernels and pass the gradient on."""
        assert self._way is not None
        return self._way.backward(delta, beta, alpha)


def choose(layer: Any, x: Tensor, *, first: bool) -> type[Way]:
    """Return the way that is fastest for a layer on images ``(n, batch, channels, height, width)``; it does not depend on n.

    Args:
        layer: A `torch.nn.Conv2d`.
        x: The images.
        first: Whether nobody needs their gradient.
    """
    if x.device.type != "cpu":
        return Columns
    inputs, outputs, kernel = layer.in_channels // layer.groups, layer.out_channels, math.prod(layer.kernel_size)
    places = x.shape[1] * math.prod(-(-size // step) for size, step in zip(x.shape[3:], layer.stride, strict=True))
    work = places * outputs * inputs * kernel
    narrow = inputs * kernel <= (_WIDER if work <= _FIRST else _NARROW)
    if first and narrow and outputs >= _OUTPUTS:
        return Columns
    if kernel == 1:
        return Columns if work <= _POINT else Direct
    last = inputs > 1 and x.stride(2) == 1
    limit = _ODD if inputs % 8 or outputs % 8 else _LAST if last else _EVEN
    return Grouped if work <= limit else Direct


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


def channels_last(x: Tensor) -> Tensor:
    """Return images ``(n, batch, channels, height, width)`` with the channels last in memory."""
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def room(like: Tensor, shape: torch.Size) -> Tensor:
    """Make room for each device's images ``(batch, channels, height, width)``, channels last in memory."""
    batch, channels, height, width = shape
    return like.new_empty((len(like), batch, height, width, channels)).permute(0, 1, 4, 2, 3)
