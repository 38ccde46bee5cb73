"""The smooth stand-in for the l1 norm: ``rho * sum_n log cosh(v_n / rho)``, whose gradient is ``tanh(v / rho)``.

Its Lipschitz constant is ``1 / rho``. It never makes exact zeros: gradient steps end in a small ball around them, so whoever
counts or sends zeros needs a tolerance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def value(rows: Tensor, rho: float) -> Tensor:
    """Return the value for each row, in the form that cannot overflow: ``|u| + log1p(exp(-2|u|)) - log 2``."""
    u = rows.abs() / rho
    return rho * (u + torch.log1p(torch.exp(-2 * u)) - math.log(2)).flatten(1).sum(1)


def gradient(rows: Tensor, rho: float) -> Tensor:
    """Return the gradient; far from zero it is the sign."""
    return (rows / rho).tanh_()
