"""The conditions of Async-L2GD's Theorem 3.5 and the constants of Async-AL2SGD+'s Corollary 4.4."""

from __future__ import annotations

import math

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.mixing import Coins, Pulls
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition
from palmette.tree import Tree

_GOAL = 1e-6  # the relative squared error that numbers of iterations are told for


def check_coins(method: CoinTree | AL2SGD, tree: Tree, bent: Curvature) -> Check:
    """Hold the settings of a method with coins against the theorem of its algorithm."""
    smooth = bent.smoothness if method.smoothness == "auto" else float(method.smoothness)
    pulls = Pulls.on(tree, method.lam, method.gamma)
    if isinstance(method, AL2SGD):
        return _accelerated(method, pulls, Coins.fair(tree, pulls, smooth), smooth, bent.convexity)
    coins = method.coins(tree, pulls, smooth)
    return _plain(method, pulls, coins, smooth, bent.convexity)


def _constants(pulls: Pulls, coins: Coins, smooth: float, convex: float) -> dict[str, float]:
    return {
        "L_f": smooth,
        "mu_f": convex,
        "p_0": coins.between,
        "largest p_i": float(coins.within.max()),
        "largest tau_i": float(coins.tau.max()),
        "Lc": max(coins.terms(pulls, smooth)),
    }


def _plain(method: CoinTree, pulls: Pulls, coins: Coins, smooth: float, convex: float) -> Check:
    expected = max(coins.terms(pulls, smooth))
    most = 1 / (2 * expected)
    eta = most if method.eta == "auto" else float(method.eta)
    slower = 1 - eta * convex
    rounds = method.iterations
    within = float(((1 - coins.between) * coins.within * (1 - coins.within)).sum())
    return Check(
        algorithm=method.name,
        theorem="Async-L2GD, Theorem 3.5 (strongly convex)",
        constants=_constants(pulls, coins, smooth, convex),
        conditions=(
            Condition("eta", eta, high=most, source="Thm 3.5: eta <= 1 / (2 Lc)", diverges=2 / expected),
            Condition("mu_f", convex, low=0.0, source="Thm 3.5: strong convexity"),
        ),
        promise="E|theta^t - theta^|^2 <= (1 - eta mu)^t |theta^0 - theta^|^2 + 2 eta sigma^2 / mu, t in iterations",
        rate=slower**rounds if convex > 0 and eta <= most * (1 + 1e-12) and not method.decrease else None,
        largest={"eta": most},
        wanted={"iterations to 1e-6": math.log(_GOAL) / math.log(slower)} if 0 < slower < 1 else {},
        notes=(
            "a constant step ends in a ball of radius^2 about 2 eta sigma^2 / mu around the minimiser; decrease > 0 shrinks it",
            f"averages a round, coalesced (Prop. 3.2): {coins.between * (1 - coins.between) * rounds:.3g} between teams, "
            f"{within * rounds:.3g} within them",
        ),
    )


def _accelerated(method: AL2SGD, pulls: Pulls, coins: Coins, smooth: float, convex: float) -> Check:
    expected = max(coins.terms(pulls, smooth))
    known = convex if method.convexity == "auto" else float(method.convexity)
    wanted = {}
    if known > 0:
        per_digit = 1 / method.refresh + math.sqrt(expected / (method.refresh * known))
        wanted["iterations to 1e-6, up to a constant"] = per_digit * math.log(1 / _GOAL)
    return Check(
        algorithm=method.name,
        theorem="Async-AL2SGD+, Corollary 4.4 (strongly convex)",
        constants=_constants(pulls, coins, smooth, known),
        conditions=(Condition("mu_f", known, low=0.0, source="Cor 4.4: strong convexity"),),
        promise="O((1/rho + sqrt(Lc / (rho mu))) log 1/eps) iterations to a squared error of eps",
        wanted=wanted,
        notes=("all steps follow from L, mu and rho (refresh); there is none to set",),
    )
