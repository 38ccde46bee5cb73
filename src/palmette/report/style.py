"""How every plot of Palmette looks: its colours, lines, markers, fonts and sizes, in one place.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. Lines differ in dashes and markers as well, so
that a plot can be read when it is printed in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW, BLACK = "#E69F00", "#56B4E9", "#F0E442", "#000000"
INK, FAINT, PALE, PEACH = "#333333", "#999999", "#dddddd", "#f5d6c0"

Width = Literal["column", "page"]
"""How wide a figure for a paper is: one column of a page with two, or the whole page."""
WIDTHS: Mapping[str, float] = dict(zip(get_args(Width), (3.4, 7.0), strict=True))
DPI = 300  # dots per inch of a figure for a paper, where it is a PNG
TEXT, SMALL = 8.0, 7.0  # points of labels, and of the numbers at axes and in legends
SERIES = 12  # lines of one plot that can be told apart

# What is the same in every file, whatever a user's own settings of matplotlib: fonts that are kept as fonts (TrueType in a
# PDF, text in an SVG), and names inside an SVG that do not change from one writing to the next.
FILES: Mapping[str, Any] = {
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "palmette", "text.usetex": False,
}  # fmt: skip
PAPER: Mapping[str, Any] = {
    **FILES,
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": TEXT, "text.color": INK,
    "axes.labelsize": TEXT, "axes.titlesize": TEXT, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.linewidth": 0.6,
    "axes.unicode_minus": True, "axes.titlelocation": "left", "axes.labelpad": 3.0, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.xmargin": 0.03,
    "grid.color": PALE, "grid.linewidth": 0.5,
    "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "xtick.color": INK, "ytick.color": INK,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.minor.size": 1.5, "ytick.minor.size": 1.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    "legend.fontsize": SMALL, "legend.frameon": False, "legend.handlelength": 2.4, "legend.columnspacing": 1.4,
    "legend.borderaxespad": 0.2, "legend.borderpad": 0.1, "legend.labelspacing": 0.35,
    "lines.linewidth": 1.2, "lines.markersize": 3.6, "hatch.linewidth": 0.5,
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "savefig.transparent": False,
    "savefig.bbox": None, "figure.dpi": 100, "savefig.dpi": "figure",
}  # fmt: skip

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (5, 1.4, 1, 1.4)), (0, (1, 1.2)), (0, (7, 1.4, 1, 1.4, 1, 1.4)))
_LINES = 2  # of a legend that a figure has room for
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_KINDS = {"PM": 0, "TM": 1, "GM": 2}
_WORDS = {
    "PM": "personal model (PM): each device its own",
    "TM": "team model (TM): one for each team",
    "GM": "global model (GM): one for everybody",
}


def settings(chosen: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Hold to some settings of matplotlib, whatever a user's own are: `FILES`, or `PAPER` for a figure."""
    values: Any = dict(chosen)  # its type lists every setting there is
    return rc_context(values)


def colour(kind: str) -> str:
    """Return the colour of a kind of model."""
    return _COLOURS[_place(kind)]


def marker(kind: str) -> str:
    """Return the shape that stands for a kind of model."""
    return _MARKERS[_place(kind)]


def words_of(kind: str) -> str:
    """Say what a kind of model is, for a legend."""
    return _WORDS.get(kind) or f"{kind}: models of tier {kind[2:]}"


def short_words_of(kind: str) -> str:
    """Say what a kind of model is, for a narrow legend."""
    return {"PM": "personal (PM)", "TM": "team (TM)", "GM": "global (GM)"}.get(kind) or f"tier {kind[2:]} ({kind})"


def line_of_kind(kind: str) -> dict[str, Any]:
    """Return colour, dashes and marker of the line that stands for a kind of model."""
    return line(_place(kind))


def _place(kind: str) -> int:
    """Return which look a kind of model has; those of tiers above the teams' come after PM, TM and GM."""
    return _KINDS[kind] if kind in _KINDS else 3 + (int(kind[2:]) - 2) % (len(_COLOURS) - 3)


def line(place: int) -> dict[str, Any]:
    """Return colour, dashes and marker of the line of so many; no two of `SERIES` lines are alike."""
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "marker": _MARKERS[place % len(_MARKERS)],
    }


def shades(count: int) -> list[Any]:
    """Return so many colours from dark to light that colour-blind readers can tell apart."""
    scale = colormaps["viridis"]
    return [scale(0.9 * place / max(1, count - 1)) for place in range(count)]


def plain(text: str, most: int | None = None) -> str:
    """Return a user's text as matplotlib shows it letter by letter: a dollar sign begins no formula, a line stays one line.

    Args:
        text: A name of the user's own.
        most: The letters there is room for; the middle of a longer text is left out.
    """
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    if most is not None and len(text) > most:
        text = f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"
    return text.replace("$", r"\$")


def bare(axes: Axes, *sides: str) -> None:
    """Take away the frame of a panel on some sides, by default above and on the right."""
    for side in sides or ("top", "right"):
        axes.spines[side].set_visible(False)


def key(figure: Figure, shapes: Sequence[Line2D | Any], title: str = "") -> None:
    """Put the legend above all panels, in as many columns as there is room for.

    Args:
        figure: A figure with a constrained layout.
        shapes: What is explained, each with its label.
        title: What all of them have in common.
    """
    if not shapes:
        return
    # In heights of a letter, with the piece of line before and the space behind.
    long = [len(str(shape.get_label())) * 0.58 + 4.6 for shape in shapes]
    room = figure.get_figwidth() * 72 / SMALL
    lines = 1
    while lines < len(long) and sum(max(long[at : at + lines]) for at in range(0, len(long), lines)) > room:
        lines += 1
    columns = -(-len(long) // lines)
    if lines > _LINES:  # what is more is not taken from the panels
        figure.set_figheight(figure.get_figheight() + (lines - _LINES) * 1.4 * SMALL / 72)
    figure.legend(
        handles=list(shapes), loc="outside upper center", ncols=columns, title=title or None, title_fontsize=SMALL
    )
