"""Means of the rows of each node's children, in a fixed order of summation.

Rows are added one child after the other in the order of the children, whatever chunk they arrive in, so a mean does not
depend on how the work was cut up. Weights are scaled by their own average first: equal weights then give the very bits of
the plain mean, and a single child's row comes out unchanged.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

Positions = slice | Tensor
"""Some of a row of children: a run of them, or their places in ascending order."""


class SegmentMean:
    """A streaming (weighted) mean of child rows for ``count`` parents.

    Args:
        segment: For every child that may contribute, the position of its parent.
        count: Number of parents.
        weights: One non-negative weight per child; ``None`` for the plain mean.
        sizes: Number of children of each parent, where it is known.
    """

    def __init__(self, segment: Tensor, count: int, weights: Tensor | None = None, sizes: Tensor | None = None) -> None:
        self._segment, self._count, self._sizes = segment, count, sizes
        self._weight: Tensor | None = None
        if weights is not None:
            # Divided by the largest first, so that equal weights are exactly one whatever their value.
            size = torch.bincount(segment, minlength=count).to(torch.float64)
            peak = torch.zeros_like(size).scatter_reduce_(0, segment, weights.to(size), "amax")
            scaled = weights.to(size) / torch.where(peak > 0, peak, 1.0)[segment]
            total = torch.zeros_like(size).index_add_(0, segment, scaled)
            self._weight = scaled / torch.where(total > 0, total / size, 1.0)[segment]
        self._added: list[Positions] = []
        self._count_added = 0
        self.sums: dict[str, Tensor] = {}
        """The sums so far by name, one row per parent."""

    def add(self, positions: Positions, rows: dict[str, Tensor]) -> None:
        """Add the rows of the children at ``positions`` (ascending over all calls)."""
        self._added.append(positions)
        self._count_added += self._segment[positions].shape[0]
        self.sum(positions, rows)

    def sum(self, positions: Positions, rows: dict[str, Tensor]) -> None:
        """Add rows alone, whose children are counted by an `add` without rows."""
        for name, given in rows.items():
            value = given if given.is_floating_point() else given.to(torch.float64)
            part = value if self._weight is None else value * _column(self._weight[positions], value)
            total = self.total_of(name, value)
            total.index_add_(0, self._segment[positions].to(value.device), part)

    def total_of(self, name: str, like: Tensor) -> Tensor:
        """Return the sums of one kind of rows so far, one per parent; at first they are zero."""
        if name not in self.sums:
            self.sums[name] = like.new_zeros((self._count, *like.shape[1:]))
        return self.sums[name]

    @property
    def complete(self) -> bool:
        """Whether the children's numbers were given and all were added, none of them weighted."""
        return self._sizes is not None and self._weight is None and self._count_added == self._segment.shape[0]

    @cached_property
    def present(self) -> Tensor:
        """For each parent, how many children were added; to be asked for when all are in."""
        segment = self._segment
        if self._sizes is not None and self._count_added == segment.shape[0]:
            return self._sizes
        if self._count_added < segment.shape[0]:
            segment = torch.cat([segment[positions] for positions in self._added]) if self._added else segment[:0]
        return torch.bincount(segment, minlength=self._count)

    @cached_property
    def total(self) -> Tensor:
        """For each parent, the weight of the children that were added; to be asked for when all are in."""
        if self._weight is None:
            return self.present.to(torch.float64)
        total = torch.zeros(self._count, dtype=torch.float64, device=self._segment.device)
        for positions in self._added:
            total.index_add_(0, self._segment[positions], self._weight[positions])
        return total

    def result(self) -> dict[str, Tensor]:
        """Return one row per parent; the row of a parent without weight is zero."""
        if self._sizes is not None and self.complete:
            divisor = self._sizes
        elif self._weight is None:
            divisor = self.present.clamp(min=1)
        else:
            divisor = torch.where(self.total > 0, self.total, 1.0)
        return {name: total / _column(divisor, total) for name, total in self.sums.items()}


def _column(weight: Tensor, like: Tensor) -> Tensor:
    """Shape per-row weights so that they multiply rows of any width."""
    return weight.to(like.device, like.dtype).reshape(-1, *([1] * (like.dim() - 1)))


def segment_mean(rows: Tensor, segment: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Return the (weighted) mean row of each of ``count`` segments."""
    mean = SegmentMean(segment, count, weights)
    mean.add(torch.arange(len(segment), device=segment.device), {"rows": rows})
    return mean.result()["rows"]
