"""Which settings are too large for the curvature of the task, before a run and after it diverged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from palmette.learner import curvature
from palmette.simulate import Simulation, one_thread_inside


def advice(simulation: Simulation) -> str:
    """Return the sentence that tells which setting to lower and to what, after a run diverged."""
    limits = _limits(simulation)
    for name, value, limit in _above(simulation, limits):
        return f"Lower {name} from {value:g} to at most {limit:.2g}."
    name = next(iter(limits), "the step size")
    return f"No step size is above its bound, so lower {name} all the same, for instance to a tenth."


def warnings_of(simulation: Simulation) -> list[str]:
    """Return a sentence for every step size beyond twice its bound, where theory predicts divergence."""
    return [
        f"{name} = {value:g} is more than twice the stable {limit:.2g}: expect divergence"
        for name, value, limit in _above(simulation, _limits(simulation))
        if value > 2 * limit
    ]


def _limits(simulation: Simulation) -> dict[str, float]:
    with one_thread_inside():
        return simulation.algorithm.stable(curvature(simulation.learner).smoothness)


def _above(simulation: Simulation, limits: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    settings = vars(simulation.algorithm)
    for name, limit in limits.items():
        value = settings[name]
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        largest = max((float(number) for number in values if not isinstance(number, str)), default=0.0)
        if largest > limit:
            yield name, largest, limit
