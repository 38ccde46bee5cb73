"""The samples of all devices as the learner reads them: gathered by index, in the rows' type."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from palmette.population import Population


class Samples:
    """Features and targets on the learner's device.

    A copy in the rows' type is made when it fits the memory given; otherwise the population's own bytes are converted batch
    by batch.

    Attributes:
        shape: Shape of one sample's features.
        width: Numbers in them.
        dtype: Type of gathered features: that of the rows, or int64 for tokens.

    Args:
        population: Whose samples.
        dtype: Type of the rows.
        device: Where they live.
        memory: Bytes that the converted copy may take.
    """

    def __init__(self, population: Population, dtype: torch.dtype, device: torch.device, memory: int) -> None:
        self._population, self.rows_dtype, self.device = population, dtype, device
        self.shape, self.width = population.shape, math.prod(population.shape)
        self.dtype = torch.int64 if population.x.dtype == torch.int64 else dtype
        y = population.y
        self._y = (y.to(dtype) if y.is_floating_point() else y).to(device)
        raw = population.x
        self._x: Tensor | None = None
        if raw.dtype == torch.int64 or (population.affine is None and raw.dtype == dtype):
            self._x = raw.to(device)
        elif raw.numel() * dtype.itemsize <= memory:
            self._x = population.features(torch.arange(len(raw)), dtype).to(device)

    def features(self, index: Tensor, out: Tensor | None = None) -> Tensor:
        """Gather the features of some samples, into ``out`` where it is given."""
        if self._x is not None:
            return (
                torch.index_select(self._x, 0, index) if out is None else torch.index_select(self._x, 0, index, out=out)
            )
        raw = self._population.x.index_select(0, index.cpu())
        if out is None:
            out = torch.empty(raw.shape, dtype=self.rows_dtype, device=self.device)
        out.copy_(raw)
        if self._population.affine is not None:
            scale, shift = self._population.affine
            out.mul_(scale).add_(shift)
        return out

    def targets(self, index: Tensor) -> Tensor:
        """Gather the targets of some samples."""
        return self._y.index_select(0, index)
