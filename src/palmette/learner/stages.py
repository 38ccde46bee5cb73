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
from palmette.learner import dense
from palmette.task import AddressedDropout

_ops: Any = torch.ops.aten


@dataclass(frozen=True)
class Place:
    """Where in the chain a stage stands.

    Attributes:
        first: Whether nothing before it learns, so that nobody needs the gradient of its input.
        inplace: Whether it may overwrite its input.
        training: Whether dropout drops.
        shared: Whether the gradient of its output is also somebody else's, so that it must not be overwritten.
    """

    first: bool
    inplace: bool
    training: bool
    shared: bool = False


class Piece:
    """One layer, for n devices: a `Stage` with one input, or a `Join` of several.

    Args:
        layer: The torch layer, for its settings only.
        own: Its parameters ``(n, *shape)`` in the layer's own order.
        sinks: Where their gradients go; ``None`` for a parameter that stays as it is.
        place: Where it stands.
    """

    fresh: ClassVar[bool] = False
    """Whether the output is memory of its own that the backward step does not read."""

    passes: ClassVar[bool] = False
    """Whether the gradient of an input may be that of the output itself, or a view of it."""

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        self.layer: Any = layer
        self.own, self.sinks, self.place = own, sinks, place


class Stage(Piece, ABC):
    """A layer with one input."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output, remembering what `backward` needs."""

    @abstractmethod
    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Update the sinks and return the gradient of the input (anything at the first stage).

        ``delta``, the gradient of the output, may be overwritten unless it is shared.
        """


class Join(Piece, ABC):
    """A layer with several inputs."""

    @abstractmethod
    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Return the output, remembering what `part` needs."""

    @abstractmethod
    def part(self, delta: Tensor, beta: float, alpha: float) -> Sequence[Tensor | None]:
        """Update the sinks and return the gradient of each input, where it has one; ``delta`` must not be overwritten."""


def blend(sink: Tensor | None, gradient: Tensor, beta: float, alpha: float) -> None:
    """Set ``sink = beta * sink + alpha * gradient``; a sink that counts for nothing may hold anything."""
    if sink is None:
        return
    if beta == 0:
        torch.mul(gradient, alpha, out=sink)
    else:
        sink.mul_(beta).add_(gradient, alpha=alpha)


class Linear(Stage):
    """A linear layer on the last dimension: two or three batched products."""

    fresh = True

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        self._bias = own[1] if len(own) > 1 else None
        self._bias_sink = sinks[1] if len(own) > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the weights and add the bias."""
        self._shape = x.shape
        self._x = x.flatten(1, -2)
        if x.dim() == 3:
            result = dense.linear(self._x, self.own[0], self._bias)
        else:  # those who read sequences want the numbers of a place side by side
            product = self._x, self.own[0].mT
            result = torch.bmm(*product) if self._bias is None else torch.baddbmm(self._bias.unsqueeze(1), *product)
        shaped: Tensor = result.unflatten(1, x.shape[1:-1])
        return shaped

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Pass the gradient on before the weights, which it needs, are changed."""
        flat = delta.flatten(1, -2)
        below = delta if self.place.first else torch.bmm(flat, self.own[0]).view(self._shape)
        dense.linear_step(self._x, flat, self.sinks[0], self._bias_sink, dense.ones(self._x), beta, alpha)
        return below


class Activation(Stage):
    """A function of each entry whose slope is known from its value."""

    kind: ClassVar[str]

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        self._y = x if self.place.inplace else x.clone()
        dense.activate(self._y, self.kind)
        return self._y

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Multiply by the slope."""
        delta = delta.clone() if self.place.shared else delta
        dense.activate_back(delta, self._y, self.kind)
        return delta


class Relu(Activation):
    """Rectified linear units."""

    kind = "relu"


class Tanh(Activation):
    """Hyperbolic tangent."""

    kind = "tanh"


class Sigmoid(Activation):
    """Logistic function."""

    kind = "sigmoid"


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


class Dropout(Stage):
    """Dropout with the masks of `AddressedDropout`: those of the other backends."""

    passes = True
    layer: AddressedDropout
    address: Tensor
    """One address per device; set before every forward."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share of the entries and scale up the rest."""
        self._scale: Tensor | None = None
        if not self.place.training or not self.layer.training or self.layer.rate == 0:
            return x
        counter = torch.arange(x[0].numel(), device=x.device)
        keep = uniform(mix(self.address[:, None] + self.layer.layer, counter)) >= self.layer.rate
        share = 1 - self.layer.rate
        self._scale = scale = keep.view(x.shape).to(x.dtype).mul_(1 / share if share > 0 else 0.0)
        return x * scale

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Scale the gradient alike."""
        return delta if self._scale is None else delta * self._scale
