"""The figure of what a metric costs in traffic: over the bytes to the server, and the bytes on every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from palmette.errors import BadInput
from palmette.figures.convergence import curve_of
from palmette.figures.drawing import Drawn, handle, looks, measure, seeds_of, sheet, spaced, title
from palmette.figures.lines import Choice, Line, fitting
from palmette.report import style, words
from palmette.report.numbers import top
from palmette.runs import Result

_HEADER = ("method", "model", "metric", "round", "link", "bytes", "value", "seeds")
_DECADE = 10
_NAME = 16  # letters of a method's name beside its bars
_HATCHES = (None, "////", "....", "xxxx", "----")


@dataclass(frozen=True, eq=False)
class Sent:
    """The traffic of one method.

    Attributes:
        rounds: The rounds that were measured.
        value: The metric after each of them.
        links: By the tier of the parents that ask on a link, the bytes both ways until each of those rounds; the mean of the
            seeds.
        flat: Whether there is one link only, from the server to the devices.
    """

    rounds: list[int]
    value: Any
    links: dict[int, Any]
    flat: bool


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw a metric over the bytes to the server so far, and beside it the bytes on every link at the end."""
    notes: list[str] = []
    chosen = fitting(lines, choice, notes, every=True)
    if len(lines) > 1 and len({kind for _, kind in chosen}) > 1:
        raise BadInput("the traffic of several methods is drawn for one kind of models; name one --model")
    methods = list(dict.fromkeys(line for line, _ in chosen))
    page = choice.width == "page"
    bars = 0.75 + 0.14 * sum(len(_tiers(line.first)) for line in methods) + 0.12 * len(methods)
    figure = sheet(choice, 2.5 if page else 2.3 + bars)
    ratios = {"width_ratios": (1.35, 1)} if page else {"height_ratios": (2.0, bars)}
    left, right = figure.subplots(*((1, 2) if page else (2, 1)), gridspec_kw=ratios)
    drawn = Drawn(figure, _HEADER, notes=notes)
    shapes, silent, sent = [], [], {}
    for place, ((line, kind), (label, look)) in enumerate(zip(chosen, looks(chosen), strict=True)):
        one = sent[line] = _sent(line, kind, choice.metric)
        upper = one.links[max(one.links)]
        if upper[-1] > 0:
            begun = upper > 0
            across, value = upper[begun], one.value[begun]
            left.plot(across, value, **look, markevery=spaced(len(across), place), zorder=3)
            shapes.append(handle(label, look))
        else:
            silent.append((one.value[-1], look))
            shapes.append(handle(f"{label}, sends nothing", {**look, "marker": ""}))
        drawn.rows += _rows(line, kind, choice.metric, one)
    for value, look in silent:
        left.axhline(value, **{**look, "marker": ""}, zorder=2)
    _bytes_axis(left.xaxis, left, [upper for line in methods for upper in sent[line].links[max(sent[line].links)]])
    left.set_xlabel("bytes to and from the server so far")
    left.set_ylabel((f"{chosen[0][1]}: " if len(methods) > 1 else "") + title(choice))
    measure(left.yaxis, choice.metric)
    _bars(right, [(line, sent[line]) for line in methods])
    style.key(figure, shapes, seeds_of(methods))
    return drawn


def _bytes_axis(axis: Any, axes: Axes, values: Sequence[float]) -> None:
    """Write bytes along an axis, on a log scale where they differ by more than a power of ten."""
    there = [value for value in values if value > 0]
    if there and max(there) > _DECADE * min(there):
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(count: float) -> str:
    """Write bytes at a tick, without the digits that say nothing: 10 MB, not 10.0 MB."""
    number, _, unit = words.size(round(count)).partition(" ")
    return f"{float(number):g} {unit}" if count > 0 else "0"


def _bars(axes: Axes, sent: Sequence[tuple[Line, Sent]]) -> None:
    """Draw the bytes on every link, the one to the server first, for each method."""
    tiers = sorted({tier for _, one in sent for tier in one.links}, reverse=True)
    shades = style.shades(max(2, len(tiers)))
    most = max(float(one.links[tier][-1]) for _, one in sent for tier in one.links)
    place, places = 0.0, []
    for _, one in sent:
        mine = [tier for tier in tiers if tier in one.links]
        places.append(place + (len(mine) - 1) / 2)
        for tier in mine:
            total, look = float(one.links[tier][-1]), tiers.index(tier)
            bar = {"color": shades[look], "hatch": _HATCHES[look % len(_HATCHES)], "edgecolor": "white", "linewidth": 0}
            axes.barh(place, total, height=0.84, **bar)
            told = words.size(round(total)) if total else "nothing"
            axes.annotate(
                told, (total, place), (3, -0.5), textcoords="offset points", va="center", fontsize=style.SMALL - 1
            )
            place += 1
        place += 0.7
    names = ["to the server", *(words.link_name(tier, max(tiers), flat=False) for tier in tiers[1:])]
    shapes = [
        Patch(facecolor=shade, hatch=_HATCHES[look % len(_HATCHES)], edgecolor="white", linewidth=0, label=link)
        for look, (shade, link) in enumerate(zip(shades, names, strict=False))
    ]
    axes.legend(
        handles=shapes, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=min(3, len(shapes)), handlelength=1.4
    )
    axes.set_yticks(places, [style.plain(line.label, _NAME) for line, _ in sent])
    axes.set_ylim(place - 0.9, -0.7)
    axes.set_xlim(0, 1.25 * most or 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlabel("sent in one run, both ways")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _tiers(result: Result) -> list[int]:
    return sorted(set(result.traffic["tier"].to_pylist())) if result.traffic.num_columns else []


def _sent(line: Line, kind: Any, metric: str) -> Sent:
    curve = curve_of(line, kind, metric, devices=False)
    links: dict[int, list[Any]] = {}
    for result in line.results.values():
        if not _tiers(result):
            raise BadInput(f"the run in {result.folder} has counted no traffic yet; draw it when a round is done")
        rounds = result.traffic["round"].to_numpy()
        tiers = result.traffic["tier"].to_numpy()
        both = result.traffic["bytes_up"].to_numpy() + result.traffic["bytes_down"].to_numpy()
        for tier in _tiers(result):
            # The traffic of round r is counted under r - 1, the rounds that were done when it began.
            mine, when = both[tiers == tier], rounds[tiers == tier]
            links.setdefault(tier, []).append([float(mine[when < done].sum()) for done in curve.rounds])
    server = top(line.first)
    return Sent(
        curve.rounds, curve.value, {tier: np.mean(one, 0) for tier, one in links.items()}, set(links) == {server}
    )


def _rows(line: Line, kind: str, metric: str, sent: Sent) -> list[tuple[Any, ...]]:
    server, seeds = max(sent.links), len(line.results)
    return [
        (line.label, kind, metric, round_, words.link_name(tier, server, flat=sent.flat), total, value, seeds)
        for tier, totals in sorted(sent.links.items(), reverse=True)
        for round_, total, value in zip(sent.rounds, totals.tolist(), sent.value.tolist(), strict=True)
    ]
