"""Running an experiment: its studies one after the other, its tables filled, its claims judged, all kept in a folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from palmette.errors import BadInput, nearest
from palmette.guards.terminal import say
from palmette.guards.texts import from_json
from palmette.reproduce.claims import Cells, judge
from palmette.reproduce.experiment import Experiment, Size, merged
from palmette.reproduce.format import StudyPart, Table, Where, printed
from palmette.reproduce.numbers import NOT_ASKED, NOT_RUN, FromRuns, Missing, Numbers, Source
from palmette.reproduce.pictures import draw
from palmette.reproduce.reading import read
from palmette.reproduce.sources import VALUES, computed
from palmette.runs import Interrupted, make_config
from palmette.runs.config import own_version
from palmette.runs.files import Files
from palmette.studies.compare import Choice, plan_comparison
from palmette.studies.conduct import conduct as conduct_study
from palmette.studies.plan import Arm, is_study
from palmette.studies.study import Study
from palmette.studies.trials import refuse_unfit

Studies = Mapping[str, Mapping[str, Any]]
"""By name, what is told of every study: its seeds, its cuts, what stands in for its data, or why it was left out."""
RESULTS, FIGURES, TIMES = "results.json", "figures", "times.json"
FORMAT = 1
_HARMLESS = ("seeds ", "evaluate_every ", "without ")  # cuts that leave numbers to be held against the paper's


@dataclass(frozen=True, eq=False)
class Reproduced:
    """An experiment that was run.

    Attributes:
        experiment: What it is.
        sources: The numbers of its studies, by name; those that were left out are not there.
        result: What came out as plain data, as ``--json`` prints it.
        folder: Where it is kept.
    """

    experiment: Experiment
    sources: Mapping[str, Source]
    result: dict[str, Any]
    folder: Path


def reproduce(
    name: str,
    *,
    size: Size = "quick",
    seeds: int | None = None,
    only: Sequence[str] = (),
    out: str | Path = "runs/reproduce",
    jobs: int | None = None,
    shown: bool | None = None,
) -> Reproduced:
    """Repeat a published experiment; what is there already is not run again.

    Args:
        name: A name of `names`, or a file of TOML of your own.
        size: ``"quick"`` for a few minutes, ``"whole"`` for the published size.
        seeds: Seeds, in place of the experiment's.
        only: Names of some of its studies; all by default.
        out: Where experiments are kept, each in a folder of its own.
        jobs: Runs at the same time; one for each core by default.
        shown: Whether to show progress; by default where somebody looks.
    """
    if size not in ("quick", "whole"):
        raise BadInput(f"--size takes quick or whole, not {size!r}")
    experiment = read(name)
    folder = Path(out) / f"{experiment.name}-{size}"
    for place in (Path(out), folder):
        refuse_unfit(place)
    if experiment.own:
        from palmette.reproduce.advising import reproduce_advising  # it draws, and only one study needs it

        given: dict[str, Any] = {"size": size, "seeds": seeds, "only": only, "jobs": jobs, "shown": shown}
        return Reproduced(experiment, {}, reproduce_advising(experiment, folder=folder, **given), folder)
    known = [one["name"] for one in experiment.studies]
    for one in only:
        if one not in known:
            raise BadInput(f"{experiment.name} has no study {one!r}{nearest(one, known)}")
    sources: dict[str, Source] = {}
    told: list[dict[str, Any]] = []
    for given in experiment.studies:
        study = experiment.study(given, size)
        place = folder / given["name"]
        if study is None or (only and study.name not in only and not _is_there(study, place)):
            why = experiment.left_out(given, size) or NOT_ASKED
            told.append({"name": given["name"], "title": given["title"], "left_out": why})
            continue
        cuts = experiment.cuts(given, stand_in=bool(study.stands_in)) if size == "quick" else []
        if seeds not in (None, study.seeds):
            study = study.model_copy(update={"seeds": seeds})
            cuts = [*(cut for cut in cuts if not cut.startswith("seeds ")), f"seeds {seeds} as asked for"]
        about = {"name": study.name, "title": study.title, "seeds": study.seeds}
        told.append({**about, "cuts": cuts, "stands_in": study.stands_in})
        there = _is_there(study, place)
        if shown and not there:
            say(f"{experiment.name}: {study.title}")
        with _timed(folder, "" if there else study.name):
            sources[study.name] = _conducted(experiment, study, place, size, jobs, shown and not there)
    studies = {one["name"]: one for one in told}
    result = {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "size": size,
        "version": own_version(),
        "unstated": experiment.unstated,
        "wrong": [one.model_dump() for one in experiment.wrong],
        "studies": told,
        **judged(experiment, sources, studies),
        "folder": str(folder),
    }
    cells = {table.title: cells_of(table, sources, studies) for table in experiment.tables}
    result["figures"] = draw(experiment, result, sources, cells, folder / FIGURES)
    result["seconds"] = round(sum(_times(folder).values()), 1)
    folder.mkdir(parents=True, exist_ok=True)
    Files(folder).write(RESULTS, (json.dumps(result, indent=1) + "\n").encode())
    return Reproduced(experiment, sources, result, folder)


@contextmanager
def _timed(folder: Path, study: str) -> Iterator[None]:
    """Add how long a study took to what it took before, also where it is stopped; nothing without a name."""
    began = time.monotonic()
    try:
        yield
    finally:
        if study:
            times = _times(folder)
            folder.mkdir(parents=True, exist_ok=True)
            Files(folder).write_json(TIMES, {**times, study: times.get(study, 0.0) + time.monotonic() - began})


def _times(folder: Path) -> dict[str, float]:
    """Return how long every study of an experiment took, in seconds, as far as it is known."""
    try:
        told = from_json((folder / TIMES).read_bytes())
        return {str(name): float(seconds) for name, seconds in told.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


# -- studies -----------------------------------------------------------------------------------------------------------


def _is_there(study: StudyPart, folder: Path) -> bool:
    """Return whether a study was run to its end before."""
    if study.source != "runs":
        return (folder / VALUES).is_file()
    return is_study(folder) and Study(folder).finished


def _conducted(
    experiment: Experiment, study: StudyPart, folder: Path, size: str, jobs: int | None, shown: bool | None
) -> Source:
    """Run a study, or compute its numbers."""
    if study.source != "runs":
        return computed(study, folder)
    arms = arms_of(experiment, study)
    command = f"palmette reproduce {experiment.name} --size {size}"
    choice = Choice(tuple(range(study.seeds)), command=command)
    plan, _ = plan_comparison(arms, choice, {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        return FromRuns(conduct_study(plan, folder, jobs=jobs, shown=shown))
    except Interrupted as error:
        raise Interrupted(f"{study.title}: {error}") from None


def arms_of(experiment: Experiment, study: StudyPart) -> list[Arm]:
    """Return the methods of a study with their settings."""
    arms = []
    for name in study.methods:
        method = experiment.methods[name]
        values: dict[str, Any] = {
            "algorithm": method.algorithm,
            "settings": merged(method.settings, study.settings.get(name, {})),
            "data": merged(study.data, method.data),
            "model": study.model,
            "participation": {**study.participation, **method.participation},
            "evaluate_every": study.evaluate_every,
            "metrics": study.metrics,
            "engine": study.engine,
        }
        own = values["settings"].pop("rounds", None)  # a study may give one method other rounds
        rounds = own or method.rounds or study.rounds
        tree = method.tree if method.tree is not None else study.tree
        values |= {} if rounds is None else {"rounds": rounds}
        values |= {} if tree is None else {"tree": tree}
        arms.append(Arm(name, make_config(values)))
    return arms


# -- tables and claims -------------------------------------------------------------------------------------------------


def cell_of(row: Where, column: Where) -> Where:
    """Return what a cell is about: what its row says, and its column where the row says nothing."""
    told = {**column.model_dump(exclude_none=True), **row.model_dump(exclude_none=True)}
    return Where.model_validate({**told, "title": f"{row.title}, {column.title}", "published": []})


def numbers_of(where: Where, sources: Mapping[str, Source], studies: Studies) -> Numbers:
    """Return the numbers of a cell; `Missing` where there are none."""
    study = where.study or next(iter(studies))
    if study not in sources:
        raise Missing(f"{NOT_RUN}: {studies[study]['left_out']}")
    found = replace(sources[study].numbers(where), apart=apart_of(studies[study]))
    found = found.of_team(where.team) if where.team else found
    return found.equally() if where.weight == "devices" else found


def cells_of(table: Table, sources: Mapping[str, Source], studies: Studies) -> Cells:
    """Return the numbers of a table's cells, by the titles of row and column."""
    rows = {one.title: one for one in table.rows}
    columns = {one.title: one for one in table.columns}

    def cell(row: str, column: str) -> Numbers:
        where = cell_of(rows[row], columns[column])
        return numbers_of(where, sources, studies).about(where.statistic or "mean")

    return cell


def judged(experiment: Experiment, sources: Mapping[str, Source], studies: Studies) -> dict[str, Any]:
    """Return the tables with ours beside theirs, and a verdict on every claim."""
    tables = [_table(table, sources, studies) for table in experiment.tables]
    claims = []
    for claim in experiment.claims:
        table = None if claim.test == "none" else experiment.table(claim.table)
        verdict = judge(claim, table, None if table is None else cells_of(table, sources, studies))
        told = {"id": claim.id, "says": claim.says, "test": claim.test, "table": table.title if table else None}
        claims.append({**told, "note": claim.note, **verdict.as_dict()})
    return {"tables": tables, "claims": claims}


def _table(table: Table, sources: Mapping[str, Source], studies: Studies) -> dict[str, Any]:
    scale = 100.0 if table.unit == "%" else 1.0
    rows = []
    for row in table.rows:
        texts = row.published or [""] * len(table.columns)
        cells = []
        for column, text in zip(table.columns, texts, strict=True):
            cells.append(_cell(cell_of(row, column), text, scale, table.tolerance, sources, studies))
        rows.append({"title": row.title, "ours": row.ours, "x": row.x, "cells": cells})
    columns = [{"title": column.title, "study": column.study, "x": column.x} for column in table.columns]
    return {"title": table.title, "unit": table.unit, "columns": columns, "rows": rows}


def _cell(
    where: Where, text: str, scale: float, tolerance: float, sources: Mapping[str, Source], studies: Studies
) -> dict[str, Any]:
    theirs, spread = printed(text)
    told: dict[str, Any] = {"study": where.study, "paper": theirs, "paper_spread": spread, "ours": None, "spread": None}
    try:
        numbers = numbers_of(where, sources, studies)
        values = [value * scale for value in numbers.statistic(where.statistic or "mean")]
    except Missing as error:
        return {**told, "verdict": str(error)}
    mean = float(np.mean(values))
    own = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    told |= {"ours": mean, "spread": own if math.isfinite(own) else None, "seeds": len(values)}
    if theirs is None:
        return {**told, "verdict": ""}
    room = max(tolerance, 2 * math.hypot(own if math.isfinite(own) else 0.0, spread or 0.0))
    gap = mean - theirs
    if numbers.apart:
        return {**told, "verdict": numbers.apart}
    return {**told, "verdict": "agrees" if abs(gap) <= room else "higher" if gap > 0 else "lower"}


def apart_of(study: Mapping[str, Any]) -> str:
    """Return what sets the numbers of a study apart from the paper's, so that they are not held against its."""
    other = ["other data"] if study.get("stands_in") else []
    cut = any(not cut.startswith(_HARMLESS) for cut in study.get("cuts", ()))
    return ", ".join([*other, *(["cut size"] if cut else [])])
