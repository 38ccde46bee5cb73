"""The exact minimiser of PerMFL's objective on a population, and how fast a run comes near it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.algorithms.permfl import MoreauTree
from palmette.errors import BadInput, PalmetteError
from palmette.learner import LocalWork
from palmette.simulate import Simulation, one_thread_inside
from palmette.theory.conditions import Check

CONVEX = ("mclr", "linear")


def optimum(simulation: Simulation, *, tolerance: float = 1e-9, iterations: int = 5000) -> Tensor:
    """Return the global model x of the minimiser, by L-BFGS over the devices' models.

    Given those, the best team models and the best global model are means; so the objective is one function of the
    devices' models, whose gradient at device j of team i is its weight times ``grad f_ij + lam (theta_ij - w_i)``.

    Args:
        simulation: A fresh simulation in float64 of PerMFL or pFedMT with a convex model; it is not stepped.
        tolerance: Largest entry of the gradient at the end.
        iterations: At most so many steps.
    """
    from scipy.optimize import minimize  # takes a while to load, and only this function needs it

    method, tree = simulation.algorithm, simulation.tree
    if not isinstance(method, MoreauTree) or tree.tiers != 3:
        raise BadInput("the direct solver is for permfl and pfedmt on trees of three tiers")
    if simulation.task.name not in CONVEX or simulation.learner.dtype != torch.float64:
        raise BadInput(f"the direct solver needs a convex model ({' or '.join(CONVEX)}) in float64")
    lam, gamma = method.lam, method.pull(1)
    weighted = method.reduce == "samples"
    ids = torch.arange(tree.devices)
    samples = [count.double() if weighted else torch.ones(len(count)).double() for count in simulation.samples]
    team = torch.from_numpy(tree.parents[0])
    of_device = samples[0] / torch.zeros_like(samples[1]).index_add_(0, team, samples[0])[team]
    of_team = samples[1] / samples[1].sum()
    weight = (of_device * of_team[team])[:, None]
    width = simulation.learner.width

    def models_above(theta: Tensor) -> tuple[Tensor, Tensor]:
        means = torch.zeros(tree.size(1), width, dtype=theta.dtype).index_add_(0, team, of_device[:, None] * theta)
        x = (of_team[:, None] * means).sum(0)
        return (lam * means + gamma * x) / (lam + gamma), x

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = torch.from_numpy(flat).view(-1, width)
        w, x = models_above(theta)
        work = LocalWork(simulation.learner, ids, 0, torch.zeros_like(ids))
        apart = theta - w[team]
        value = (weight[:, 0] * (work.loss(theta) + lam / 2 * apart.square().sum(1))).sum()
        value = value + gamma / 2 * (of_team * (w - x).square().sum(1)).sum()
        return float(value), (weight * (work.gradient(theta) + lam * apart)).numpy().ravel()

    with one_thread_inside(), torch.no_grad():
        start = simulation.learner.initial().repeat(tree.devices).numpy()
        found = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "gtol": tolerance, "ftol": 0.0},
        )
        largest = float(np.abs(found.jac).max())
        if largest > 100 * tolerance:
            raise PalmetteError(f"the direct solver stopped with a gradient of {largest:.1e}; give it more iterations")
        return models_above(torch.from_numpy(found.x).view(-1, width))[1]


@dataclass(frozen=True)
class Measured:
    """The squared distance of the global model to the optimum after each round, beside the theorem's bound.

    Attributes:
        distance: From the start (round 0) on.
        bound: What the theorem promises, where its conditions hold.
    """

    distance: list[float]
    bound: list[float] | None


def measure(simulation: Simulation, checked: Check) -> Measured:
    """Run a simulation to its end and record how near its global model comes to the optimum."""
    goal = optimum(simulation)
    distance = [float((simulation.model() - goal).square().sum())]
    while simulation.round < simulation.rounds:
        simulation.step()
        distance.append(float((simulation.model() - goal).square().sum()))
    bound = None
    if checked.rate is not None and checked.holds:
        bound = [2 * checked.rate**done * distance[0] for done in range(len(distance))]
    return Measured(distance, bound)
