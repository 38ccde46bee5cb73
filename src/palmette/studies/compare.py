"""Comparing methods on the same population: from what the user named to a plan, and `palmette.compare`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from palmette.algorithms import check_name, kind_of
from palmette.errors import BadInput, nearest
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.protocol import Algorithm, ModelKind
from palmette.protocol.definition import check_method
from palmette.protocol.importing import whole_path
from palmette.protocol.settings import described
from palmette.runs import Interrupted, Result, RunConfig, make_config, prepare, read_config
from palmette.runs.config import EngineConfig, rounds_of
from palmette.runs.fingerprint import PARTS, kept_in, of_population
from palmette.runs.folder import CONFIG, Folder, claimed
from palmette.runs.objects import is_named
from palmette.studies import tuning
from palmette.studies.conduct import NOTHING, conduct
from palmette.studies.plan import Arm, Plan, TuneOn, is_study
from palmette.studies.steps import Objects, rounds_for
from palmette.studies.study import Study
from palmette.studies.trials import Populations
from palmette.task import Task
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
    loss: float = 0.0,
    evaluate_every: int | str = "auto",
    metrics: str | Sequence[str] = (),
    optimiser: Optimiser | Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
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
        loss: Chance that a node that was asked does not answer.
        evaluate_every: Rounds between evaluations.
        metrics: Further metrics, as in `run`.
        optimiser: Optimiser of the devices' steps, as in `run`.
        jobs: Runs at the same time; one for each core by default.
        progress: Whether to show progress on standard error; by default in a terminal and in a notebook.
        **engine: ``backend``, ``dtype``, ``device``, ``chunk``, ``held_out``, ``store``, ``keep_state``.
    """
    named = _named(methods)
    wanted = Base(population, model, tree, rounds, participation, loss, evaluate_every, metrics, optimiser, engine)
    arms, objects = _arms(named, wanted, settings or {})
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
        return finished(plan, folder, objects, jobs, progress)


def finished(
    plan: Plan, folder: Path, objects: Mapping[str, Objects], jobs: int | None, progress: bool | None
) -> Study:
    """Conduct a study from Python; a stop says how to go on there."""
    try:
        return conduct(plan, folder, objects=objects, jobs=jobs, shown=progress)
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
        raise BadInput(f"--tune-on {choice.tune_on}: it is each, or first")
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


def is_run(what: Any) -> bool:
    """Return whether something that was named is the folder of a run."""
    return isinstance(what, str | Path) and (Path(what) / CONFIG).is_file()


def arms_of_runs(folders: Iterable[Path], taken: Iterable[str] = ()) -> list[Arm]:
    """Return the methods that some runs are of; runs that differ in their seed only are one method.

    Args:
        folders: The folders.
        taken: Names that other methods have.
    """
    used = set(taken)
    found: list[tuple[dict[str, Any], Arm]] = []
    for folder in folders:
        config = make_config(read_config(folder / CONFIG))
        Folder.open(folder)
        key = {name: value for name, value in config.model_dump().items() if name not in ("seed", "versions")}
        place = str(folder.absolute())
        same = next((at for at, (other, arm) in enumerate(found) if other == key), None)
        if same is None:
            found.append((key, Arm(_free(config.label, folder, used), config, {config.seed: place})))
            continue
        arm = found[same][1]
        if config.seed in arm.runs:
            raise BadInput(f"{folder} and {arm.runs[config.seed]} are the same run; name it once")
        found[same] = (key, replace(arm, runs={**arm.runs, config.seed: place}))
    return [arm for _, arm in found]


def _free(label: str, folder: Path, used: set[str]) -> str:
    """Return a name for the method of a folder that no other has."""
    for name in (label, folder.absolute().name, str(folder).strip("/.").replace("/", "-")):
        if name not in used:
            used.add(name)
            return name
    raise BadInput(f"there is another method named like {folder}; rename the folder")


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
        mine = {name: value for name, value in kept_in(Folder(path)).parts.items() if name in _POPULATION}
        name, wanted = expected.setdefault(seed, (str(path), mine))
        if differ := [PARTS[part] for part in _POPULATION if mine.get(part) != wanted[part]]:
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


_POPULATION = ("samples", "labels", "split", "tree")


# -- from Python -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Base:
    """What all methods of a study share, as Python gave it."""

    population: Any
    model: Any
    tree: Any
    rounds: int | None
    participation: Mapping[str, Any] | None
    loss: float
    evaluate_every: int | str
    metrics: str | Sequence[str]
    optimiser: Optimiser | Mapping[str, Any] | None
    engine: Mapping[str, Any]

    def arm(self, name: str, method: str | Algorithm, settings: Mapping[str, Any]) -> tuple[Arm, Objects]:
        """Return a method with what of it a config cannot hold."""
        for word in self.engine:
            if word not in EngineConfig.model_fields:
                raise BadInput(f"there is no keyword {word!r}{nearest(word, EngineConfig.model_fields)}")
        own = None if isinstance(method, str) else check_method(method)
        if own is not None:
            check_name(type(own))
        values: dict[str, Any] = {
            "algorithm": method if own is None else own.name,
            "settings": dict(settings) if own is None else dataclasses.asdict(own),  # type: ignore[call-overload]
            "data": _table(self.population, "data")
            if not isinstance(self.population, Population)
            else {"name": "arrays"},
            "model": _table(self.model, "model") if isinstance(self.model, str | Mapping) else {"name": "module"},
            "participation": dict(self.participation or {}),
            "loss": self.loss,
            "evaluate_every": self.evaluate_every,
            "metrics": self.metrics if isinstance(self.metrics, str) else list(self.metrics),
            "optimiser": _optimiser(self.optimiser),
            "engine": dict(self.engine),
        }
        values |= {} if self.rounds is None else {"rounds": self.rounds}
        people = self.population if isinstance(self.population, Population) else None
        if people is not None and self.tree is not None:
            raise BadInput("the population has its tree already; leave tree= out")
        if people is not None or self.tree is not None:
            values["tree"] = people.tree.spec() if people is not None else self.tree
        if people is not None and people.tree.labels[-1] is not None:
            values["server"] = people.tree.labels[-1][0]
        if own is not None and not is_named(own):
            values["given"] = {"algorithm": {"object": f"{type(own).__module__}.{type(own).__qualname__}"}}
        config = make_config(values)
        if own is not None and self.rounds is None:
            config = config.model_copy(update={"rounds": rounds_of(own, config.make_tree())})
        return self._resolved(name, config, own, people)

    def _resolved(
        self, name: str, config: RunConfig, own: Algorithm | None, people: Population | None
    ) -> tuple[Arm, Objects]:
        """Return the arm with objects written down where a config can hold them, so that other processes may run it."""
        task = None if isinstance(self.model, str | Mapping) else self.model
        if people is None and task is None and (own is None or is_named(own)):
            return Arm(name, config), NOTHING
        if own is not None and is_named(own):
            own = None
        probe = people if people is not None else config.population()
        made = prepare(config, own, probe, task)
        resolved = config.resolved(made.algorithm, probe, made.task)
        if people is None:
            resolved = resolved.model_copy(update={"data": config.data})
        keep = resolved.given
        settings = config.settings if "algorithm" not in keep else resolved.settings
        written = resolved.model_copy(update={"versions": {}, "settings": settings})
        objects = Objects(
            own if "algorithm" in keep else None,
            people if "data" in keep else None,
            task if {"model", "loss", "metrics"} & set(keep) else None,
        )
        return Arm(name, written), objects


def _optimiser(given: Optimiser | Mapping[str, Any] | None) -> dict[str, Any]:
    return given.model_dump() if isinstance(given, Optimiser) else dict(given or {})


def _table(what: Any, role: str) -> dict[str, Any]:
    if isinstance(what, str):
        return {"name": what}
    if isinstance(what, Mapping):
        return dict(what)
    raise BadInput(f"{role} = {shown(what)} must be a name, a mapping with a name and options, or a population")


def _named(methods: Any) -> dict[str, Any]:
    """Return the methods by what to call them."""
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str | Path | Algorithm | Result):
        methods = [methods]
    found: dict[str, Any] = {}
    runs = 0
    for one in methods:
        if isinstance(one, Result) or is_run(one):
            runs += 1
            found[f"\0{runs}"] = one  # named when their configs are read
            continue
        name = whole_path(one).rpartition(":")[2] if isinstance(one, str) else check_method(one).name
        if name in found:
            raise BadInput(f"{name} is named twice; call them differently: {{'one': {name!r}, 'other': {name!r}}}")
        found[name] = one
    if not found:
        raise BadInput("name at least one method")
    return found


def _arms(named: Mapping[str, Any], base: Base, settings: Mapping[str, Any]) -> tuple[list[Arm], dict[str, Objects]]:
    runs = {name: one for name, one in named.items() if isinstance(one, Result) or is_run(one)}
    fresh = {name: one for name, one in named.items() if name not in runs}
    folders = [one.folder if isinstance(one, Result) else Path(one) for one in runs.values()]
    arms = arms_of_runs(folders, fresh)
    shared_out(settings, named)
    objects: dict[str, Objects] = {}
    for name, one in fresh.items():
        if isinstance(one, Path) or (isinstance(one, str) and is_study(Path(one))):
            raise BadInput(f"{one} is not the folder of a run: there is no {CONFIG} in it")
        arm, given = base.arm(name, one, shared_settings(settings, named, name))
        arms.append(arm)
        objects[name] = given
    return arms, objects


def shared_settings(settings: Mapping[str, Any], named: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of one method: those for all that it has, and its own."""
    one = named.get(name, name)
    kind = kind_of(one) if isinstance(one, str) else type(one)
    known = {*described(kind), "preset"} if isinstance(one, str) else set()
    shared = {key: value for key, value in settings.items() if key not in named and key in known}
    own = settings.get(name, {}) if name in named else {}
    if own and not isinstance(one, str):
        raise BadInput(f"settings[{name!r}] is for a method given by name; this one is an object with its settings")
    return {**shared, **dict(own)}


def shared_out(settings: Mapping[str, Any], named: Mapping[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Return every setting for all methods with the methods that have it, and all; one that none has is refused."""
    fresh = {name: one for name, one in named.items() if isinstance(one, str) and not is_run(one)}
    kinds = {name: described(kind_of(one)) for name, one in fresh.items()}
    known = {key for kind in kinds.values() for key in kind} | {"preset"}
    found = []
    for key in settings:
        if key not in named:
            having = [name for name, kind in kinds.items() if key in kind or key == "preset"]
            if not having:
                raise BadInput(f"none of the methods has the setting {key!r}{nearest(key, [*known, *fresh])}")
            found.append((key, having, list(kinds)))
    return found


def lacking(key: str, having: Sequence[str], names: Sequence[str]) -> str:
    """Say which methods a setting for all is not for."""
    without = [name for name in names if name not in having]
    return f"{key} is no setting of {', '.join(without)}; it is set for {', '.join(having)}."


def chosen_seeds(seeds: Any) -> tuple[int, ...] | None:
    """Return the seeds that were named, or as many as were asked for; ``None`` where nothing was said."""
    if seeds is None:
        return None
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        found = tuple(whole("seeds", seed, 0, 2**63 - 1) for seed in seeds)
        if not found or len(set(found)) < len(found):
            raise BadInput(f"seeds = {shown(seeds)} must be different numbers, at least one")
        return found
    return tuple(range(whole("seeds", seeds, 1, 1000)))
