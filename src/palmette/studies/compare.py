"""Comparing methods on the same population: from what the user named to a plan, and `palmette.compare`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from palmette.errors import BadInput, nearest
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.protocol import ModelKind
from palmette.runs import Interrupted, prepare
from palmette.runs.fingerprint import kept_in, of_another_population, of_population
from palmette.runs.folder import Folder, claimed
from palmette.studies import tuning
from palmette.studies.arms import Base, arms_of, chosen_seeds, lacking, named_methods, shared_out, shared_settings
from palmette.studies.conduct import conduct
from palmette.studies.plan import Arm, Plan, TuneOn
from palmette.studies.steps import NOTHING, Objects, rounds_for
from palmette.studies.study import Study
from palmette.studies.trials import Populations
from palmette.task import Task
from palmette.track.tracker import names_of
from palmette.values import path as checked_path
from palmette.values import shown, whole

LOCAL = "local"
TUNED = "-tuned"
_MOST = 10_000  # runs of one study


def compare(
    methods: Sequence[Any] | Mapping[str, Any],
    population: Population | str | Mapping[str, Any] = "digits",
    model: str | nn.Module | Task | Mapping[str, Any] = "mclr",
    *,
    tree: Any = None,
    seeds: int | Sequence[int] | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    tune: int = 0,
    tune_on: TuneOn = "each",
    tuned_only: bool = False,
    search: Mapping[str, Sequence[Any]] | None = None,
    by: ModelKind = "PM",
    against: str | None = None,
    local: bool = True,
    out: str | Path | None = None,
    participation: Mapping[str, str | int | float] | None = None,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    clock: Mapping[str, Any] | None = None,
    loss: float = 0.0,
    evaluate_every: int | str = "auto",
    evaluate_on: int | str = "auto",
    metrics: str | Sequence[str] = (),
    optimiser: Optimiser | Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **engine: Any,
) -> Study:
    """Compare methods on the same population, participation and initial model, seed by seed.

    Runs that are in the folder already are not repeated, so the same call goes on with a study that was stopped.

    Args:
        methods: Names of algorithms, algorithms (which may be your own), folders of runs or results; or a mapping from what
            to call them to these.
        population: The name of a data set, a mapping with its name and options (then every seed draws it anew), or a
            population, which is the same for all seeds.
        model: The name of a model, a mapping with its name and options, a module, or a task.
        tree: The tree, where the population is not made yet; ``"4x10"`` by default.
        seeds: How many, or which; 3 by default, and those of the folders where folders were given.
        steps: Gradient steps that every method gives each device, fine-tuning counted; it decides the rounds.
        rounds: Global rounds of every method; by default as many as its settings ask for, 20 where they do not say.
        settings: Settings for all methods that have them, and by a method's name a mapping with its own.
        tune: How many settings to try for every method, on validation samples; 0 for none. It needs Optuna.
        tune_on: ``"each"`` for every seed to choose settings by itself, ``"first"`` for the first seed to choose for all.
        tuned_only: Whether to leave out the runs with the given settings; those are then one of the tries only.
        search: Where settings are looked for, in place of what the methods declare: ``{"alpha": (0.01, 0.1)}`` is a range,
            a list is values; ``"permfl.alpha"`` is one method's.
        by: Which models settings are chosen by.
        against: The method that the others are compared with device by device; the first by default.
        local: Whether to add local training where it is not among the methods, to see whom a method hurts.
        out: The study's folder; a new one under ``runs/`` by default.
        participation: Who takes part, as in ``{"devices": 0.5}``.
        links: How links behave, as in `run`.
        clock: A simulated clock, as in `run`.
        loss: Chance that a node that was asked does not answer.
        evaluate_every: Rounds between evaluations.
        evaluate_on: Devices measured before the last round: a number of them, ``"all"``, or ``"auto"`` (a sample of many).
        metrics: Further metrics, as in `run`.
        optimiser: Optimiser of the devices' steps, as in `run`.
        jobs: Runs at the same time; one for each core by default.
        progress: Whether to show progress on standard error; by default in a terminal and in a notebook.
        track: Trackers that are told of every run: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, or several.
        **engine: ``backend``, ``dtype``, ``device``, ``chunk``, ``held_out``, ``store``, ``keep_state``,
            ``threads``, ``check_steps``.
    """
    trackers = names_of(track)
    named = named_methods(methods)
    wanted = Base(
        *(population, model, tree, rounds, participation, links, clock, loss),
        *(evaluate_every, evaluate_on, metrics, optimiser, engine),
    )
    arms, objects = arms_of(named, wanted, settings or {})
    if local and not any(_is_local(arm) for arm in arms) and any(not arm.runs for arm in arms):
        extra, given = wanted.arm(LOCAL, LOCAL, shared_settings(settings or {}, named, LOCAL))
        arms.append(replace(extra, role="reference"))
        objects |= {LOCAL: given}
        named = {**named, LOCAL: LOCAL}
    notes = tuple(
        lacking(key, having, names) for key, having, names in shared_out(settings or {}, named) if having != names
    )
    command = "pm.compare(...)"
    ranges = {key: tuning.as_given(f"search[{key!r}]", one, pair=True) for key, one in (search or {}).items()}
    chosen = Choice(chosen_seeds(seeds), steps, tune, tune_on, tuned_only, by, against, command, notes, search=ranges)
    plan, objects = plan_comparison(arms, chosen, objects)
    place = checked_path("out", out) if out is not None else None
    with claimed(place, Path("runs"), f"compare-{arms[0].config.data.label}") as folder:
        return finished(plan, folder, objects, jobs, progress, trackers)


def finished(
    plan: Plan,
    folder: Path,
    objects: Mapping[str, Objects],
    jobs: int | None,
    progress: bool | None,
    track: Sequence[str] = (),
) -> Study:
    """Conduct a study from Python; a stop says how to go on there."""
    try:
        return conduct(plan, folder, objects=objects, jobs=jobs, shown=progress, track=track)
    except Interrupted as error:
        raise Interrupted(f"{error}; the same call with out={str(folder)!r} goes on") from None


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a comparison is to be like, besides its methods.

    Attributes:
        seeds: The seeds; ``None`` for three, or for those of the folders that were given.
        steps: Equal gradient steps of each device.
        tune: Settings to try for every method.
        tune_on: Whether every seed chooses by itself, or the first one for all.
        tuned_only: Whether methods are run with the settings chosen only, and not with the given ones too.
        by: Which models they are chosen by.
        against: The method to compare with.
        command: What it was started with.
        notes: Sentences about how it was set up.
        space: What is searched, in place of what the methods declare.
        search: Ranges or values of single settings, in place of those that the methods declare for them; by
            ``METHOD.SETTING`` for one method alone.
    """

    seeds: tuple[int, ...] | None = None
    steps: int | None = None
    tune: int = 0
    tune_on: TuneOn = "each"
    tuned_only: bool = False
    by: ModelKind = "PM"
    against: str | None = None
    command: str = ""
    notes: tuple[str, ...] = ()
    space: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def plan_comparison(
    arms: Sequence[Arm], choice: Choice, objects: Mapping[str, Objects]
) -> tuple[Plan, dict[str, Objects]]:
    """Check everything that can be checked before the first run, and return the plan.

    Args:
        arms: The methods, the reference among them.
        choice: What the comparison is to be like.
        objects: What configs cannot hold, by arm.
    """
    steps, tune = choice.steps, choice.tune
    if steps is not None:
        whole("--steps", steps, 1)
    if whole("--tune", tune, 0) > 0:
        tuning.check_optuna()
    elif choice.tuned_only or choice.tune_on != "each" or choice.search:
        raise BadInput(
            "--tune-on, --tuned-only and --search are about settings that are tried; say how many, as in --tune 4"
        )
    if choice.tune_on not in get_args(TuneOn):
        raise BadInput(f"--tune-on takes each or first, not {choice.tune_on!r}")
    check_kind(choice.by)
    names = [arm.name for arm in arms if arm.role != "reference"]
    if choice.against is not None and choice.against not in names:
        raise BadInput(f"--against {choice.against}: it is not among the methods{nearest(choice.against, names)}")
    there = sorted({seed for arm in arms for seed in arm.runs})
    seeds = choice.seeds or tuple(there) or (0, 1, 2)
    refuse_many(len(arms) * len(seeds) * (1 + 2 * tune))
    populations = Populations()
    _check_folders(arms, populations, objects)
    notes = list(choice.notes)
    fitted, metric = [], "accuracy"
    for arm in arms:
        one = arm
        if not arm.runs:
            one, metric = checked(arm, seeds[0], steps, populations, objects.get(arm.name, NOTHING))
        fitted.append(one)
    made = dict(objects)
    searched = set[str]()
    if tune:
        for arm in list(fitted):
            if not arm.runs:
                given = objects.get(arm.name, NOTHING)
                space = tuning.space_of(arm.config, given.method, choice.space)
                searched |= {*space, *(f"{arm.name}.{key}" for key in space)}
                wide = {key: one for key, one in choice.search.items() if key in space}
                own = {key: choice.search[f"{arm.name}.{key}"] for key in space if f"{arm.name}.{key}" in choice.search}
                space |= wide | own
                name, place = arm.name + TUNED, fitted.index(arm)
                fitted[place + 1 - choice.tuned_only : place + 1] = [replace(arm, name=name, space=space)]
                made[name] = given
        for key in choice.search:
            if key not in searched:
                raise BadInput(f"--search {key}: no method searches it{nearest(key, searched)}")
        whose = "for every seed by itself" if choice.tune_on == "each" else f"with seed {seeds[0]}, for all seeds"
        notes.append(
            f"Tuned: of {tune} settings, the given ones among them, the best on validation samples by {choice.by}, "
            f"{whose}; then trained on all training samples. Test samples had no part in the choice."
        )
    local = [arm.name for arm in fitted if _is_local(arm)]
    if any(arm.role == "reference" for arm in fitted):
        notes.append("Local training was added as the reference; --no-local leaves it out.")
    shown_as = next(name for name in (choice.against, *names) if name)
    if shown_as + TUNED in [arm.name for arm in fitted]:
        shown_as += TUNED
    plan = Plan(
        "compare",
        tuple(fitted),
        seeds,
        choice.command,
        steps,
        tune,
        choice.tune_on,
        choice.by,
        metric,
        shown_as,
        local[-1] if local else None,
        notes=tuple(notes),
    )
    return plan, made


def check_kind(by: str) -> None:
    """Refuse what is no kind of model."""
    if not re.fullmatch(r"PM|TM\d*|GM", str(by)):
        raise BadInput(
            f"--by {by}: settings are chosen by PM (personal models), TM (team models) or GM (the global model)"
        )


def refuse_many(runs: int) -> None:
    """Refuse a study of absurdly many runs."""
    if runs > _MOST:
        raise BadInput(f"this study would have {runs:,} runs, the most is {_MOST:,}; lower its seeds, values or tries")


def checked(arm: Arm, seed: int, steps: int | None, populations: Populations, objects: Objects) -> tuple[Arm, str]:
    """Return an arm whose run was found possible, with the rounds that the steps ask for, and the metric that decides."""
    config = arm.seeded(seed)
    people = objects.population if objects.population is not None else populations.of(config)
    method = objects.method or config.method()
    arm, config = replace(arm, config=arm.config.on(people, method)), config.on(people, method)
    measured = prepare(config, objects.method, people, objects.task).learner.task.per_sample_metrics
    metric = "accuracy" if "accuracy" in measured else "loss"
    if steps is None:
        return arm, metric
    rounds = rounds_for(config, steps, people, objects, arm.name)
    return replace(arm, config=arm.config.model_copy(update={"rounds": rounds})), metric


def _is_local(arm: Arm) -> bool:
    return arm.config.algorithm == LOCAL


# -- runs that are there already ---------------------------------------------------------------------------------------


def _check_folders(arms: Sequence[Arm], populations: Populations, objects: Mapping[str, Objects]) -> None:
    """Refuse runs of another population or participation than the others'."""
    kept = [(arm, seed, Path(path)) for arm in arms for seed, path in arm.runs.items()]
    if not kept:
        return
    expected: dict[int, tuple[str, Mapping[str, str]]] = {}
    others = [arm for arm in arms if not arm.runs]
    if others:
        first = others[0]
        given = objects.get(first.name, NOTHING)
        for seed in {seed for _, seed, _ in kept}:
            people = given.population if given.population is not None else populations.of(first.seeded(seed))
            expected[seed] = (first.name, of_population(people))
    for arm, seed, path in kept:
        mine = kept_in(Folder(path)).parts
        name, wanted = expected.setdefault(seed, (str(path), mine))
        if differ := of_another_population(mine, wanted):
            raise BadInput(
                f"{path} is of another population than {name}: {', '.join(differ)} differ; compare only runs on the same "
                "samples"
            )
        shared = others[0] if others else next(one for one, _, _ in kept)
        for key in ("participation", "loss"):
            mine_, theirs = getattr(arm.config, key), getattr(shared.config, key)
            if mine_ != theirs:
                raise BadInput(
                    f"{path} had another {'participation' if key == 'participation' else 'failure rate (loss)'} than "
                    f"{shared.name}: {shown(mine_)}, not {shown(theirs)}; compare only runs with the same"
                )
