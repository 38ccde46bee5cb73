"""Means of the rows of each node's children, in a fixed order of summation.

Rows are added one child after the other in the order of the children, whatever chunk they arrive in, so a mean does not
depend on how the work was cut up. Weights are scaled by their own average first: equal weights then give the very bits of
the plain mean, and a single child's row comes out unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SegmentMean:
    """A streaming (weighted) mean of child rows for ``count`` parents.

    Args:
        segment: For every child that may contribute, the position of its parent.
        count: Number of parents.
        weights: One non-negative weight per child; ``None`` for the plain mean.
    """

    def __init__(self, segment: Tensor, count: int, weights: Tensor | None = None) -> None:
        self._segment = segment
        size = torch.zeros(count, dtype=torch.float64, device=segment.device)
        size.index_add_(0, segment, torch.ones_like(segment, dtype=torch.float64))
        self._plain = weights is None
        if weights is None:
            self._weight = torch.ones(len(segment), dtype=torch.float64, device=segment.device)
        else:
            # Divided by the largest first, so that equal weights are exactly one whatever their value.
            peak = torch.zeros_like(size).scatter_reduce_(0, segment, weights.to(size), "amax")
            scaled = weights.to(size) / torch.where(peak > 0, peak, 1.0)[segment]
            total = torch.zeros_like(size).index_add_(0, segment, scaled)
            self._weight = scaled / torch.where(total > 0, total / size, 1.0)[segment]
        self.total = torch.zeros_like(size)
        self.present = torch.zeros(count, dtype=torch.int64, device=segment.device)
        self._sums: dict[str, Tensor] = {}

    def add(self, positions: Tensor, rows: dict[str, Tensor]) -> None:
        """Add the rows of the children at ``positions`` (ascending over all calls)."""
        parents, weight = self._segment[positions], self._weight[positions]
        self.total.index_add_(0, parents, weight)
        self.present.index_add_(0, parents, torch.ones_like(parents))
        for name, given in rows.items():
            value = given if given.is_floating_point() else given.to(torch.float64)
            if name not in self._sums:
                self._sums[name] = value.new_zeros((len(self.present), *value.shape[1:]))
            part = value if self._plain else value * _column(weight, value)
            self._sums[name].index_add_(0, parents.to(value.device), part)

    def result(self) -> dict[str, Tensor]:
        """Return one row per parent; the row of a parent without weight is zero."""
        divisor = torch.where(self.total > 0, self.total, 1.0)
        return {name: total / _column(divisor, total) for name, total in self._sums.items()}


def _column(weight: Tensor, like: Tensor) -> Tensor:
    """Shape per-row weights so that they multiply rows of any width."""
    return weight.to(like.device, like.dtype).reshape(-1, *([1] * (like.dim() - 1)))


def segment_mean(rows: Tensor, segment: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Return the (weighted) mean row of each of ``count`` segments."""
    mean = SegmentMean(segment, count, weights)
    mean.add(torch.arange(len(segment), device=segment.device), {"rows": rows})
    return mean.result()["rows"]
