"""One row of the table of named models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Model:
    """One model that Palmette knows by name, with an example of the samples it takes.

    Attributes:
        make: Makes the module: ``make(shape, outputs, *, seed, ...)``, with its settings as further keywords.
        shape: Shape of an example sample.
        outputs: Number of classes of the example.
        tokens: For models of text: samples are rows of whole numbers below this one. 0 for samples of real numbers.
        example: What the example is, in words.
        loss: The loss it is trained with where none is named; ``None`` for the one that fits the labels.
    """

    make: Callable[..., nn.Module]
    shape: tuple[int, ...] = (1, 28, 28)
    outputs: int = 10
    tokens: int = 0
    example: str = "images of 28 x 28 pixels in ten classes"
    loss: str | None = None

    def samples(self, count: int) -> Tensor:
        """Return example samples, always the same: what a model is tried on where there are no data."""
        numbers = torch.arange(count * math.prod(self.shape)).reshape(count, *self.shape)
        return numbers % self.tokens if self.tokens else numbers.sin()
