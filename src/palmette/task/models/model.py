"""One row of the table of named models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Model:
    """One model that Palmette knows by name, with an example of the samples it takes.

    Attributes:
        make: Makes the module: ``make(shape, outputs, *, seed, ...)``, with its settings as further keywords.
        backend: The backend that ``auto`` takes for it on a CPU, in float32, with its settings and batches as they are by
            default; a test compares it with what is taken. It may be another one for a smaller or a larger model.
        otherwise: The backend with other settings, where it is another, as in ``{"norm=batch": "loop"}``.
        shape: Shape of an example sample.
        outputs: Number of classes of the example.
        tokens: For models of text: samples are rows of whole numbers below this one. 0 for samples of real numbers.
        example: What the example is, in words.
        loss: The loss it is trained with where none is named; ``None`` for the one that fits the labels.
        data: Name of a data set it can be tried on; empty where the default one will do.
    """

    make: Callable[..., nn.Module]
    backend: str = "fused"
    otherwise: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 28, 28)
    outputs: int = 10
    tokens: int = 0
    example: str = "images of 28 x 28 pixels in ten classes"
    loss: str | None = None
    data: str = ""

    @property
    def backends(self) -> str:
        """The backend in words, as in ``fused; loop with model.norm=batch``."""
        first = "native, or fused where the kernel is not built" if self.backend == "native" else self.backend
        return "; ".join([first, *(f"{name} with model.{setting}" for setting, name in self.otherwise.items())])

    def choices(self) -> list[dict[str, str]]:
        """Return every value, but for the default, of the settings that have only a few: each as settings to make it with."""
        known = inspect.signature(self.make).parameters
        return [
            {name: one}
            for name, hint in get_type_hints(self.make).items()
            if get_origin(hint) is Literal
            for one in get_args(hint)
            if one != known[name].default
        ]

    def samples(self, count: int) -> Tensor:
        """Return example samples, always the same: what a model is tried on where there are no data."""
        numbers = torch.arange(count * math.prod(self.shape)).reshape(count, *self.shape)
        return numbers % self.tokens if self.tokens else numbers.sin()

    def targets(self, count: int) -> Tensor:
        """Return a class for each of the example samples; for text, the next token at every place of it."""
        return (self.samples(count) + 1) % self.outputs if self.tokens else torch.arange(count) % self.outputs
