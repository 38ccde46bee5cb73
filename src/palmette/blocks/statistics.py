"""Running statistics within models, where they are averaged (``buffers="averaged"``): they are numbers, but no weights.

A method that steps past a mean, or that compares models, is about what gradients move. Statistics are only ever averaged: a
variance that a server stepped past would be negative.
"""

from __future__ import annotations

from torch import Tensor

from palmette.task.layout import Layout
from palmette.task.parts import BUFFERS


def weights_of(layout: Layout, rows: Tensor) -> Tensor:
    """Return models without their running statistics; all of them where models have none."""
    if BUFFERS not in layout.parts:
        return rows
    return layout.cut(rows, tuple(part for part in layout.parts if part != BUFFERS))


def with_statistics(layout: Layout, rows: Tensor, other: Tensor) -> Tensor:
    """Return models with the running statistics of others; the models themselves where they have none."""
    return layout.put(rows, BUFFERS, layout.cut(other, BUFFERS)) if BUFFERS in layout.parts else rows
