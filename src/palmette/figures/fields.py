"""What the figure of a tree shows: every node as a field on the ring of its tier; of very many devices, some together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput
from palmette.figures.lines import Line
from palmette.protocol import ModelKind
from palmette.report.numbers import by_node
from palmette.tree import Tree

_FIELDS = 1000  # of one ring


@dataclass(frozen=True)
class Field:
    """One node as it is drawn, or several devices of one team together.

    Attributes:
        tier: Its tier.
        name: Its name; empty where it stands for several.
        parent: Its parent's name.
        devices: Devices below it, itself one of them if it is one.
        value: Its number; NaN where there is none.
        begin: Where it begins on its ring, as a share of the circle.
        end: Where it ends.
    """

    tier: int
    name: str
    parent: str
    devices: int
    value: float
    begin: float
    end: float


def fields_of(line: Line, kinds: Mapping[int, ModelKind], metric: str, notes: list[str]) -> list[Field]:
    """Return all nodes that are drawn, from the server outwards; of very many devices, some together."""
    tree, values = _values(line, kinds, metric, notes)
    lowest = next(tier for tier in range(tree.tiers) if tree.size(tier) <= _FIELDS)
    sign = -1 if lower_is_better(metric) else 1
    order, size = _ordered(tree, lowest, sign * values[lowest]), tree.size(lowest)
    ends = {lowest: {node: (place / size, (place + 1) / size) for place, node in enumerate(order)}}
    found = []
    for tier in range(lowest, tree.tiers):
        if tier > lowest:
            ends[tier] = {
                node: (ends[tier - 1][children[0]][0], ends[tier - 1][children[-1]][1])
                for node in range(tree.size(tier))
                for children in [sorted(tree.children(tier, node), key=lambda child: ends[tier - 1][child][0])]
            }
        count = np.bincount(tree.ancestors(tier), minlength=tree.size(tier))
        for node, (begin, end) in ends[tier].items():
            above = "" if tier == tree.top else tree.name(tier + 1, int(tree.parents[tier][node]))
            value = values[tier][node]
            found.append(Field(tier, tree.name(tier, node), above, int(count[node]), float(value), begin, end))
    if lowest:
        several = _together(tree, lowest, ends[lowest], sign * values[0], notes, line.label)
        found += [replace(field, value=sign * field.value) for field in several]
    return sorted(found, key=lambda field: (-field.tier, field.begin))


def _ordered(tree: Tree, tier: int, values: Any) -> list[int]:
    """Return the nodes of a tier in the order they are drawn in: devices of one parent from the least value up."""
    nodes = list(range(tree.size(tier)))
    if tier:
        return nodes
    return sorted(nodes, key=lambda node: (int(tree.parents[0][node]), _rank(values[node]), node))


def _rank(value: float) -> float:
    return -math.inf if math.isnan(value) else float(value)


def _together(
    tree: Tree,
    lowest: int,
    ends: Mapping[int, tuple[float, float]],
    values: Any,
    notes: list[str],
    label: str,
) -> list[Field]:
    """Return fields that stand for several devices under one node each, where there is room for two at least."""
    pieces, below = _FIELDS // tree.size(lowest), tree.ancestors(lowest)
    told = f"{label} has {tree.devices:,} devices"
    if pieces < 2:
        notes.append(f"{told}: too many to draw one by one, so the outermost ring is tier {lowest}")
        return []
    found = []
    for node, (begin, end) in ends.items():
        mine = np.sort(values[(below == node)])
        mine = mine[~np.isnan(mine)]
        parts = [part for part in np.array_split(mine, min(pieces, len(mine)) or 1) if len(part)]
        width = (end - begin) / max(1, len(parts))
        above = tree.name(lowest, node)
        found += [
            Field(0, "", above, len(part), float(part.mean()), begin + place * width, begin + (place + 1) * width)
            for place, part in enumerate(parts)
        ]
    notes.append(f"{told}: each field of the outer ring is the mean of some of one node's devices, from worst to best")
    return found


def _values(line: Line, kinds: Mapping[int, ModelKind], metric: str, notes: list[str]) -> tuple[Tree, list[Any]]:
    """Return the tree and every node's number, tier by tier: the mean over the seeds where the tree is the same."""
    tree = line.first.config.make_tree()
    results = list(line.results.values())
    if any(result.config.make_tree().spec() != tree.spec() for result in results[1:]):
        notes.append(f"{line.label}: the tree differs from seed to seed; drawn is seed {line.first.config.seed}")
        results = results[:1]
    found = []
    for tier in range(tree.tiers):
        each = [by_node(result, kinds[tier], tier, metric) for result in results]
        names = tree.names(tier)
        table = np.array([[one.get(node, math.nan) for node in names] for one in each])
        known = ~np.isnan(table)
        total = np.where(known, table, 0).sum(0)
        found.append(np.where(known.any(0), total / np.maximum(known.sum(0), 1), math.nan))
    if np.isnan(found[0]).all() and tree.devices > _FIELDS:
        raise BadInput(f"{line.label} does not list its devices yet; of so many they are listed when a run ends")
    return tree, found
