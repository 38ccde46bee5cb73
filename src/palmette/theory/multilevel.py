"""The mixed (multilevel) model of a population: the pulls that it means, and its exact solution.

The model has a parameter for everybody, one per team and one per device,

    w_i ~ N(x, s_c I),   theta_ij ~ N(w_i, s_d I),   y_ij = X_ij theta_ij + N(0, s_e I),

and its best linear unbiased predictions minimise

    sum_ij |y_ij - X_ij theta_ij|^2 / (2 s_e) + |theta_ij - w_i|^2 / (2 s_d) + sum_i |w_i - x|^2 / (2 s_c).

That is the objective of Async-L2GD, times n / s_e with n the mean number of samples of a device, where ``f_ij`` is the sum of
a device's half squared errors over n, ``lam = s_e / (n s_d)`` and ``gamma = s_e / (n s_c N_i)`` for a team of N_i devices
(Theorem 5.1). So a personal model is what statisticians call the shrunken estimate or the BLUP of a group. Palmette's ``f_ij``
is a mean over the device's own n_ij samples, not a sum: where sizes differ, `as_sums` makes one of the other.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters, section 5.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from palmette.errors import BadInput
from palmette.population import Population
from palmette.theory import hlm


class Variances(NamedTuple):
    """The variance components of a mixed model.

    Attributes:
        team: Between teams (s_c); infinite where every team has a mean of its own, as with teams as fixed effects.
        device: Between the devices of a team (s_d).
        noise: Between the samples of a device (s_e).
    """

    team: float
    device: float
    noise: float


def as_sums(population: Population) -> Population:
    """Return the population whose devices' mean squared errors are sums: each over the mean number of training samples.

    Features and targets of device u are multiplied by ``sqrt(n_u / n)``, with n_u its training samples and n their mean. The
    parameters of a linear model without a bias mean the same as before; errors on test samples do not, so measure those on the
    population itself.

    Args:
        population: A population of real features and targets.
    """
    if population.affine is not None or not (population.x.is_floating_point() and population.y.is_floating_point()):
        raise BadInput("only real features and targets, such as those of the multilevel tables, can be made into sums")
    weight = (population.train.double() / population.train.double().mean()).sqrt()
    each = weight.repeat_interleave(population.start.diff())
    x = population.x * each.to(population.x).reshape(-1, *[1] * (population.x.dim() - 1))
    y = population.y * each.to(population.y).reshape(-1, *[1] * (population.y.dim() - 1))
    return replace(population, x=x, y=y)


def pulls(population: Population, variances: Variances) -> dict[str, Any]:
    """Return the settings ``lam`` and ``gamma`` of l2gd and al2sgd that make the mixed model of their objective.

    Args:
        population: The population, with or without `as_sums`.
        variances: The variance components.
    """
    _check(population, variances)
    mean, tree = float(population.train.double().mean()), population.tree
    between = variances.noise / (mean * variances.team)
    sizes = np.diff(tree.offsets[0]).tolist()
    gamma = {name: between / size for name, size in zip(tree.names(1), sizes, strict=True)}
    return {"lam": variances.noise / (mean * variances.device), "gamma": gamma if between else 0.0}


def exact(population: Population, variances: Variances) -> tuple[hlm.Floats, hlm.Floats, hlm.Floats]:
    """Return the best linear unbiased predictions of devices' and teams' parameters and of the common one.

    Args:
        population: The population itself, not what `as_sums` makes of it.
        variances: The variance components.
    """
    _check(population, variances)
    x, y, _, first = _training(population)
    gram = np.add.reduceat(x[:, :, None] * x[:, None, :], first)
    moment = np.add.reduceat(x * y[:, None], first)
    return hlm.solve(gram, moment, population.tree.parents[0], variances)


def _check(population: Population, variances: Variances) -> None:
    if population.tree.tiers != 3:
        raise BadInput(f"the mixed model has teams between server and devices; the tree is {population.tree}")
    _, device, noise = variances
    if not (variances.team > 0 and device > 0 and noise > 0 and math.isfinite(device) and math.isfinite(noise)):
        raise BadInput(
            f"variances must be above 0, and only that of teams may be infinite; these are {tuple(variances)}"
        )


def exact_logistic(
    population: Population, lam: float, between: float, *, tolerance: float = 1e-9, iterations: int = 100
) -> tuple[hlm.Floats, hlm.Floats, hlm.Floats]:
    """Return the minimiser of Async-L2GD's objective for logistic regression without a bias: devices, teams, everybody.

    Newton's method, of which every step is the solution of a mixed model (iteratively reweighted least squares); a step that
    would raise the gradient is halved.

    Args:
        population: A population of two classes.
        lam: Pull of a device to its team's mean (gamma_i in the paper).
        between: Pull of a team's mean to the mean of all (lambda_j in the paper): gamma times the team's devices.
        tolerance: Largest entry of the gradient at the end.
        iterations: Newton steps at most.
    """
    if population.classes != 2 or population.tree.tiers != 3:
        raise BadInput("the logistic solver needs two classes, and teams between server and devices")
    x, y, owner, first = _training(population)
    weight = 1 / population.train.numpy()[:, None]
    cluster, spread = population.tree.parents[0], (1 / between, 1 / lam, 1.0)
    theta = (
        np.zeros((population.devices, x.shape[1])),
        np.zeros((population.tree.size(1), x.shape[1])),
        np.zeros(x.shape[1]),
    )

    def at(rows: hlm.Floats) -> tuple[hlm.Floats, hlm.Floats]:
        """Return the chance of the second class of every sample, and every device's gradient."""
        chance = 1 / (1 + np.exp(-(x * rows[owner]).sum(1)))
        return chance, weight * np.add.reduceat(x * (chance - y)[:, None], first)

    chance, slope = at(theta[0])
    left = np.inf
    for _ in range(iterations):
        bend = weight[:, :, None] * np.add.reduceat(
            (x * (chance * (1 - chance))[:, None])[:, :, None] * x[:, None], first
        )
        moment = np.einsum("nde,ne->nd", bend, theta[0]) - slope
        wanted, step = hlm.solve(bend, moment, cluster, spread), 1.0
        while True:
            made = tuple(old + step * (new - old) for old, new in zip(theta, wanted, strict=True))
            chance, slope = at(made[0])
            gradient = float(np.abs(slope + lam * (made[0] - made[1][cluster])).max())
            if gradient < left or step < 1e-3:
                break
            step /= 2
        theta, left = (made[0], made[1], made[2]), gradient
        if left <= tolerance:
            return theta
    raise BadInput(f"the logistic solver stopped at a gradient of {left:.1e}; raise lam")


def _training(population: Population) -> tuple[hlm.Floats, hlm.Floats, hlm.Ints, hlm.Ints]:
    """Return features and targets of the training samples, the device of each, and where each device's begin."""
    rows = np.repeat(np.arange(population.devices), population.start.diff().numpy())
    place = np.arange(len(rows)) - population.start.numpy()[rows]
    used = np.flatnonzero(place < population.train.numpy()[rows])
    x = population.features(torch.from_numpy(used), torch.float64).reshape(len(used), -1).numpy()
    y = population.y[used].double().reshape(len(used)).numpy()
    return x, y, rows[used], np.searchsorted(rows[used], np.arange(population.devices))
