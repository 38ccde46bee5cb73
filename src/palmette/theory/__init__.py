"""What the papers proved, asked of a user's own settings."""

from __future__ import annotations

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.permfl import MoreauTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.errors import BadInput
from palmette.learner import curvature
from palmette.simulate import Simulation, one_thread_inside
from palmette.theory.advice import advice as advice
from palmette.theory.advice import warnings_of as warnings_of
from palmette.theory.coins import check_coins
from palmette.theory.conditions import Check as Check
from palmette.theory.conditions import Condition as Condition
from palmette.theory.moreau import check_moreau
from palmette.theory.optimum import Measured as Measured
from palmette.theory.optimum import measure as measure
from palmette.theory.optimum import optimum as optimum
from palmette.theory.sparse import check_sparse


def check(simulation: Simulation) -> Check:
    """Estimate the task's constants and hold the settings against the theorems of the algorithm's paper."""
    method = simulation.algorithm
    if not isinstance(method, MoreauTree | SFedHP | CoinTree | AL2SGD):
        known = "permfl, pfedmt, sfedhp, l2gd, l2gd-coin and al2sgd"
        raise BadInput(f"no theorem of {method.name} is known here; there are some for {known}")
    with one_thread_inside():
        bent = curvature(simulation.learner, devices=64, iterations=12, convexity=True)
    if isinstance(method, MoreauTree):
        return check_moreau(method, simulation.tree, bent, simulation.rounds)
    if isinstance(method, SFedHP):
        return check_sparse(method, bent)
    return check_coins(method, simulation.tree, bent)
