"""What a metric costs: bytes on every link and seconds on the simulated clock by each round, and until a target is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from palmette.errors import BadInput
from palmette.figures.convergence import curve_of
from palmette.figures.lines import Choice, Line, fitting
from palmette.protocol import ModelKind
from palmette.report import style, words
from palmette.report.numbers import top
from palmette.report.sheets import is_share
from palmette.runs import Result

_DECADE = 10


@dataclass(frozen=True, eq=False)
class Cost:
    """What one method cost round by round, the mean of the seeds.

    Attributes:
        rounds: The rounds that were measured.
        value: The metric after each of them.
        links: By the tier of the parents that ask on a link, the bytes both ways until each of those rounds.
        seconds: The time on the simulated clock after each of them; ``None`` where a run had no clock.
        flat: Whether there is one link only, from the server to the devices.
        reached: The place of the first round after which the metric is as good as the target; ``None`` where none is.
    """

    rounds: list[int]
    value: Any
    links: dict[int, Any]
    seconds: Any
    flat: bool
    reached: int | None

    @property
    def upper(self) -> Any:
        """The bytes to and from the server until each round."""
        return self.links[max(self.links)]


def chosen_of(lines: Sequence[Line], choice: Choice, notes: list[str]) -> list[tuple[Line, ModelKind]]:
    """Return which models of which methods are drawn: one kind where there are several methods."""
    chosen = fitting(lines, choice, notes, every=True)
    if len(lines) > 1 and len({kind for _, kind in chosen}) > 1:
        raise BadInput("what several methods cost is drawn for one kind of models; name one --model")
    return chosen


def tiers_of(result: Result) -> list[int]:
    """Return the tiers of parents that asked in a run."""
    return sorted(set(result.traffic["tier"].to_pylist())) if result.traffic.num_columns else []


def cost_of(line: Line, kind: ModelKind, choice: Choice) -> Cost:
    """Return what a method's models cost round by round."""
    curve = curve_of(line, kind, choice.metric, devices=False)
    links: dict[int, list[Any]] = {}
    for result in line.results.values():
        if not tiers_of(result):
            raise BadInput(f"the run in {result.folder} has counted no traffic yet; draw it when a round is done")
        rounds = result.traffic["round"].to_numpy()
        tiers = result.traffic["tier"].to_numpy()
        both = result.traffic["bytes_up"].to_numpy() + result.traffic["bytes_down"].to_numpy()
        for tier in tiers_of(result):
            # The traffic of round r is counted under r - 1, the rounds that were done when it began.
            mine, when = both[tiers == tier], rounds[tiers == tier]
            links.setdefault(tier, []).append([float(mine[when < done].sum()) for done in curve.rounds])
    clocks = [result.times for result in line.results.values()]
    times = [[clock.get(round_, 0.0) for round_ in curve.rounds] for clock in clocks]
    return Cost(
        curve.rounds,
        curve.value,
        {tier: np.mean(one, 0) for tier, one in links.items()},
        np.mean(times, 0) if all(clocks) else None,
        set(links) == {top(line.first)},
        _reached(curve.value, choice),
    )


def check_target(choice: Choice) -> None:
    """Refuse a target that no number can be."""
    target = choice.target
    if target is None:
        return
    if not math.isfinite(target):
        raise BadInput(f"--target {target}: it must be a finite number")
    if is_share(choice.metric) and not 0 < target <= 1:
        hint = f"; write {target / 100:g}" if 1 < target <= 100 else ""
        raise BadInput(f"--target {target:g}: {choice.metric} lies between 0 and 1{hint}")


def _reached(value: Any, choice: Choice) -> int | None:
    if choice.target is None:
        return None
    good = value <= choice.target if choice.lower else value >= choice.target
    return int(np.argmax(good)) if good.any() else None


def told_of(costs: Sequence[tuple[Line, ModelKind, Cost]], choice: Choice) -> list[str]:
    """Say after how much every method reaches the target, the mean of its seeds; nothing where there is no target."""
    if choice.target is None:
        return []
    several = len({line for line, _, _ in costs}) > 1
    told, never = [], []
    for line, kind, cost in costs:
        name = line.label if several else kind
        if cost.reached is None:
            never.append(name)
            continue
        at = cost.reached
        after = [words.many(cost.rounds[at], "round")]
        after += [] if cost.seconds is None else [words.duration(float(cost.seconds[at]))]
        told.append(f"{name} after {', '.join(after)} and {words.size(round(float(cost.upper[at])))}")
    told += [f"{', '.join(never)} never"] if never else []
    what = f"{costs[0][1]} {choice.metric}" if several else f"test {choice.metric}"
    timed = "seconds on the simulated clock and " if any(cost.seconds is not None for _, _, cost in costs) else ""
    bound = "at most" if choice.lower else "at least"
    return [f"{timed}bytes to and from the server until {what} is {bound} {choice.target:g}: {'; '.join(told)}"]


def mark_target(axes: Axes, across: Any, cost: Cost, look: dict[str, Any]) -> None:
    """Mark where a line reaches the target.

    Args:
        axes: The panel.
        across: Where each round lies along it.
        cost: The line.
        look: Colour, dashes and marker of the line.
    """
    if cost.reached is not None:
        place = (across[cost.reached], cost.value[cost.reached])
        axes.plot(*place, marker="o", markersize=7.5, markerfacecolor="none", markeredgewidth=1.2, color=look["color"])


def target_line(axes: Axes, choice: Choice) -> None:
    """Draw the target as a level line."""
    if choice.target is not None:
        axes.axhline(choice.target, color="0.45", linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)


def scaled(axis: Any, axes: Axes, values: Sequence[float]) -> bool:
    """Choose the ticks of an axis of costs, and a log scale where they differ by more than a power of ten; say whether."""
    there = [value for value in values if value > 0]
    log = bool(there) and max(there) > _DECADE * min(there)
    if log:
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
        few = max(there) < _DECADE**2 * min(there)  # one tick for each power of ten would be too few
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if few else (1.0,), numticks=6))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=4))
    return log


def reached_at(cost: Cost, place: int, choice: Choice) -> float:
    """Return what stands in the column ``target`` of a round: the target where it is first reached, else NaN."""
    return float(choice.target) if choice.target is not None and place == cost.reached else math.nan


def seconds_at(cost: Cost, place: int) -> float:
    """Return the seconds on the clock after a round; NaN without a clock."""
    return math.nan if cost.seconds is None else float(cost.seconds[place])


def short_size(count: float) -> str:
    """Write bytes at a tick, without the digits that say nothing: 10 MB, not 10.0 MB."""
    number, _, unit = words.size(round(count)).partition(" ")
    return f"{float(number):g} {unit}" if count > 0 else "0"


def legend_of_target(choice: Choice) -> str:
    """Say in a legend's title what circles mean; nothing where there are none."""
    if choice.target is None:
        return ""
    shown = f"{100 * choice.target:g} %" if is_share(choice.metric) else f"{choice.target:g}"
    return f"circle: {style.plain(choice.metric)} {shown} is reached"
