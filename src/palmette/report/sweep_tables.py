"""A sweep on a terminal: its grid as heat maps, and what every seed chose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib import colormaps
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.guards.screen import Text
from palmette.report.sheets import is_share, number, with_spread

_MAPS = 6  # heat maps that are shown
_WIDEST = 8  # columns of a heat map that fits a terminal


def grid_report(summary: Mapping[str, Any]) -> RenderableType:
    """Show the grid of a sweep by the models that decided, and the settings every seed chose."""
    keys, kind = list(summary["grid"]), summary["by"]
    points = [one for one in summary["points"] if one["models"]]
    parts: list[RenderableType] = []
    if points:
        rests = list(product(*(summary["grid"][key] for key in keys[2:])))
        for rest in rests[:_MAPS]:
            chosen = [one for one in points if tuple(one["settings"][key] for key in keys[2:]) == rest]
            if not chosen:
                continue
            more = "".join(f", {key} = {value}" for key, value in zip(keys[2:], rest, strict=True))
            title = f"validation {summary['metric']}{' in %' if is_share(summary['metric']) else ''} of {kind}{more}"
            parts += [Padding(Text(title, style="bold"), (1, 0, 0, 0)), heat_map(chosen, summary)]
        if len(rests) > _MAPS:
            parts.append(Text(f"and {len(rests) - _MAPS} more of these; results.json has all", style="dim"))
        spread = "mean over the seeds" if len(summary["seeds"]) > 1 else "one seed"
        parts.append(
            Text(f"Measured on validation samples, never on test samples; {spread}. * is the best.", style="dim")
        )
    for line in chosen_lines(summary):
        parts.append(Text(line))
    return Group(*parts)


def chosen_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say which settings every seed chose."""
    metric = summary["metric"]
    for one in summary.get("chosen", []):
        settings = ", ".join(f"{key}={value}" for key, value in one["settings"].items())
        score = number(one["score"], is_share(metric)) + (" %" if is_share(metric) else "")
        yield f"Seed {one['seed']} chose {settings} ({summary['by']} {score} on its validation samples)."


def heat_map(points: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Table:
    """Show points of a grid as a table whose colours go with the numbers.

    Args:
        points: The points; all but the first two settings are the same.
        summary: The sweep.
    """
    keys, kind, percent = list(summary["grid"])[:2], summary["by"], is_share(summary["metric"])
    rows = summary["grid"][keys[0]]
    columns = summary["grid"][keys[1]] if len(keys) > 1 else [None]
    models = {
        (one["settings"][keys[0]], one["settings"][keys[1]] if len(keys) > 1 else None): _model(one, kind)
        for one in points
    }
    means = [model["mean"] for model in models.values()]
    low, high = min(means), max(means)
    lower = summary["better"] == "lower"
    best = low if lower else high
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(Text(f"{keys[0]} \\ {keys[1]}" if len(keys) > 1 else keys[0]), no_wrap=True)
    for value in columns[:_WIDEST]:
        table.add_column(Text("" if value is None else str(value)), justify="center", no_wrap=True)
    for row in rows:
        cells = [_cell(models.get((row, column)), low, high, best, lower, percent) for column in columns[:_WIDEST]]
        table.add_row(Text(str(row)), *cells)
    if len(columns) > _WIDEST:
        table.caption = f"and {len(columns) - _WIDEST} more values of {keys[1]}; results.json has all"
    return table


def _model(point: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = point["models"].get(kind) or point["models"]["PM"]
    return found


def _cell(model: Mapping[str, Any] | None, low: float, high: float, best: float, lower: bool, percent: bool) -> Text:
    if model is None or math.isnan(model["mean"]):
        return Text("diverged", style="red")
    place = (model["mean"] - low) / (high - low) if high > low else 1.0
    red, green, blue, _ = (round(255 * part) for part in colormaps["viridis"](1 - place if lower else place))
    ink = "white" if (1 - place if lower else place) < 0.6 else "black"
    star = "*" if model["mean"] == best else " "
    text = f" {with_spread(model, percent)}{star}"
    return Text(text, style=f"{'bold ' if star == '*' else ''}{ink} on rgb({red},{green},{blue})")
