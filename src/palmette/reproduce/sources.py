"""Numbers that no training gives: estimators of the hierarchical linear model, posterior variances, costs, checks of coins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette.errors import BadInput, nearest
from palmette.guards.texts import from_json
from palmette.reproduce import coins, costs, hierarchical, people, posterior, printed
from palmette.reproduce.format import StudyPart, Where
from palmette.reproduce.numbers import Missing, Numbers
from palmette.runs.files import Files

VALUES = "values.json"
Found = Mapping[str, Mapping[str, float]]
"""By method and by the name of a device: a number. A device's team is what stands before the first slash of its name."""
Compute = Callable[[Mapping[str, Any], Sequence[str], int], Found]
"""Computes the numbers of some methods with a seed: ``compute(options, methods, seed)``."""

SOURCES: Mapping[str, Compute] = {
    "distances-to-truth": hierarchical.distances_to_truth,
    "single-coin": hierarchical.single_coin,
    "noise-balls": coins.noise_balls,
    "best-coins": coins.best_coins,
    "exchanges": coins.exchanges,
    "accelerated": coins.accelerated,
    "iterations-needed": coins.iterations_needed,
    "estimator-bias": coins.estimator_bias,
    "client-costs": costs.client_costs,
    "posterior-variances": posterior.posterior_variances,
    "population": people.statistics,
    "as-printed": printed.as_printed,
}


class Computed:
    """The numbers of a study that were computed."""

    def __init__(self, found: Mapping[int, Found]) -> None:
        self._found = found

    def numbers(self, where: Where) -> Numbers:
        """Return the numbers of a method."""
        name = where.method or ""
        values = {seed: dict(found[name]) for seed, found in self._found.items() if name in found}
        if not values:
            raise Missing("not computed at this size")
        ones = {seed: dict.fromkeys(each, 1.0) for seed, each in values.items()}
        teams = {seed: {device: device.partition("/")[0] for device in each} for seed, each in values.items()}
        return Numbers(values, ones, teams, {seed: f"seed {seed}" for seed in values})


def computed(study: StudyPart, folder: Path) -> Computed:
    """Return the numbers of a study, computed seed by seed; those in its folder already are only read."""
    if study.source not in SOURCES:
        raise BadInput(f"study {study.name}: there is no source {study.source!r}{nearest(study.source, SOURCES)}")
    options = {**study.options, **({"data": study.data} if study.data else {})}
    asked = {"source": study.source, "options": options, "methods": study.methods}
    kept = _kept(folder, asked)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(study.seeds):
        if str(seed) not in kept:
            found = SOURCES[study.source](options, study.methods, seed)
            kept[str(seed)] = {name: dict(each) for name, each in found.items()}
            Files(folder).write(VALUES, (json.dumps({**asked, "seeds": kept}) + "\n").encode())
    return Computed({seed: kept[str(seed)] for seed in range(study.seeds)})


def _kept(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was computed before, where it was asked for in the same way."""
    files = Files(folder)
    if not folder.is_dir() or not files.has(VALUES):
        return {}
    try:
        told = from_json(files.read(VALUES))
    except ValueError:
        return {}
    same = isinstance(told, dict) and all(told.get(key) == value for key, value in asked.items())
    return dict(told["seeds"]) if same else {}
