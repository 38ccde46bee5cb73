"""The conditions of PerMFL's theorems for PerMFL and pFedMT, in the steps the algorithm really takes.

The theorem's beta is a re-defined one: its proof replaces beta by beta * mu / 2 on the way. For the beta of the algorithm the
bound is beta * gamma <= 1/2 and the rate 1 - beta * mu / 2 a round; these are what is checked here. `palmette.theory.inner`
says how many team steps and local steps are enough.

pFedMT weighs devices and teams by their samples. The theorems carry over, for the objective with the same weights: mu and L of
a weighted mean of functions are those of the functions, and the errors of the teams are averaged with the weights. They do not
where the weights change from round to round, as they do when only some take part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from palmette.algorithms.permfl import MoreauTree
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Curvature
from palmette.theory.conditions import Check, Condition, of_the_run
from palmette.theory.inner import LONGEST, Levels, begin
from palmette.theory.objectives import Nested

NEEDED = "rounds until the bound is 1e-3 of the start"
_LARGEST = 20_000_000  # numbers in the models of all devices up to which K and L are worked out
_WORK = 200_000_000_000  # products of samples and weights that this may take
_PASSES = 20  # full gradients that it takes


@dataclass(frozen=True)
class Steps:
    """The settings of a run that the theorems are about, whatever form they were given in."""

    lam: float
    gamma: float
    alpha: tuple[float, float]
    eta: tuple[float, float]
    beta: float
    team: int
    local: int

    @staticmethod
    def of(method: MoreauTree) -> Steps:
        """Read them off an algorithm on a tree of three tiers."""
        lam, gamma = method.pull(0), method.pull(1)
        if not lam or not gamma:
            raise BadInput(f"the theorems need lam and gamma above 0, not {lam} and {gamma}")
        eta = (1 / (lam + gamma),) * 2 if method.eta == "auto" else _range(method.eta)
        beta = 1 / gamma if method.beta == "auto" else float(method.beta)
        team = method.team_steps if isinstance(method.team_steps, int) else method.team_steps[0]
        return Steps(lam, gamma, _range(method.alpha), eta, beta, team, method.local_steps)


def check_moreau(simulation: Simulation, method: MoreauTree, bent: Curvature) -> Check:
    """Hold PerMFL's or pFedMT's settings against Theorem 1 (strongly convex) or 2 (not)."""
    steps, convex, smooth = Steps.of(method), bent.convexity, bent.smoothness
    lam, gamma, beta, strongly = steps.lam, steps.gamma, steps.beta, convex > 0
    mu_team = lam * convex / (lam + convex) if strongly else 0.0
    mu_top = lam * gamma * convex / (lam * convex + gamma * convex + lam * gamma) if strongly else 0.0
    limits = largest(steps, bent)
    where = "Thm 1" if strongly else "Thm 2"
    conditions: tuple[Condition, ...] = (
        *of_the_run(simulation, batches=False),
        Condition("alpha", steps.alpha[1], high=limits["alpha"], source=where, diverges=2 / (bent.start + lam)),
        Condition("eta", steps.eta[1], high=limits["eta"], source=where, diverges=2 / (lam + gamma)),
        Condition("beta", beta, high=limits["beta"], source=where, diverges=2 / gamma),
        Condition("gamma", gamma, low=2 * lam, source=f"{where}: gamma > 2 lam"),
        Condition("lam", lam, low=2 * smooth, source=f"{where}: 2 lam > 4 L_f"),
    )
    conditions += _inner(simulation, steps, bent, all(one.holds for one in conditions))
    moved = beta * gamma * lam / (lam + gamma) * (1 - (1 - steps.eta[0] * (lam + gamma)) ** steps.team)
    rate = 1 - beta * mu_top / 2
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
            "effective server step s": moved,
        },
        conditions=conditions,
        promise=(
            "|x^T - x*|^2 <= 2 (1 - beta mu_F~ / 2)^T |x^0 - x*|^2"
            if strongly
            else "mean over rounds of |grad phi(x^t)|^2 <= 4 (phi(x^0) - phi*) / (beta T)"
        ),
        rate=rate if strongly else None,
        largest=limits,
        wanted={NEEDED: math.log(1e-3 / 2) / math.log(rate)} if strongly and 0 < rate < 1 else {},
        notes=(*_notes(method, conditions, strongly), *_weights(method)),
    ).settled()


def largest(steps: Steps, bent: Curvature) -> dict[str, float]:
    """Return the largest steps that the theorem for these losses allows."""
    lam, gamma = steps.lam, steps.gamma
    if bent.convexity > 0:
        return {"alpha": 1 / (bent.smoothness + lam), "eta": 1 / (2 * (lam + gamma)), "beta": 1 / (2 * gamma)}
    return {"alpha": 1 / lam, "eta": 1 / (lam + gamma), "beta": 1 / (4 * gamma)}


def levels(simulation: Simulation, steps: Steps, bent: Curvature) -> Levels:
    """Look at the start of a run and return what decides how many team and local steps are enough."""
    method = simulation.algorithm
    assert isinstance(method, MoreauTree)
    convex = bent.convexity if bent.exact else -bent.smoothness
    objective = Nested(simulation, steps.lam, steps.gamma, weighted=method.reduce == "samples")
    at = begin(objective, simulation.learner.initial().to("cpu", torch.float64), bent.smoothness, convex)
    warm, rounds = method.teams == "warm", simulation.rounds
    return Levels(convex, bent.smoothness, steps.lam, steps.gamma, steps.alpha, steps.eta, steps.beta, rounds, at, warm)


def too_much(simulation: Simulation) -> str:
    """Return why K and L are not worked out on a population, or nothing."""
    learner, task = simulation.learner, simulation.task
    if not isinstance(task.loss, str):
        return "not known for your own loss"
    if simulation.rounds > LONGEST:
        return "not worked out: too many rounds"
    if simulation.tree.devices * learner.width > _LARGEST:
        return "not worked out: too many devices"
    if int(learner.samples.sum()) * learner.width * _PASSES > _WORK:
        return "not worked out: too many samples"
    return ""


def _inner(simulation: Simulation, steps: Steps, bent: Curvature, rest: bool) -> tuple[Condition, ...]:
    """Return the conditions on K and L; they are worked out once the others hold."""
    strongly = bent.convexity > 0
    sources = ("eq. 61", "eq. 58") if strongly else ("eq. 88", "eq. 85")
    why = too_much(simulation) if rest else "known once the rest holds"
    team, local = math.inf, math.inf
    if not why:
        found = levels(simulation, steps, bent)
        team = found.team_steps()
        local = found.local_steps(steps.team) if steps.team >= team else math.inf
    first = why or ("" if team < math.inf else "no number is enough")
    second = first or ("" if local < math.inf else "raise team_steps first")
    return (
        Condition("team_steps", float(steps.team), least=team, source=sources[0], unknown=first),
        Condition("local_steps", float(steps.local), least=local, source=sources[1], unknown=second),
    )


def _notes(method: MoreauTree, conditions: tuple[Condition, ...], strongly: bool) -> list[str]:
    notes = [
        "the effective server step s is how far the server moves towards the mean of its devices in one round; larger "
        "beta, gamma, lam and team_steps (K) raise it",
        "how large team_steps (K) and local_steps (L) must be depends on the number of rounds and on how different the "
        "devices' losses are; it is worked out once all other conditions hold",
    ]
    if method.teams == "warm":
        notes.append(
            "the paper's teams begin every round with the global model; the theorem also holds for warm teams, which need no "
            "more team_steps (K) for more rounds where devices solve exactly"
        )
    if not strongly:
        notes.append("the bound is the one that the proof shows, eq. (89); the theorem as printed has a quarter of it")
    broken = [one.what for one in conditions if not one.holds]
    if automatic := [name for name in ("eta", "beta") if name in broken and vars(method)[name] == "auto"]:
        stays = "stays" if len(automatic) == 1 else "stay"
        notes.append(
            f"{' and '.join(automatic)} = auto {stays} at the largest stable value, which learns faster but is above "
            "what the theorem allows; --suggest gives settings that the theorem allows"
        )
    return notes


def _weights(method: MoreauTree) -> list[str]:
    if method.reduce != "samples":
        return []
    return [
        "the paper states the theorem for equal weights; it also holds for the objective with means weighted by samples"
    ]


def _range(value: object) -> tuple[float, float]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return min(map(float, value)), max(map(float, value))
    assert isinstance(value, int | float)
    return float(value), float(value)
