"""Which settings are too large for the curvature of the task, before a run and after it diverged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.blocks.mixing import Pulls
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.learner import Curvature, curvature
from palmette.learner.smoothness import looked_at, seen, takes_long
from palmette.theory.coins import estimated, slack
from palmette.theory.conditions import down, everybody, up

_LOOKED_AT = 16  # devices with a network whose smoothness is told before a run: each takes some twenty full gradients


def advice(simulation: Simulation) -> str:
    """Return the sentence that tells which setting to lower and to what, after a run diverged."""
    method, tiny = simulation.algorithm, torch.finfo(simulation.learner.dtype).tiny
    if isinstance(method, SFedHP) and method.sparse and method.rho < tiny:
        least = up(max(method.eta * method.gamma_2, float(method.alpha) * method.gamma_1), 2)
        return f"Raise rho from {method.rho:g} to about {least}: below {tiny:.1e} it counts as zero in this precision."
    if unseen := _unseen(simulation):
        return unseen
    smooth = _curvature(simulation).smoothness
    if not math.isfinite(smooth):
        return "The losses are curved beyond all numbers: scale the features first, for instance to -1..1."
    limits = _limits(simulation, smooth)
    for name, value, limit in sorted(
        _above(simulation, limits), key=lambda found: -found[1] / found[2]
    ):  # the worst first
        return f"Lower {name} from {value:g} to at most {down(limit, 2)}."
    if (given := _given(simulation)) is not None and given < smooth:
        return f"Raise smoothness from {given:g} to at least {up(smooth, 2)}, or leave it to the run (auto)."
    if not (name := next(iter(limits), "")):
        return "Its steps follow from the pulls and the curvature: lower the pulls, or raise smoothness."
    return f"No step size is above its bound, so lower {name} all the same, for instance to a tenth."


def warnings_of(simulation: Simulation) -> list[str]:
    """Return a sentence for every setting beyond twice its bound, where theory predicts divergence.

    The bound that counts is that of the curvature before anything is learned: a softmax may become more curved later on, and
    need not. The limit that is told is that of L_f, below which a step is safe wherever a model goes.
    """
    unseen = [told] if (told := _unseen(simulation)) else []
    if not _limits(simulation, 1.0) and _given(simulation) is None:
        return unseen  # nothing that the curvature could be compared with, and it may take long to find
    if takes_long(simulation.learner):
        return unseen  # the log says so
    spectrum = simulation.learner.spectrum
    if spectrum is not None and not _found(simulation, spectrum.start_above, spectrum.start_above):
        return unseen  # even as curved as one look at the samples allows
    bent = _curvature(simulation)
    return unseen + _found(simulation, bent.start, bent.smoothness)


def compared(simulation: Simulation, *, wanted: bool = True) -> str:
    """Say what step sizes are held against before a run, or that they are not; nothing where that goes without saying.

    It goes without saying where a method has no such step, and for linear models, whose curvature is known at once.

    Args:
        simulation: The run.
        wanted: Whether they are to be held against anything (``engine.check_steps``).
    """
    learner = simulation.learner
    if not _limits(simulation, 1.0) and _given(simulation) is None:
        return ""
    if not wanted:
        return "step sizes are not held against the curvature of the losses (engine.check_steps = false)"
    if learner.spectrum is not None:
        return ""
    if takes_long(learner):
        return "step sizes are not held against the curvature of the losses, which takes long to find for this model"
    looked = seen(*looked_at(learner))
    return f"step sizes are held against the curvature of the losses at the initial model, estimated on {looked}"


def _unseen(simulation: Simulation) -> str:
    """Say what to set where a method with coins takes its constants from a first round that not all devices are in."""
    method = simulation.algorithm
    if not isinstance(method, CoinTree | AL2SGD) or method.smoothness != "auto":
        return ""
    if everybody(simulation) and not any(link.loss for link in simulation.links.values()):
        return ""
    fits = "all devices" if simulation.learner.spectrum is not None else "the devices that were looked at"
    value = up(estimated(simulation, _LOOKED_AT)[0], 3)
    return (
        "smoothness = auto is what the devices that answer in the first round have, and not all do: a device with a more "
        f"curved loss may make the run diverge later. Set smoothness={value}, which fits {fits}."
    )


def _found(simulation: Simulation, start: float, smooth: float) -> list[str]:
    safe = _limits(simulation, smooth)
    found = [
        f"{name} = {value:g} is more than twice the largest stable value, {down(limit, 2)}: expect divergence"
        + (f" (up to {down(safe[name], 2)} it is safe)" if safe[name] < limit else "")
        for name, value, limit in _above(simulation, _limits(simulation, start))
        if value > 2 * limit
    ]
    method, given = simulation.algorithm, _given(simulation)
    if given is not None and isinstance(method, CoinTree | AL2SGD) and given < start / slack(method):
        found.append(
            f"smoothness = {given:g} is far below the curvature of the losses, {smooth:.2g}: expect divergence"
        )
    return found


def _limits(simulation: Simulation, smooth: float) -> dict[str, float]:
    """Return the largest stable settings; those of a method with coins also depend on the tree and on the coins."""
    method, tree = simulation.algorithm, simulation.tree
    if not isinstance(method, CoinTree):
        # What is stable for plain gradient steps says little of momentum, Adam and clipped ones.
        known = method.stable(smooth)
        return known if simulation.learner.optimiser.plain else {n: v for n, v in known.items() if n != "alpha"}
    if method.surveys:
        return {}  # what is found fits the losses
    pulls = Pulls.on(tree, method.lam, method.gamma)
    used = smooth if method.smoothness == "auto" else float(method.smoothness)
    return {"eta": method.coins(tree, pulls, used).step(pulls, smooth)}


def _curvature(simulation: Simulation) -> Curvature:
    with one_thread_inside():
        return curvature(simulation.learner)


def _given(simulation: Simulation) -> float | None:
    """Return the L that a method with coins was told, which its steps then follow from."""
    method = simulation.algorithm
    if not isinstance(method, CoinTree | AL2SGD) or method.smoothness == "auto":
        return None
    return None if isinstance(method, CoinTree) and method.eta != "auto" else float(method.smoothness)


def _above(simulation: Simulation, limits: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    settings = vars(simulation.algorithm)
    for name, limit in limits.items():
        value = settings[name]
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        largest = max((float(number) for number in values if not isinstance(number, str)), default=0.0)
        if largest > limit:
            yield name, largest, limit
