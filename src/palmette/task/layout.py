"""The correspondence between the named tensors that a model learns and its flat row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from palmette.errors import BadInput


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a module lies in a flat row.

    Attributes:
        names: Names of the parameters that are learned, in the module's own order.
        shapes: Their shapes.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """Read the layout of the parameters that a module learns; frozen ones (``requires_grad=False``) are left out."""
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        if not named:
            frozen = any(True for _ in module.parameters())
            why = ": all of them are frozen (requires_grad=False)" if frozen else ""
            raise BadInput(f"{type(module).__name__} has no parameters to learn{why}")
        return Layout(tuple(named), tuple(parameter.shape for parameter in named.values()))

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def width(self) -> int:
        """Length of a flat row."""
        return sum(self.sizes)

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """View a row ``(d,)`` or a stack ``(n, d)`` as named tensors, without copying."""
        if rows.shape[-1] != self.width:
            raise BadInput(f"a row of {rows.shape[-1]} numbers does not fit a model of {self.width}")
        parts = rows.split(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {
            name: part.unflatten(-1, tuple(shape)) if shape else part.reshape(lead)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors (with or without a leading stack dimension) into rows."""
        lead = tensors[self.names[0]].dim() - len(self.shapes[0])
        return torch.cat([tensors[name].reshape(*tensors[name].shape[:lead], -1) for name in self.names], dim=-1)
