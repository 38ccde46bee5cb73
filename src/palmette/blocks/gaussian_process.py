"""Exact Gaussian-process regression, and classification as regression on labels seen as Dirichlet distributions.

A kernel ``k(a, b) = scale * exp(-|a - b|^2 / (2 length^2))`` compares feature vectors. Every output c is a process of its own
with the mean 0, seen at the context samples with independent noise of variance ``1 / w_ic``. With W the diagonal of the w_ic
and ``B = I + W^1/2 K W^1/2`` it is at a new sample Gaussian with

    mean = k' W^1/2 B^-1 W^1/2 t        variance = k(x, x) - k' W^1/2 B^-1 W^1/2 k

(Rasmussen and Williams, Gaussian Processes for Machine Learning, section 3.4.3). B is never ill-conditioned from below, and a
sample with w = 0 is as if it were not there: that is how devices with fewer samples than the others are filled up.

Classes: a label is an observation of a Dirichlet distribution with concentrations ``a = eps + [class is c]``. Each has a Gamma
distribution; the log-normal one of the same moments has the variance ``log(1 / a + 1)`` and the mean ``log a`` minus half of
that. Regression on these means, with these variances as noise, gives the logarithm of every class's concentration. The chance
of a class is the mean of the softmax; it is approximated by the softmax of ``mean / sqrt(1 + pi / 8 variance)``, which needs no
draws.

Dimitrios Milios, Raffaello Camoriano, Pietro Michiardi, Lorenzo Rosasco, Maurizio Filippone: Dirichlet-based Gaussian Processes
for Large-scale Calibrated Classification, NeurIPS 2018 (arXiv 1805.10915).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Seen(NamedTuple):
    """What a process is conditioned on.

    Attributes:
        features: Feature vectors ``(samples, width)``.
        targets: Targets of every output ``(samples, outputs)``.
        precision: One over the noise of each ``(samples, outputs)``; 0 for a sample that only fills up.
    """

    features: Tensor
    targets: Tensor
    precision: Tensor


def kernel(one: Tensor, other: Tensor, scale: float, length: float) -> Tensor:
    """Return the kernel of all pairs of feature vectors."""
    # By products: the distances of many pairs at once, and smooth at 0 where a root would not be.
    square = one.square().sum(-1)[:, None] + other.square().sum(-1)[None] - 2 * one @ other.T
    return scale * torch.exp(square.clamp(min=0) * (-0.5 / length**2))


def class_targets(labels: Tensor, classes: int, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return what labels are in regression: targets and precisions ``(..., classes)``."""
    there = labels[..., None] == torch.arange(
        classes, device=labels.device
    )  # one_hot cannot be run for many devices at once
    concentration = there.to(dtype) + epsilon
    variance = (1 / concentration + 1).log()
    return concentration.log() - 0.5 * variance, 1 / variance


def posterior(seen: Seen, features: Tensor, scale: float, length: float) -> tuple[Tensor, Tensor]:
    """Return mean and variance ``(samples, outputs)`` of every output at new samples."""
    root = seen.precision.sqrt().T  # one row per output
    inner = kernel(seen.features, seen.features, scale, length)
    cross = kernel(seen.features, features, scale, length)
    matrix = torch.eye(len(inner), dtype=inner.dtype, device=inner.device) + root[:, :, None] * inner * root[:, None, :]
    factor = torch.linalg.cholesky_ex(matrix).L  # what is no number stays none and is found later
    known = torch.cat([root[:, :, None] * cross, (root * seen.targets.T)[:, :, None]], 2)
    solved = torch.linalg.solve_triangular(factor, known, upper=False)
    lines, right = solved[:, :, :-1], solved[:, :, -1:]
    mean = (lines * right).sum(1)
    variance = scale - lines.square().sum(1)
    return mean.T, variance.clamp(min=0).T


def log_chances(mean: Tensor, variance: Tensor) -> Tensor:
    """Return scores whose softmax is about the mean of the softmax of a Gaussian."""
    return mean / (1 + math.pi / 8 * variance).sqrt()
