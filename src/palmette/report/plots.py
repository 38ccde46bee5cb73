"""The plot of several methods on several populations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from palmette.report.numbers import Comparison, Entry
from palmette.report.picture import save
from palmette.report.style import YELLOW, bare, colour, marker, words_of


def plot_comparisons(comparisons: Sequence[Comparison], path: Path, title: str) -> Path:
    """Draw a panel for each population and a line for each kind of model: every seed a dot, and the mean.

    Args:
        comparisons: The populations, all with the same methods.
        path: Where to write the PNG.
        title: What the plot is about.
    """
    entries = comparisons[0].entries
    figure = Figure(figsize=(3.0 + 2.3 * len(comparisons), 1.9 + 0.3 * len(entries)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, fontweight="bold")
    panels = figure.subplots(1, len(comparisons), sharey=True, squeeze=False)[0]
    for axes, comparison in zip(panels, comparisons, strict=True):
        _panel(axes, comparison)
    panels[0].set_yticks(range(len(entries)), [_name(entry) for entry in entries], fontsize=9.5)
    panels[0].set_ylim(len(entries) - 0.4, -0.6)
    kinds = sorted({entry.kind for entry in entries}, key=lambda kind: (kind == "GM", kind != "PM", kind))
    shapes: list[Any] = [
        Line2D([], [], color=colour(kind), marker=marker(kind), linestyle="", label=words_of(kind)) for kind in kinds
    ]
    shapes.append(Patch(color=YELLOW, alpha=0.35, label="the best, and all that are not clearly worse"))
    figure.legend(handles=shapes, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return save(figure, path, hint=f"; the runs are kept in {path.parent}")


def _panel(axes: Any, comparison: Comparison) -> None:
    """Draw one population; a shaded line is the best or not clearly worse."""
    level = comparison.level
    for line, entry in enumerate(comparison.entries):
        ink = colour(entry.kind)
        if entry in level:
            axes.axhspan(line - 0.46, line + 0.46, color=YELLOW, alpha=0.35, linewidth=0)
        axes.scatter(
            entry.values, [line] * len(entry.values), s=22, color=ink, marker=marker(entry.kind), alpha=0.5,
            linewidths=0,
        )  # fmt: skip
        axes.vlines(entry.mean, line - 0.34, line + 0.34, color=ink, linewidth=2.4)
        axes.text(
            1.02, line, f"{100 * entry.mean:.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=9,
            fontweight="bold" if entry in level else "normal",
        )  # fmt: skip
    axes.set_title(comparison.title, fontsize=11)
    axes.set_xlabel("test accuracy", fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.tick_params(axis="x", labelsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    bare(axes, "top", "right", "left")


def _name(entry: Entry) -> str:
    return f"{entry.label.strip()}  {entry.kind}" if entry.label else entry.kind
