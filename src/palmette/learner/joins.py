"""Stages of the fused backend where values meet: skip connections, and parameters that are added to a value."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from palmette.learner.stages import Join, Stage, blend


class Plus(nn.Module):
    """The sum of two values of one shape, as a layer."""


class Shift(nn.Module):
    """A parameter that is added to every sample, or a constant, as a layer."""

    constant: Tensor | None

    def __init__(self, constant: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("constant", constant)


class Added(Join):
    """The sum of two values: where a way around some layers ends."""

    fresh = passes = True

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Add the first to the second, in its memory where nobody else reads it."""
        one, other = values
        if one.shape != other.shape:
            raise ValueError(f"it adds values of the sizes {tuple(one.shape[2:])} and {tuple(other.shape[2:])}")
        return other.add_(one) if self.place.inplace else one + other

    def part(self, delta: Tensor, beta: float, alpha: float) -> Sequence[Tensor | None]:
        """Send the gradient both ways."""
        return delta, delta


class Shifted(Stage):
    """A parameter of each device's own, or a constant, added to every sample: vectors of places, for one."""

    fresh = passes = True

    def forward(self, x: Tensor) -> Tensor:
        """Add it."""
        own = self.own[0] if self.own else self.layer.constant[None]
        self._added = spread(own, x)
        if self._added.shape[1] != 1 or any(
            size not in (1, x.shape[dim]) for dim, size in enumerate(self._added.shape)
        ):
            raise ValueError(
                f"it adds a parameter of the sizes {tuple(own.shape[1:])} to samples of {tuple(x.shape[2:])}"
            )
        return x.add_(self._added) if self.place.inplace else x + self._added

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Sum the gradient over what the parameter was added to."""
        if self.own and self.sinks[0] is not None:
            blend(self.sinks[0], delta.sum_to_size(self._added.shape).view(self.own[0].shape), beta, alpha)
        return delta


def spread(own: Tensor, x: Tensor) -> Tensor:
    """View parameters ``(n, ...)`` so that they meet values ``(n, batch, ...)`` as torch's rules of broadcasting have it."""
    return own.reshape(len(own), *[1] * (x.dim() - own.dim()), *own.shape[1:])
