"""The figures of an experiment: curves over rounds, lines of a table, and what changes from one row to another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from palmette.errors import BadInput
from palmette.figures.make import made
from palmette.report import style
from palmette.report.picture import save
from palmette.reproduce.claims import Cells, contrast
from palmette.reproduce.experiment import Experiment
from palmette.reproduce.format import Drawing
from palmette.reproduce.numbers import FromRuns, Missing, Source

_SIZE, _DPI = (6.4, 3.8), 110


def draw(
    experiment: Experiment,
    result: Mapping[str, Any],
    sources: Mapping[str, Source],
    cells: Mapping[str, Cells],
    out: Path,
) -> list[dict[str, str]]:
    """Draw the figures of an experiment, and return their names and titles; one without numbers is left out.

    Args:
        experiment: The experiment.
        result: What came out.
        sources: The numbers of its studies.
        cells: By the title of a table, its numbers.
        out: The folder for the files.
    """
    told = []
    for drawing in experiment.figures:
        try:
            figure = _drawn(drawing, result, sources, cells)
        except (Missing, BadInput) as error:  # as where no run came to its end
            told.append({"name": drawing.name, "title": drawing.title, "left_out": str(error)})
            continue
        out.mkdir(parents=True, exist_ok=True)
        save(figure, out / f"{drawing.name}.png", dpi=_DPI)
        told.append({"name": drawing.name, "title": drawing.title})
    return told


def _drawn(
    drawing: Drawing, result: Mapping[str, Any], sources: Mapping[str, Source], cells: Mapping[str, Cells]
) -> Figure:
    if drawing.kind == "curves":
        found = sources.get(drawing.study or "")
        if not isinstance(found, FromRuns):
            raise Missing("its study was not run at this size")
        drawn = made(
            found.study, "convergence", metric=drawing.metric, model=drawing.model, method=drawing.methods, width="page"
        )
        return drawn.figure
    table = next(one for one in result["tables"] if drawing.table in (None, one["title"]))
    with style.settings(style.PAPER):
        if drawing.kind == "lines":
            return _lines(drawing, table)
        return _changes(drawing, cells[table["title"]], table)


def _empty(drawing: Drawing) -> tuple[Figure, Any]:
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xlabel=drawing.xlabel, ylabel=drawing.ylabel)
    return figure, axes


def _lines(drawing: Drawing, table: Mapping[str, Any]) -> Figure:
    """Draw the rows of a table over its columns' numbers, the paper's as crosses; or its columns over the rows' numbers."""
    figure, axes = _empty(drawing)
    over_rows = table["columns"][0]["x"] is None
    if over_rows:
        places = [row["x"] for row in table["rows"] if row["x"] is not None]
        series = {
            column["title"]: [row["cells"][at] for row in table["rows"] if row["x"] is not None]
            for at, column in enumerate(table["columns"])
        }
    else:
        drawn = [at for at, column in enumerate(table["columns"]) if column["x"] is not None]
        places = [table["columns"][at]["x"] for at in drawn]
        series = {row["title"]: [row["cells"][at] for at in drawn] for row in table["rows"]}
    wanted = [name for name in series if not drawing.rows or name in drawing.rows]
    for at, name in enumerate(wanted):
        look = style.line(at)
        points = [
            (x, cell["ours"], cell["spread"] or 0.0, cell["paper"])
            for x, cell in zip(places, series[name], strict=True)
        ]
        there = [(x, ours, spread) for x, ours, spread, _ in points if ours is not None]
        if there:
            x, ours, spread = zip(*there, strict=True)
            axes.errorbar(x, ours, spread, **look, label=name, capsize=2)
        theirs = [(x, paper) for x, _, _, paper in points if paper is not None]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), color=look["color"], marker="x", markersize=8, linestyle="none")
    if drawing.log:
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_ticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
        for put in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            put(StrMethodFormatter("{x:g}"))
    axes.legend(
        title="crosses: the paper's"
        if any(cell["paper"] is not None for name in wanted for cell in series[name])
        else None
    )
    return figure


def _changes(drawing: Drawing, cells: Cells, table: Mapping[str, Any]) -> Figure:
    """Draw how many devices fare how much better or worse with one row than with another."""
    column = drawing.column or table["columns"][0]["title"]
    first, second = (cells(row, column) for row in drawing.rows)
    values, _, _ = contrast([(1.0, first), (-1.0, second)])
    found = np.array([value for each in values.values() for value in each.values()])
    found = 100 * (np.expm1(found) if first.logs else found)
    figure, axes = _empty(drawing)
    ends = np.quantile(found, [0.005, 0.995])
    edge = max(abs(ends).max(), 1e-6)
    bins = np.linspace(-edge, edge, 41)
    counts, _ = np.histogram(np.clip(found, -edge, edge), bins)
    middle = (bins[1:] + bins[:-1]) / 2
    axes.bar(
        middle, counts, bins[1] - bins[0], color=[style.BLUE if place < 0 else style.VERMILION for place in middle]
    )
    lower = float(np.mean(found < 0))
    axes.set_title(
        f"{drawing.rows[0]} against {drawing.rows[1]}: lower on {100 * lower:.0f} % of {len(found):,} devices"
    )
    axes.axvline(0, color=style.INK, linewidth=0.8)
    if not math.isclose(edge, float(abs(found).max())):
        axes.set_xlabel(f"{drawing.xlabel} (beyond {edge:.0f} % at the edge)")
    return figure
