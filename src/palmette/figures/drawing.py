"""What the kinds of figures have in common: an empty figure of the right size, its axes, and its numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from palmette.figures.lines import Choice, Line
from palmette.protocol import ModelKind
from palmette.report import style
from palmette.report.sheets import is_share

_LABEL = 28  # letters of a label in a legend
_SCREEN = 100  # dots per inch in a notebook
_MARKS = 7  # markers along one line


@dataclass(eq=False)
class Drawn:
    """A figure with its numbers.

    Attributes:
        figure: What was drawn.
        header: The names of the columns of its numbers.
        rows: Its numbers.
        notes: What a reader should be warned of.
        told: What was asked for and is a sentence.
    """

    figure: Figure
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def csv(self) -> str:
        """Return the numbers as CSV, each with all its digits; what is not there is empty."""
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(["" if value != value else value for value in row] for row in self.rows)
        return sink.getvalue()


class PaperFigure(Figure):
    """A figure that shows itself as an image in a notebook, also one that never heard of matplotlib."""

    def _repr_png_(self) -> bytes:
        sink = io.BytesIO()
        with style.settings(style.PAPER):
            self.savefig(sink, format="png", dpi=_SCREEN)
        return sink.getvalue()


def sheet(choice: Choice, height: float) -> Figure:
    """Return an empty figure for a paper.

    Args:
        choice: What it is to show; its width is that of a column or of the page.
        height: Inches.
    """
    figure = PaperFigure(figsize=(style.WIDTHS[choice.width], height), dpi=style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0.04, hspace=0.04)  # type: ignore[union-attr,call-arg]
    return figure


def name(line: Line) -> str:
    """Return what a line is called in a legend."""
    return style.plain(line.label, _LABEL)


def seeds_of(lines: Iterable[Line]) -> str:
    """Say how many seeds the lines of a figure are the means of; nothing where each is of one."""
    counts = sorted({len(line.results) for line in lines})
    if counts[-1] == 1:
        return ""
    return f"mean of {counts[0]} seeds" if len(counts) == 1 else f"mean of {counts[0]} to {counts[-1]} seeds"


def looks(chosen: Sequence[tuple[Line, ModelKind]]) -> list[tuple[str, dict[str, Any]]]:
    """Return label and look of every line that is drawn: by kind where they are of one method, else by method."""
    lines = list(dict.fromkeys(line for line, _ in chosen))
    if len(lines) == 1:
        return [(style.short_words_of(kind), style.line_of_kind(kind)) for _, kind in chosen]
    return [(name(line), style.line(lines.index(line))) for line, _ in chosen]


def spaced(count: int, place: int) -> Any:
    """Return where along a line of so many points its markers are: few, and not at the places of the other lines."""
    if count <= _MARKS:
        return None
    step = count // _MARKS + 1
    return (place * step // 4 % step, step)


def handle(label: str, look: dict[str, Any]) -> Line2D:
    """Return an entry of a legend."""
    return Line2D([], [], label=label, **look)


def whole_rounds(axes: Axes) -> None:
    """Number an axis of rounds by whole numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def measure(axis: Any, metric: str) -> None:
    """Write the numbers of a metric along an axis: shares in per cent."""
    if is_share(metric):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}".replace("-", "−")))


def title(choice: Choice) -> str:
    """Return what an axis of a metric is called."""
    name_ = style.plain(choice.metric, _LABEL)
    return name_ if choice.told else f"test {name_}{' (%)' if is_share(choice.metric) else ''}"


def deviation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviation over the first axis; NaN where there is one only."""
    return np.std(values, axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def clipped(low: Any, high: Any, metric: str) -> tuple[Any, Any]:
    """Return a band that does not leave the range of a share."""
    return (np.clip(low, 0, 1), np.clip(high, 0, 1)) if is_share(metric) else (low, high)
