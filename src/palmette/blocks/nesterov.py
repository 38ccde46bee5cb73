"""Nesterov's accelerated gradient written as plain descent, so that it can run inside `LocalWork.descend`.

The scheme is ``theta+ = y - lr * g(y)`` and ``y+ = theta+ + m * (theta+ - theta)``. Seen from the rows ``y`` alone,

    y+ = y - lr * (1 + m) * [ g(y) - (y - theta) * m / (lr * (1 + m)) ]

which is a gradient step of size ``lr * (1 + m)`` with one further gradient; theta is known from the y so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def momentum(lr: float, convexity: float) -> float:
    """Return the constant momentum for a step ``lr = 1 / L``: ``(1 - sqrt q) / (1 + sqrt q)``, ``q = lr * convexity``."""
    root = math.sqrt(min(1.0, lr * convexity))
    return (1 - root) / (1 + root)


class Nesterov:
    """One accelerated descent of a stack of rows, each stopping where its gradient is small enough.

    Pass ``rate`` and ``extra`` to `LocalWork.descend` with the same number of steps for all rows, then call `result`. A row
    that has stopped keeps its result; the steps it still takes for company are thrown away.

    Args:
        start: Rows to start from.
        lr: Step size.
        factor: The momentum m.
        stop: A row stops when the squared norm of its whole gradient is at most this.
        extra: A further gradient of the objective as a function of the rows.
    """

    def __init__(
        self, start: Tensor, *, lr: float, factor: float, stop: float, extra: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.rate = lr * (1 + factor)
        self._lr, self._factor, self._stop, self._extra = lr, factor, stop, extra
        self._theta = self._last = self._y = start
        self._done = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        self._began = False

    def extra(self, y: Tensor) -> Tensor:
        """Return the further gradient that makes a plain step an accelerated one."""
        self._advance(y)
        pull = (y - self._last) * (-self._factor / self.rate)
        return pull if self._extra is None else pull + self._extra(y)

    def result(self, y: Tensor) -> Tensor:
        """Return the minimisers, given the rows that the descent ended with."""
        self._advance(y)
        return self._theta

    def _advance(self, y: Tensor) -> None:
        """Recover theta, and the gradient at the last y, from the y that a step led to."""
        if not self._began:
            self._began = True
            return
        theta = (y + self._factor * self._last) / (1 + self._factor)
        small = ((self._y - theta) / self._lr).square().sum(1) <= self._stop
        self._theta = torch.where(self._done[:, None], self._theta, theta)
        self._done = self._done | small
        # The rows of a descent are changed in place, so what is to be remembered is copied.
        self._last, self._y = theta, y.clone()
