"""Losses and metrics by name: functions of outputs and targets that give one value per sample."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

PerSample = Callable[[Tensor, Tensor], Tensor]


def _squared(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance, so that its gradient is the residual."""
    gap = output.reshape(target.shape) - target
    return 0.5 * gap.square().reshape(len(target), -1).sum(1)


def signs(target: Tensor) -> Tensor:
    """Return the targets -1 and 1 of the logistic loss; of class labels, which are whole numbers, 0 becomes -1 and 1 stays."""
    return target if target.is_floating_point() else 2 * target - 1


def by_class(output: Tensor) -> Tensor:
    """Return one score per class, also for the one output of logistic regression: the first class has zero then."""
    return F.pad(output, (1, 0)) if output.dim() == 2 and output.shape[1] == 1 else output


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy; the mean over the places where a sample has several targets, as the words of a text are.

    It is written out, because `vmap` of torch's own imports sympy, which takes a second or more in every process.
    """
    each = -output.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return each if each.dim() == 1 else each.flatten(1).mean(1)


def _accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Whether the most likely class is the right one; the share of the places where a sample has several targets."""
    right = (output.argmax(-1) == target).to(output.dtype)
    return right if right.dim() == 1 else right.flatten(1).mean(1)


LOSSES: dict[str, PerSample] = {
    "cross-entropy": _cross_entropy,
    "squared": _squared,
    "logistic": lambda output, target: F.softplus(-signs(target) * output.reshape(target.shape)),
}
METRICS: dict[str, dict[str, PerSample]] = {
    "cross-entropy": {"accuracy": _accuracy},
    "squared": {},
    "logistic": {
        "accuracy": lambda output, target: (output.reshape(target.shape) * signs(target) > 0).to(output.dtype)
    },
}
