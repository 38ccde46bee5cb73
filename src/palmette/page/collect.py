"""From folders to the data of a page: runs, studies, or both together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from palmette.errors import BadInput
from palmette.page import words
from palmette.page.comparison import Methods, comparison
from palmette.page.people import people
from palmette.page.run import run_data, state
from palmette.page.theorem import theorem
from palmette.page.tried import choices, tried
from palmette.report.verdict import safe_choice, tally, verdict
from palmette.runs import Result
from palmette.runs.fingerprint import kept_in, of_another_population
from palmette.runs.folder import CONFIG, Folder, runs_in
from palmette.studies.arms import arms_of_runs
from palmette.studies.demo import HERO, HERO_NOTE, comparisons
from palmette.studies.plan import Arm, is_study, studies_in
from palmette.studies.study import Study

_NUMBERS = 200_000  # of single nodes that a page of several runs keeps


@dataclass
class Collection:
    """All that a page tells, gathered run by run.

    Attributes:
        theory: Whether to work out the conditions of theorems, which takes the samples and some seconds.
        runs: The data of every run that is shown on its own.
        populations: The populations they are on, each once.
        notes: What was left out, and why.
    """

    theory: bool = True
    runs: list[dict[str, Any]] = field(default_factory=list)
    populations: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _spent: int = 0

    def add(self, result: Result, label: str) -> int:
        """Take a run in and return its number."""
        found = people(result)
        place = None if found is None else self._place(found)
        devices = 0 if found is None else len(found["tiers"][0]["names"])
        wanted = devices * max(1, len(result.kinds))
        nodes = not self.runs or self._spent + wanted <= _NUMBERS
        if nodes:
            self._spent += wanted
        else:
            self.notes.append(
                f"Numbers of single devices of {label} are left out; palmette report {result.folder} shows them."
            )
        data = run_data(result, found, nodes=nodes)
        told = theorem(result, devices) if self.theory else {"reason": "Not worked out while a run is watched."}
        self.runs.append({**data, "label": label, "population": place, "theorem": told})
        return len(self.runs) - 1

    def _place(self, found: dict[str, Any]) -> int:
        """Return the number of a population, which several runs may share."""
        key = json.dumps(found, sort_keys=True)
        if key not in self._known:
            self._known[key] = len(self.populations)
            self.populations.append(found)
        return self._known[key]


def collect(folders: Sequence[Path], *, theory: bool = True) -> dict[str, Any]:
    """Return the data of a page about some folders.

    Args:
        folders: Runs, studies, or folders of these.
        theory: Whether to work out the conditions of theorems.
    """
    runs, studies = _expanded(folders)
    made = Collection(theory)
    told: dict[str, Any]
    if len(runs) + len(studies) == 1:
        told = _single_run(runs[0], made) if runs else _study(studies[0], made)
    else:
        told = _several(runs, studies, made)
    base = {"format": 1, "palmette": version("palmette"), "runs": made.runs, "populations": made.populations}
    return {**base, **told, "notes": [*told.get("notes", []), *made.notes]}


def _expanded(folders: Sequence[Path]) -> tuple[list[Path], list[Study]]:
    """Return the runs and the studies that some folders are or hold."""
    runs: list[Path] = []
    studies: list[Study] = []
    for folder in folders:
        if is_study(folder):
            studies.append(Study(folder))
        elif (folder / CONFIG).exists() or not folder.is_dir():
            Folder.open(folder)
            runs.append(folder)
        else:
            mine = [path for path in runs_in(folder) if not is_study(path.parent) and not is_study(path.parent.parent)]
            mine = [path for path in mine if not Folder(path).unbegun]
            others = studies_in(folder)
            if not mine and not others:
                raise BadInput(f"{folder} is neither a run nor a study, and there is none in it")
            runs += mine
            studies += map(Study, others)
    seen = [path.resolve() for path in runs]
    if twice := next((path for path, place in zip(runs, seen, strict=True) if seen.count(place) > 1), None):
        raise BadInput(f"{twice} is named twice")
    return runs, studies


def _single_run(folder: Path, made: Collection) -> dict[str, Any]:
    result = Result(folder)
    made.add(result, result.config.label)
    run = made.runs[0]
    population = None if run["population"] is None else made.populations[run["population"]]
    return {"kind": "run", **words.about_run(run, population), "groups": [], "state": run["state"]}


def _study(study: Study, made: Collection) -> dict[str, Any]:
    """Return the page of one study: compared methods, a sweep, or the demo."""
    how = "finished" if study.finished else "running" if Folder(study.folder).busy else "stopped"
    told: dict[str, Any] = {"kind": study.plan.kind, "state": how, "folder": str(study.folder)}
    told["progress"] = _progress(study)
    if study.plan.kind == "demo":
        demo = _demo(study, made)
        return told | demo | {"sentences": [*demo["sentences"], *words.so_far(told)]}
    summary = study.summary()
    told["notes"] = [*summary["notes"], *(f"{one['run']} {one['end']}: {one['message']}" for one in summary["failed"])]
    names = [arm.name for arm in study.methods]
    data = study.plan.arms[0].config.data.title
    if (grid := tried(summary)) is not None:
        told["grid"] = grid
    found = Methods(
        data,
        {name: {seed: result for _, seed, result in study.results([study.plan.arm(name)])} for name in names},
        against=study.plan.against,
        reference=study.plan.reference,
    )
    group = comparison(found)
    _show_first(found, group, made)
    _show_running(study, made)
    title = f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''} on {data}"
    seeds = f"{len(study.plan.seeds)} seeds" if len(study.plan.seeds) > 1 else f"seed {study.plan.seeds[0]}"
    began = [f"{len(names)} methods met the same devices and samples, with {seeds}."]
    if study.plan.kind == "sweep":
        title = f"settings of {study.plan.arms[0].config.title} on {data}"
        count = len(study.points) or study.plan.tune
        began = [f"{count} settings were tried with {seeds}, on samples kept apart for choosing."]
        began += [choices(grid)] if grid is not None and grid["chosen"] else []
    sentences = [*began, *words.so_far(told), *words.about_methods(group)]
    return {**told, "title": title, "sentences": sentences, "tiles": [], "groups": [group]}


def _demo(study: Study, made: Collection) -> dict[str, Any]:
    """Return the page of the demo: the same methods on several populations, and which to use on which."""
    groups, found = [], comparisons(study)
    for one in found:
        labels = list(dict.fromkeys(entry.name for entry in one.entries))
        methods = dict(zip(labels, one.methods, strict=True))
        runs = {name: {run.config.seed: run for run in method.results} for name, method in methods.items()}
        group = comparison(
            Methods(one.title, runs, one.about, kinds={name: list(method.why) for name, method in methods.items()})
        )
        level = [[entry.name, entry.kind] for entry in one.level]
        groups.append({**group, "sentences": [verdict(one)], "level": level})
        for method in group["methods"]:
            method["run"] = made.add(next(iter(runs[method["method"]].values())), f"{one.title}: {method['method']}")
    told = ["The same methods on populations that differ in how much devices and teams have in common."]
    if found and study.finished:
        told += [safe_choice(found), f"{tally(found, HERO)} {HERO_NOTE}"]
    return {"title": "Which method for which population?", "sentences": told, "tiles": [], "groups": groups}


def _several(runs: Sequence[Path], studies: Sequence[Study], made: Collection) -> dict[str, Any]:
    """Return the page of several runs, also of those of studies: one comparison for every population."""
    folders = [*runs, *(result.folder for study in studies for _, _, result in study.results())]
    done = [path for path in folders if Folder(path).finished]
    notes = [f"{path} is not finished and is not compared." for path in folders if path not in done]
    groups: list[dict[str, Any]] = []
    for some in _by_population(done):
        arms = arms_of_runs(some)
        methods = {arm.name: {seed: Result(path) for seed, path in arm.runs.items()} for arm in arms}
        reference = next((arm.name for arm in arms if arm.config.algorithm == "local"), None)
        config = arms[0].config
        differ = _unlike(arms)
        notes += [f"{differ} Devices are not compared one by one."] if differ else []
        title = f"{config.data.title}, {config.model.title}" if len(done) > 1 else config.data.title
        if any(group["title"] == title for group in groups):
            title = f"{title}, {config.tree} ({len(groups) + 1})"
        found = Methods(title, methods, reference=reference, paired=not differ)
        group = comparison(found)
        group["sentences"] = words.about_methods(group)
        _show_first(found, group, made)
        groups.append(group)
    for path in folders:
        if path not in done:
            made.add(Result(path), Path(path).name)
    sentences = [f"{len(folders)} runs on {len(groups)} populations."]
    sentences += [f"{group['title']}: {group['sentences'][0]}" for group in groups]
    sentences = groups[0]["sentences"] if len(groups) == 1 else sentences
    names = list(dict.fromkeys(method["method"] for group in groups for method in group["methods"]))
    title = f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}" or "runs"
    states = {run["state"] for run in made.runs}
    how = "running" if "running" in states else "finished" if states == {"finished"} else "stopped"
    told = {"kind": "runs", "title": title, "sentences": sentences, "tiles": [], "groups": groups}
    return {**told, "notes": notes, "state": how}


def _by_population(folders: Iterable[Path]) -> list[list[Path]]:
    """Put runs together whose configs name the same samples, tree and participation; their seeds may differ."""
    found: dict[str, list[Path]] = {}
    for path in folders:
        config = Result(path).config
        told = config.model_dump(mode="json")
        parts = [told[name] for name in ("data", "tree", "server", "participation", "loss")]
        given = told["given"].get("data")
        found.setdefault(json.dumps([parts, given], sort_keys=True), []).append(path)
    return list(found.values())


def _unlike(arms: Sequence[Arm]) -> str:
    """Say which runs of one seed met other samples than the others, in spite of their configs; nothing where all agree."""
    seen: dict[int, tuple[str, Mapping[str, str]]] = {}
    for arm in arms:
        for seed, path in arm.runs.items():
            mine = kept_in(Folder(Path(path))).parts
            other, theirs = seen.setdefault(seed, (path, mine))
            if differ := of_another_population(mine, theirs):
                return f"{path} is of another population than {other}: {', '.join(differ)} differ."
    return ""


def _show_first(found: Methods, group: dict[str, Any], made: Collection) -> None:
    """Show one run of every method on its own: that of its first seed."""
    for method in group["methods"]:
        results = found.runs[method["method"]]
        method["run"] = made.add(results[min(results)], method["method"])


def _show_running(study: Study, made: Collection) -> None:
    """Show the runs of a study that go on at this moment."""
    for one in study_runs(study):
        if one[2] is not None and not one[2].finished and one[2].running:
            made.add(one[2], f"{one[0].name}, seed {one[1]}")


def study_runs(study: Study) -> list[tuple[Arm, int, Result | None]]:
    """Return every run of a study, also those that are not finished; ``None`` for one that has not begun."""
    found: list[tuple[Arm, int, Result | None]] = []
    for arm in study.plan.arms:
        for seed in study.plan.seeds_of(arm):
            path = study.folder / study.plan.run_folder(arm, seed)
            there = (path / CONFIG).exists() and not Folder(path).unbegun
            found.append((arm, seed, (study.run(arm.name, seed) or Result(path)) if there else None))
    return found


def _progress(study: Study) -> dict[str, Any]:
    """Return how far every run of a study is."""
    rows = []
    for arm, seed, result in study_runs(study):
        told = {"method": arm.name, "seed": seed, "done": 0, "rounds": arm.config.rounds, "state": "waiting"}
        if result is not None:
            told |= {"done": result.rounds_done, "rounds": result.config.rounds, "state": state(result)}
        if (lost := study.outcomes.get(study.plan.run_folder(arm, seed))) is not None and told["state"] != "finished":
            told["state"] = lost["end"]
        rows.append(told)
    return {"runs": rows, "finished": sum(row["state"] == "finished" for row in rows), "command": study.plan.command}
