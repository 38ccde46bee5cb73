"""The layers of the fused backend: each runs for a whole stack of models at once and knows its own backward step.

A stage holds the parameters of one layer for n devices, contiguous as ``(n, *shape)``, and where their gradients go (its
sinks). ``backward`` writes ``sink = beta * sink + alpha * gradient``. With the parameters themselves as sinks that is the
whole gradient step, folded into the product that makes the gradient; with other tensors and ``beta = 0`` it is the gradient.
Activations are ``(n, batch, ...)``; their memory may lie in another order where that makes the products faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from palmette.address import mix, uniform
from palmette.task import AddressedDropout

_ops: Any = torch.ops.aten


@dataclass(frozen=True)
class Place:
    """Where in the chain a stage stands.

    Attributes:
        first: Whether it is the first with parameters, so that nobody needs the gradient of its input.
        inplace: Whether it may overwrite its input.
        training: Whether dropout drops.
    """

    first: bool
    inplace: bool
    training: bool


class Stage(ABC):
    """One layer, for n devices.

    Args:
        layer: The torch layer, for its settings only.
        own: Its parameters ``(n, *shape)`` in the layer's own order.
        sinks: Where their gradients go.
        place: Where it stands.
    """

    fresh: ClassVar[bool] = False
    """Whether the output is memory of its own that the stage's backward does not read."""

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor], place: Place) -> None:
        self.layer: Any = layer
        self.own, self.sinks, self.place = own, sinks, place

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output, remembering what `backward` needs."""

    @abstractmethod
    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the sinks and return the gradient of the input (anything at the first stage).

        ``delta``, the gradient of the output, may be overwritten.
        """


def blend(sink: Tensor, gradient: Tensor, beta: float, alpha: float) -> None:
    """Set ``sink = beta * sink + alpha * gradient``; a sink that counts for nothing may hold anything."""
    if beta == 0:
        torch.mul(gradient, alpha, out=sink)
    else:
        sink.mul_(beta).add_(gradient, alpha=alpha)


class Linear(Stage):
    """A linear layer on the last dimension: two or three batched products."""

    fresh = True

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        self._weight, self._sink = own[0], sinks[0]
        self._flipped = own[0].mT
        self._bias = own[1] if len(own) > 1 else None
        self._out: Tensor | None = None
        self._delta = self._flat = self._turned = torch.empty(0)

    def _allocate(self, x: Tensor) -> Tensor:
        n, outputs, inputs = self._weight.shape
        rows = x.shape[1]
        # A product is faster when its result has fewer rows than columns, so small outputs are computed flipped.
        self._wide = outputs >= rows
        self._out = out = x.new_empty((n, rows, outputs) if self._wide else (n, outputs, rows))
        self._result = out if self._wide else out.mT
        if self._bias is not None:
            self._added = self._bias[:, None] if self._wide else self._bias[:, :, None]
            self._bias_sink = self.sinks[1][:, None]
            self._ones = x.new_ones(()).expand(n, 1, rows)
        self._input = None if self.place.first else x.new_empty((n, rows, inputs))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weights and add the bias."""
        self._shape = None if x.dim() == 3 else x.shape
        self._x = x = x if self._shape is None else x.flatten(1, -2)
        out = self._allocate(x) if self._out is None else self._out
        if self._wide:
            torch.bmm(x, self._flipped, out=out)
        else:
            torch.bmm(self._weight, x.mT, out=out)
        if self._bias is not None:
            out.add_(self._added)
        return self._result if self._shape is None else self._result.unflatten(1, self._shape[1:-1])

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Pass the gradient on before the weights, which it needs, are changed."""
        if delta is not self._delta:  # the stages after this one mostly reuse their memory
            self._delta = delta
            self._flat = delta if self._shape is None else delta.flatten(1, -2)
            self._turned = self._flat.mT
        if self._input is not None:
            torch.bmm(self._flat, self._weight, out=self._input)
        self._sink.baddbmm_(self._turned, self._x, beta=beta, alpha=alpha)
        if self._bias is not None:
            self._bias_sink.baddbmm_(self._ones, self._flat, beta=beta, alpha=alpha)
        if self._input is None:
            return delta
        return self._input if self._shape is None else self._input.view(self._shape)


class Relu(Stage):
    """Rectified linear units; the sign of the output is all that backward needs."""

    def forward(self, x: Tensor) -> Tensor:
        """Cut off below zero."""
        self._y = torch.relu_(x) if self.place.inplace else torch.relu(x)
        return self._y

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Let the gradient through where the output is positive."""
        result: Tensor = _ops.threshold_backward.grad_input(delta, self._y, 0, grad_input=delta)
        return result


class Tanh(Stage):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        self._y = torch.tanh_(x) if self.place.inplace else torch.tanh(x)
        return self._y

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Multiply by 1 - y^2."""
        result: Tensor = _ops.tanh_backward(delta, self._y)
        return result


class Sigmoid(Stage):
    """Logistic function."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        self._y = torch.sigmoid_(x) if self.place.inplace else torch.sigmoid(x)
        return self._y

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Multiply by y * (1 - y)."""
        result: Tensor = _ops.sigmoid_backward(delta, self._y)
        return result


class Gelu(Stage):
    """Gaussian error linear units."""

    fresh = True

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        self._x = x
        return torch.nn.functional.gelu(x, approximate=self.layer.approximate)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Multiply by the slope at the input."""
        result: Tensor = _ops.gelu_backward(delta, self._x, approximate=self.layer.approximate)
        return result


class Flatten(Stage):
    """Join dimensions of each sample."""

    def forward(self, x: Tensor) -> Tensor:
        """Give the samples their new shape."""
        self._shape = x.shape
        start, end = self.layer.start_dim, self.layer.end_dim
        return x.flatten(start + 1 if start > 0 else start, end + 1 if end > 0 else end)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Give the gradient its old shape back."""
        return delta.reshape(self._shape)


class Select(Stage):
    """Pick a part of every sample by a constant index, such as the last step of a sequence."""

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        self._index = (slice(None), *self.layer.index)

    def forward(self, x: Tensor) -> Tensor:
        """Pick."""
        self._x = x
        return x[self._index]

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Put the gradient where the part was."""
        result = torch.zeros_like(self._x)
        result[self._index] = delta
        return result


class Index(nn.Module):
    """A constant index into every sample, as a layer."""

    def __init__(self, index: tuple[Any, ...]) -> None:
        super().__init__()
        self.index = index


class Dropout(Stage):
    """Dropout with the masks of `AddressedDropout`: those of the other backends."""

    layer: AddressedDropout
    address: Tensor
    """One address per device; set before every forward."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share of the entries and scale up the rest."""
        self._scale: Tensor | None = None
        if not self.place.training or self.layer.rate == 0:
            return x
        counter = torch.arange(x[0].numel(), device=x.device)
        keep = uniform(mix(self.address[:, None] + self.layer.layer, counter)) >= self.layer.rate
        share = 1 - self.layer.rate
        self._scale = scale = keep.view(x.shape).to(x.dtype).mul_(1 / share if share > 0 else 0.0)
        return x * scale

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Scale the gradient alike."""
        return delta if self._scale is None else delta * self._scale


class MaxPool2d(Stage):
    """The largest of every window."""

    fresh = True

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        names = "kernel_size", "stride", "padding", "dilation", "ceil_mode"
        self._settings = [getattr(layer, name) for name in names]
        self._memory: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Take the largest, in whichever order channels and pixels lie in memory."""
        self._x = images = x.flatten(0, 1)
        if self._memory is None:
            self._memory = *_ops.max_pool2d_with_indices(images, *self._settings), torch.empty_like(images)
        else:
            out, where, _ = self._memory
            _ops.max_pool2d_with_indices.out(images, *self._settings, out=out, indices=where)
        return _stack(self._memory[0], x)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Send each gradient back to where the largest was."""
        assert self._memory is not None
        _, where, back = self._memory
        last = self._x.is_contiguous(memory_format=torch.channels_last)
        order = torch.channels_last if last else torch.contiguous_format
        images = delta.flatten(0, 1).contiguous(memory_format=order)
        _ops.max_pool2d_with_indices_backward.grad_input(images, self._x, *self._settings, where, grad_input=back)
        return _stack(back, delta)


def _stack(images: Tensor, like: Tensor) -> Tensor:
    result: Tensor = images.unflatten(0, like.shape[:2])
    return result
