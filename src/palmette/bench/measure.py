"""How time is taken: engines take turns, and ratios are between neighbours in time.

A machine's speed drifts, and other programs use it. So every repeat runs all engines once, one repeat starting one engine
later than the one before it, and a ratio is taken within a repeat; what is reported is the median over repeats, of speeds
and of ratios alike, with the quartiles.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from palmette.bench.engines import Lane
from palmette.engines.simulate import one_thread_inside


class Trial(NamedTuple):
    """One turn of one engine."""

    rate: float
    overhead: float | None = None


@dataclass(frozen=True)
class Timing:
    """How long and how often to measure.

    Attributes:
        repeats: Turns of every engine.
        seconds: The least length of a turn.
    """

    repeats: int = 7
    seconds: float = 0.25


def turns(engines: int, repeat: int) -> list[int]:
    """Return the order of the engines in one repeat."""
    return [(repeat + place) % engines for place in range(engines)]


def measure(
    lanes: Sequence[Lane],
    timing: Timing,
    clock: Callable[[], float],
    tell: Callable[[Lane, int], None] = lambda lane, repeat: None,
) -> list[list[Trial]]:
    """Run the engines in turns and return the trials of each.

    Args:
        lanes: The engines.
        timing: How long and how often.
        clock: What measures time, in seconds.
        tell: Called before every turn with the engine and the number of the repeat, 0 for the warm-up.
    """
    trials: list[list[Trial]] = [[] for _ in lanes]
    with one_thread_inside():
        counts = []
        for lane in lanes:
            tell(lane, 0)
            lane.unit()  # the first call makes memory and caches
            begin = clock()
            lane.unit()
            counts.append(max(1, math.ceil(timing.seconds / max(clock() - begin, 1e-6))))
        for repeat in range(timing.repeats):
            for place in turns(len(lanes), repeat):
                tell(lanes[place], repeat + 1)
                trials[place].append(_trial(lanes[place], counts[place], clock))
    return trials


def _trial(lane: Lane, count: int, clock: Callable[[], float]) -> Trial:
    inside = lane.inside() if lane.inside else 0.0
    begin = clock()
    steps = sum(lane.unit() for _ in range(count))
    elapsed = max(clock() - begin, 1e-9)
    overhead = elapsed / max(lane.inside() - inside, 1e-9) - 1 if lane.inside else None
    return Trial(steps / elapsed, overhead)


def rows(workload: str, lanes: Sequence[Lane], trials: list[list[Trial]]) -> list[dict[str, Any]]:
    """Return one row per engine: its speed and its ratios, each the median over repeats.

    Args:
        workload: Name of the workload.
        lanes: The engines.
        trials: The trials of each.
    """
    rates = [[trial.rate for trial in own] for own in trials]
    at_one = {lane.engine: own for lane, own in zip(lanes, rates, strict=True) if lane.threads == 1}
    made = []
    for lane, own, mine in zip(lanes, trials, rates, strict=True):
        low, high = _quartiles(mine)
        overheads = [trial.overhead for trial in own if trial.overhead is not None]
        made.append(
            {
                "workload": workload,
                "engine": lane.engine,
                "threads": lane.threads,
                "device_steps_per_second": statistics.median(mine),
                "low": low,
                "high": high,
                "spread": (high - low) / statistics.median(mine),
                "ratio_to_limit": paired(mine, at_one.get("limit")),
                "ratio_to_limit_chunked": paired(mine, at_one.get("limit-chunked")),
                "ratio_to_core": paired(mine, at_one.get("core")),
                "fused_ratio": paired(at_one.get("fused"), mine),
                "simulator_ratio": paired(at_one.get("simulator"), mine),
                "speed_up": paired(mine, at_one.get(lane.engine)) if lane.threads > 1 else None,
                "overhead": statistics.median(overheads) if overheads else None,
                "repeats": len(mine),
            }
        )
    return made


def paired(above: Sequence[float] | None, below: Sequence[float] | None) -> float | None:
    """Return the median of the ratios within repeats, where both were measured."""
    if above is None or below is None:
        return None
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
