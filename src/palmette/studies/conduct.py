"""Running a study in its folder: its runs in some order, what became of them, and the pages that explain it."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, PalmetteWarning
from palmette.files import MissingFile
from palmette.population.validation import for_choosing
from palmette.runs import Interrupted, Result, RunConfig
from palmette.runs.files import Files
from palmette.runs.folder import Folder
from palmette.studies import tuning
from palmette.studies.crew import Chain, Crew
from palmette.studies.explain import readme
from palmette.studies.plan import OUTCOMES, README, RESULTS, STUDY, Arm, Plan, is_study, read_plan, with_settings
from palmette.studies.steps import NOTHING, Objects
from palmette.studies.study import Study
from palmette.studies.trials import Outcome, Trial, refuse_unfit
from palmette.studies.watching import watching
from palmette.track.tracker import names_of

AGAIN = ("diverged", "refused")  # what the same settings would do again


def conduct(
    plan: Plan,
    folder: Path,
    *,
    objects: Mapping[str, Objects] | None = None,
    jobs: int | None = None,
    shown: bool | None = True,
    track: str | Sequence[str] = (),
) -> Study:
    """Run what of a study is not there yet, and return it.

    Runs that are finished are only read, those that were stopped or killed go on from their checkpoint, and those that
    diverged, which they would do again, are left.

    Args:
        plan: The study.
        folder: Its folder: a new one, or that of the same study.
        objects: What the configs cannot hold, by the name of the arm.
        jobs: Runs at the same time; one for each core by default, one where there are objects.
        shown: Whether to show progress; ``None`` where somebody looks.
        track: The names of trackers that are told of every run.
    """
    given = objects or {}
    trackers = names_of(track)
    refuse_unfit(folder)
    if is_study(folder):
        refuse_other(plan, folder)
    elif folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} exists and is not a study; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    lock = Folder(folder)
    lock.lock()
    try:
        lock.write(STUDY, plan.to_toml().encode())
        lock.write(README, readme(plan).encode())
        _Conductor(plan, folder, given, trackers).run(jobs or _jobs(given), shown)
        study = Study(folder)
        lock.write(RESULTS, (json.dumps(_finite(study.summary()), indent=1) + "\n").encode())
        lock.write(README, readme(plan, study).encode())
        return study
    finally:
        lock.unlock()


def go_on(
    folder: Path, *, jobs: int | None = None, shown: bool | None = True, track: str | Sequence[str] = ()
) -> Study:
    """Go on with the study in a folder."""
    plan = read_plan(folder)
    for arm in plan.arms:
        try:
            changed = arm.config.changed_code()
        except MissingFile as error:
            model = f" with the model {arm.config.model.title}" if "model" in arm.config.given else ""
            raise BadInput(
                f"{arm.name} of the study in {folder} is {arm.config.source}{model}, and {error}; put it back"
            ) from None
        if changed:
            raise BadInput(
                f"{changed} when the study in {folder} began, and its runs would not be comparable: put the old code back, or "
                "start a new study"
            )
        for role, what in arm.config.given.items():
            if what.again:
                continue
            raise BadInput(
                f"the study in {folder} was given its {role} as an object ({what.object}), which its folder cannot hold; go "
                f"on in Python, with the same pm.{plan.kind}(..., out={str(folder)!r})"
            )
    return conduct(plan, folder, jobs=jobs, shown=shown, track=track)


def refuse_other(plan: Plan, folder: Path) -> None:
    """Refuse the folder of another study; one may have more methods, seeds and tries than it had."""
    kept = read_plan(folder)
    differ = [f"it is a {kept.kind}"] if kept.kind != plan.kind else []
    if kept.tune and plan.tune and kept.by != plan.by:
        differ.append(f"settings are chosen by {kept.by}")
    if kept.tune and plan.tune and kept.tune_on != plan.tune_on:
        differ.append(f"settings are chosen on {'every seed' if kept.tune_on == 'each' else 'the first seed'}")
    there = {arm.name: arm for arm in kept.arms}
    for arm in plan.arms:
        if (old := there.get(arm.name)) is not None and not differ:
            differ += [f"{arm.name} has {told}" for told in _differences(old, arm)]
    if plan.tune and kept.tune and plan.tune != kept.tune:
        differ.append(f"it has {kept.tune} tries")  # what was chosen of them is trained already
    if differ:
        raise BadInput(f"{folder} holds another study: {'; '.join(differ[:3])}. Choose another --out")
    names = {arm.name for arm in plan.arms}
    gone = [name for name in there if name not in names] + [
        f"seed {seed}" for seed in kept.seeds if seed not in plan.seeds
    ]
    if gone:
        warnings.warn(
            f"{folder} also holds runs of {', '.join(gone)}, which are not wanted now; they stay on disk and are not shown",
            PalmetteWarning,
            stacklevel=3,
        )


def _differences(old: Arm, new: Arm) -> list[str]:
    was, now = old.seeded(0).model_dump(), new.seeded(0).model_dump()
    told = []
    for key in was:
        if key in ("seed", "versions") or was[key] == now[key]:
            continue
        if isinstance(was[key], dict) and isinstance(now[key], dict):
            model = old.config.given.get("model")
            sources = {"algorithm": old.config.source, "model": model.object if model and model.again else ""}
            for role, source in sources.items() if key == "given" else ():
                if source and was[key].pop(role, None) != now[key].pop(role, None):
                    told.append(f"other code of {source} than it has now")
            inner = [name for name in {**was[key], **now[key]} if was[key].get(name) != now[key].get(name)]
            told += [f"{key}.{name} = {was[key].get(name)}" for name in inner]
        else:
            told.append(f"{key} = {was[key]}")
    return told + (["another search space"] if dict(old.space) != dict(new.space) else [])


def _jobs(given: Mapping[str, Objects]) -> int:
    """Return how many runs are computed at once: what no config can hold stays in this process."""
    return 1 if any(one.any for one in given.values()) else os.cpu_count() or 1


class _Conductor:
    """One study on its way."""

    def __init__(self, plan: Plan, folder: Path, objects: Mapping[str, Objects], track: tuple[str, ...]) -> None:
        self._plan, self._folder, self._objects, self._track = plan, folder, objects, track
        self._files = Files(folder)
        kept = Study(folder).outcomes
        self._outcomes = {run: one for run, one in kept.items() if one.get("end") in AGAIN}
        self._chosen: dict[str, RunConfig] = {}  # by arm, what the last seed that tried settings chose
        self._done = 0

    def run(self, jobs: int, shown: bool | None) -> None:
        """Run all that is left; a second time for what was chosen from the first."""
        counts = self._counts()
        with (
            watching(counts, shown=shown) as eyes,
            Crew(jobs, eyes, self._known, self._hear) as crew,
        ):
            complete = crew.run(self._first()) and crew.run(self._second())
        self._write()
        if not complete:
            raise Interrupted(f"stopped with {self._done} of {sum(counts.values())} runs done")

    def _counts(self) -> dict[str, int]:
        """Return how many runs every arm, or group of arms, has; tries counted."""
        plan, found = self._plan, dict[str, int]()
        for arm in plan.arms:
            name = plan.group(arm) or arm.name
            runs = sum(1 + plan.tries_of(arm, seed) for seed in plan.seeds_of(arm))
            found[name] = found.get(name, 0) + runs
        return found

    def _first(self) -> Iterator[Chain]:
        """Give what can be begun at once, seed by seed, so that a population is made once for all methods."""
        plan = self._plan
        seeds = sorted({seed for arm in plan.arms for seed in plan.seeds_of(arm)})
        for seed in seeds:
            for arm in plan.arms:
                if seed not in plan.seeds_of(arm) or (arm.role == "chosen" and not arm.space):
                    continue
                if not arm.space:
                    yield self._once(arm, seed, arm.seeded(seed))
                elif plan.tries_of(arm, seed):
                    yield self._tuned(arm, seed)

    def _second(self) -> Iterator[Chain]:
        """Give the runs of the settings that did best on a grid, seed by seed, or that the first seed chose for all."""
        plan = self._plan
        for arm in plan.arms:
            for seed in plan.seeds_of(arm) if arm.space else ():
                if not plan.tries_of(arm, seed):
                    yield self._once(arm, seed, self._chosen[arm.name].model_copy(update={"seed": seed}))
        for arm in plan.arms:
            for seed in plan.seeds_of(arm) if arm.role == "chosen" and not arm.space else ():
                points = [one for one in plan.arms if one.role == "point"]
                folders = [self._folder / plan.run_folder(one, seed) for one in points]
                results = [Result(path) if Folder(path).finished else None for path in folders]
                scores = [math.nan if one is None else tuning.score(one, plan.by) for one in results]
                place = tuning.best(scores, lower=lower_is_better(plan.metric))
                if place is not None:
                    chosen = points[place].seeded(seed)
                    yield self._once(arm, seed, chosen.model_copy(update={"data": arm.config.data}))

    # -- chains --------------------------------------------------------------------------------------------------------

    def _trial(self, arm: Arm, seed: int, config: RunConfig, out: str, attempt: int = 0) -> Trial:
        objects = self._objects.get(arm.name, NOTHING)
        if config.data.validation is not None and objects.population is not None:
            objects = replace(objects, population=for_choosing(objects.population, config.data.validation))
            data = config.given["data"].model_copy(update={"hash": ""})  # of these samples it would be another
            config = config.model_copy(update={"given": {**config.given, "data": data}})
        kept = seed in arm.runs
        group, steps = self._plan.group(arm), self._plan.steps if arm.space else None
        study = self._folder.resolve().name
        return Trial(
            arm.name,
            seed,
            self._folder / out,
            None if kept else config,
            objects,
            attempt,
            group,
            steps,
            self._track,
            study,
        )

    def _once(self, arm: Arm, seed: int, config: RunConfig) -> Chain:
        yield self._trial(arm, seed, config, self._plan.run_folder(arm, seed))

    def _tuned(self, arm: Arm, seed: int) -> Chain:
        """Try settings one after the other, each chosen knowing the ones before; then train with the best."""
        plan = self._plan
        given = arm.seeded(seed)
        known = dict(given.settings)
        method = self._objects.get(arm.name, NOTHING).method or given.method()
        first = {name: known.get(name, vars(method).get(name)) for name in arm.space}
        sampler: tuning.Sampler | None = None
        tried: list[RunConfig] = []
        scores: list[float] = []
        lower = lower_is_better(plan.metric)
        for number in range(1, plan.tune + 1):
            settings = first if sampler is None else sampler.ask()
            if settings is None:  # all there are were tried
                break
            config = RunConfig.model_validate(with_settings(given.model_dump(), settings))
            tried.append(config)
            trial = self._trial(arm, seed, tuning.validated(config), plan.try_folder(arm, seed, number), number)
            outcome = yield trial
            scores.append(tuning.score(Result(trial.out), plan.by) if outcome.end == "done" else math.nan)
            if sampler is None:
                sampler = tuning.Sampler(arm.space, seed, lower=lower)
                sampler.learn(first, scores[-1])
            else:
                sampler.tell(scores[-1])
        chosen = self._chosen[arm.name] = tried[tuning.best(scores, lower=lower) or 0]
        yield self._trial(arm, seed, chosen, plan.run_folder(arm, seed))

    # -- what became of them -------------------------------------------------------------------------------------------

    def _known(self, trial: Trial) -> Outcome | None:
        if trial.finished:
            return Outcome(trial, "done")
        kept = self._outcomes.get(self._key(trial))
        return None if kept is None else Outcome(trial, kept["end"], kept["message"])  # type: ignore[arg-type]

    def _hear(self, outcome: Outcome) -> None:
        self._done += outcome.end == "done"
        if outcome.end not in ("done", "stopped"):
            self._outcomes[self._key(outcome.trial)] = {"end": outcome.end, "message": outcome.message.split("\n")[0]}
            self._write()

    def _key(self, trial: Trial) -> str:
        return os.path.relpath(trial.out, self._folder) if trial.config is not None else str(trial.out)

    def _write(self) -> None:
        if self._outcomes:
            self._files.write_json(OUTCOMES, dict(sorted(self._outcomes.items())))
        else:
            (self._folder / OUTCOMES).unlink(missing_ok=True)


def _finite(value: object) -> object:
    """Return data whose NaN are null, as JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
