"""The exact minimiser of an algorithm's objective on a population, by a direct solver."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import BadInput
from palmette.theory.objectives import Objective, objective_of

Numbers = NDArray[np.float64]

_NEWTON = 20  # Newton steps after L-BFGS at most
_STEP = 1e-8  # length of the difference that stands for a derivative: far less than any sensible rho of sFedHP
_LARGEST = 2_000_000  # numbers in the models of all devices: the solver keeps about fifty copies


def optimum(simulation: Simulation, *, tolerance: float = 1e-9, iterations: int = 5000) -> Tensor:
    """Return the global model x of the minimiser, by L-BFGS over the devices' models.

    Args:
        simulation: A fresh simulation in float64 of an algorithm with a theorem and a convex model; it is not stepped.
        tolerance: Largest entry of the gradient at the end.
        iterations: At most so many steps.
    """
    check_solvable(simulation)
    objective = objective_of(simulation)
    rows = minimiser(objective, start_of(simulation, objective), tolerance=tolerance, iterations=iterations)
    return objective.top(rows)


def check_solvable(simulation: Simulation) -> None:
    """Refuse what the direct solver cannot do: networks, single precision, too many devices."""
    learner = simulation.learner
    if learner.spectrum is None or learner.dtype != torch.float64:
        raise BadInput(
            "the direct solver needs a convex model in float64: one linear layer (mclr, linear) with a squared, a "
            "cross-entropy or a logistic loss"
        )
    if learner.device.type != "cpu":
        raise BadInput(f"the direct solver works on the CPU, not on {learner.device}; leave engine.device out")
    if (numbers := simulation.tree.devices * learner.width) > _LARGEST:
        raise BadInput(
            f"the direct solver holds a model of {learner.width:,} numbers for each of {simulation.tree.devices:,} "
            f"devices, {numbers:,} in all; it takes up to {_LARGEST:,}, so use fewer devices or a smaller model"
        )


def start_of(simulation: Simulation, objective: Objective) -> Tensor:
    """Return the rows that a run starts from."""
    return simulation.learner.initial().repeat(objective.devices + objective.extra, 1)


def minimiser(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    tolerance: float = 1e-9,
    iterations: int = 5000,
    tell: Callable[[str], None] = lambda text: None,
) -> Tensor:
    """Minimise a function of rows that returns its value and its gradient, until no entry of this is above a tolerance.

    Args:
        function: What to minimise.
        start: Where to start.
        tolerance: Largest entry of the gradient at the end.
        iterations: Steps of L-BFGS at most.
        tell: Is given a sentence on how far it is, at every call of the function.
    """
    from scipy.optimize import minimize  # takes a while to load, and only this function needs it

    shape, calls = start.shape, count(1)

    def flat(numbers: Numbers) -> tuple[float, Numbers]:
        value, gradient = function(torch.from_numpy(numbers).view(shape))
        left = float(gradient.abs().max())
        tell(
            f"looking for the optimum: gradient {next(calls):,} has a largest entry of {left:.1e}, wanted {tolerance:.0e}"
        )
        return float(value), gradient.numpy().ravel()

    with one_thread_inside(), torch.no_grad():
        options = {"maxiter": iterations, "maxfun": 2 * iterations, "gtol": tolerance, "ftol": 0.0, "maxcor": 20}
        found = minimize(flat, start.numpy().ravel(), jac=True, method="L-BFGS-B", options=options).x
        best, largest = _polished(lambda numbers: flat(numbers)[1], found, tolerance)
    if not largest <= 100 * tolerance:
        raise BadInput(
            f"the direct solver stopped at a gradient of {largest:.1e}: a pull (lam, gamma) or a sparsity weight is too "
            "large or too small for it, or the losses are too flat (raise model.l2)"
        )
    return torch.from_numpy(best).view(shape)


def _polished(gradient: Callable[[Numbers], Numbers], at: Numbers, tolerance: float) -> tuple[Numbers, float]:
    """Go on by Newton steps, which need no values: these agree to their last digit before the gradient is small.

    Returns:
        Where it ended, and the largest entry of the gradient there.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    slope = gradient(at)
    for _ in range(_NEWTON):
        if np.abs(slope).max() <= tolerance or not np.isfinite(slope).all():
            break

        def bend(direction: Numbers, at: Numbers = at, slope: Numbers = slope) -> Numbers:
            step = _STEP / max(float(np.abs(direction).max()), 1e-300)
            return (gradient(at + step * direction) - slope) / step

        step, _ = cg(LinearOperator((at.size, at.size), matvec=bend, dtype=float), -slope, rtol=1e-4, maxiter=200)
        after = gradient(at + step)
        if not np.linalg.norm(after) < np.linalg.norm(slope):
            break
        at, slope = at + step, after
    return at, float(np.abs(slope).max())
