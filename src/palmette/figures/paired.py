"""The figure of paired differences: how much better or worse each device fares with one method than with another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from palmette.errors import BadInput, nearest
from palmette.figures.drawing import Drawn, handle, measure, sheet, spaced
from palmette.figures.lines import Choice, Line, fitting
from palmette.report import style
from palmette.report.sheets import is_share
from palmette.runs.fingerprint import kept_in, of_another_population
from palmette.runs.folder import Folder
from palmette.studies.statistics import LEVEL, Difference, Values, difference, gaps, hurt
from palmette.studies.summary import of_devices, teams_of

_HEADER = ("method", "against", "model", "metric", "what", "seed", "device", "value")
_LABEL = 20  # letters of a method's name


@dataclass(frozen=True, eq=False)
class Pair:
    """One method beside the one it is compared with.

    Attributes:
        line: The method.
        gaps: By seed and device, how much better it is.
        found: Their mean with its interval.
        hurt: The share of the devices that fare worse.
    """

    line: Line
    gaps: Values
    found: Difference
    hurt: float


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw the differences of all devices from the most hurt to the most helped, with their mean and its interval."""
    notes: list[str] = []
    if len(choice.models) > 1:
        raise BadInput("paired differences are of one kind of models; name one --model")
    against = _against(lines, choice)
    others = [line for line, _ in fitting(lines, choice, notes, every=False) if line is not against]
    if against.label in " ".join(note for note in notes if note.startswith(f"{against.label} has no")) or not others:
        raise BadInput(
            f"paired differences need two methods with such models; {'; '.join(notes) or 'give two runs, or a study'}"
        )
    kind = choice.models[0] if choice.models else "PM"
    pairs = [_pair(line, against, kind, choice) for line in others]
    figure = sheet(choice, 2.5)
    axes = figure.subplots()
    drawn = Drawn(figure, _HEADER, notes=notes)
    axes.axhline(0, color=style.INK, linewidth=0.8, zorder=2)
    shapes: list[Any] = []
    for place, pair in enumerate(pairs):
        look = style.line(place)
        values = np.sort([value for each in pair.gaps.values() for value in each.values()])
        share = (np.arange(len(values)) + 0.5) / len(values)
        axes.plot(share, values, **look, markevery=spaced(len(values), place), zorder=3)
        shapes.append(handle(_told(pair, choice.metric), look))
        if len(pairs) == 1:
            shapes += _areas(axes, share, values)
        _mean(axes, pair, look, place)
        drawn.rows += _rows(pair, against, kind, choice.metric)
    axes.set_xlim(-0.02, 1.06 + 0.035 * len(pairs))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    seeds = max(pair.found.seeds for pair in pairs)
    axes.set_xlabel(
        "devices, from the most hurt (%)" if seeds == 1 else f"devices of {seeds} seeds, from the most hurt (%)"
    )
    unit = "points" if is_share(choice.metric) else style.plain(choice.metric, _LABEL)
    axes.set_ylabel(f"{kind} better than with\n{style.plain(against.label, _LABEL)} ({unit})")
    measure(axes.yaxis, choice.metric)
    style.key(figure, shapes, f"on the right: mean and {100 * LEVEL:.0f} % interval")
    return drawn


def _against(lines: Sequence[Line], choice: Choice) -> Line:
    if len(lines) < 2:
        raise BadInput(
            f"paired differences need two methods; there is {lines[0].label} only: give two runs, or a study"
        )
    if choice.against is None:
        return lines[0]
    known = [line.label for line in lines]
    if choice.against not in known:
        raise BadInput(f"--against {choice.against}: it is not among what was given{nearest(choice.against, known)}")
    return lines[known.index(choice.against)]


def _pair(line: Line, against: Line, kind: Any, choice: Choice) -> Pair:
    common = sorted(set(line.results) & set(against.results))
    if not common:
        raise BadInput(
            f"{line.label} and {against.label} have no seed in common, so no two of their devices are a pair; run both with "
            "the same seed"
        )
    for seed in common:
        one, other = line.results[seed], against.results[seed]
        parts = (kept_in(Folder(each.folder)).parts for each in (one, other))
        if differ := of_another_population(*parts):
            raise BadInput(
                f"{one.folder} is of another population than {other.folder}: {', '.join(differ)} differ, so no two of their "
                "devices are a pair"
            )
    mine, theirs = (of_devices(each.results, kind, choice.metric) for each in (line, against))
    teams = teams_of({line.label: line.results})
    found = difference(mine, theirs, teams, lower=choice.lower)
    if not found.devices:
        raise BadInput(f"{line.label} and {against.label} list no {choice.metric} of a device that both have")
    return Pair(line, gaps(mine, theirs, lower=choice.lower), found, hurt(mine, theirs, lower=choice.lower))


def _areas(axes: Any, share: Any, values: Any) -> list[Patch]:
    """Shade who is hurt and who is helped; hatched as well, so that it can be told in grey."""
    looks: dict[str, dict[str, Any]] = {
        "fares better": {"color": style.BLUE, "alpha": 0.16, "linewidth": 0},
        "fares worse": {"facecolor": style.PEACH, "edgecolor": style.VERMILION, "hatch": "////", "linewidth": 0},
    }
    better, worse = looks.values()
    axes.fill_between(share, 0, values, where=values > 0, interpolate=True, zorder=1, **better)
    axes.fill_between(share, 0, values, where=values < 0, interpolate=True, zorder=1, **worse)
    there = [bool((values > 0).any()), bool((values < 0).any())]
    return [Patch(label=label, **look) for (label, look), one in zip(looks.items(), there, strict=True) if one]


def _mean(axes: Any, pair: Pair, look: dict[str, Any], place: int) -> None:
    """Draw the mean with its interval to the right of all devices."""
    across = 1.045 + 0.035 * place
    if not np.isnan(pair.found.low):
        axes.vlines(across, pair.found.low, pair.found.high, color=look["color"], linewidth=1.4, zorder=4)
    axes.plot(across, pair.found.mean, marker=look["marker"], color=look["color"], markersize=4.2, zorder=5)


def _told(pair: Pair, metric: str) -> str:
    """Write the mean difference, its interval and the share of the devices that are hurt."""
    percent = is_share(metric)
    scale, digits = (100, ".1f") if percent else (1, ".3g")
    mean = f"{scale * pair.found.mean:+{digits}}".replace("-", "−")
    interval = ""
    if not np.isnan(pair.found.low):
        ends = (f"{scale * end:+{digits}}".replace("-", "−") for end in (pair.found.low, pair.found.high))
        interval = f" ({' to '.join(ends)})"
    return f"{style.plain(pair.line.label, _LABEL)}: {mean}{interval}, {100 * pair.hurt:.0f} % hurt"


def _rows(pair: Pair, against: Line, kind: str, metric: str) -> list[tuple[Any, ...]]:
    about, found = (pair.line.label, against.label, kind, metric), pair.found
    totals = {"mean": found.mean, "low": found.low, "high": found.high, "hurt": pair.hurt}
    each = [
        (*about, "difference", seed, device, value) for seed, one in pair.gaps.items() for device, value in one.items()
    ]
    return [*((*about, what, "", "", value) for what, value in totals.items()), *each]
