"""Which settings are too large for the curvature of the task, before a run and after it diverged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.blocks.mixing import Pulls
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.learner import curvature
from palmette.protocol import Algorithm


def advice(simulation: Simulation) -> str:
    """Return the sentence that tells which setting to lower and to what, after a run diverged."""
    smooth = _curvature(simulation)
    limits = _limits(simulation, smooth)
    for name, value, limit in _above(simulation, limits):
        return f"Lower {name} from {value:g} to at most {limit:.2g}."
    if (given := _given(simulation)) is not None and given < smooth:
        return f"Raise smoothness from {given:g} to at least {smooth:.2g}, or leave it to the run (auto)."
    if not (name := next(iter(limits), "")):
        return "Its steps follow from the pulls and the curvature: lower the pulls, or raise smoothness."
    return f"No step size is above its bound, so lower {name} all the same, for instance to a tenth."


def warnings_of(simulation: Simulation) -> list[str]:
    """Return a sentence for every setting beyond twice its bound, where theory predicts divergence."""
    smooth = _curvature(simulation)
    found = [
        f"{name} = {value:g} is more than twice the stable {limit:.2g}: expect divergence"
        for name, value, limit in _above(simulation, _limits(simulation, smooth))
        if value > 2 * limit
    ]
    given, least = _given(simulation), smooth / slack(simulation.algorithm)
    if given is not None and given < least:
        found.append(f"smoothness = {given:g} is far below the estimated {smooth:.2g}: expect divergence")
    return found


def _limits(simulation: Simulation, smooth: float) -> dict[str, float]:
    """Return the largest stable settings; those of a method with coins also depend on the tree and on the coins."""
    method, tree = simulation.algorithm, simulation.tree
    if not isinstance(method, CoinTree):
        return method.stable(smooth)
    pulls = Pulls.on(tree, method.lam, method.gamma)
    return {"eta": method.coins(tree, pulls, smooth).step(pulls, smooth)}


def _curvature(simulation: Simulation) -> float:
    with one_thread_inside():
        return curvature(simulation.learner).smoothness


def slack(method: Algorithm) -> float:
    """Return how many times too small the L of a method with coins may be before a local step is beyond 2 / L."""
    return 8.0 if isinstance(method, AL2SGD) else 4.0  # the steps are 1 / (4 L) and 1 / (2 L)


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
