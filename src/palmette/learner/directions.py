"""Pulls that differ by direction: how strongly a linear model is held near another, direction by direction of its features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.errors import PalmetteError
from palmette.task.layout import Layout


@dataclass(frozen=True, eq=False)
class Directions:
    """A pull with a strength of its own in every direction of the features, one line per row of a stack.

    The model is one linear layer, ``weight`` and perhaps ``bias``. Its pull is ``constant`` times the bias, and

        weight @ (B diag(strength) B' + rest (I - B B'))

    with the columns of B orthonormal.

    Attributes:
        basis: The directions of each row ``(n, features, k)``.
        strength: The strength in each of them ``(n, k)``.
        rest: The strength in all other directions ``(n, 1)``.
        constant: The strength of the bias ``(n, 1)``.
    """

    basis: Tensor
    strength: Tensor
    rest: Tensor
    constant: Tensor

    def times(self, rows: Tensor, layout: Layout, which: Tensor | None = None) -> Tensor:
        """Return the pull times some rows.

        Args:
            rows: One model per line.
            layout: Which numbers of a row are the weight, which the bias.
            which: Whose pulls they are, where only some of the devices work: their lines here; all by default.
        """
        return self._each(rows, layout, which, lambda strength: strength)

    def damped(self, rows: Tensor, layout: Layout, lr: Tensor, which: Tensor | None = None) -> Tensor:
        """Return ``(I + lr pull)^-1`` times some rows, which makes a step implicit in the pull: no strength is too large.

        Args:
            rows: One model per line.
            layout: Which numbers of a row are the weight, which the bias.
            lr: The step size, one per line.
            which: Whose pulls they are, where only some of the devices work: their lines here; all by default.
        """
        return self._each(rows, layout, which, lambda strength: 1 / (1 + lr * strength))

    def _each(self, rows: Tensor, layout: Layout, which: Tensor | None, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Multiply the part of each row in every direction by a factor that depends on the strength there."""
        if len(layout.layers) != 1 or len(layout.shapes[0]) != 2:
            raise PalmetteError("pulls by direction are for a model of one linear layer")
        basis, strength, rest, constant = (
            part if which is None else part[which] for part in (self.basis, self.strength, self.rest, self.constant)
        )
        inside, outside = factor(strength), factor(rest)
        parts = {}
        for name, part in layout.unflatten(rows).items():
            if part.dim() == 2:  # the bias
                parts[name] = factor(constant) * part
            else:
                turned = (part @ basis) * (inside - outside)[:, None]
                parts[name] = torch.baddbmm(outside[:, :, None] * part, turned, basis.mT)
        return layout.flatten(parts)
