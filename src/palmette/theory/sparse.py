"""The conditions of sFedHP's Theorems 2 and 3."""

from __future__ import annotations

import math

from palmette.algorithms.sfedhp import SFedHP
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition


def check_sparse(method: SFedHP, bent: Curvature) -> Check:
    """Hold sFedHP's settings against Theorem 2 (strongly convex) or 3 (not)."""
    smooth, convex = bent.smoothness, bent.convexity
    one, two = method.lam_1, method.lam_2
    bend_1, bend_2 = method.gamma_1 / method.rho, method.gamma_2 / method.rho
    smooth_top = two + bend_2
    mean, mixed = one * two / (one + two), one * two / math.hypot(one, two)
    overall = method.eta * method.beta * method.team_steps
    strongly = convex > 0
    convex_top = one * two * convex / (one * convex + two * convex + one * two) if strongly else 0.0
    if strongly:
        most = min(1 / convex_top, 1 / (3 * smooth_top * (3 + 128 * smooth_top / (convex_top * method.beta))))
        conditions: tuple[Condition, ...] = (_step(overall, most, "Thm 2"),)
        promise = "mean over rounds of E[F(w^t) - F*] <= |w^0 - w*|^2 / (eta~ T) + M_1 + eta~ M_2"
    else:
        most = min(1 / (588 * smooth_top * mixed**2), method.beta / (2 * smooth_top))
        conditions = (
            Condition("lam_1", one, low=2 * (smooth + bend_1), source="Thm 3: lam_1 > 2 (L + gamma_1 / rho)"),
            Condition("lam_2", two, low=2 * one, source="Thm 3: lam_2 > 2 lam_1"),
            Condition("lam_h", mixed, low=4 * (smooth + bend_1), source="Thm 3: lam_h > 4 (L + gamma_1 / rho)"),
            _step(overall, most, "Thm 3"),
        )
        promise = "mean over rounds of E|grad F(w^t)|^2 <= 4 ((F(w^0) - F*) / (eta~ T) + G_1 + eta~ G_2)"
    assert method.alpha != "auto"
    guards = (
        Condition(
            "alpha",
            float(method.alpha),
            high=1 / (smooth + one + bend_1),
            source="descent",
            diverges=2 / (smooth + one),
        ),
        Condition("eta", method.eta, high=1 / (mean + bend_2), source="descent", diverges=2 / mean),
    )
    return Check(
        algorithm=method.name,
        theorem=f"sFedHP, Theorem {2 if strongly else 3} ({'strongly convex' if strongly else 'not strongly convex'})",
        constants={
            "L_f": smooth,
            "mu_f": convex,
            "L_F": smooth_top,
            "mu_F": convex_top,
            "lam_bar": mean,
            "lam_h": mixed,
        },
        conditions=(*conditions, *guards),
        promise=promise,
        largest={"alpha": guards[0].high, "eta": min(guards[1].high, most / (method.beta * method.team_steps))},
        notes=(
            "eta~ = eta * beta * team_steps; no experiment of the paper meets these conditions",
            "log-cosh is curved by 1 / rho near zero only: a step beyond its bound makes small entries swing, not diverge",
        ),
    )


def _step(value: float, most: float, source: str) -> Condition:
    return Condition("eta~", value, high=most, source=source)
