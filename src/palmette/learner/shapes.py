"""Stages of the fused backend that only change the shape of samples, or pick a part of them.

The layers they run are settings that `palmette.learner.following` makes of functions and methods. Dimensions are those of one
device's values, in which the samples of the batch come first; a stage never lets samples change places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from palmette.learner.stages import Join, Stage

_MIXED = "a step mixes the samples of a batch"

Sizes = Callable[[Sequence[torch.Size]], Sequence[int]]
"""The sizes of a value, from those of the values they are written in."""


class Index(nn.Module):
    """A constant index into every sample, as a layer."""

    def __init__(self, index: tuple[Any, ...]) -> None:
        super().__init__()
        self.index = index


class Reshape(nn.Module):
    """Other sizes for the same numbers, as a layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes


class Narrow(nn.Module):
    """One of the pieces that a dimension of every sample is cut into, as a layer.

    Args:
        number: Which piece.
        dim: The dimension.
        size: Size of a piece; 0 where their number is told.
        pieces: Number of pieces.
    """

    def __init__(self, number: int, dim: int, *, size: int = 0, pieces: int = 1) -> None:
        super().__init__()
        self.number, self.dim, self.size, self.pieces = number, dim, size, pieces


class Turn(nn.Module):
    """Another order of the dimensions, as a layer: all of them in turn, or two that change places."""

    def __init__(self, dims: Sequence[int], *, swap: bool) -> None:
        super().__init__()
        self.dims, self.swap = tuple(dims), swap


class Average(nn.Module):
    """The mean over some dimensions of every sample, as a layer."""

    def __init__(self, dims: Sequence[int], *, keep: bool) -> None:
        super().__init__()
        self.dims, self.keep = tuple(dims), keep


class Flatten(Stage):
    """Join dimensions of each sample."""

    passes = True

    def forward(self, x: Tensor) -> Tensor:
        """Give the samples their new shape."""
        self._x = x
        start, end = self.layer.start_dim, self.layer.end_dim
        return x.flatten(start + 1 if start > 0 else start, end + 1 if end > 0 else end)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Give the gradient its old shape back, in the order of memory that the stages before it work in."""
        shaped = delta.reshape(self._x.shape)
        return shaped if self._x.is_contiguous() else torch.empty_like(self._x).copy_(shaped)


class Reshaped(Join):
    """The same numbers in other sizes; the inputs after the first are there for their sizes alone."""

    passes = True

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Give the samples their new shape."""
        x = values[0]
        self._shape, self._others = x.shape, len(values) - 1
        result = x.reshape(len(x), *self.layer.sizes([value.shape[1:] for value in values]))
        if result.shape[1] != x.shape[1]:
            raise ValueError(_MIXED)
        return result

    def part(self, delta: Tensor, beta: float, alpha: float) -> Sequence[Tensor | None]:
        """Give the gradient its old shape back."""
        return [delta.reshape(self._shape), *[None] * self._others]


class Turned(Stage):
    """The dimensions of every sample in another order."""

    passes = True

    def forward(self, x: Tensor) -> Tensor:
        """Turn."""
        dims, rank = [dim % (x.dim() - 1) for dim in self.layer.dims], x.dim() - 1
        order = list(range(rank))
        if self.layer.swap:
            order[dims[0]], order[dims[1]] = dims[1], dims[0]
        else:
            order = dims
        if order[0]:
            raise ValueError(_MIXED)
        self._order = [0, *(dim + 1 for dim in order)]
        return x.permute(self._order)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Turn back."""
        return delta.permute([self._order.index(dim) for dim in range(len(self._order))])


class Averaged(Stage):
    """The mean over some dimensions of every sample."""

    fresh = True

    def forward(self, x: Tensor) -> Tensor:
        """Take the mean."""
        dims = [dim % (x.dim() - 1) for dim in self.layer.dims]
        if 0 in dims:
            raise ValueError(_MIXED)
        self._x, self._dims = x, sorted(dim + 1 for dim in dims)
        return x.mean(self._dims, keepdim=self.layer.keep)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Share the gradient out, in the order of memory that the stages before it work in."""
        delta = delta / math.prod(self._x.shape[dim] for dim in self._dims)
        if not self.layer.keep:
            for dim in self._dims:
                delta = delta.unsqueeze(dim)
        return torch.empty_like(self._x).copy_(delta)


class Select(Stage):
    """Pick a part of every sample by a constant index, such as the last step of a sequence."""

    def index(self, x: Tensor) -> tuple[Any, ...]:
        """Return the index of the part."""
        return (slice(None), *self.layer.index)

    def forward(self, x: Tensor) -> Tensor:
        """Pick."""
        self._x, self._index = x, self.index(x)
        return x[self._index]

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Put the gradient where the part was."""
        result = torch.zeros_like(self._x)
        result[self._index] = delta
        return result


class Narrowed(Select):
    """Pick one of the pieces that a dimension is cut into."""

    def index(self, x: Tensor) -> tuple[Any, ...]:
        """Return the index of the piece."""
        dim = self.layer.dim % (x.dim() - 1)
        if not dim:
            raise ValueError(_MIXED)
        size = self.layer.size or -(-x.shape[dim + 1] // self.layer.pieces)
        return *[slice(None)] * (dim + 1), slice(self.layer.number * size, (self.layer.number + 1) * size)
