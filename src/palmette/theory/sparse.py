"""The conditions of sFedHP's Theorems 2 and 3, and what the first bounds: how far F is above its minimum, on average.

Theorem 2 says, where the losses are strongly convex and with ``eta~ = eta beta R``,

    1/T sum_t E[F(x^t) - F*] <= |x^0 - x*|^2 / (eta~ T) + 8 delta^2 lam_bar^2 / mu_F
        + eta~ [6 (1 + 64 L_F / (mu_F beta)) sigma^2 + 128 L_F delta^2 lam_bar^2 / (mu_F beta)]

where sigma^2 is the mean of ``|grad F_ij(x*)|^2`` and delta^2 bounds how far a device's theta is from its minimiser: by Lemma 2
``2 (s^2 / |D| + nu) / (lam_1 + mu)^2`` for mini-batches whose gradients have a variance of at most s^2, which is not known.
Theorem 3 bounds ``|grad F|^2`` by constants that must hold for all models at once; they cannot be computed.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor

from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition
from palmette.theory.objectives import Sparse
from palmette.theory.optimum import minimiser
from palmette.theory.watches import Looks, Watch


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
    limit = method.stable(smooth)["beta"]
    guards = (
        Condition(
            "alpha",
            float(method.alpha),
            high=1 / (smooth + one + bend_1),
            source="descent",
            diverges=2 / (smooth + one),
            theorem=False,
        ),
        Condition("eta", method.eta, high=1 / (mean + bend_2), source="descent", diverges=2 / mean, theorem=False),
        Condition("beta", method.beta, high=limit, source="averaging", diverges=2 * limit, theorem=False),
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
        largest={
            "alpha": guards[0].high,
            "eta": min(guards[1].high, most / (method.beta * method.team_steps)),
            "beta": limit,
        },
        notes=(
            "eta~ = eta * beta * team_steps; no experiment of the paper meets these conditions",
            "log-cosh is curved by 1 / rho near zero only: a step beyond its bound makes small entries swing, not diverge",
        ),
    )


def _step(value: float, most: float, source: str) -> Condition:
    return Condition("eta~", value, high=most, source=source)


def outside(method: SFedHP) -> list[str]:
    """Return why Theorem 2 says nothing of a run, besides its conditions: sentences that go on from "the theorem"."""
    reasons = []
    if method.centre != "device":
        reasons.append("has a phi for every device (centre=device)")
    if method.sparse and method.schedule != "none":
        reasons.append("has sparsity weights that stay (schedule=none)")
    if method.sparse and method.zero_tol:
        reasons.append("knows no cutting of small entries (zero_tol=0)")
    return reasons


class Sparsified(Watch):
    """sFedHP: the mean over the rounds so far of how far F is above its minimum."""

    quantity = "mean over rounds of F(x^t) - F*"
    whose = "global model"
    first = 1

    def __init__(self, objective: Sparse, best: Tensor, checked: Check, promised: bool) -> None:
        super().__init__(objective, best, checked, promised)
        self.objective, self.theta = objective, best[:-1]
        self.least = float(objective(best)[0])

    def look(self, simulation: Simulation) -> tuple[float, ...]:
        """Return ``|x - x*|^2`` and ``F(x) - F*``."""
        x = simulation.model()
        apart = float((x - self.best[-1]).square().sum())
        return (apart, max(0.0, self.above(x))) if self.promised else (apart,)

    def above(self, x: Tensor) -> float:
        """Return ``F(x) - F*``, the devices' models being the best for this x."""

        def rest(theta: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = self.objective(torch.cat([theta, x[None]]))
            return value, gradient[:-1]

        self.theta = minimiser(rest, self.theta)
        return float(rest(self.theta)[0]) - self.least

    def values(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the means over the first 1, 2, ... rounds; the theorem leaves out the last model."""
        return [total / (done + 1) for done, total in enumerate(accumulate(look[1] for look in looks[:-1]))]

    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the right side of Theorem 2 (a)."""
        method, known = self.objective.method, self.checked.constants
        slopes = self.objective.slopes(self.best[:-1], self.best[-1])
        sigma = float((self.objective.weight * slopes.square()).sum())
        solved = method.inner == "nesterov"
        delta = 2 * method.nu / (method.lam_1 + known["mu_f"]) ** 2 if solved else 0.0
        inexact, ratio = delta * known["lam_bar"] ** 2, known["L_F"] / (known["mu_F"] * method.beta)
        overall = method.eta * method.beta * method.team_steps
        self.ball = 8 * inexact / known["mu_F"] + overall * (6 * (1 + 64 * ratio) * sigma + 128 * ratio * inexact)
        how = "from nu" if solved else "as if local steps solved exactly"
        noise = "" if method.batch_size == "full" else " and without the noise of mini-batches"
        self.remarks = (
            f"sigma^2 = {sigma:.4g}; delta^2 = {delta:.4g}, {how}{noise}: the least it can be, and not known better; the "
            "theorem's own bound is larger than the one shown",
        )
        return [looks[0][0] / (overall * done) + self.ball for done in range(1, len(looks))]
