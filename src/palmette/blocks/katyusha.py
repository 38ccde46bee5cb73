"""Loopless Katyusha: accelerated, variance-reduced gradient steps around a reference that is renewed by a coin.

With a gradient estimator g that is exact on average at ``theta = a1 z + a2 ref + (1 - a1 - a2) y`` and without noise at the
reference, an iteration is ``y = theta - eta g`` and ``z = b1 z + (1 - b1) theta + b2 / eta (y - theta)``.

Xun Qian, Zheng Qu, Peter Richtarik: L-SVRG and L-Katyusha with Arbitrary Sampling, JMLR 2021.
"""

from __future__ import annotations


def katyusha(expected: float, smoothness: float, convexity: float, refresh: float) -> dict[str, float]:
    """Return the step and the weights of Corollary 4.4.

    Args:
        expected: Expected smoothness of the estimator (``Lc``).
        smoothness: Smoothness of the whole objective (``L_F``).
        convexity: Strong convexity (``mu``).
        refresh: Chance of a new reference (``rho``).
    """
    most = max(smoothness, expected)
    eta, a2 = 1 / (4 * most), expected / (2 * most)
    a1 = min(0.5, (eta * convexity * max(0.5, a2 / refresh)) ** 0.5)
    b2 = 1 / max(2 * convexity, 4 * a1 / eta)
    return {"eta": eta, "a1": a1, "a2": a2, "b1": 1 - b2 * convexity, "b2": b2}
