"""Several methods on one population as the data of a page: who is ahead, on which devices, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.engines.evaluation import lower_is_better
from palmette.page.compact import number, numbers, plain, thinned
from palmette.page.curves import seconds_by, sent_by
from palmette.protocol import ModelKind
from palmette.report import words
from palmette.report.numbers import top
from palmette.runs import Result
from palmette.studies.statistics import Values, difference, gaps, hurt
from palmette.studies.summary import cost_of, model_of, of_devices, teams_of

_BINS = 24  # of a histogram of differences
_POINTS = 200  # of a curve


@dataclass(frozen=True, eq=False)
class Methods:
    """Finished runs on one population, by method and seed.

    Attributes:
        title: What the population is called.
        runs: The runs of every method, by seed.
        about: A sentence about the population; may be empty.
        against: The method that the others are held against; the first by default.
        reference: The method that is local training, where there is one.
        kinds: Which models of a method are compared; all of them by default.
        paired: Whether all runs of one seed met the same samples, so that devices can be compared one by one.
    """

    title: str
    runs: Mapping[str, Mapping[int, Result]]
    about: str = ""
    against: str | None = None
    reference: str | None = None
    kinds: Mapping[str, Sequence[ModelKind]] | None = None
    paired: bool = True


def comparison(found: Methods) -> dict[str, Any]:
    """Return what a page tells of several methods on one population."""
    runs = {name: results for name, results in found.runs.items() if results}
    lead = next((result.lead for results in runs.values() for result in results.values()), "accuracy")
    lower = lower_is_better(lead)
    against = found.against if found.against in runs else next(iter(runs), None)
    devices = {(name, kind): of_devices(runs[name], kind, lead) for name in runs for kind in _kinds(found, name)}
    teams = teams_of(runs) if found.paired else {}
    methods = []
    for name, results in runs.items():
        told: dict[str, Any] = {
            "method": name,
            "seeds": sorted(results),
            "models": {kind: plain(model_of(results, kind, lead)) for kind in _kinds(found, name)},
            **plain(cost_of(results)),
        }
        if "PM" not in told["models"]:  # fine-tuning makes personal models only
            told["steps_per_device"] -= told["tuning_steps"]
        told["sent"] = sum(link["bytes_up"] + link["bytes_down"] for link in told["links"] if link["server"])
        if found.paired and against is not None and ("PM" in told["models"]):
            told |= _paired(name, against, found.reference, devices, teams, lower)
        told["curves"] = {kind: _curve(results, kind, lead) for kind in told["models"]}
        methods.append(told)
    ranking = _ranking(found, methods, devices, teams, lower)
    return {
        "title": found.title,
        "about": found.about,
        "metric": lead,
        "share": lead == "accuracy",
        "lower": lower,
        "seeds": sorted({seed for results in runs.values() for seed in results}),
        "against": against if found.paired else None,
        "reference": found.reference if found.reference in runs else None,
        "methods": methods,
        "ranking": ranking,
        "level": [[one["method"], one["kind"]] for one in ranking if not one["clear"]],
    }


def _kinds(found: Methods, name: str) -> list[ModelKind]:
    wanted = None if found.kinds is None else found.kinds.get(name)
    there = list(dict.fromkeys(kind for result in found.runs[name].values() for kind in result.kinds))
    return [kind for kind in there if wanted is None or kind in wanted]


def _paired(
    name: str,
    against: str,
    reference: str | None,
    devices: Mapping[tuple[str, ModelKind], Values],
    teams: Mapping[int, Mapping[str, str]],
    lower: bool,
) -> dict[str, Any]:
    """Return how a method's personal models compare with another method's, device by device."""
    mine, told = devices[name, "PM"], dict[str, Any]()
    theirs = devices.get((against, "PM"))
    if theirs is not None and name != against:
        apart = difference(mine, theirs, teams, lower=lower)
        told["difference"] = plain({"mean": apart.mean, "low": apart.low, "high": apart.high, "devices": apart.devices})
        told["gaps"] = _histogram(mine, theirs, lower=lower)
        told["worse"] = number(hurt(mine, theirs, lower=lower))
    alone = devices.get((reference or "", "PM"))
    if alone is not None and name != reference:
        told["hurt"] = number(hurt(mine, alone, lower=lower))
    if (own := devices.get((name, "TM"))) is not None:
        told["hurt_team"] = number(hurt(mine, own, lower=lower))
    return told


def _histogram(one: Values, other: Values, *, lower: bool) -> dict[str, Any] | None:
    """Count by how much devices gain or lose, of all seeds together; those that do neither are counted apart."""
    found = gaps(one, other, lower=lower).values()
    apart = np.array([gap for devices in found for gap in devices.values() if math.isfinite(gap)])
    if not len(apart):
        return None
    reach = float(np.abs(apart).max()) or 1e-9
    counts, edges = np.histogram(apart[apart != 0], _BINS, (-reach, reach))
    return {"edges": numbers(edges.tolist()), "counts": counts.tolist(), "zero": int((apart == 0).sum())}


def _curve(results: Mapping[int, Result], kind: ModelKind, lead: str) -> dict[str, Any]:
    """Return the mean over the seeds round by round, with the lowest and the highest, and the bytes sent up to there."""
    curves = [curve for result in results.values() if (curve := result.curve(kind, lead))]
    rounds = sorted(set.intersection(*map(set, curves))) if curves else []
    rounds = [rounds[at] for at in thinned(len(rounds), _POINTS)]
    values = np.array([[curve[round_] for round_ in rounds] for curve in curves]).reshape(len(curves), len(rounds))
    first = next(iter(results.values()))
    return {
        "rounds": rounds,
        "mean": numbers(values.mean(0).tolist() if len(curves) else []),
        "low": numbers(values.min(0).tolist() if len(curves) else []),
        "high": numbers(values.max(0).tolist() if len(curves) else []),
        "bytes": sent_by(first, top(first), rounds),
        **_clock(results, rounds),
        "sampled": any(result.sampled for result in results.values()),
    }


def _clock(results: Mapping[int, Result], rounds: Sequence[int]) -> dict[str, Any]:
    """Return the time on the simulated clock after some rounds, the mean over the seeds; nothing where one had no clock."""
    times = [result.times for result in results.values()]
    if not all(times):
        return {}
    return {"seconds": numbers(np.mean([seconds_by(one, rounds) for one in times], 0).tolist())}


def _ranking(
    found: Methods,
    methods: Sequence[Mapping[str, Any]],
    devices: Mapping[tuple[str, ModelKind], Values],
    teams: Mapping[int, Mapping[str, str]],
    lower: bool,
) -> list[dict[str, Any]]:
    """Return the best models of every method, best first, and which of them are clearly behind the first."""
    sign = -1 if lower else 1
    ranked = []
    for one in methods:
        known = {kind: model for kind, model in one["models"].items() if model["mean"] is not None}
        if not known:
            continue
        kind = max(known, key=lambda kind: sign * known[kind]["mean"])
        ranked.append(
            {
                "method": one["method"],
                "kind": kind,
                "words": words.models(kind),
                "mean": known[kind]["mean"],
                "worst": known[kind]["worst_decile"],
                "sent": one["sent"],
                # Fine-tuning makes personal models only.
                "steps": one["steps_per_device"] - (one["tuning_steps"] if kind != "PM" and "PM" in known else 0),
            }
        )
    ranked.sort(key=lambda one: -sign * one["mean"])
    first = devices[ranked[0]["method"], ranked[0]["kind"]] if ranked else {}
    for one in ranked:
        mine = devices[one["method"], one["kind"]]
        # Where devices cannot be paired, only equal numbers are level.
        one["clear"] = one is not ranked[0] and one["mean"] != ranked[0]["mean"]
        if found.paired and one is not ranked[0]:
            one["clear"] = bool(difference(first, mine, teams, lower=lower).low > 0)
        alone = devices.get((found.reference or "", "PM"))
        if found.paired and alone is not None and one["method"] != found.reference:
            one["hurt"] = number(hurt(mine, alone, lower=lower))
    return ranked
