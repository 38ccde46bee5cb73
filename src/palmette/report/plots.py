"""Plots of several methods side by side, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from palmette.report import words
from palmette.report.numbers import Method, by_node
from palmette.report.picture import save

# Okabe and Ito's palette without its yellow, which is too faint for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_methods(methods: Sequence[Method], path: Path, title: str) -> Path:
    """Draw how each method's main model learned, and how it serves every single device.

    Args:
        methods: The methods; the model each is known for is drawn.
        path: Where to write the PNG.
        title: What the plot is about.
    """
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, fontweight="bold")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.05))
    _curves(left, methods)
    _devices(right, methods)
    return save(figure, path, hint=f"; the runs are kept in {path.parent}")


def _curves(axes: Any, methods: Sequence[Method]) -> None:
    """Draw accuracy over the gradient steps each device took."""
    for number, method in enumerate(methods):
        result = method.result
        curve = result.curve(method.main)
        each = result.timings["device_steps"] / result.config.rounds / len(by_node(result, method.main, 0))
        begun = {round_: value for round_, value in curve.items() if round_ > 0}
        axes.plot(
            [round_ * each for round_ in begun],
            list(begun.values()),
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markevery=max(1, len(begun) // 8),
            markersize=5,
            linewidth=1.6,
        )
    axes.set_title("How they learned (colours as on the right)", fontsize=11)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: f"{steps:,.0f}"))
    axes.set_xlabel("gradient steps per device (fine-tuning not counted)")
    axes.set_ylabel("test accuracy, all devices")
    axes.set_ylim(_floor(axes.dataLim.ymin), 1.02)
    _tidy(axes)


def _devices(axes: Any, methods: Sequence[Method]) -> None:
    """Draw every device as a dot, the mean over devices as a line, method by method; the labels serve both panels."""
    labels, lowest = [], 1.0
    for number, method in enumerate(methods):
        kind = method.main
        values = np.array([value for value in by_node(method.result, kind, 0).values() if not np.isnan(value)])
        lowest = min(lowest, float(values.min()))
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        axes.scatter(values, number + _spread(values), s=16, color=colour, marker=marker, alpha=0.55, linewidths=0)
        axes.vlines(values.mean(), number - 0.36, number + 0.36, color=colour, linewidth=2.6)
        axes.text(1.03, number, f"{values.mean():.3f}", va="center", fontsize=9.5, color="#222222")
        labels.append(f"{method.label}\n{words.models(kind)}")
    axes.set_yticks(range(len(labels)), labels)
    for number, text in enumerate(axes.get_yticklabels()):
        text.set_color(COLOURS[number % len(COLOURS)])
        text.set_fontweight("bold")
        text.set_fontsize(9)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(_floor(lowest), 1.02)
    axes.set_title("Every device after the last round (line and number: mean)", fontsize=11)
    axes.set_xlabel("test accuracy of one device")
    _tidy(axes)


def _spread(values: Any) -> Any:
    """Return how far to move each dot up or down so that equal values do not hide each other."""
    place = np.zeros(len(values))
    rounded = np.round(values, 2)
    for value in np.unique(rounded):
        same = np.flatnonzero(rounded == value)
        step = min(0.09, 0.64 / max(1, len(same) - 1))
        place[same] = (np.arange(len(same)) - (len(same) - 1) / 2) * step
    return place


def _floor(lowest: float) -> float:
    """Return where an axis of accuracies begins: the tenth below the lowest value."""
    return max(0.0, float(np.floor(10 * lowest - 0.3)) / 10)


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
