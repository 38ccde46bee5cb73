"""The conditions of sFedHP's Theorems 2 and 3, and what the first bounds: how far F is above its minimum, on average.

Theorem 2 says, where the losses are strongly convex and with ``eta~ = eta beta R``,

    1/T sum_t E[F(x^t) - F*] <= |x^0 - x*|^2 / (eta~ T) + mean_t [8 delta_t^2 lam_bar^2 / mu_F
        + eta~ (6 (1 + 64 L_F / (mu_F beta)) sigma^2 + 128 L_F delta_t^2 lam_bar^2 / (mu_F beta))]

where sigma^2 is the mean of ``|grad F_ij(x*)|^2`` and delta_t is how far devices are from the minimisers of F_ij at their
edge's model in round t. It is printed for ``eta~ <= 1 / (3 L_F (3 + 128 L_F / (mu_F beta)))``; the last step of its proof needs
half of that, ``2 - eta~ L_F (18 + 768 L_F / (mu_F beta)) >= 1``, and that is what is asked here.

The paper takes delta from how exactly a device solves for its prox. That is not all: theta and phi of a device start at x in
every round. With exact gradients and ``alpha <= 1 / (L + gamma_1 / rho + lam_1)`` a local step multiplies theta's error by at
most ``n = 1 - alpha (lam_1 + mu)`` and adds ``alpha lam_1`` times that of phi, which is ``s = lam_1 / (lam_1 + lam_2)`` times
the error that theta had before. So K of them leave ``tau = n^K + s lam_1 / (lam_1 + mu) (1 - n^K)`` of the error. At the
start of a round that is ``|x^t - theta^_ij(x^t)|``, which is measured; what the edge moves meanwhile comes on top. For
mini-batches and for the accelerated solver there is no such bound. Theorem 3 bounds ``|grad F|^2`` by constants that must
hold for all models at once; they cannot be computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

import torch
from torch import Tensor

from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition, of_the_run
from palmette.theory.objectives import Sparse
from palmette.theory.optimum import minimiser
from palmette.theory.watches import Looks, Watch


def check_sparse(simulation: Simulation, method: SFedHP, bent: Curvature) -> Check:
    """Hold sFedHP's settings against Theorem 2 (strongly convex) or 3 (not)."""
    smooth, strongly = bent.smoothness, bent.convexity > 0
    known = constants(method, bent)
    overall, most = method.eta * method.beta * method.team_steps, largest_step(method, known)
    where = "Thm 2" if strongly else "Thm 3"
    asked = (
        *of_the_run(simulation, batches=True),
        *_program(method),
        *(() if strongly else _pulls(method, known)),
        Condition("eta~", overall, high=most, source=f"{where}: eta~ = eta beta team_steps"),
    )
    assert method.alpha != "auto"
    limits = method.stable(smooth)
    mean, swing = known["lam_bar"], max(float(method.alpha) * method.gamma_1, method.eta * method.gamma_2)
    local = 2 / (bent.start + method.lam_1)
    guards = (
        Condition("alpha", float(method.alpha), high=limits["alpha"], source="devices converge", diverges=local),
        Condition("eta", method.eta, high=1 / mean, source="descent", diverges=2 / mean, theorem=False),
        Condition(
            "beta", method.beta, high=limits["beta"], source="averaging", diverges=2 * limits["beta"], theorem=False
        ),
        Condition(
            "rho", method.rho, least=swing, source="alpha gamma_1, eta gamma_2: else zeros oscillate", theorem=False
        ),
    )
    return Check(
        algorithm=method.name,
        theorem=f"sFedHP, Theorem {2 if strongly else 3} ({'strongly convex' if strongly else 'not strongly convex'})",
        constants=known,
        conditions=(*asked, *guards),
        promise=(
            "mean over rounds of E[F(w^t) - F*] <= |w^0 - w*|^2 / (eta~ T) + M_1 + eta~ M_2"
            if strongly
            else "mean over rounds of E|grad F(w^t)|^2 <= 4 ((F(w^0) - F*) / (eta~ T) + G_1 + eta~ G_2)"
        ),
        largest={
            "alpha": limits["alpha"],
            "eta": min(1 / mean, most / (method.beta * method.team_steps)),
            "beta": limits["beta"],
        },
        wanted={"rounds until 1 / (eta~ T) is 1e-3": 1e3 / overall},
        notes=(
            "no experiment of the paper meets these conditions",
            "the smooth l1 penalty is strongly curved (1 / rho) only near zero: a step above that bound makes small entries "
            "oscillate, but nothing diverges",
            *(
                ()
                if strongly
                else (
                    "the theorem prints lam_h <= sqrt(16 (L + gamma_1/rho)^2 + 1); its proof needs >=, which is checked here",
                )
            ),
        ),
    ).settled()


def constants(method: SFedHP, bent: Curvature) -> dict[str, float]:
    """Return the constants of the theorems; ``L + gamma_1/rho`` is how curved a device's loss is with its sparsity."""
    one, two, convex = method.lam_1, method.lam_2, bent.convexity
    series = one * two * convex / (one * convex + two * convex + one * two) if convex > 0 else 0.0
    return {
        "L_f": bent.smoothness,
        "mu_f": convex,
        "L_F": two + method.gamma_2 / method.rho,
        "mu_F": series,
        "L + gamma_1/rho": bent.smoothness + method.gamma_1 / method.rho,
        "lam_bar": one * two / (one + two),
        "lam_h": one * two / math.hypot(one, two),
    }


def largest_step(method: SFedHP, known: Mapping[str, float]) -> float:
    """Return the largest eta~ that the theorem for these losses allows."""
    top, convex = known["L_F"], known["mu_F"]
    if convex > 0:
        return min(1 / convex, 1 / (6 * top * (3 + 128 * top / (convex * method.beta))))
    return min(1 / (588 * top * known["lam_h"] ** 2), method.beta / (2 * top))


def least_mixed(bend: float) -> float:
    """Return what lam_h must at least be in Theorem 3 (a): its proof needs ``lam_h^2 - 16 (L + gamma_1/rho)^2 >= 1``."""
    return math.sqrt(16 * bend**2 + 1)


def _pulls(method: SFedHP, known: Mapping[str, float]) -> tuple[Condition, ...]:
    bend = known["L + gamma_1/rho"]
    return (
        Condition("lam_1", method.lam_1, low=2 * bend, source="Thm 3: lam_1 > 2 (L + gamma_1/rho)"),
        Condition("lam_2", method.lam_2, low=2 * method.lam_1, source="Thm 3: lam_2 > 2 lam_1"),
        Condition(
            "lam_h", known["lam_h"], least=least_mixed(bend), source="Thm 3: lam_h^2 - 16 (L + gamma_1/rho)^2 >= 1"
        ),
    )


def _program(method: SFedHP) -> tuple[Condition, ...]:
    """Return what the theorems ask of the program: the readings and additions that they are not about."""
    found = []
    if method.centre != "device":
        found.append(Condition("centre", method.centre, word="device", source="eq. 3: a phi for every device"))
    if method.sparse and method.schedule != "none":
        found.append(Condition("schedule", method.schedule, word="none", source="constant sparsity weights"))
    if method.sparse and method.zero_tol:
        found.append(Condition("zero_tol", method.zero_tol, high=0.0, source="no entry is cut to zero"))
    return tuple(found)


def no_bound(method: SFedHP, known: Mapping[str, float]) -> str:
    """Return why the bound of Theorem 2 cannot be computed although the theorem applies, or nothing."""
    if method.batch_size != "full":
        return "it contains the variance of mini-batch gradients, which is not known (batch_size=full has none)"
    if method.inner != "descent":
        return "it contains the error of the accelerated solver, which is not known (for inner=descent it is)"
    if float(method.alpha) * (known["L + gamma_1/rho"] + method.lam_1) > 1:
        return "it contains the devices' error, which is known only for alpha <= 1 / (L + gamma_1/rho + lam_1)"
    return ""


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
        """Return ``|x - x*|^2``, ``F(x) - F*`` and the delta^2 of the round that starts there."""
        x = simulation.model()
        apart = float((x - self.best[-1]).square().sum())
        return (apart, max(0.0, self.above(x)), self.inexact(x)) if self.promised else (apart,)

    def above(self, x: Tensor) -> float:
        """Return ``F(x) - F*``, the devices' models being the best for this x."""

        def rest(theta: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = self.objective(torch.cat([theta, x[None]]))
            return value, gradient[:-1]

        self.theta = minimiser(rest, self.theta)
        return float(rest(self.theta)[0]) - self.least

    def inexact(self, x: Tensor) -> float:
        """Return a number that delta^2 of a round from x is not above, from the minimisers at x."""
        method, known, share = self.objective.method, self.checked.constants, self.objective.share
        away = (self.theta - x).square().sum(1)
        start = torch.zeros(self.objective.teams).to(away).index_add_(0, self.objective.team, share * away).sqrt()
        moved = method.eta * method.team_steps
        slope = 2 * known["lam_bar"] * start + method.gamma_2 * x.numel() ** 0.5
        drift = moved * slope / (1 - 3 * moved * known["lam_bar"])  # how far an edge moves in the round, at most
        return float((self.objective.of_team * (left_of_error(method, known) * start + drift).square()).sum())

    def values(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the means over the first 1, 2, ... rounds; the theorem leaves out the last model."""
        return _means(look[1] for look in looks[:-1])

    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the right side of Theorem 2 (a)."""
        method, known = self.objective.method, self.checked.constants
        slopes = self.objective.slopes(self.best[:-1], self.best[-1])
        sigma = float((self.objective.weight * slopes.square()).sum())
        overall, ratio = method.eta * method.beta * method.team_steps, known["L_F"] / (known["mu_F"] * method.beta)
        exact = overall * 6 * (1 + 64 * ratio) * sigma
        per = known["lam_bar"] ** 2 * (8 / known["mu_F"] + overall * 128 * ratio)
        deltas = _means(look[2] for look in looks[:-1])
        self.ball = exact + per * deltas[-1]
        self.remarks = (
            f"sigma^2 = {sigma:.4g}; delta^2 = {deltas[-1]:.4g} on average over the rounds, from the distances of the devices' "
            "minimisers to x^t",
        )
        return [looks[0][0] / (overall * done) + exact + per * delta for done, delta in enumerate(deltas, start=1)]


def left_of_error(method: SFedHP, known: Mapping[str, float]) -> float:
    """Return tau: the part of a device's error that an exchange leaves, at most."""
    pull = method.lam_1 + known["mu_f"]
    left = (1 - float(method.alpha) * pull) ** method.local_steps
    return left + method.lam_1 / (method.lam_1 + method.lam_2) * method.lam_1 / pull * (1 - left)


def _means(numbers: Iterable[float]) -> list[float]:
    """Return the means of the first 1, 2, ... numbers."""
    return [total / count for count, total in enumerate(accumulate(numbers), start=1)]
