"""The figure of the tree: the server in the middle, a ring for every tier, each node coloured by how well its model does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Wedge

from palmette.errors import BadInput
from palmette.figures.drawing import Drawn, clipped, measure, name, sheet, title
from palmette.figures.fields import Field, fields_of
from palmette.figures.lines import Choice, Line, has
from palmette.protocol import ModelKind, model_kind
from palmette.report import style, words
from palmette.report.sheets import is_share

_HEADER = ("method", "tier", "node", "parent", "devices", "model", "metric", "value", "seeds")
_PANELS = {"column": 2, "page": 4}  # side by side
_MOST = 8  # methods of one figure
_CORE = 0.2  # radius of the server's disc, in radii of the whole
_NAME = 16  # letters of a node's name
_LETTER = 0.62  # width of a letter, in heights
_NOTHING = style.PALE  # where there is no number


def draw(lines: Sequence[Line], choice: Choice) -> Drawn:
    """Draw the tree of every method, all in the same colours."""
    if len(choice.models) > 1:
        raise BadInput("the tree is drawn for one kind of models; name one --model, or none for every node's own")
    if len(lines) > _MOST:
        raise BadInput(f"{len(lines)} trees are too many for one figure; choose at most {_MOST} with --method")
    notes: list[str] = []
    trees = [
        (line, kinds, fields_of(line, kinds, choice.metric, notes)) for line, kinds in _chosen(lines, choice, notes)
    ]
    apart = len({_whose(kinds) for _, kinds, _ in trees}) > 1
    columns = min(len(trees), _PANELS[choice.width])
    rows = -(-len(trees) // columns)
    inches = min(style.WIDTHS[choice.width] / columns - 0.1, 3.2)
    figure = sheet(choice, rows * (inches + (0.05 if len(trees) == 1 else 0.2 + 0.12 * apart)) + 0.66)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    values = np.array([field.value for _, _, fields in trees for field in fields])
    scale = _scale(values, choice)
    drawn = Drawn(figure, _HEADER, notes=notes)
    for axes, (line, kinds, fields) in zip(panels, trees, strict=False):
        _panel(axes, fields, scale, choice.metric, inches)
        if len(trees) > 1:
            axes.set_title(
                "\n".join([name(line), *([_whose(kinds)] * apart)]), loc="center", pad=2, fontsize=style.SMALL
            )
        seeds = len(line.results)
        drawn.rows += [
            (line.label, one.tier, one.name, one.parent, one.devices, kinds[one.tier], choice.metric, one.value, seeds)
            for one in fields
        ]
    for axes in panels[len(trees) :]:
        axes.set_axis_off()
    bar = figure.colorbar(scale, ax=list(panels), location="bottom", fraction=0.05, pad=0.02, aspect=34, shrink=0.8)
    bar.outline.set_linewidth(0)
    bar.set_label("\n".join([title(choice), *([] if apart else [_whose(trees[0][1])])]))
    measure(bar.ax.xaxis, choice.metric)
    return drawn


def _chosen(lines: Sequence[Line], choice: Choice, notes: list[str]) -> list[tuple[Line, dict[int, ModelKind]]]:
    """Return which model each tier of every tree is coloured by: the nodes' own where the method has them."""
    found = []
    for line in lines:
        top = line.first.config.make_tree().top
        wanted = choice.models or ("PM",)
        if not has(line, wanted[0], choice.metric):
            notes.append(f"{line.label} has no {choice.metric} of {wanted[0]} and is left out")
            continue
        own = {tier: model_kind(tier, top) for tier in range(top + 1)}
        kinds = {tier: wanted[0] if choice.models or kind not in line.kinds else kind for tier, kind in own.items()}
        found.append((line, kinds))
    if not found:
        raise BadInput(f"there is no tree to draw: {'; '.join(notes)}")
    return found


def _whose(kinds: Mapping[int, ModelKind]) -> str:
    """Say which tiers are coloured by which models, from the middle outwards."""
    top = max(kinds)
    if len(set(kinds.values())) == 1:
        return f"coloured by {kinds[0]}"
    return ", ".join(f"{words.nodes(model_kind(tier, top))} {kinds[tier]}" for tier in range(top, -1, -1))


# -- drawing -----------------------------------------------------------------------------------------------------------


def _scale(values: Any, choice: Choice) -> ScalarMappable:
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = clipped(low - 0.05, high + 0.05, choice.metric)
    return ScalarMappable(Normalize(low, high), colormaps["viridis_r" if choice.lower else "viridis"])


def _panel(axes: Axes, fields: Sequence[Field], scale: ScalarMappable, metric: str, inches: float) -> None:
    """Draw one tree: rings from the server outwards, of equal width."""
    to_rgba: Any = scale.to_rgba  # which is said to take arrays only
    tiers = sorted({field.tier for field in fields}, reverse=True)
    width = (1 - _CORE) / max(1, len(tiers) - 1)
    for tier in tiers:
        mine = [field for field in fields if field.tier == tier]
        radius = _CORE + width * tiers.index(tier) if tier != tiers[0] else _CORE
        gap = 0.012 if len(mine) <= 200 else 0.0
        wedges = [
            Wedge((0, 0), radius - (0.012 if tier != tiers[0] else 0), *_angles(one),
                  width=None if tier == tiers[0] else width - 0.012)
            for one in mine
        ]  # fmt: skip
        colours = [_NOTHING if math.isnan(one.value) else to_rgba(one.value) for one in mine]
        line: dict[str, Any] = (
            {"edgecolor": "white", "linewidth": 0.6} if gap else {"edgecolor": colours, "linewidth": 0.15}
        )
        axes.add_collection(PatchCollection(wedges, facecolor=colours, **line))
        if not gap:  # single fields have no edges, so the nodes they belong to get some
            ends = [two.begin for one, two in pairwise(mine) if one.parent != two.parent]
            turns = np.radians([90 - 360 * end for end in [mine[0].begin, *ends]])
            edges = [
                [(reach * np.cos(turn), reach * np.sin(turn)) for reach in (radius - width, radius)] for turn in turns
            ]
            axes.add_collection(LineCollection(edges, colors="white", linewidths=0.7 if len(edges) <= 50 else 0.4))
        points = 72 * inches / 2.02
        middle = (radius - width / 2) * points if tier != tiers[0] else 0.0
        across = (width if tier != tiers[0] else 2 * _CORE) * points
        rooms = [
            Room(one, middle, 2 * math.pi * middle * (one.end - one.begin), across, tint)
            for one, tint in zip(mine, colours, strict=True)
        ]
        _labels(axes, rooms, metric, points)
    axes.set_xlim(-1.01, 1.01)
    axes.set_ylim(-1.01, 1.01)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _angles(field: Field) -> tuple[float, float]:
    """Return where a field begins and ends in degrees: clockwise from the top."""
    return 90 - 360 * field.end, 90 - 360 * field.begin


@dataclass(frozen=True)
class Room:
    """Where a node's text may be.

    Attributes:
        field: The node.
        middle: The radius of the middle of its ring, in points; 0 for the server's disc.
        along: Points along the ring.
        across: Points from its inner to its outer edge.
        tint: The colour of the field.
    """

    field: Field
    middle: float
    along: float
    across: float
    tint: Any

    @property
    def angle(self) -> float:
        """Where the middle of the field is, in degrees."""
        return 90 - 180 * (self.field.begin + self.field.end)

    def turn(self, text: str) -> float | None:
        """Return how a text is to be turned so that it fits, in degrees; ``None`` where it does not."""
        size = style.SMALL - 1
        long = len(text) * _LETTER * size + 3
        if not self.middle:
            return 0.0 if long < self.across else None
        turned = None
        if 1.25 * size < self.along and long < self.across:
            turned = self.angle
        elif 1.3 * size < self.across and long < min(self.along, self.middle):  # a longer one would leave its ring
            turned = self.angle - 90
        return None if turned is None else (turned + 90) % 180 - 90  # never upside down


def _labels(axes: Axes, rooms: Sequence[Room], metric: str, points: float) -> None:
    """Write names and numbers into a ring: what fits into all of its fields, else the numbers that fit.

    Args:
        axes: The panel.
        rooms: The fields of the ring.
        metric: What the numbers are.
        points: Points of the radius of the whole.
    """
    named = [room for room in rooms if room.field.name]
    forms = [[_texts(room.field, metric)[form] for room in named] for form in range(3)]
    fit = [all(room.turn(text) is not None for room, text in zip(named, form, strict=True)) for form in forms]
    chosen = forms[fit.index(True)] if any(fit) else forms[-1]
    for room, text in zip(named, chosen, strict=True):
        turn = room.turn(text)
        if turn is None:
            continue
        x, y = (room.middle / points * side(math.radians(room.angle)) for side in (math.cos, math.sin))
        dark = isinstance(room.tint, tuple) and 0.3 * room.tint[0] + 0.59 * room.tint[1] + 0.11 * room.tint[2] < 0.5
        axes.text(x, y, text, rotation=turn, rotation_mode="anchor", ha="center", va="center", fontsize=style.SMALL - 1,
                  color="white" if dark else "black")  # fmt: skip


def _texts(field: Field, metric: str) -> tuple[str, str, str]:
    """Return what may be written into a field, the longest first."""
    number = "" if math.isnan(field.value) else f"{100 * field.value:.0f}" if is_share(metric) else f"{field.value:.2g}"
    name_ = style.plain(field.name, _NAME)
    return f"{name_} {number}", name_, number
