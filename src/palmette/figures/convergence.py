"""The figure of a metric over the rounds: the models of one run with the spread over devices, or several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes

from palmette.errors import BadInput
from palmette.figures.drawing import (
    Drawn,
    clipped,
    deviation,
    handle,
    looks,
    measure,
    seeds_of,
    sheet,
    spaced,
    title,
    whole_rounds,
)
from palmette.figures.lines import Choice, Line, fitting
from palmette.protocol import ModelKind
from palmette.report import style
from palmette.report.numbers import device_count
from palmette.runs import Result

_FEW = 8  # measured rounds that make a curve
_HEADER = ("method", "model", "metric", "round", "steps_per_device", "value", "low", "high", "band", "seeds")
_LOW, _HIGH = 0.1, 0.9  # of the devices, those that a band leaves out below and above
_LOG = 50  # a loss whose largest value is so many times its least is drawn on a log axis


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of the figure.

    Attributes:
        rounds: The rounds that were measured with every seed.
        value: The mean over the seeds.
        low: The lower end of the band, NaN where there is none.
        high: Its upper end.
        band: What the band is; empty where there is none.
    """

    rounds: list[int]
    value: Any
    low: Any
    high: Any
    band: str


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw a metric over the rounds; several kinds of models of several methods have a panel each."""
    notes: list[str] = []
    chosen = fitting(lines, choice, notes, every=True)
    kinds = list(dict.fromkeys(kind for _, kind in chosen))
    panels = len(kinds) if len(lines) > 1 else 1
    if panels > 4:
        raise BadInput(f"{panels} kinds of models of several methods are too many for one figure; name at most 4")
    side_by_side = choice.width == "page" and panels > 1
    height = 2.4 if panels == 1 or side_by_side else 0.6 + 1.7 * panels
    figure = sheet(choice, height)
    rows, columns = (1, panels) if side_by_side else (panels, 1)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=side_by_side).ravel()
    drawn = Drawn(figure, _HEADER, notes=notes)
    bands, shapes = dict[str, None](), {}
    for place, ((line, kind), (label, look)) in enumerate(zip(chosen, looks(chosen), strict=True)):
        axes = grid[kinds.index(kind) if panels > 1 else 0]
        curve = curve_of(line, kind, choice.metric, devices=len(lines) == 1)
        steps = _steps(line) if choice.over == "steps" else None
        across = np.array(curve.rounds) * (1 if steps is None else steps)
        axes.plot(across, curve.value, **look, markevery=spaced(len(across), place), zorder=3)
        if curve.band:
            axes.fill_between(across, curve.low, curve.high, color=look["color"], alpha=0.16, linewidth=0, zorder=1)
            bands[curve.band] = None
        shapes[label] = handle(label, look)
        drawn.rows += _rows(line, kind, choice.metric, curve, steps)
        _warn(notes, line, kind, curve, steps=steps is not None)
    for axes, kind in zip(grid, kinds, strict=False):
        _axes(axes, choice, f"{kind}: " if len(lines) > 1 else "")
    for axes in grid[:-1] if not side_by_side else ():
        axes.set_xlabel("")
    told = [seeds_of(line for line, _ in chosen), f"shaded: {' or '.join(bands)}" if bands else ""]
    if any(result.sampled for line, _ in chosen for result in line.results.values()):
        told.append("of a sample of the devices")
    style.key(figure, list(shapes.values()), "; ".join(filter(None, told)))
    return drawn


def _warn(notes: list[str], line: Line, kind: ModelKind, curve: Curve, *, steps: bool) -> None:
    """Take note of what a curve does not show."""
    config = line.first.config
    measured = len([round_ for round_ in curve.rounds if round_])
    if measured < _FEW <= config.rounds:
        told = (
            f"{line.label}: only {measured} of {config.rounds} rounds were measured, and the line joins them; train again with "
            "--set evaluate_every=1 for a curve"
        )
        if told not in notes:
            notes.append(told)
    tuned = config.settings.get("tune_steps", 0)
    if steps and kind == "PM" and tuned and line.first.config.algorithm != "ladder":
        notes.append(
            f"{line.label}: its personal models take {tuned} more steps each time they are measured, left out here"
        )


def _axes(axes: Axes, choice: Choice, before: str) -> None:
    if choice.over == "rounds":
        whole_rounds(axes)
    axes.set_xlabel("global round" if choice.over == "rounds" else "gradient steps of a device")
    axes.set_ylabel(before + title(choice))
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if choice.lower and low > 0 and high > _LOG * low:
        axes.set_yscale("log")
    else:
        measure(axes.yaxis, choice.metric)


def curve_of(line: Line, kind: ModelKind, metric: str, *, devices: bool) -> Curve:
    """Return the mean over the seeds with its band: of the seeds where there are several, else of the devices.

    Args:
        line: The method.
        kind: The kind of models.
        metric: What was measured.
        devices: Whether the devices of a single run make a band.
    """
    curves = [result.curve(kind, metric) for result in line.results.values()]
    rounds = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[round_] for round_ in rounds] for curve in curves])
    mean = values.mean(0)
    nothing = np.full(len(rounds), np.nan)
    if len(curves) > 1:
        spread = deviation(values)
        low, high = clipped(mean - spread, mean + spread, metric)
        return Curve(rounds, mean, low, high, "± standard deviation")
    if not devices:
        return Curve(rounds, mean, nothing, nothing, "")
    return Curve(rounds, mean, *_of_devices(line.first, kind, metric, rounds))


def _of_devices(result: Result, kind: ModelKind, metric: str, rounds: Sequence[int]) -> tuple[Any, Any, str]:
    """Return the band of the devices: the middle four fifths where every round lists them, else a standard deviation."""
    table = result.metrics
    keep = pc.equal(table["tier"], 0)
    wanted = {"model": kind, "metric": metric, "when": "after", "on": result.curve_on, "weight": "samples"}
    for column, value in wanted.items():
        keep = pc.and_(keep, pc.equal(table[column], value))
    part = table.filter(keep)
    at, values = part["round"].to_numpy(), part["value"].to_numpy()
    found = [values[(at == round_) & ~np.isnan(values)] for round_ in rounds]
    if all(len(one) for one in found):
        low, high = np.array([np.quantile(one, (_LOW, _HIGH)) for one in found]).T
        return low, high, "middle 80 % of devices"
    mean = result.curve(kind, metric, weight="devices", statistic="mean")
    if not mean:  # a number about nodes: it has no spread
        nothing = np.full(len(rounds), np.nan)
        return nothing, nothing, ""
    spread = result.curve(kind, metric, weight="devices", statistic="spread")
    pairs = np.array([(mean.get(one, np.nan), spread.get(one, np.nan)) for one in rounds])
    low, high = clipped(pairs[:, 0] - pairs[:, 1], pairs[:, 0] + pairs[:, 1], metric)
    return low, high, "± standard deviation over devices"


def _steps(line: Line) -> float:
    """Return the gradient steps of a device in one round, on average over the run."""
    found = []
    for result in line.results.values():
        if not result.finished:
            raise BadInput(
                f"the run in {result.folder} is not finished, so its steps are not known; draw it over rounds"
            )
        devices = device_count(result)
        found.append(result.timings["device_steps"] / devices / result.config.rounds)
    return float(np.mean(found))


def _rows(line: Line, kind: ModelKind, metric: str, curve: Curve, steps: float | None) -> list[tuple[Any, ...]]:
    values = zip(
        curve.rounds, curve.value.tolist(), np.asarray(curve.low).tolist(), np.asarray(curve.high).tolist(), strict=True
    )
    seeds = len(line.results)
    return [
        (
            line.label,
            kind,
            metric,
            round_,
            float("nan") if steps is None else steps * round_,
            value,
            low,
            high,
            curve.band,
            seeds,
        )
        for round_, value, low, high in values
    ]
