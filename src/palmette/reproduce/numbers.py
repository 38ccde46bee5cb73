"""The numbers behind a cell: by seed and device, with what each device counts, from runs or from a computation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow.compute as pc

from palmette.engines.evaluation import lower_is_better
from palmette.protocol import ModelKind
from palmette.report.numbers import top
from palmette.reproduce.format import Where
from palmette.runs import Result
from palmette.runs.fingerprint import kept_in
from palmette.runs.folder import Folder
from palmette.studies.statistics import Teams, Values
from palmette.studies.study import Study

ALL = "all devices together"  # the name of the only device of a number that is not about single devices
NOT_RUN = "not run"  # how the reason begins where a size leaves a cell out
NOT_ASKED = "It was not asked for."  # how it ends where --only names other studies
_QUANTILES = {"q25": 0.25, "q50": 0.5, "q75": 0.75}


class Missing(Exception):  # noqa: N818 - no error: many cells have none
    """A cell has no number; the message says why."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers behind a cell.

    Attributes:
        values: By seed and device.
        weights: What every device counts in a mean.
        teams: The team of every device.
        worlds: By seed, what tells its population from others; devices are only paired within one.
        logs: Whether the numbers are logarithms of what is shown, as losses are of perplexities.
        apart: What sets them apart from the paper's: ``"cut size"``, ``"other data"``, or nothing.
    """

    values: Values
    weights: Values
    teams: Teams
    worlds: Mapping[int, str]
    logs: bool = False
    apart: str = ""

    def of_team(self, name: str) -> Numbers:
        """Return the numbers of one team's devices; ``"one or another"`` is the first that there is."""
        known = sorted({team for each in self.teams.values() for team in each.values()})
        name = next((one for one in name.split(" or ") if one in known), name)
        kept = {
            seed: {device: value for device, value in each.items() if self.teams[seed][device] == name}
            for seed, each in self.values.items()
        }
        kept = {seed: each for seed, each in kept.items() if each}
        if not kept:
            raise Missing(f"there is no team {name!r}; there are {', '.join(known[:8])}")
        return replace(self, values=kept)

    def equally(self) -> Numbers:
        """Return the numbers with all devices counting the same."""
        return replace(self, weights={seed: dict.fromkeys(each, 1.0) for seed, each in self.values.items()})

    def about(self, statistic: str) -> Numbers:
        """Return the numbers that claims about a statistic compare.

        These are of devices for a mean, whether each is above a bound for ``"above 1"``, else one number of each seed.
        """
        if statistic == "mean":
            return self
        if statistic.startswith("above "):
            bound = float(statistic.removeprefix("above "))
            bound = math.log(bound) if self.logs else bound
            above = {
                seed: {name: float(one > bound) for name, one in each.items()} for seed, each in self.values.items()
            }
            return replace(self, values=above, logs=False)
        return replace(_alone(dict(zip(self.values, self.statistic(statistic), strict=True))), apart=self.apart)

    def statistic(self, name: str = "mean") -> list[float]:
        """Return a statistic over the devices of every seed."""
        found = []
        for seed, each in self.values.items():
            values = np.array(list(each.values()))
            if name == "mean":
                weights = [self.weights[seed][device] for device in each]
                value = float(np.average(values, weights=weights))
                found.append(math.exp(value) if self.logs else value)
                continue
            shown = np.exp(values) if self.logs else values
            if name.startswith("above "):
                found.append(float((shown > float(name.removeprefix("above "))).sum()))
            elif name in _QUANTILES:
                found.append(float(np.quantile(shown, _QUANTILES[name])))
            else:
                found.append(float({"sd": shown.std, "max": shown.max, "min": shown.min}[name]()))
        return found


class Source(Protocol):
    """What a study's numbers come from."""

    def numbers(self, where: Where) -> Numbers:
        """Return the numbers of a method; `Missing` where there are none."""


class FromRuns:
    """The numbers of a study of runs."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def numbers(self, where: Where) -> Numbers:
        """Return the numbers of a method's models on all devices."""
        study, method = self.study, where.method or ""
        if method not in [arm.name for arm in study.plan.arms]:
            raise Missing(f"{NOT_RUN} at this size")
        arm = study.plan.arm(method)
        ended = (study.lost.get(study.plan.run_folder(arm, seed)) for seed in study.plan.seeds_of(arm))
        lost = [one["end"] for one in ended if one is not None]
        runs = {seed: result for _, seed, result in study.results([arm])}
        if lost:
            raise Missing(f"{lost[0]} with {len(lost)} of {len(study.plan.seeds_of(arm))} seeds")
        if not runs:
            raise Missing(NOT_RUN)
        kind: ModelKind = where.model or "PM"
        first = next(iter(runs.values()))
        if where.metric == "bytes" or where.metric in first.reports:
            return _alone({seed: _told(result, where) for seed, result in runs.items()})
        if kind not in first.kinds:
            raise Missing(f"it has no {kind}")
        return _of_devices(runs, kind, where)


def _told(result: Result, where: Where) -> float:
    """Return a number about a whole run: bytes on the link to the server, or what the algorithm reports."""
    kind: ModelKind = where.model or "PM"
    metric = where.metric or ""
    if metric == "bytes":
        server = [link for link in result.links if link["tier"] == max(one["tier"] for one in result.links)]
        return float(sum(link["bytes_up"] + link["bytes_down"] for link in server))
    if where.at == "mean":
        return float(np.mean([value for key, value in result.curve(kind, metric).items() if key]))
    return result.last(kind, metric)


def _alone(values: Mapping[int, float]) -> Numbers:
    one = {seed: {ALL: value} for seed, value in values.items()}
    ones = {seed: {ALL: 1.0} for seed in values}
    teams = {seed: {ALL: ALL} for seed in values}
    return Numbers(one, ones, teams, {seed: f"seed {seed}" for seed in values})


def _of_devices(runs: Mapping[int, Result], kind: ModelKind, where: Where) -> Numbers:
    first = next(iter(runs.values()))
    metric = where.metric or first.lead
    measured = "loss" if metric == "perplexity" else metric
    lower = lower_is_better(measured)
    at = where.at if where.at is not None else "last"
    values, weights, teams, worlds = {}, {}, {}, {}
    for seed, result in runs.items():
        people = _People(result)
        rounds = _by_round(result, kind, measured)
        curve = result.curve(kind, measured)
        chosen = [key for key in rounds if key]
        if at == "last":
            chosen = [max(rounds)]
        elif at == "best":
            known = {key: curve[key] for key in chosen if key in curve} or {max(rounds): 0.0}
            chosen = [min(known, key=lambda key: known[key] if lower else -known[key])]
        elif isinstance(at, int):
            if at not in rounds:
                raise Missing(f"round {at} was not measured")
            chosen = [at]
        devices = set.intersection(*(set(rounds[key]) for key in chosen))
        values[seed] = {
            device: float(np.mean([rounds[key][device] for key in chosen]))
            for device in people.names
            if device in devices
        }
        weights[seed] = {device: people.tests[device] for device in values[seed]}
        teams[seed] = {device: people.teams[device] for device in values[seed]}
        worlds[seed] = people.world
    return Numbers(values, weights, teams, worlds, metric == "perplexity")


def _by_round(result: Result, kind: ModelKind, metric: str) -> dict[int, dict[str, float]]:
    """Return a metric of every device by round."""
    table = result.metrics
    keep = pc.equal(table["tier"], 0)
    wanted = {"model": kind, "metric": metric, "weight": "samples", "statistic": "mean", "when": "after", "on": "all"}
    for column, value in wanted.items():
        keep = pc.and_(keep, pc.equal(table[column], value))
    part = table.filter(keep)
    found: dict[int, dict[str, float]] = {}
    columns = (part[name].to_pylist() for name in ("round", "node", "value"))
    for round_, node, value in zip(*columns, strict=True):
        if value == value:  # a device without test samples has none
            found.setdefault(round_, {})[node] = value
    if not found:
        raise Missing(f"no {metric} of {kind} was measured")
    return found


class _People:
    """Who took part in a run."""

    def __init__(self, result: Result) -> None:
        table = result.population
        if table is None:
            raise Missing("the run does not say who took part")
        rows = table.select(["tier", "node", "parent", "test"]).to_pylist()
        teams = [row["node"] for row in rows if row["tier"] == 1]
        mine = [row for row in rows if row["tier"] == 0]
        flat = top(result) < 2
        self.names = [row["node"] for row in mine]
        self.tests = {row["node"]: float(row["test"]) for row in mine}
        self.teams = {row["node"]: ALL if flat else teams[row["parent"]] for row in mine}
        self._result = result

    @cached_property
    def world(self) -> str:
        """What tells its devices from others: their samples and which of them are for testing, in whatever teams."""
        parts = kept_in(Folder(self._result.folder)).parts
        return " ".join(parts.get(name, "") for name in ("samples", "labels", "split"))


def paired(numbers: list[Numbers]) -> bool:
    """Return whether numbers are of the same devices seed by seed."""
    return all(
        one.worlds.get(seed) == world
        for seed, world in numbers[0].worlds.items()
        for one in numbers[1:]
        if seed in one.worlds
    )
