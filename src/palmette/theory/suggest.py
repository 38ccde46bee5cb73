"""Settings that meet a theorem, and what they would achieve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.permfl import MoreauTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation
from palmette.learner import Curvature
from palmette.protocol import Algorithm
from palmette.theory.conditions import Check, down, everybody, up
from palmette.theory.moreau import NEEDED, Steps, largest, levels, too_much
from palmette.theory.sparse import constants, largest_step, least_mixed

Method = TypeVar("Method", bound=Algorithm)

_ABOVE = 1.01  # how far pulls are put above the least that is allowed


@dataclass(frozen=True)
class Suggestion:
    """Settings that meet the theorem of an algorithm.

    Attributes:
        settings: What to set, by key, as it is typed.
        achieves: What the theorem then promises, in sentences.
        obstacle: What stands in the way where no settings can meet it; a sentence.
    """

    settings: dict[str, str]
    achieves: tuple[str, ...]
    obstacle: str = ""

    @property
    def options(self) -> str:
        """The settings as options of the command line, ready to paste."""
        return " ".join(f"--set {_quoted(f'{key}={value}')}" for key, value in self.settings.items())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``palmette check --suggest --json`` prints it."""
        return {**asdict(self), "options": self.options}


def suggest(simulation: Simulation, bent: Curvature, hold: Callable[[Simulation], Check]) -> Suggestion:
    """Look for settings that meet the theorem of a simulation's algorithm, and hold them against it.

    Args:
        simulation: A fresh simulation; its pulls and steps may be anything.
        bent: The constants of its losses.
        hold: What holds a simulation against its theorem.
    """
    method = simulation.algorithm
    if isinstance(method, CoinTree | AL2SGD) and not bent.convexity:
        return Suggestion({}, (), f"{_flat(simulation)} The theorem of {method.name} needs strongly convex losses.")
    links = _links(simulation)
    if isinstance(method, MoreauTree):
        if why := too_much(simulation):
            return Suggestion({}, (), f"How large team_steps and local_steps must be is unknown ({why}).")
        settings = _moreau(simulation, method, bent)
    elif isinstance(method, SFedHP):
        settings = _sparse(method, bent)
    else:
        settings = _coins(method)
    if not settings:
        return Suggestion(
            {},
            (),
            "The initial model is already the optimum and the theorem's bound is zero: no number of steps is enough.",
        )
    changed = _changed(simulation, settings)
    found = hold(changed)
    return Suggestion({**settings, **links}, tuple(_achieved(changed, found, bent)))


def _moreau(simulation: Simulation, method: MoreauTree, bent: Curvature) -> dict[str, str]:
    """Choose the weakest pulls that are allowed, which give the fastest rate, and the longest steps for them."""
    lam = up(2 * bent.smoothness * _ABOVE)
    gamma = up(2 * float(lam) * _ABOVE)
    steps = replace(Steps.of(_with(method, lam=1.0, gamma=1.0)), lam=float(lam), gamma=float(gamma))
    limits = largest(steps, bent)
    limits["alpha"] = 1 / (bent.smoothness + steps.lam)  # allowed by both theorems, and the surest
    alpha, eta, beta = (down(limits[name]) for name in ("alpha", "eta", "beta"))
    steps = replace(steps, alpha=(float(alpha),) * 2, eta=(float(eta),) * 2, beta=float(beta))
    found = levels(simulation, steps, bent)
    if (least := found.team_steps()) == math.inf:
        return {}
    team = math.ceil(1.1 * least) + 1  # at the very least of team steps devices would have to be all too exact
    local = found.local_steps(team)
    given = {"lam": lam, "gamma": gamma, "alpha": alpha, "eta": eta, "beta": beta}
    given |= {"team_steps": f"{team}", "local_steps": f"{local:.0f}", "batch_size": "full"}
    return given | ({"as_published": "[]"} if method.as_published else {})


def _sparse(method: SFedHP, bent: Curvature) -> dict[str, str]:
    """Keep what the user chose where the theorem allows it; the step of the edges must be small."""
    settings = {"centre": "device"}
    if method.sparse:
        settings |= {"schedule": "none", "zero_tol": "0"}
    chosen = method
    if not bent.convexity:
        bend = constants(method, bent)["L + gamma_1/rho"]
        pulls = {"lam_1": up(max(2 * bend, 1.12 * least_mixed(bend)) * _ABOVE)}
        pulls["lam_2"] = up(2 * float(pulls["lam_1"]) * _ABOVE)
        settings |= pulls
        chosen = _with(method, **{name: float(value) for name, value in pulls.items()})
    known = constants(chosen, bent)
    settings["alpha"] = down(1 / (known["L + gamma_1/rho"] + chosen.lam_1))  # then the bound can be computed as well
    eta = min(1 / known["lam_bar"], largest_step(chosen, known) / (method.beta * method.team_steps))
    settings["eta"] = down(eta)
    swing = max(float(settings["alpha"]) * method.gamma_1, eta * method.gamma_2)
    return settings | ({"rho": up(swing)} if method.rho < swing else {})


def _coins(method: Algorithm) -> dict[str, str]:
    if isinstance(method, AL2SGD):
        return {"smoothness": "auto", "convexity": "auto"} | ({"as_published": "[]"} if method.as_published else {})
    return {"smoothness": "auto", "eta": "auto", "batch_size": "full"} | (
        {"decrease": "0"} if vars(method)["decrease"] else {}
    )


def _links(simulation: Simulation) -> dict[str, str]:
    """Return what has every node take part."""
    if everybody(simulation) and not any(link.loss for link in simulation.links.values()):
        return {}
    names = ("devices", "teams")
    return {f"participation.{names[tier]}": "all" for tier in sorted(simulation.links)} | {"loss": "0"}


def _changed(simulation: Simulation, settings: Mapping[str, str]) -> Simulation:
    """Return the simulation with other settings, as if they had been typed, and with everybody taking part."""
    learner = simulation.learner
    return Simulation(
        _with(simulation.algorithm, **{name: _read(text) for name, text in settings.items()}),
        simulation.population,
        simulation.task,
        rounds=simulation.rounds,
        seed=simulation.seed,
        dtype=learner.dtype,
        device=learner.device,
    )


def _with(method: Method, **settings: Any) -> Method:
    """Return an algorithm with other settings; all of them are dataclasses."""
    return replace(method, **settings)  # type: ignore[type-var]


def _read(text: str) -> Any:
    if text == "[]":
        return ()
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _achieved(simulation: Simulation, found: Check, bent: Curvature) -> list[str]:
    """Say in sentences what the theorem promises for settings that meet it."""
    if not found.holds:
        broken = ", ".join(f"{one.what} ({one.allowed})" for one in found.conditions if not one.holds)
        return [f"Not all conditions hold yet: {broken}."]
    said = (
        [] if bent.exact else ["L_f is an estimate, so these settings meet the theorem only if the estimate is right."]
    )
    if found.rate is not None:
        said.append(f"The bound falls by a factor of {found.rate:.6g} in a round.")
    for name, value in found.wanted.items():
        said.append(f"It takes {_many(value)} {name}.")
    method = simulation.algorithm
    if isinstance(method, MoreauTree) and (needed := found.wanted.get(NEEDED)):
        more = replace(levels(simulation, Steps.of(method), bent), rounds=math.ceil(needed))
        team = math.ceil(1.1 * more.team_steps()) + 1
        said.append(
            f"team_steps and local_steps are for {_many(simulation.rounds)} rounds; for {_many(needed)} rounds it "
            f"takes --rounds {math.ceil(needed)} --set team_steps={team} --set local_steps={more.local_steps(team):.0f}."
        )
    if isinstance(method, MoreauTree) and not bent.convexity:
        size = 4 / (Steps.of(method).beta * simulation.rounds)
        said.append(
            f"The mean of |grad phi|^2 over {_many(simulation.rounds)} rounds is at most {size:.4g} (phi(x^0) - phi*)."
        )
        said.append(f"There is no rate: {_flat(simulation)}")
    if isinstance(method, SFedHP) and not bent.convexity:
        said.append(f"There is no rate: {_flat(simulation)}")
    return said


def _flat(simulation: Simulation) -> str:
    """Say why mu_f is 0, and what would change it."""
    spectrum, task = simulation.learner.spectrum, simulation.task
    if spectrum is None:
        return (
            f"mu_f is taken to be 0, as {task.name} has no closed form; a linear model (mclr, linear) with an l2 term "
            "has one."
        )
    if spectrum.bend.least:
        return (
            "mu_f = 0: a device has fewer samples than the model has weights, or features that are combinations of others; "
            "--set model.l2=0.1 makes it 0.1."
        )
    return "mu_f = 0: without an l2 term this loss is flat in some direction; --set model.l2=0.1 makes it 0.1."


def _many(number: float) -> str:
    return f"{math.ceil(number - 1e-9):,}" if number < 1e15 else f"{number:.3g}"


def _quoted(text: str) -> str:
    return f'"{text}"' if "[" in text else text
