"""The end of a model: how the loss changes with the outputs, in closed form where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from palmette.learner import dense
from palmette.task import Task


class _Given(torch.autograd.Function):
    """A number whose gradient in a tensor is known: what lets autograd begin there, with a gradient of ours."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, delta: Tensor) -> Tensor:
        """Return a number that stands for the loss; nobody reads it."""
        ctx.delta = delta
        return value.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        """Return the gradient that is known."""
        return ctx.delta, None


def gradients(value: Tensor, leaves: Sequence[Tensor], delta: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient of every leaf, given that of a value they lead to; ``None`` where they do not.

    It is `torch.autograd.grad` with ``grad_outputs``, which would import a library for algebra first: a second and a half.

    Args:
        value: What was computed from the leaves.
        leaves: Where the gradients are wanted.
        delta: The gradient of the value.
    """
    with torch.enable_grad():
        number = _Given.apply(value, delta)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(number, leaves, allow_unused=True)


class Head:
    """The gradient of the task's loss in the outputs, sample by sample and not yet averaged."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def delta(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss's gradient for outputs ``(n, batch, ...)`` and targets ``(n, batch, ...)``."""
        if (known := self.closed(output, y)) is not None:
            return known

        def one(output: Tensor, y: Tensor) -> Tensor:
            return self._task.per_sample_loss(output, y).sum()

        result: Tensor = vmap(grad(one))(output, y)
        return result.contiguous()

    def closed(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Return it for the losses of Palmette's own, in memory of its own; nothing for others."""
        loss = self._task.loss
        if isinstance(loss, str) and (loss != "cross-entropy" or (output.dim() == 3 and classes(y, 2))):
            return dense.loss_back(output, y, loss)
        if loss == "cross-entropy" and output.dim() == 4 and classes(y, 3):  # the mean over the places of a text
            flat = dense.loss_back(output.flatten(1, 2), y.flatten(1, 2), loss)
            return flat.div_(output.shape[2]).view(output.shape)
        return None


def classes(y: Tensor, dim: int) -> bool:
    """Return whether targets are one class per sample."""
    return y.dim() == dim and y.dtype == torch.int64
