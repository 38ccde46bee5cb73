"""How curved the devices' losses are: the constants L_f and mu_f that step sizes and theorems depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.learner.learner import Learner
from palmette.learner.work import LocalWork

_STEP = 1e-3  # length of the difference that stands for a derivative


@dataclass(frozen=True)
class Curvature:
    """The largest and the smallest curvature of the devices' training losses.

    Attributes:
        smoothness: L_f, the largest over the devices.
        convexity: mu_f, the smallest over the devices; 0 where a loss is flat or bends down in some direction.
    """

    smoothness: float
    convexity: float


def curvature(learner: Learner, *, devices: int = 16, iterations: int = 6, convexity: bool = False) -> Curvature:
    """Estimate the curvature at the initial model by power iteration with differences of full gradients.

    For quadratic losses this is exact in the limit; for other convex ones it is the value at that point (softmax regression
    is most curved there); for networks a local estimate.

    Args:
        learner: Whose samples and model.
        devices: Up to so many devices, evenly chosen, are looked at.
        iterations: Steps of the power iteration.
        convexity: Whether to estimate mu_f as well, by a second iteration on L I - H.
    """
    total = len(learner.samples)
    ids = torch.arange(0, total, -(-total // devices))
    with torch.no_grad():
        work = LocalWork(learner, ids, 0, torch.zeros_like(ids))
        start = learner.initial().expand(len(ids), -1).contiguous()
        base = work.gradient(start)
        step = _STEP * max(1.0, float(start.norm(dim=1).max()))

        def bend(direction: Tensor) -> Tensor:
            return (work.gradient(start + step * direction) - base) / step

        # The gradient alone may lie in a flat subspace; a fixed irregular direction beside it does not.
        mixed = base / _norm(base) + torch.sin(torch.arange(1, base.shape[1] + 1)).to(base) / base.shape[1] ** 0.5
        largest = _power(bend, mixed, iterations)
        if not convexity:
            return Curvature(float(largest.max()), 0.0)
        if learner.task.loss == "cross-entropy":
            # Adding one number to all logits changes no loss, so only the l2 term bends the loss in every direction.
            return Curvature(float(largest.max()), learner.task.l2)
        top = largest[:, None]
        gap = _power(lambda direction: top * direction - bend(direction), mixed, 4 * iterations)
        return Curvature(float(largest.max()), max(0.0, float((largest - gap).min())))


def _power(operator: Callable[[Tensor], Tensor], direction: Tensor, iterations: int) -> Tensor:
    """Return the largest eigenvalue of a symmetric operator, row by row."""
    size = direction.new_zeros(len(direction))
    for _ in range(iterations):
        direction = direction / _norm(direction)
        direction = operator(direction)
        size = direction.norm(dim=1)
    return size


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = rows.norm(dim=1, keepdim=True)
    return norm.clamp(min=1e-30)
