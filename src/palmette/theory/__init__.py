"""What the papers proved, asked of a user's own settings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.permfl import MoreauTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import BadInput
from palmette.learner import Curvature, curvature
from palmette.theory.advice import advice as advice
from palmette.theory.advice import warnings_of as warnings_of
from palmette.theory.coins import check_coins
from palmette.theory.conditions import Check as Check
from palmette.theory.conditions import Condition as Condition
from palmette.theory.measured import Measured as Measured
from palmette.theory.measured import measure as measure
from palmette.theory.moreau import check_moreau
from palmette.theory.optimum import CONVEX
from palmette.theory.optimum import check_solvable as check_solvable
from palmette.theory.optimum import optimum as optimum
from palmette.theory.sparse import check_sparse


def check(simulation: Simulation) -> Check:
    """Estimate the task's constants and hold the settings against the theorems of the algorithm's paper."""
    method = simulation.algorithm
    if not isinstance(method, MoreauTree | SFedHP | CoinTree | AL2SGD):
        known = "permfl, pfedmt, sfedhp, l2gd, l2gd-coin and al2sgd"
        raise BadInput(f"no theorem of {method.name} is known here; there are some for {known}")
    extreme = f"a setting of {method.name} is so large or so small that the theorem's constants are no numbers"
    try:
        with np.errstate(all="ignore"):
            found = _held(simulation, method)
    except (OverflowError, ZeroDivisionError):
        raise BadInput(extreme) from None
    if not all(math.isfinite(value) for value in found.constants.values()):
        raise BadInput(extreme)
    return replace(found, notes=(*found.notes, _about(simulation)))


def _held(simulation: Simulation, method: MoreauTree | SFedHP | CoinTree | AL2SGD) -> Check:
    with one_thread_inside():
        bent = curvature(simulation.learner, devices=64, iterations=12, convexity=True)
    if simulation.task.name not in CONVEX:
        bent = Curvature(bent.smoothness, 0.0)
    if isinstance(method, MoreauTree):
        return check_moreau(method, simulation.tree, bent, simulation.rounds)
    if isinstance(method, SFedHP):
        return check_sparse(method, bent)
    return check_coins(simulation, bent)


def _about(simulation: Simulation) -> str:
    """Say what kind of estimate the curvature is."""
    task, classes = simulation.task, simulation.population.classes
    if task.name not in CONVEX:
        return f"{task.name} is not convex: mu_f is 0, and L_f a local estimate at the initial model"
    if task.loss == "cross-entropy" and classes:
        return (
            f"L_f is taken at the initial model; a softmax over {classes} classes can be up to {classes / 2:g} times as "
            "curved elsewhere"
        )
    return "L_f and mu_f are by power iteration, and the same everywhere for squared errors"
