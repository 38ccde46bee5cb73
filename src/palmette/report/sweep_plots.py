"""The plot of a sweep: its grid as heat maps, and the curves of its points over the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from palmette.report.picture import save
from palmette.report.sheets import is_share, rank
from palmette.report.style import BLUE, bare, plain, shades

_STYLES = ("-", "--", ":", "-.")
_MAPS = 6  # heat maps of one plot


def plot_sweep(summary: Mapping[str, Any], path: Path) -> Path:
    """Draw the grid: a heat map for every kind of model (a curve where one setting varies), and the curves over the rounds.

    Args:
        summary: What a sweep comes to.
        path: The file.
    """
    keys = list(summary["grid"])
    points = [one for one in summary["points"] if one["models"]]
    kinds = sorted({kind for one in points for kind in one["models"]}, key=rank)
    panels = [(kind, rest) for kind in kinds for rest in product(*(summary["grid"][key] for key in keys[2:]))]
    if len(keys) > 2:  # the kind that decided, for every value of the further settings
        panels = [panel for panel in panels if panel[0] == summary["by"]]
    panels = panels[:_MAPS]
    figure = Figure(figsize=(max(7.5, 3.1 * len(panels)), 7.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.05))
    above, below = halves
    for axes, (kind, rest) in zip(above.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        chosen = [one for one in points if tuple(one["settings"][key] for key in keys[2:]) == rest]
        (_heat if len(keys) > 1 else _curve)(axes, chosen, summary, kind)
        more = "".join(f", {key} = {value}" for key, value in zip(keys[2:], rest, strict=True))
        axes.set_title(plain(f"{kind}{more}"), fontsize=10, fontweight="bold")
    _rounds(below.subplots(1, 1), points, summary)
    what = f"{summary['methods'][-1]['algorithm']}: validation {summary['metric']}"
    seeds = f"mean of {len(summary['seeds'])} seeds" if len(summary["seeds"]) > 1 else "one seed"
    figure.suptitle(plain(f"{what}, {seeds}"), fontsize=11)
    return save(figure, path)


def _heat(axes: Any, points: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], kind: str) -> None:
    rows, columns = list(summary["grid"])[:2]
    ys, xs = summary["grid"][rows], summary["grid"][columns]
    cells = np.full((len(ys), len(xs)), math.nan)
    for one in points:
        if kind in one["models"]:
            place = ys.index(one["settings"][rows]), xs.index(one["settings"][columns])
            cells[place] = one["models"][kind]["mean"]
    lower = summary["better"] == "lower"
    flat = np.nanmax(cells) == np.nanmin(cells) if not np.isnan(cells).all() else True
    # Where all points are alike, a light colour says so.
    axes.imshow(cells, cmap="Greys" if flat else "viridis_r" if lower else "viridis", aspect="auto")
    if not np.isnan(cells).all():
        best = np.unravel_index(np.nanargmin(cells) if lower else np.nanargmax(cells), cells.shape)
        low, high = np.nanmin(cells), np.nanmax(cells)
        for (y, x), value in np.ndenumerate(cells):
            dark = (value - low) < 0.6 * (high - low) if not lower else (high - value) < 0.6 * (high - low)
            told = "diverged" if math.isnan(value) else _told(float(value), summary["metric"])
            star = " *" if (y, x) == best else ""
            axes.text(x, y, told + star, ha="center", va="center", fontsize=8.5, color="white" if dark else "black",
                      fontweight="bold" if star else "normal")  # fmt: skip
    axes.set_xticks(range(len(xs)), [plain(f"{value}") for value in xs], fontsize=8.5)
    axes.set_yticks(range(len(ys)), [plain(f"{value}") for value in ys], fontsize=8.5)
    axes.set_xlabel(columns, fontsize=9)
    axes.set_ylabel(rows, fontsize=9)
    axes.tick_params(length=0)


def _curve(axes: Any, points: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], kind: str) -> None:
    (key,) = summary["grid"]
    found = [(one["settings"][key], one["models"][kind]) for one in points if kind in one["models"]]
    means = [model["mean"] for _, model in found]
    spreads = [0.0 if math.isnan(model["spread"] or math.nan) else model["spread"] for _, model in found]
    axes.errorbar(range(len(found)), means, spreads, color=BLUE, marker="o", capsize=3)
    axes.set_xticks(range(len(found)), [plain(str(value)) for value, _ in found], fontsize=8.5)
    axes.set_xlabel(key, fontsize=9)
    _light(axes, summary)


def _rounds(axes: Any, points: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draw the curves of all points: the colour is the first setting, the kind of line the second."""
    keys, kind = list(summary["grid"]), summary["by"]
    firsts = summary["grid"][keys[0]]
    colours = dict(zip(map(str, firsts), shades(len(firsts)), strict=True))
    for one in points:
        model = one["models"].get(kind) or one["models"]["PM"]
        rounds = [int(round_) for round_ in model["curve"]]
        style = "-"
        if len(keys) > 1:
            style = _STYLES[summary["grid"][keys[1]].index(one["settings"][keys[1]]) % len(_STYLES)]
        label = plain(", ".join(f"{key}={value}" for key, value in one["settings"].items()))
        axes.plot(rounds, list(model["curve"].values()), style, color=colours[str(one["settings"][keys[0]])],
                  linewidth=1.4, label=label)  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("global round", fontsize=9)
    drawn = any("curve_on" in model for one in points for model in one["models"].values())
    who = "\n(a sample of the devices)" if drawn else ""
    axes.set_ylabel(f"{kind} validation {summary['metric']}{who}", fontsize=9)
    _light(axes, summary)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1 + len(points) // 16)


def _light(axes: Any, summary: Mapping[str, Any]) -> None:
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=8.5)
    if is_share(summary["metric"]):
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
    bare(axes)


def _told(value: float, metric: str) -> str:
    return f"{100 * value:.1f}" if is_share(metric) else f"{value:.3g}"
