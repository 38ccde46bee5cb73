"""What a study comes to, as plain data: tables, plots and ``--json`` are made from this."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.errors import BadInput
from palmette.protocol import ModelKind
from palmette.report import sheets
from palmette.report.absences import missing
from palmette.report.numbers import by_node, device_count, top
from palmette.runs import Result, RunConfig
from palmette.studies.plan import Arm
from palmette.studies.statistics import DRAWS, LEVEL, Teams, Values, difference, hurt
from palmette.studies.study import Study
from palmette.studies.tuning import score

_TOLERANCE = 0.02  # of the steps of the methods: as far as they may lie apart and still be called equal


def summary(study: Study) -> dict[str, Any]:
    """Return the study as one object of numbers and words."""
    plan, lead = study.plan, study.lead
    runs = {arm.name: {seed: result for _, seed, result in study.results([arm])} for arm in study.methods}
    personal = {name: of_devices(results, "PM", lead) for name, results in runs.items()}
    teams = teams_of(runs)
    methods = [_method(study, arm, runs[arm.name], personal, teams) for arm in study.methods]
    told: dict[str, Any] = {
        "kind": plan.kind,
        "finished": study.finished,
        "metric": lead,
        "better": "lower" if study.lower else "higher",
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        "against": plan.against,
        "reference": plan.reference,
        "interval": {"level": LEVEL, "draws": DRAWS},
        "methods": methods,
        "failed": [{"run": run, **outcome} for run, outcome in sorted(study.lost.items())],
    }
    if plan.tune or study.points:
        told |= {"tune": plan.tune, "by": plan.by, "tries": tries(study)}
    if study.points:
        told |= {"grid": {**plan.grid}, "points": points(study), "chosen": chosen(study)}
    return {**told, "notes": notes(study, methods)}


def _method(
    study: Study, arm: Arm, results: Mapping[int, Result], personal: Mapping[str, Values], teams: Teams
) -> dict[str, Any]:
    plan, lead, lower = study.plan, study.lead, study.lower
    kinds: list[ModelKind] = list(dict.fromkeys(kind for result in results.values() for kind in result.kinds))
    told: dict[str, Any] = {
        "method": arm.name,
        "algorithm": arm.config.algorithm,
        "role": arm.role,
        "rounds": next((result.config.rounds for result in results.values()), arm.config.rounds),
        "seeds": sorted(results),
        "missing": sorted(set(plan.seeds_of(arm)) - set(results)),
        "settings": {str(seed): result.config.settings for seed, result in results.items()},
        "models": {kind: model_of(results, kind, lead) for kind in kinds},
    }
    mine = personal[arm.name]
    if plan.against is not None and arm.name != plan.against and mine:
        gap = difference(mine, personal.get(plan.against, {}), teams, lower=lower)
        told["difference"] = {
            "against": plan.against, "mean": gap.mean, "low": gap.low, "high": gap.high, "devices": gap.devices
        }  # fmt: skip
    told["hurt"] = {}
    if plan.reference is not None and arm.name != plan.reference:
        told["hurt"]["local"] = hurt(mine, personal.get(plan.reference, {}), lower=lower)
    if "TM" in kinds:
        told["hurt"]["team"] = hurt(mine, of_devices(results, "TM", lead), lower=lower)
    return told | cost_of(results)


def model_of(results: Mapping[int, Result], kind: ModelKind, lead: str) -> dict[str, Any]:
    """Return how good one kind of model is over the seeds of a method."""
    results = {seed: result for seed, result in results.items() if kind in result.kinds}
    values = {seed: result.last(kind, lead) for seed, result in results.items()}
    worst = [result.last(kind, lead, weight="devices", statistic="worst-decile") for result in results.values()]
    others = {
        name: float(np.mean([result.last(kind, name) for result in results.values()]))
        for name in dict.fromkeys(name for result in results.values() for name in result.metric_names)
        if name != lead and all(name in result.metric_names for result in results.values())
    }
    curves = [result.curve(kind, lead, on="unseen") for result in results.values()]
    new = [curve[max(curve)] for curve in curves if curve]
    kept_out = all(result.on != "all" for result in results.values())
    return {
        "mean": float(np.mean(list(values.values()))),
        "spread": spread(list(values.values())),
        "worst_decile": float(np.mean(worst)),
        "by_seed": {str(seed): value for seed, value in values.items()},
        "others": others,
        **({"unseen": float(np.mean(new))} if kept_out and new else {}),
    }


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds; NaN for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def cost_of(results: Mapping[int, Result]) -> dict[str, Any]:
    """Return what a run takes on average: gradient steps of a device, bytes on every link, seconds on a simulated clock.

    ``time`` is there where every run had a clock; ``replies_missing``, those that did not enter, where there are
    some.
    """
    if not results:
        return {"steps_per_device": math.nan, "tuning_steps": math.nan, "links": []}
    steps, tuning = [], []
    links: dict[int, list[dict[str, Any]]] = {}
    for result in results.values():
        devices = device_count(result)
        steps.append(result.timings["device_steps"] / devices)
        tuning.append(result.timings.get("adapt_steps", 0) / devices)
        for link in result.links:
            links.setdefault(link["tier"], []).append(link)
    server = top(next(iter(results.values())))
    times = [one[max(one)] for result in results.values() if (one := result.times)]
    lost = sum(missing(link) for found in links.values() for link in found) / len(results)
    return {
        **({"time": float(np.mean(times))} if len(times) == len(results) else {}),
        **({"replies_missing": lost} if lost else {}),
        "steps_per_device": float(np.mean(steps) + np.mean(tuning)),
        "tuning_steps": float(np.mean(tuning)),
        "links": [
            {
                "tier": tier,
                "server": tier == server,
                **{
                    key: sum(one[key] for one in found) / len(results)
                    for key in ("exchanges", "bytes_up", "bytes_down")
                },
            }
            for tier, found in sorted(links.items())
        ],
    }


def of_devices(results: Mapping[int, Result], kind: ModelKind, lead: str) -> Values:
    """Return one kind of model of a method on every device, seed by seed."""
    return {seed: by_node(result, kind, 0, lead) for seed, result in results.items()}


def teams_of(runs: Mapping[str, Mapping[int, Result]]) -> Teams:
    """Return who is in which team, by seed."""
    found: dict[int, dict[str, str]] = {}
    for results in runs.values():
        for seed, result in results.items():
            if seed not in found:
                tree = result.config.make_tree()
                names = by_node(result, "PM", 0, result.lead, on="all")
                if len(names) != tree.devices:
                    raise BadInput(
                        f"the run in {result.folder} measured {len(names)} of its {tree.devices} devices at its end"
                    )
                found[seed] = {name: str(team) for name, team in zip(names, tree.ancestors(1), strict=True)}
    return found


# -- tries and grids ---------------------------------------------------------------------------------------------------


def tries(study: Study) -> list[dict[str, Any]]:
    """Return all settings that were tried, with the score that decided; of those that diverged, none."""
    plan, found = study.plan, []
    for arm in study.methods:
        for seed in plan.seeds_of(arm) if arm.space else ():
            kept = study.run(arm.name, seed)
            chosen = None if kept is None else {key: kept.config.settings.get(key) for key in arm.space}
            for number, result in study.tries(arm, seed):
                about: dict[str, Any] = {"method": arm.name, "seed": seed, "try": number}
                if result is not None:
                    settings = {key: result.config.settings.get(key) for key in arm.space}
                    about |= {"settings": settings, "score": score(result, plan.by)}
                    about |= {"chosen": settings == chosen}
                found.append(about)
    return found


def points(study: Study) -> list[dict[str, Any]]:
    """Return the points of a grid with their scores on validation samples, by kind of model."""
    found = []
    for arm in study.points:
        results = [result for _, _, result in study.results([arm])]
        kinds = list(dict.fromkeys(kind for result in results for kind in result.kinds))
        settings = {key: _setting(arm, key) for key in study.plan.grid}
        models = {}
        for kind in kinds:
            values = [result.last(kind, result.lead) for result in results]
            curves = [result.curve(kind, result.lead) for result in results]
            rounds = sorted(set.intersection(*map(set, curves)))
            models[kind] = {
                "mean": float(np.mean(values)),
                "spread": spread(values),
                "by_seed": {str(seed): one.last(kind, one.lead) for _, seed, one in study.results([arm])},
                "curve": {str(round_): float(np.mean([one[round_] for one in curves])) for round_ in rounds},
                **({"curve_on": "sampled"} if any(result.sampled for result in results) else {}),
            }
        found.append({"point": arm.name, "settings": settings, "rounds": arm.config.rounds, "models": models})
    return found


def chosen(study: Study) -> list[dict[str, Any]]:
    """Return the settings of a grid that every seed chose, with their score on its validation samples."""
    plan, found = study.plan, []
    for arm in study.methods:
        for seed in plan.seeds_of(arm) if arm.role == "chosen" else ():
            kept = study.run(arm.name, seed)
            for point in study.points:
                result = study.run(point.name, seed)
                if (
                    kept is None
                    or result is None
                    or any(_setting_of(result.config, key) != _setting_of(kept.config, key) for key in plan.grid)
                ):
                    continue
                settings = {key: _setting(point, key) for key in plan.grid}
                found.append({"seed": seed, "point": point.name, "settings": settings, "score": score(result, plan.by)})
                break
    return found


def _setting(arm: Arm, key: str) -> Any:
    return _setting_of(arm.config, key)


def _setting_of(config: RunConfig, key: str) -> Any:
    group, dot, name = key.partition(".")
    values = config.model_dump()
    if dot:
        return values[group][name]
    return values["rounds"] if key == "rounds" else values["settings"][key]


# -- what a reader should know -----------------------------------------------------------------------------------------


def _made_longer(study: Study) -> dict[str, str]:
    """Say of which methods a run from elsewhere was given more rounds after it entered the study."""
    told = {}
    for arm, _, result in study.results():
        if arm.runs and result.config.rounds != arm.config.rounds:
            told[arm.name] = (
                f"The run in {result.folder} had {arm.config.rounds} rounds when it was compared and has "
                f"{result.config.rounds} now, so {arm.name} is not what this study was made with."
            )
    return told


def notes(study: Study, methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences that a reader of the table should have read: what is unequal, missing or was decided."""
    plan, told = study.plan, list(study.plan.notes)
    longer = _made_longer(study)
    told += longer.values()
    percent = sheets.is_share(study.lead)
    new = [
        f"{one['method']} {kind} {sheets.number(model['unseen'], percent)}"
        for one in methods
        for kind, model in one["models"].items()
        if "unseen" in model and kind in ("PM", "GM")
    ]
    if new:
        told.append(
            "All numbers are of the devices that train; "
            f"test {study.lead}{' in %' if percent else ''} of the devices that never took part: {', '.join(new)}."
        )
    taken = {one["method"]: one["steps_per_device"] for one in methods if one["models"] and one["method"] not in longer}
    if taken and plan.kind == "compare":
        least, most = min(taken.values()), max(taken.values())
        if plan.steps is not None:
            off = {name: steps for name, steps in taken.items() if abs(steps - plan.steps) > 0.5}
            if off:
                names = ", ".join(f"{name} took {steps:,.0f}" for name, steps in off.items())
                told.append(f"Not every method can take exactly {plan.steps:,} steps in whole rounds: {names}.")
        elif most > (1 + _TOLERANCE) * least:
            names = ", ".join(f"{name} {steps:,.0f}" for name, steps in taken.items())
            told.append(
                f"The methods took different numbers of gradient steps on each device: {names}. --steps N makes them equal."
            )
    if any(one["tuning_steps"] for one in methods if one["models"]):
        tuned = [one for one in methods if one["models"] and one["tuning_steps"]]
        names = ", ".join(f"{one['method']} {one['tuning_steps']:,.0f}" for one in tuned)
        told.append(f"Steps of fine-tuning are counted and make PM only: {names}.")
    if plan.tune or study.points:
        lacking = [one["method"] for one in methods if one["models"] and plan.by not in one["models"]]
        if lacking:
            told.append(f"No {plan.by} to choose by: {', '.join(lacking)}; there PM decided.")
    theirs = set(next((one["seeds"] for one in methods if one["method"] == plan.against), []))
    if apart := [one["method"] for one in methods if one["models"] and theirs and not theirs & set(one["seeds"])]:
        told.append(f"No seed in common with {plan.against}, so no paired difference: {', '.join(apart)}.")
    without = [one["method"] for one in methods if one["models"] and "TM" not in one["models"]]
    if 0 < len(without) < len(methods):
        told.append(f"No team models: {', '.join(without)}.")
    return told
