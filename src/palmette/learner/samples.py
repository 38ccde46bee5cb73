"""The samples of all devices as the learner reads them: gathered by index, in the rows' type."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from palmette.learner import dense
from palmette.population import Population


class Samples:
    """Features and targets on the learner's device.

    A copy in the rows' type is made when it fits the memory given; otherwise the population's own bytes are converted batch
    by batch.

    Attributes:
        shape: Shape of one sample's features.
        width: Numbers in them.
        dtype: Type of gathered features: that of the rows, or int64 for tokens.
        source: What features are gathered from, with the scale and shift of what is gathered, if any.
        y: All targets.

    Args:
        population: The samples of all devices.
        dtype: Type of the rows.
        device: Where they live.
        memory: Bytes that the converted copy may take.
    """

    def __init__(self, population: Population, dtype: torch.dtype, device: torch.device, memory: int) -> None:
        self._population, self.rows_dtype, self.device = population, dtype, device
        self.shape, self.width = population.shape, math.prod(population.shape)
        self.dtype = torch.int64 if population.x.dtype == torch.int64 else dtype
        y = population.y
        self.y = (y.to(dtype) if y.is_floating_point() else y).to(device)
        raw, affine = population.x, list(population.affine or ())
        if raw.dtype == torch.int64 or (not affine and raw.dtype == dtype):
            raw = raw.to(device)
        elif raw.numel() * dtype.itemsize <= memory:
            raw, affine = population.features(torch.arange(len(raw)), dtype).to(device), []
        self.source = raw.contiguous(), affine

    def replaced(self, features: Tensor) -> Samples:
        """Return the same samples with other features, in the rows' type."""
        made = copy.copy(self)
        made.shape, made.width = tuple(features.shape[1:]), math.prod(features.shape[1:])
        made.dtype, made.source = self.rows_dtype, (features, [])
        return made

    def features(self, index: Tensor, out: Tensor | None = None) -> Tensor:
        """Gather the features of some samples, into ``out`` where it is given."""
        source, affine = self.source
        if out is None:
            out = torch.empty((len(index), *self.shape), dtype=self.dtype, device=self.device)
        dense.gather(source, index.to(source.device), affine, out)
        return out

    def targets(self, index: Tensor) -> Tensor:
        """Gather the targets of some samples."""
        return self.y.index_select(0, index)
