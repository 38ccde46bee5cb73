"""The study behind ``palmette advise`` as an experiment: run it, and hold what came out against what was hoped for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from palmette.errors import BadInput, nearest
from palmette.guards.terminal import say
from palmette.reproduce.advising_plots import draw
from palmette.reproduce.experiment import Experiment
from palmette.runs.config import own_version
from palmette.runs.files import Files
from palmette.runs.wording import many
from palmette.studies.advising.families import CONFIGURATIONS, FAMILIES, STEPS
from palmette.studies.advising.judging import ADVISED, advised
from palmette.studies.advising.others import OTHERS, others
from palmette.studies.advising.outcome import ADVISOR, LABELS, NEAR, SEARCH, Outcome, outcome
from palmette.studies.advising.populations import CASES, Case
from palmette.studies.advising.study import CLASSIC, classic, run_each

RESULTS, FIGURES = "study.json", "figures"
_SECONDS = 20  # of processor time that a population takes with one seed
HALVES = ("fixed", "judged")


def reproduce_advising(
    experiment: Experiment,
    *,
    size: str,
    seeds: int | None,
    only: Sequence[str],
    folder: Path,
    jobs: int | None,
    shown: bool | None,
) -> dict[str, Any]:
    """Run the study, as far as it was not, and return what came out as plain data.

    Args:
        experiment: Its title and what it is about.
        size: ``"quick"`` takes one seed and leaves out the networks, ``"whole"`` takes three seeds and all populations.
        seeds: Seeds, in place of these.
        only: Names of populations; all by default.
        folder: Where results are kept; those that are there are not computed again.
        jobs: Processes; one for each core by default.
        shown: Whether to tell how far it is.
    """
    known = [case.name for case in CASES]
    for name in only:
        if name not in known:
            raise BadInput(f"{experiment.name} has no population {name!r}{nearest(name, known)}")
    quick = size == "quick"
    cases = [case for case in CASES if (case.name in only if only else not (quick and case.network))]
    count = seeds if seeds is not None else 1 if quick else 3
    began = time.monotonic()
    if shown:
        say(_outline(experiment.name, cases, count, quick=quick and not only and seeds is None))
    for kind, work in ((CLASSIC, classic), (OTHERS, others), (ADVISED, advised)):
        tell = partial(_tell, kind) if shown else _silent
        run_each(folder, kind, work, cases, tuple(range(count)), jobs or os.cpu_count() or 1, tell)
    found = outcome(folder)
    result = {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "size": size,
        "version": own_version(),
        "populations": _populations(found),
        "configurations": CONFIGURATIONS,
        "steps": STEPS,
        "studies": [],
        "tables": [_regrets(found), *(_scores(found, half) for half in HALVES)],
        "claims": _targets(found),
        "folder": str(folder),
        "seconds": round(time.monotonic() - began, 1),
    }
    result["figures"] = [str(path) for path in draw(found, folder / FIGURES)]
    Files(folder).write(RESULTS, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _outline(name: str, cases: Sequence[Case], seeds: int, *, quick: bool) -> str:
    """Say before the first training what is run and how long that takes."""
    every = f"{many(len(cases), 'population')} with {many(seeds, 'seed')}"
    minutes = max(1, round(_SECONDS * len(cases) * seeds / 60))
    left = "; the quick size leaves out the two networks, and two of three seeds" if quick else ""
    return f"{name}: {every}, about {many(minutes, 'minute')} of processor time in all{left}"


def _tell(kind: str, line: str) -> None:
    say(f"advise, {kind}: {line}")


def _silent(line: str) -> None:
    """Say nothing."""


def _populations(found: Outcome) -> list[dict[str, Any]]:
    """Return what is told of every population."""
    told = []
    for case in (*found.cases(), *found.cases(networks=True)):
        methods = [method for method in LABELS if method in found.scores[case.name]]
        told.append(
            {
                "name": case.name,
                "title": case.title,
                "half": case.half,
                "model": case.model,
                "best": found.best(case),
                "advised": found.advised[case.name],
                "scores": {method: found.scores[case.name][method] for method in methods},
                "regrets": {method: found.regret(case, method) for method in methods},
            }
        )
    return told


def _regrets(found: Outcome) -> dict[str, Any]:
    """Return the table of regrets: mean, worst and how many are near the best, half by half."""
    groups: list[tuple[str, list[Case]]] = [(f"{half} half", found.cases(half)) for half in HALVES]
    groups.append(("networks", found.cases(networks=True)))
    groups = [(title, cases) for title, cases in groups if cases]
    columns = [
        {"title": f"{title}, {word}", "study": None, "x": None}
        for title, cases in groups
        for word in ("mean", "worst", f"within {NEAR:g} of {len(cases)}")
    ]
    rows = []
    for method, label in LABELS.items():
        cells = []
        for _, cases in groups:
            regrets = found.regrets(cases, method)
            near = float(sum(one <= NEAR for one in regrets))
            numbers = (float(np.mean(regrets)), max(regrets), near) if regrets else (None,) * 3
            cells += [_cell(number) for number in numbers]
        title = f"always {label}" if method in {family.key for family in FAMILIES} else label
        rows.append({"title": title, "ours": True, "x": None, "cells": cells})
    return {"title": "Regret", "unit": "", "columns": columns, "rows": rows}


def _scores(found: Outcome, half: str) -> dict[str, Any]:
    """Return the table of scores on the populations of a half: the best family and those that search for nothing."""
    shown = ("ladder", "ladder-directions", ADVISOR, SEARCH)
    columns = [{"title": word, "study": None, "x": None} for word in ("best classic", *(LABELS[one] for one in shown))]
    rows = []
    for case in (*found.cases(half), *found.cases(half, networks=True)):
        scores = found.scores[case.name]
        best = found.best(case)
        cells = [_cell(found.mean(case, best), _spread(scores[best]))]
        cells += [_cell(found.mean(case, one), _spread(scores[one])) if one in scores else _cell(None) for one in shown]
        rows.append({"title": f"{case.name} ({best})", "ours": True, "x": None, "cells": cells})
    return {"title": f"Scores, {half} half", "unit": "", "columns": columns, "rows": rows}


def _cell(number: float | None, spread: float | None = None) -> dict[str, Any]:
    told = None if number is None else round(number, 4)
    return {"ours": told, "spread": spread, "paper": None, "verdict": ""}


def _spread(values: Sequence[float]) -> float | None:
    return round(float(np.std(values, ddof=1)), 4) if len(values) > 1 else None


def _targets(found: Outcome) -> list[dict[str, Any]]:
    """Hold what came out on the judged half against what was hoped for."""
    cases = found.cases("judged")
    if not cases:
        return []
    advisor, ladder = found.regrets(cases, ADVISOR), found.regrets(cases, "ladder")
    near, ahead = (float(np.mean([one <= limit for one in ladder])) for limit in (NEAR, -1e-9))
    cover, cost = found.coverage(cases), found.cost(cases)
    steps = sum(found.steps[key] for key in found.steps if key[0] in {case.name for case in cases})
    predicted, true, _ = found.gains(cases)
    right = float(np.corrcoef(predicted, true)[0, 1]) if len(true) > 1 else float("nan")
    off = float(np.mean(np.abs(np.array(predicted) - true))) if true else float("nan")
    listed = [
        ("mean", "The advisor's mean regret is at most .008.", float(np.mean(advisor)), None, 0.008, ""),
        ("worst", "The advisor's worst regret is at most .06.", max(advisor), None, 0.06, ""),
        (
            "cost",
            "The advice takes at most a tenth of the full search's processor time.",
            *(cost, None, 0.1, f"The search took {steps:,} device-steps, the advice none."),
        ),
        (
            "near",
            "Ladder with automatic pulls is within .01 of the best classic family on 80 % of the populations.",
            *(near, 0.8, None, ""),
        ),
        ("ahead", "It is better than all of them on at least a quarter.", ahead, 0.25, None, ""),
        (
            "cover",
            "Intervals of 90 % hold the truth in 80 to 97 % of the cases.",
            *(cover, 0.8, 0.97),
            f"Predicted gains over FedAvg + fine-tuning: correlation {right:.3f} with the true ones, {off:.3f} off on average.",
        ),
    ]
    return [_target(*one) for one in listed]


def _target(name: str, says: str, value: float, low: float | None, high: float | None, note: str) -> dict[str, Any]:
    holds = (low is None or value >= low) and (high is None or value <= high)
    word = "holds" if holds else "does not hold"
    part = {"about": "judged half", "verdict": word, "mean": round(value, 4), "low": None, "high": None}
    return {
        "id": name,
        "says": says,
        "test": "between",
        "table": None,
        "note": note,
        "verdict": word,
        "why": "",
        "apart": [],
        "parts": [{**part, "why": "", "unit": "", "apart": ""}],
    }
