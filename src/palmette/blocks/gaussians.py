"""Gaussians over the weights of a model, independent of each other: one mean and one deviation for each."""

from __future__ import annotations

from torch import Tensor


def divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of a Gaussian from another: how much it says that the other does not.

    It is ``sum log(t / s) + (s^2 + (m - n)^2) / (2 t^2) - 1/2``, for N(m, s^2) and the other, N(n, t^2).
    """
    ratio, gap = deviation / other_deviation, (mean - other_mean) / other_deviation
    return (0.5 * (ratio.square() + gap.square() - 1) - ratio.log()).sum(-1)
