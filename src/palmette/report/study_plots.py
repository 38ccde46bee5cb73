"""The plot of a study: how good the models are, how the methods differ device by device, and, of a sweep, the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from palmette.report.picture import save
from palmette.report.sheets import is_share, rank
from palmette.report.style import FAINT, INK, PALE, bare, colour, marker, plain, words_of


def plot_study(summary: Mapping[str, Any], path: Path) -> Path:
    """Draw a study and write it as PNG, PDF or SVG, by the end of the file's name."""
    from palmette.report.sweep_plots import plot_sweep

    return plot_sweep(summary, path) if summary.get("points") else plot_comparison(summary, path)


def plot_comparison(summary: Mapping[str, Any], path: Path) -> Path:
    """Draw the models of every method, seed by seed, and beside them the paired differences with their intervals.

    Args:
        summary: What a study comes to.
        path: The file.
    """
    methods = [one for one in summary["methods"] if one["models"]]
    lines = [(one, kind) for one in methods for kind in sorted(one["models"], key=rank)]
    paired = [one for one in methods if one.get("difference")]
    figure = Figure(figsize=(9.6, 2.2 + 0.31 * len(lines)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1)) if paired else (figure.subplots(1, 1), None)
    _models(left, lines, summary)
    if right is not None:
        _differences(right, methods, summary)
    kinds = sorted({kind for _, kind in lines}, key=rank)
    shapes = [
        Line2D([], [], color=colour(kind), marker=marker(kind), linestyle="", label=words_of(kind)) for kind in kinds
    ]
    figure.legend(handles=shapes, loc="outside lower center", ncols=len(kinds), fontsize=8, frameon=False)
    return save(figure, path)


def _models(axes: Any, lines: Sequence[tuple[Mapping[str, Any], str]], summary: Mapping[str, Any]) -> None:
    percent, labels = is_share(summary["metric"]), []
    scale = 100 if percent else 1
    for line, (one, kind) in enumerate(lines):
        model = one["models"][kind]
        first = line == 0 or lines[line - 1][0] is not one
        labels.append(f"{plain(one['method'])}   {kind}" if first else kind)
        if first and line:
            axes.axhline(line - 0.5, color=PALE, linewidth=0.8)
        values = [scale * value for value in model["by_seed"].values()]
        axes.scatter(
            values, [line] * len(values), s=20, color=colour(kind), marker=marker(kind), alpha=0.5, linewidths=0
        )
        axes.vlines(scale * model["mean"], line - 0.32, line + 0.32, color=colour(kind), linewidth=2.2)
        axes.text(
            1.015, line, f"{scale * model['mean']:.1f}" if percent else f"{model['mean']:.3g}", va="center", fontsize=8.5,
            transform=axes.get_yaxis_transform(), color=INK,
        )  # fmt: skip
    axes.set_yticks(range(len(lines)), labels, fontsize=9)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel(
        f"test {summary['metric']}{' in %' if percent else ''}; a dot for every seed, a bar for the mean", fontsize=8.5
    )
    _plain(axes)


def _differences(axes: Any, methods: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    percent = is_share(summary["metric"])
    scale = 100 if percent else 1
    axes.axvline(0, color=FAINT, linewidth=1)
    for line, one in enumerate(methods):
        gap = one.get("difference")
        if gap is not None:
            low, high = gap["low"], gap["high"]
            if low is not None and not math.isnan(low):
                axes.hlines(line, scale * low, scale * high, color=colour("PM"), linewidth=2)
            axes.plot(scale * gap["mean"], line, "o", color=colour("PM"), markersize=6)
        elif one["method"] == summary["against"]:
            axes.plot(0, line, "o", color="white", markeredgecolor=FAINT, markersize=6)
        hurt = one["hurt"].get("local")
        if hurt is not None and not math.isnan(hurt):
            axes.text(1.015, line, f"{100 * hurt:.0f} %", va="center", fontsize=8.5, color=INK,
                      transform=axes.get_yaxis_transform())  # fmt: skip
    if summary["reference"]:
        axes.text(1.015, 1.01, "worse than\nlocal", fontsize=7.5, va="bottom", color=INK, transform=axes.transAxes)
    axes.set_yticks(range(len(methods)), [plain(one["method"]) for one in methods], fontsize=9)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_xlabel(
        f"PM of a device: better than with {plain(summary['against'])} by ... {'points' if percent else summary['metric']}\n"
        "(mean over devices and its 95 % interval)",
        fontsize=8.5,
    )
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    bare(axes, "top", "right", "left")
