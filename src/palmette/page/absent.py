"""Who was absent when, as a page shows it: a row for every team, a column for every round or some rounds together."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from palmette.links.record import REASONS
from palmette.report.absences import missing_told
from palmette.runs import Result

_COLUMNS = 24  # of the table; of more rounds, some are put together
_ROWS = 40  # nodes that have a row: those absent most often
_NODES = 10  # devices that are listed by name
_WORDS = REASONS[1:]


def absences(result: Result, population: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a page tells of replies that did not enter; nothing where all did.

    Args:
        result: The run; of one that is not finished only the counts are known.
        population: What `people` returned for it.
    """
    told = missing_told(result.links)
    if not told:
        return None
    table, found = result.absences, {"told": told, "columns": [], "rows": [], "left": 0, "nodes": []}
    if population is None or not len(table):
        return found
    ends = np.unique(np.linspace(0, result.rounds_done, min(_COLUMNS, result.rounds_done) + 1).astype(int))
    pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    columns = [str(last) if first + 1 == last else f"{first + 1}–{last}" for first, last in pairs]
    rows, left = _rows(table, population["tiers"], ends)
    return {**found, "columns": columns, "rows": rows, "left": left, "nodes": _nodes(table, population["tiers"])}


def _rows(table: pa.Table, tiers: list[dict[str, Any]], ends: NDArray[Any]) -> tuple[list[dict[str, Any]], int]:
    """Return a row for every node above the devices that was absent or had absent devices, and how many were left out.

    Of a tree without teams the rows are the devices.
    """
    teams, width = len(tiers) > 2, len(ends) - 1
    made: list[dict[str, Any]] = []
    for tier in range(len(tiers) - 2, 0 if teams else -1, -1):
        names = tiers[tier]["names"]
        own = np.zeros((len(names), width, len(_WORDS)), int)
        below = np.zeros((len(names), width), int)
        node, when, why = _placed(table, tier, names, ends)
        np.add.at(own, (node, when, why), 1)
        if tier == 1:
            node, when, _ = _placed(table, 0, tiers[0]["names"], ends)
            np.add.at(below, (np.array(tiers[0]["parents"])[node], when), 1)
        for at in np.flatnonzero(own.sum((1, 2)) + below.sum(1)).tolist():
            told = [
                {word: count for word, count in zip(_WORDS, cell, strict=True) if count} for cell in own[at].tolist()
            ]
            made.append({"name": names[at], "tier": tier, "own": told, "below": below[at].tolist()})
    weights = [sum(row["below"]) + sum(sum(cell.values()) for cell in row["own"]) for row in made]
    kept = set(sorted(range(len(made)), key=lambda at: -weights[at])[:_ROWS])
    return [row for at, row in enumerate(made) if at in kept], len(made) - len(kept)


def _placed(table: pa.Table, tier: int, names: list[str], ends: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return of every absence in a tier the node's place, the column and the reason's place."""
    part = table.filter(pc.equal(table["tier"], tier))
    node = pc.index_in(part["node"], value_set=pa.array(names)).to_numpy()
    when = np.searchsorted(ends[1:], part["round"].to_numpy(), side="left")
    why = pc.index_in(part["reason"], value_set=pa.array(_WORDS)).to_numpy()
    return node, when, why


def _nodes(table: pa.Table, tiers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the devices that were absent most often, each with its team and the reasons."""
    part = table.filter(pc.equal(table["tier"], 0))
    counts = part.group_by(["node", "reason"], use_threads=False).aggregate([("reason", "count")]).to_pylist()
    found: dict[str, Counter[str]] = {}
    for one in counts:
        found.setdefault(one["node"], Counter())[one["reason"]] = one["reason_count"]
    parents = dict(zip(tiers[0]["names"], tiers[0]["parents"], strict=True))
    ranked = sorted(found, key=lambda name: (-found[name].total(), name))[:_NODES]
    return [
        {
            "name": name,
            "team": tiers[1]["names"][parents[name]] if len(tiers) > 2 else "",
            "times": found[name].total(),
            "why": ", ".join(f"{number:,} {word}" for word, number in found[name].most_common()),
        }
        for name in ranked
    ]
