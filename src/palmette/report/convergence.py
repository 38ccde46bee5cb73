"""The plot of a measured convergence beside the theorem's bound."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from palmette.report import style
from palmette.report.picture import save
from palmette.theory import Check, Measured

_MEASURED, _BOUND = style.BLUE, style.VERMILION
_DECADE = 10
_MARKED = 40  # rounds up to which every one gets a marker


def draw(measured: Measured, found: Check, path: Path) -> None:
    """Draw what the theorem bounds over the rounds, beside the bound, on a log axis where that helps, and save it as PNG."""
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    _lines(axes, measured)
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if high > _DECADE * low:  # less would leave a log axis without a number
        axes.set_yscale("log")
    many = measured.iterations
    axes.set_xlabel(f"global round, of {many} iterations each" if many > 1 else "global round")
    axes.set_ylabel(_folded(measured.quantity))
    axes.set_title(style.plain(f"{found.algorithm}: {found.theorem}"), loc="left", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    style.bare(axes)
    save(figure, path)


def _lines(axes: Axes, measured: Measured) -> None:
    rounds, runs = measured.rounds, measured.runs
    marker = "o" if len(rounds) <= _MARKED else None
    label = f"measured, mean of {len(runs)} seeds" if len(runs) > 1 else "measured"
    for run in runs if len(runs) > 1 else []:
        axes.plot(rounds, run, color=_MEASURED, alpha=0.25, linewidth=0.8)
    axes.plot(rounds, measured.values, color=_MEASURED, marker=marker, markersize=3.5, label=label)
    if measured.bound is None:
        axes.plot([], [], " ", label="no bound applies to these settings")
        return
    axes.plot(rounds, measured.bound, color=_BOUND, linestyle="--", label="bound of the theorem")
    if measured.ball:
        axes.axhline(measured.ball, color=_BOUND, linewidth=0.9, linestyle=":", label="what the bound falls to")


def _folded(text: str) -> str:
    """Break a long label at the blank nearest to its middle."""
    blanks = [i for i, letter in enumerate(text) if letter == " "]
    if len(text) < 40 or not blanks:
        return text
    middle = min(blanks, key=lambda i: abs(i - len(text) // 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"
