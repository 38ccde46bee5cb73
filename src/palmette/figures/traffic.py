"""The figure of what a metric costs in traffic: over the bytes to the server, and the bytes on every link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from palmette.figures.costs import (
    Cost,
    chosen_of,
    cost_of,
    legend_of_target,
    mark_target,
    reached_at,
    scaled,
    seconds_at,
    short_size,
    target_line,
    tiers_of,
    told_of,
)
from palmette.figures.drawing import Drawn, handle, looks, measure, seeds_of, sheet, spaced, title
from palmette.figures.lines import Choice, Line
from palmette.report import style, words

_HEADER = ("method", "model", "metric", "round", "link", "bytes", "value", "seeds", "seconds", "target")
_NAME = 16  # letters of a method's name beside its bars
_HATCHES = (None, "////", "....", "xxxx", "----")


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw a metric over the bytes to the server so far, and beside it the bytes on every link at the end."""
    notes: list[str] = []
    chosen = chosen_of(lines, choice, notes)
    methods = list(dict.fromkeys(line for line, _ in chosen))
    page = choice.width == "page"
    bars = 0.75 + 0.14 * sum(len(tiers_of(line.first)) for line in methods) + 0.12 * len(methods)
    figure = sheet(choice, 2.5 if page else 2.3 + bars)
    ratios = {"width_ratios": (1.35, 1)} if page else {"height_ratios": (2.0, bars)}
    left, right = figure.subplots(*((1, 2) if page else (2, 1)), gridspec_kw=ratios)
    drawn = Drawn(figure, _HEADER, notes=notes)
    shapes, silent, found = [], [], []
    for place, ((line, kind), (label, look)) in enumerate(zip(chosen, looks(chosen), strict=True)):
        cost = cost_of(line, kind, choice)
        found.append((line, kind, cost))
        if cost.upper[-1] > 0:
            begun = cost.upper > 0
            across, value = cost.upper[begun], cost.value[begun]
            left.plot(across, value, **look, markevery=spaced(len(across), place), zorder=3)
            mark_target(left, cost.upper, cost, look)
            shapes.append(handle(label, look))
        else:
            silent.append((cost.value[-1], look))
            shapes.append(handle(f"{label}, sends nothing", {**look, "marker": ""}))
        drawn.rows += _rows(line, kind, choice, cost)
    for value, look in silent:
        left.axhline(value, **{**look, "marker": ""}, zorder=2)
    sent = {line: cost for line, _, cost in found}
    scaled(left.xaxis, left, [upper for cost in sent.values() for upper in cost.upper])
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(value)))
    left.set_xlabel("bytes to and from the server so far")
    left.set_ylabel((f"{chosen[0][1]}: " if len(methods) > 1 else "") + title(choice))
    measure(left.yaxis, choice.metric)
    target_line(left, choice)
    _bars(right, list(sent.items()))
    drawn.told += told_of(found, choice)
    style.key(figure, shapes, "; ".join(filter(None, [seeds_of(methods), legend_of_target(choice)])))
    return drawn


def _bars(axes: Axes, sent: Sequence[tuple[Line, Cost]]) -> None:
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(value)))
    axes.set_xlabel("sent in one run, both ways")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _rows(line: Line, kind: str, choice: Choice, cost: Cost) -> list[tuple[Any, ...]]:
    server, seeds = max(cost.links), len(line.results)
    return [
        (
            *(line.label, kind, choice.metric, round_),
            words.link_name(tier, server, flat=cost.flat),
            *(float(cost.links[tier][at]), float(cost.value[at]), seeds),
            *(seconds_at(cost, at), reached_at(cost, at, choice)),
        )
        for tier in sorted(cost.links, reverse=True)
        for at, round_ in enumerate(cost.rounds)
    ]
