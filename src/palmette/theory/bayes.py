"""The Bayesian view of group sharing: how sure each way of sharing makes a client of its own parameter.

The model: ``theta_0`` has a flat prior, every group's ``theta_m ~ N(theta_0, between)``, all clients of a group share
``theta_m``, and client n of group m sees ``x_mn ~ N(theta_m, s_mn)``; all spreads are variances. For the first client of the
first group the posterior variance of ``theta_1`` is, from the client's own data, its group's, everybody's:

    local    s_11
    group    1 / sum_n 1/s_1n
    global   1 / ( sum_n 1/s_1n + 1/(between + V) ),   V = 1 / sum_{m>=2} 1/(between + 1 / sum_n 1/s_mn)

The paper prints ``V = 1 / sum_{m>=2} sum_n 1/(between + s_mn)``, which takes the clients of one foreign group for independent
given ``theta_0`` although they share ``theta_m``: it is too small. It is ``as_published=True``.

Zhe Liu, Yue Hui, Fuchun Peng: Group Personalized Federated Learning, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.errors import BadInput

Variances = Sequence[Sequence[float]]
"""For every group, the variance of each client's observation."""


def local_variance(variances: Variances) -> float:
    """Return the posterior variance for the first client of the first group from its own data."""
    return float(_checked(variances)[0][0])


def group_variance(variances: Variances) -> float:
    """Return the posterior variance from the data of the client's group."""
    return 1 / _precision(_checked(variances)[0])


def global_variance(variances: Variances, between: float, *, as_published: bool = False) -> float:
    """Return the posterior variance from everybody's data.

    Args:
        variances: For every group, the variance of each client's observation.
        between: Variance of the groups' parameters around the common one.
        as_published: Use the paper's formula, which overstates what other groups tell.
    """
    own, *others = _checked(variances)
    _positive(between, "between")
    if not others:
        return 1 / _precision(own)
    if as_published:
        told = sum(1 / (between + s) for group in others for s in group)
    else:
        told = sum(1 / (between + 1 / _precision(group)) for group in others)
    return 1 / (_precision(own) + 1 / (between + 1 / told))


def linear_gaussian_variance(variances: Variances, between: float) -> float:
    """Return the global posterior variance by solving the whole linear-Gaussian model, without any formula for it."""
    groups = _checked(variances)
    _positive(between, "between")
    size = len(groups) + 1  # theta_0 comes first; its flat prior adds no precision
    precision = np.zeros((size, size))
    for m, group in enumerate(groups, start=1):
        link = np.zeros(size)
        link[0], link[m] = -1, 1
        precision += np.outer(link, link) / between
        precision[m, m] += _precision(group)
    return float(np.linalg.inv(precision)[1, 1])


def _precision(group: Sequence[float]) -> float:
    return float(sum(1 / s for s in group))


def _checked(variances: Variances) -> list[list[float]]:
    groups = [list(group) for group in variances]
    if not groups or not all(groups):
        raise BadInput("variances needs at least one group and at least one client in each")
    for group in groups:
        for s in group:
            _positive(s, "a variance")
    return groups


def _positive(number: float, what: str) -> None:
    if not (number > 0 and np.isfinite(number)):
        raise BadInput(f"{what} must be a positive number, not {number}")
