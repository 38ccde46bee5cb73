"""The figure of how a metric is distributed over devices, with the worst tenth of them marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palmette.errors import BadInput
from palmette.figures.drawing import Drawn, handle, looks, measure, sheet, spaced, title
from palmette.figures.lines import Choice, Line, fitting
from palmette.protocol import ModelKind
from palmette.report import style
from palmette.report.numbers import by_node

_HEADER = ("method", "model", "metric", "seed", "device", "value")
_TENTH = 0.1


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw, for every value, the share of the devices that fare no better; devices of all seeds count alike."""
    notes: list[str] = []
    chosen = fitting(lines, choice, notes, every=True)
    if len(lines) > 1 and len({kind for _, kind in chosen}) > 1:
        raise BadInput("the devices of several methods are drawn for one kind of models; name one --model")
    figure = sheet(choice, 2.4)
    axes = figure.subplots()
    drawn = Drawn(figure, _HEADER, notes=notes)
    shapes = []
    for place, ((line, kind), (label, look)) in enumerate(zip(chosen, looks(chosen), strict=True)):
        values = _values(line, kind, choice.metric, drawn)
        # From the worst: those devices are at the bottom, whether a low or a high number is bad.
        values = np.sort(values)[::-1] if choice.lower else np.sort(values)
        share = np.arange(1, len(values) + 1) / len(values)
        axes.step(
            np.concatenate([values[:1], values]), np.concatenate([[0.0], share]), where="post", **look,
            markevery=spaced(len(values) + 1, place),
        )  # fmt: skip
        worst = values[: max(1, len(values) // 10)].mean()  # as in every table
        axes.plot(
            worst,
            _TENTH / 2,
            marker="|",
            markersize=8,
            markeredgewidth=1.8,
            color=look["color"],
            zorder=4,
            clip_on=False,
        )
        shapes.append(handle(label, look))
    axes.axhspan(0, _TENTH, color=style.PALE, alpha=0.55, linewidth=0, zorder=0)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.1, 0.25, 0.5, 0.75, 1], ["0", "10", "25", "50", "75", "100"])
    axes.set_ylabel("devices that fare no better (%)")
    axes.set_xlabel(_across(choice, chosen, lines))
    measure(axes.xaxis, choice.metric)
    if choice.lower:
        axes.invert_xaxis()
    seeds = max(len(line.results) for line, _ in chosen)
    told = f"devices of {seeds} seeds; " if seeds > 1 else ""
    style.key(figure, shapes, f"{told}shaded: the worst tenth; tick: its mean")
    return drawn


def _across(choice: Choice, chosen: Sequence[tuple[Line, ModelKind]], lines: Sequence[Line]) -> str:
    which = f" with its {chosen[0][1]}" if len(lines) > 1 else ""
    return f"{title(choice)} of a device{which}"


def _values(line: Line, kind: ModelKind, metric: str, drawn: Drawn) -> Any:
    """Return the number of every device after the last round, of all seeds, and keep it with the numbers."""
    found: list[float] = []
    for seed, result in line.results.items():
        each = by_node(result, kind, 0, metric)
        drawn.rows += [(line.label, kind, metric, seed, device, value) for device, value in each.items()]
        found += each.values()
    values = np.array(found)
    known = values[~np.isnan(values)]
    if not len(known):
        raise BadInput(
            f"{line.label} lists no {metric} of single devices; of more than 1,000 devices they are listed when a run ends"
        )
    if len(known) < len(values):
        drawn.notes.append(f"{line.label}: {len(values) - len(known):,} devices without test samples are left out")
    return known
