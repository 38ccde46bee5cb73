"""The figure of a metric over the time on the simulated clock."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter

from palmette.errors import BadInput
from palmette.figures.costs import (
    Cost,
    chosen_of,
    cost_of,
    legend_of_target,
    mark_target,
    reached_at,
    scaled,
    seconds_at,
    target_line,
    told_of,
)
from palmette.figures.drawing import Drawn, handle, looks, measure, seeds_of, sheet, spaced, title
from palmette.figures.lines import Choice, Line
from palmette.report import style, words
from palmette.runs import Result
from palmette.runs.folder import CONFIG
from palmette.studies.plan import is_study

_HEADER = ("method", "model", "metric", "round", "seconds", "bytes_to_server", "value", "seeds", "target")


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw a metric over the seconds that have passed on the simulated clock, the mean of the seeds."""
    notes: list[str] = []
    chosen = chosen_of(lines, choice, notes)
    methods = list(dict.fromkeys(line for line, _ in chosen))
    for line in methods:
        for result in line.results.values():
            if not result.times:
                raise _no_clock(result)
    figure = sheet(choice, 2.4)
    axes = figure.subplots()
    drawn = Drawn(figure, _HEADER, notes=notes)
    found = [(line, kind, cost_of(line, kind, choice)) for line, kind in chosen]
    unit, length = words.span(max(float(cost.seconds[-1]) for _, _, cost in found) / 4)  # ticks of an axis are smaller
    log = scaled(axes.xaxis, axes, [moment / length for _, _, cost in found for moment in cost.seconds])
    shapes = []
    for place, ((line, kind, cost), (label, look)) in enumerate(zip(found, looks(chosen), strict=True)):
        across, shown = cost.seconds / length, cost.seconds > (0 if log else -1)
        axes.plot(across[shown], cost.value[shown], **look, markevery=spaced(int(shown.sum()), place), zorder=3)
        mark_target(axes, across, cost, look)
        shapes.append(handle(label, look))
        drawn.rows += _rows(line, kind, choice, cost)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(f"time on the simulated clock ({unit})")
    axes.set_ylabel((f"{chosen[0][1]}: " if len(methods) > 1 else "") + title(choice))
    measure(axes.yaxis, choice.metric)
    target_line(axes, choice)
    drawn.told += told_of(found, choice)
    style.key(figure, shapes, "; ".join(filter(None, [seeds_of(methods), legend_of_target(choice)])))
    return drawn


def _no_clock(result: Result) -> BadInput:
    """Return what to say of a run that had no clock: the command that gives it one."""
    study = result.folder.parent.parent
    if is_study(study):
        how = f"make the study in {study} again with --set clock.preset=edge"
    elif result.config.given:
        how = "run it again with clock={'preset': 'edge'}"
    else:
        file = shlex.quote(str(result.folder / CONFIG))
        how = f"run it again with one: palmette run --config {file} --set clock.preset=edge"
    return BadInput(f"the run in {result.folder} has no simulated clock, so there is no time to draw; {how}")


def _rows(line: Line, kind: str, choice: Choice, cost: Cost) -> list[tuple[Any, ...]]:
    return [
        (
            *(line.label, kind, choice.metric, round_, seconds_at(cost, at), float(cost.upper[at])),
            *(float(cost.value[at]), len(line.results), reached_at(cost, at, choice)),
        )
        for at, round_ in enumerate(cost.rounds)
    ]
