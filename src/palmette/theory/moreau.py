"""The conditions of PerMFL's theorems for PerMFL and pFedMT, in the steps the algorithm really takes.

The theorem's beta is a re-defined one: its proof replaces beta by beta * mu / 2 on the way. For the beta of the algorithm the
bound is beta * gamma <= 1/2 and the rate 1 - beta * mu / 2 a round; these are what is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from palmette.algorithms.permfl import MoreauTree
from palmette.errors import BadInput
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition
from palmette.tree import Tree


def check_moreau(method: MoreauTree, tree: Tree, bent: Curvature, rounds: int) -> Check:
    """Hold PerMFL's or pFedMT's settings against Theorem 1 (strongly convex) or 2 (not)."""
    if tree.tiers != 3:
        raise BadInput(f"PerMFL's theorems are about trees of three tiers, not {tree.tiers} ({tree})")
    smooth, convex = bent.smoothness, bent.convexity
    lam, gamma = method.lam, method.pull(1)
    if not lam or not gamma:
        raise BadInput(f"the theorems need lam and gamma above 0, not {lam} and {gamma}")
    alpha = _largest(method.alpha)
    eta = 1 / (lam + gamma) if method.eta == "auto" else _largest(method.eta)
    beta = 1 / gamma if method.beta == "auto" else float(method.beta)
    team, local = _first(method.team_steps), method.local_steps
    strongly = convex > 0
    mu_team = lam * convex / (lam + convex) if strongly else 0.0
    mu_top = lam * gamma * convex / (lam * convex + gamma * convex + lam * gamma) if strongly else 0.0
    largest = {
        "alpha": 1 / (smooth + lam) if strongly else 1 / lam,
        "eta": 1 / (2 * (lam + gamma)) if strongly else 1 / (lam + gamma),
        "beta": 1 / (2 * gamma) if strongly else 1 / (4 * gamma),
    }
    where = "Thm 1" if strongly else "Thm 2"
    conditions = (
        Condition("alpha", alpha, high=largest["alpha"], source=where, diverges=2 / (smooth + lam)),
        Condition("eta", eta, high=largest["eta"], source=where, diverges=2 / (lam + gamma)),
        Condition("beta", beta, high=largest["beta"], source=where, diverges=2 / gamma),
        Condition("gamma", gamma, low=2 * lam, source=f"{where}: gamma > 2 lam"),
        Condition("lam", lam, low=2 * smooth, source=f"{where}: 2 lam > 4 L_f"),
    )
    step = beta * gamma * lam / (lam + gamma) * (1 - (1 - eta * (lam + gamma)) ** team)
    wanted = _wanted(alpha, eta, beta, gamma, convex, mu_team, mu_top, team, rounds) if strongly else {}
    return Check(
        algorithm=method.name,
        theorem=f"PerMFL, Theorem {1 if strongly else 2} ({'strongly convex' if strongly else 'not strongly convex'})",
        constants={
            "L_f": smooth,
            "mu_f": convex,
            "L_F": lam,
            "mu_F": mu_team,
            "L_F~": gamma,
            "mu_F~": mu_top,
            "effective server step s": step,
        },
        conditions=conditions,
        promise=(
            "|x^T - x*|^2 <= 2 (1 - beta mu_F~ / 2)^T |x^0 - x*|^2"
            if strongly
            else "mean over rounds of E|grad phi|^2 <= (phi(x^0) - phi*) / (beta T)"
        ),
        rate=1 - beta * mu_top / 2 if strongly and beta * gamma <= 0.5 * (1 + 1e-12) else None,
        largest=largest,
        wanted=wanted,
        notes=(
            "s moves the server towards its devices' mean in one round: larger beta, gamma, lam and K all raise it",
            f"this run takes K = {team} team steps and L = {local} local steps",
            *(("the theorem is about full gradients, which batch_size=full gives",) * (method.batch_size != "full")),
        ),
    )


def _wanted(
    alpha: float,
    eta: float,
    beta: float,
    gamma: float,
    convex: float,
    mu_team: float,
    mu_top: float,
    team: int,
    rounds: int,
) -> dict[str, float]:
    """Return the K of eq. (58) and the L of eq. (61), without their constants."""

    def log(value: float) -> float:
        return math.log(value) if 0 < value < 1 else math.nan

    inner = log(1 - eta * (mu_team + gamma) / 2)
    return {
        "K": log(1 - beta * mu_top / 2) / inner * rounds,
        "L": inner / log(1 - alpha * convex) * team,
    }


def _largest(value: object) -> float:
    if isinstance(value, Mapping):
        return max(float(number) for number in value.values())
    if isinstance(value, tuple):
        return max(float(number) for number in value)
    assert isinstance(value, int | float)
    return float(value)


def _first(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]
