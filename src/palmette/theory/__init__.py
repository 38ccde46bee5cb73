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
from palmette.learner import Curvature, Optimiser, curvature
from palmette.theory.advice import advice as advice
from palmette.theory.advice import compared as compared
from palmette.theory.advice import warnings_of as warnings_of
from palmette.theory.coins import check_coins
from palmette.theory.conditions import Check as Check
from palmette.theory.conditions import Condition as Condition
from palmette.theory.measured import Measured as Measured
from palmette.theory.measured import measure as measure
from palmette.theory.moreau import check_moreau
from palmette.theory.optimum import check_solvable as check_solvable
from palmette.theory.optimum import optimum as optimum
from palmette.theory.sparse import check_sparse
from palmette.theory.suggest import Suggestion as Suggestion
from palmette.theory.suggest import suggest as find_settings

Proven = MoreauTree | SFedHP | CoinTree | AL2SGD
"""The algorithms whose papers have a theorem."""


def check(simulation: Simulation) -> Check:
    """Hold the settings against the theorems of the algorithm's paper, with the constants of the task."""
    method = _of_a_theorem(simulation)
    extreme = f"a setting of {method.name} is so large or so small that the theorem's constants are no numbers"
    try:
        with np.errstate(all="ignore"):
            bent = constants_of(simulation)
            found = _held(simulation, method, bent)
    except (OverflowError, ZeroDivisionError):
        raise BadInput(extreme) from None
    if not all(math.isfinite(value) for value in found.constants.values()):
        raise BadInput(extreme)
    return replace(found, notes=(*found.notes, _about(simulation, bent)))


def constants_of(simulation: Simulation) -> Curvature:
    """Return L_f and mu_f of a task: closed forms of linear models, estimates of others."""
    with one_thread_inside():
        return curvature(simulation.learner, iterations=12, convexity=True)


def suggest(simulation: Simulation) -> Suggestion:
    """Return settings that meet the theorem of a simulation's algorithm and what they would achieve, or what prevents it."""
    _of_a_theorem(simulation)
    return find_settings(simulation, constants_of(simulation), check)


def _of_a_theorem(simulation: Simulation) -> Proven:
    """Refuse algorithms without a theorem, and trees that theirs is not about."""
    method, tree = simulation.algorithm, simulation.tree
    if not isinstance(method, MoreauTree | SFedHP | CoinTree | AL2SGD):
        known = "permfl, pfedmt, sfedhp, l2gd, l2gd-coin and al2sgd"
        raise BadInput(f"no theorem of {method.name} is known here; the algorithms with one are {known}")
    if simulation.learner.optimiser != Optimiser():
        raise BadInput(
            f"the theorems of {method.name} are about plain gradient steps of one size; leave out the settings of optimiser.*"
        )
    if isinstance(method, MoreauTree | CoinTree) and method.surveys:
        raise BadInput(
            "a theorem is about pulls that are numbers, and 'auto' ones are found in the first round; run it once, look for "
            "the metric pull, and give lam and gamma these numbers"
        )
    if tree.tiers != 3:
        raise BadInput(
            f"the theorems of {method.name} are about trees of three tiers (server, teams, devices); "
            f"this one, {tree}, has {tree.tiers}"
        )
    return method


def _held(simulation: Simulation, method: Proven, bent: Curvature) -> Check:
    if isinstance(method, MoreauTree):
        return check_moreau(simulation, method, bent)
    if isinstance(method, SFedHP):
        return check_sparse(simulation, method, bent)
    return check_coins(simulation, bent)


def _about(simulation: Simulation, bent: Curvature) -> str:
    """Say where the constants of the losses come from."""
    task = simulation.task
    if not bent.exact:
        return (
            f"L_f is {bent.told}, at the initial model, and mu_f is taken to be 0: {task.name} has no closed form, so every "
            "limit here is an estimate too"
        )
    if task.loss == "squared":
        return "L_f and mu_f are exact: the largest and the least eigenvalue over all devices"
    return (
        "L_f is a closed form that covers every possible model, over all devices; mu_f is the l2 term (model.l2) alone"
    )
