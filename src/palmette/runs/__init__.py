"""Runs: start one, continue one, read one back."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from palmette.algorithms import check_name, kind_of, source_of
from palmette.engines.measures import make_measures
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged, PalmetteWarning, nearest
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.population.packing import refuse_unusable
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.protocol.sentences import sentences, suggestion
from palmette.protocol.settings import described
from palmette.runs import fingerprint, kept, objects, tracking
from palmette.runs.adapting import Adapted as Adapted
from palmette.runs.adapting import adapt as adapt
from palmette.runs.config import RunConfig as RunConfig
from palmette.runs.config import about, rounds_of, versions
from palmette.runs.execute import Execution as Execution
from palmette.runs.execute import Interrupted as Interrupted
from palmette.runs.execute import Observer as Observer
from palmette.runs.exporting import export as export
from palmette.runs.folder import CONFIG, STATE, Folder, claimed
from palmette.runs.limits import refuse_absurd
from palmette.runs.linking import link_names, unused
from palmette.runs.predicting import Predictions as Predictions
from palmette.runs.predicting import predict as predict
from palmette.runs.progress import watching
from palmette.runs.reading import make_config as make_config
from palmette.runs.reading import read_config as read_config
from palmette.runs.result import Result as Result
from palmette.runs.result import load as load
from palmette.runs.sections import EngineConfig, Given
from palmette.runs.verify import Verification as Verification
from palmette.runs.verify import verify as verify
from palmette.task import Task, make_task
from palmette.task.own import is_path, whole_path
from palmette.track.tracker import Track, Trackers, chosen
from palmette.values import path as checked_path
from palmette.values import shown, whole

Exist = Literal["fail", "overwrite", "resume"]
"""What to do with a run's folder that is there already."""


def run(
    algorithm: str | Algorithm,
    population: Population,
    model: str | nn.Module | Task = "mclr",
    *,
    rounds: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    exist: Exist = "fail",
    participation: Mapping[str, str | int | float] | None = None,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    clock: Mapping[str, Any] | None = None,
    loss: float = 0.0,
    replay: str | Path | None = None,
    evaluate_every: int | str = "auto",
    evaluate_on: int | str = "auto",
    metrics: str | Sequence[str] = (),
    optimiser: Optimiser | Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    track: Track = (),
    **engine: Any,
) -> Result:
    """Run an algorithm on a population and return what it left in its folder.

    Nothing that is given is changed: neither the samples nor the module nor the settings.

    Args:
        algorithm: A name with ``settings``, or an algorithm, which may be one of your own.
        population: The samples of all devices; see `Population.from_arrays` and `make_population`.
        model: The name of a model, a module, or a task with its own loss and metrics. Options of a named model go through
            `make_task`: ``pm.make_task("dnn", population.shape, population.classes, hidden=[50])``.
        rounds: Global rounds; by default as many as the settings ask for, 20 where they do not say.
        seed: Decides participation, batches and the initial weights of a named model.
        settings: The algorithm's settings, ``preset`` among them.
        out: The run's folder; a new one under ``runs/`` by default.
        exist: What to do when ``out`` holds a run already: ``"fail"``, ``"overwrite"`` it, or ``"resume"``: go on with it, or
            only read it when it is finished; another run than this one is refused.
        participation: Who takes part, as in ``{"devices": 0.5, "teams": "all"}``.
        links: How links behave, as in ``{"devices": {"codec": "int8", "lost": 0.1}, "all": {"on_bad_reply": "drop"}}``.
        clock: A simulated clock, as in ``{"preset": "edge"}``.
        loss: Chance that a node that was asked does not answer.
        replay: The folder of a run whose absences are repeated, in place of faults.
        evaluate_every: Rounds between evaluations.
        evaluate_on: Devices measured before the last round: a number of them, ``"all"``, or ``"auto"`` (a sample of many).
        metrics: Further metrics by name or import path, as in ``["auc", "f1"]``; see ``palmette.engines.measures``.
        optimiser: Optimiser of the devices' steps, as in ``{"momentum": 0.9}``; plain gradient descent by default.
        threads: Chunks of devices that run at the same time; by default as many as the config says (``engine.threads``), or
            one per core. No result depends on it.
        progress: Whether to show progress on standard error; by default in a terminal and in a notebook.
        observer: An object that is told of every round, in place of progress; see `Observer`.
        track: Where the numbers go besides: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, a `Tracker` of your own, or several.
        **engine: ``backend``, ``dtype``, ``device``, ``chunk``, ``held_out``, ``store``, ``keep_state``,
            ``check_steps``.
    """
    trackers = chosen(track)
    if not isinstance(algorithm, str):
        check_name(type(check_method(algorithm)))
    _check_keywords(algorithm, engine)
    method = algorithm if isinstance(algorithm, Algorithm) else None
    if method is not None and settings:
        raise BadInput(
            "settings= is for an algorithm given by name; this one is an object, which already has its settings"
        )
    tree = _check_population(population).tree
    task = model if isinstance(model, Task) else _task(model, population, seed)
    values: dict[str, Any] = {
        "algorithm": algorithm.name if isinstance(algorithm, Algorithm) else algorithm,
        "settings": ({} if settings is None else settings) if method is None else dataclasses.asdict(method),  # type: ignore[call-overload]
        **({} if rounds is None else {"rounds": rounds}),
        "seed": seed,
        "tree": tree.spec(),
        "server": None if tree.labels[-1] is None else tree.labels[-1][0],
        "data": {"name": population.source},
        "model": about(task),
        "optimiser": optimiser.model_dump() if isinstance(optimiser, Optimiser) else optimiser or {},
        "participation": {} if participation is None else participation,
        "links": {} if links is None else links,
        "clock": {} if clock is None else clock,
        "loss": loss,
        **({} if replay is None else {"replay": str(replay)}),
        "evaluate_every": evaluate_every,
        "evaluate_on": evaluate_on,
        "metrics": metrics if isinstance(metrics, str) else list(metrics),
        "engine": engine,
    }
    given: dict[str, Any] = {}
    if method is not None and not objects.is_named(method):
        given["algorithm"] = {"object": objects.import_path(type(method))}
    if objects.recipe_of(task, population) is None:
        given["model"] = {"object": objects.import_path(type(task.module))}
    values["given"] = given
    config = make_config(values)
    if rounds is None and method is not None:
        config = config.model_copy(update={"rounds": rounds_of(method, tree)})
    with _eyes(config.title, observer, progress) as eyes:
        return execute(
            config, out, exist=exist, method=method, population=population, task=task, threads=threads, observer=eyes,
            track=trackers,
        )  # fmt: skip


def rerun(
    source: str | Path,
    out: str | Path | None = None,
    *,
    exist: Exist = "fail",
    method: Algorithm | None = None,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    track: Track = (),
) -> Result:
    """Run the config of another run again, in a new folder: the same versions give the same bytes.

    Args:
        source: The folder of a run, or a config file.
        out: The new run's folder; a new one under ``runs/`` by default.
        exist: What to do when ``out`` holds a run already, as in `run`.
        method: The algorithm, where the config says that it was an object of your own.
        population: The samples, where they were your own.
        model: The module or task, where it was your own.
        threads: Chunks of devices that run at the same time.
        progress: Whether to show progress, as in `run`.
        observer: An object that is told of every round.
        track: Trackers, as in `run`.
    """
    trackers = chosen(track)
    path = Path(source)
    config = make_config(read_config(path / CONFIG if path.is_dir() else path))
    with _eyes(config.title, observer, progress) as eyes:
        return execute(
            config, out, exist=exist, method=method, population=population, task=model, threads=threads, observer=eyes,
            track=trackers,
        )  # fmt: skip


def execute(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    exist: Exist = "fail",
    method: Algorithm | None = None,
    population: Population | None = None,
    task: nn.Module | Task | None = None,
    threads: int | None = None,
    observer: Observer | None = None,
    track: Track = (),
) -> Result:
    """Run a config in a new folder and return the result; what it lists as given is handed over here."""
    trackers = chosen(track)
    check_exist(exist, out)
    _warn_of_versions(config)
    place = checked_path("out", out) if out is not None else None
    with claimed(place, Path("runs"), f"{config.label}-{config.data.label}") as path:
        people = config.population() if population is None else _check_population(population)
        if method is not None and config.source and not objects.is_named(check_method(method)):
            config = _with_object(config, method)
        config = config.on(people, check_method(method or config.method()))
        simulation = prepare(config, method, people, task, threads, path)
        backend = simulation.learner.backend.name
        resolved = config.resolved(simulation.algorithm, simulation.population, simulation.task, backend)
        _warn_of_objects(config, resolved)
        resolved.to_toml()  # what cannot be written down is told before a folder is made
        # What was ended before it began is like a new folder, whatever is to be done with a run.
        used = (path / CONFIG).exists() and not Folder(path).unbegun
        if exist == "resume" and used:
            return _same(simulation, resolved, Folder.open(path), observer, trackers)
        folder = _cleared(path) if exist == "overwrite" and used else Folder.create(path)
        return _work(simulation, resolved, folder, observer, trackers)


def _with_object(config: RunConfig, method: Algorithm) -> RunConfig:
    """Return a config whose algorithm is the object that was handed over, in place of the one that it names."""
    given = {**config.given, "algorithm": Given(object=objects.import_path(type(method)))}
    return config.model_copy(update={"algorithm": method.name, "given": given})


def _moved(config: RunConfig, path: str) -> RunConfig:
    """Return the config of a run whose algorithm has another import path or file now; its code has to be the same."""
    source = source_of(path)
    if not source or not config.source or "algorithm" not in config.given:
        raise BadInput(
            f"the algorithm {path!r} cannot take the place of {config.source or config.algorithm}: name the import path or the "
            "file of an algorithm of your own, in a run that was given one so"
        )
    given = {**config.given, "algorithm": Given(object=source, hash=config.given["algorithm"].hash)}
    return config.model_copy(update={"algorithm": source, "given": given})


def _moved_model(config: RunConfig, path: str) -> RunConfig:
    """Return the config of a run whose model has another import path or file now; its code has to be the same."""
    kept = config.given.get("model")
    if not is_path(path) or kept is None or not kept.again:
        raise BadInput(
            f"the model {path!r} cannot take the place of {config.model.name}: name the import path or the file of a model of "
            "your own, in a run that was given one so"
        )
    there = whole_path(path)
    given = {**config.given, "model": Given(object=there, hash=kept.hash)}
    return config.model_copy(update={"model": config.model.model_copy(update={"name": there}), "given": given})


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    method: Algorithm | str | None = None,
    population: Population | None = None,
    model: nn.Module | Task | str | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    track: Track = (),
) -> Result:
    """Continue a run that was stopped, killed or never got far; a finished one is only read, or given more rounds.

    A run that is given more rounds ends with the same bytes as one that had them from the start. Where the algorithm plans by
    the number of rounds that cannot be, and is refused.

    The code that the run names is run: that of an algorithm, a model, metrics or data of the user's own.

    Args:
        folder: The run's folder.
        rounds: Rounds the run is to have in all, at least as many as it has.
        method: The algorithm, where the run was given one as an object; or its import path or file, where it was moved.
        population: The samples, where the run was given them.
        model: The module or task, where the run was given one; or its import path or file, where it was moved.
        threads: Chunks of devices that run at the same time.
        progress: Whether to show progress, as in `run`.
        observer: An object that is told of every round.
        track: Trackers, as in `run`; one that knows the run goes on with it.
    """
    trackers = chosen(track)
    rounds = None if rounds is None else whole("rounds", rounds, 1)
    files = Folder.open(Path(folder))
    config = kept.config_in(files)
    if isinstance(method, str):
        config, method = _moved(config, method), None
    if isinstance(model, str):
        config, model = _moved_model(config, model), None
    if rounds is not None and rounds != config.rounds:
        config = _longer(files, config, rounds)
    elif files.finished:
        return Result(files.path)
    with _eyes(config.title, observer, progress) as eyes:
        files.lock()
        try:
            simulation = _prepared_again(config, method, population, model, threads, files.path)
        except BaseException:
            files.unlock()
            raise
        return _work(simulation, config, files, eyes, trackers)


def _prepared_again(
    config: RunConfig,
    method: Algorithm | None,
    people: Population | None,
    task: nn.Module | Task | None,
    threads: int | None,
    path: Path,
) -> Simulation:
    """Prepare a run that goes on: with the backend that ``"auto"`` took when it began, where that can be had."""
    took = config.engine.took
    if config.engine.backend == "auto" and took is not None:
        named = config.model_copy(update={"engine": config.engine.model_copy(update={"backend": took})})
        with suppress(BadInput):  # whatever else is wrong is told below
            return prepare(named, method, people, task, threads, path)
    simulation = prepare(config, method, people, task, threads, path)
    # A kernel that is missing is told with the versions that differ.
    if took not in (None, "native") and simulation.learner.backend.name != took:
        now = simulation.learner.backend.name
        warnings.warn(
            f"the run in {path} began with the backend {took}, which cannot run here, and goes on with {now}: its last bits "
            "may differ from those of a run that was never stopped",
            PalmetteWarning,
            stacklevel=3,
        )
    return simulation


def check_exist(exist: str, out: str | Path | None) -> None:
    """Refuse an unknown word for what to do with a folder that is there, and one without a folder."""
    if exist not in get_args(Exist):
        raise BadInput(f"exist = {exist!r} is unknown{nearest(str(exist), get_args(Exist))}")
    if out is None and exist != "fail":
        raise BadInput(f"exist = {exist!r} needs the folder of the existing run; name it with out= (--out)")


def _longer(files: Folder, config: RunConfig, rounds: int) -> RunConfig:
    """Return the config of a run that is given more rounds."""
    if rounds < config.rounds:
        raise BadInput(
            f"the run in {files.path} has {config.rounds} rounds; rounds = {rounds} would be fewer, give more"
        )
    if files.finished and not (files.path / STATE).exists():
        raise BadInput(
            f"the run in {files.path} kept no state to go on from (engine.keep_state = false); start a new run with "
            f"rounds = {rounds}"
        )
    return make_config({**config.model_dump(), "rounds": rounds})


def _same(
    simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None, track: Trackers
) -> Result:
    """Go on with the run in a folder if it is this one; read it when it is finished."""
    began = kept.config_in(folder)
    differ = fingerprint.kept_in(folder).differences(fingerprint.fingerprint(simulation, config))
    longer = "" if differ else f"; give it more rounds with 'palmette resume {folder.path} --rounds'"
    if began.rounds != config.rounds:
        differ.append(f"rounds (was {began.rounds}, is {config.rounds})")
    if differ:
        raise BadInput(
            f"{folder.path} holds another run; what differs: {'; '.join(differ)}. Choose another folder or "
            f"exist = 'overwrite'{longer}"
        )
    if not folder.finished:
        config = config.model_copy(update={"versions": began.versions})
        return _work(simulation, config, folder, observer, track)
    if began.engine.keep_state != config.engine.keep_state:
        warnings.warn(
            f"the run in {folder.path} is finished and only read: engine.keep_state = {config.engine.keep_state} changes "
            "nothing there",
            PalmetteWarning,
            stacklevel=4,
        )
    return Result(folder.path, trust=True)


def _cleared(path: Path) -> Folder:
    """Return the folder of a run after its files were removed; a folder that is no run stays as it is."""
    if path.is_symlink():
        raise BadInput(f"{path} is a symbolic link; to overwrite the run there, name its folder itself")
    try:
        make_config(read_config(path / CONFIG), kept=True)
    except BadInput as error:
        raise BadInput(f"{path} is not a run of this version and is not overwritten: {error}") from None
    folder = Folder.open(path)
    folder.lock()
    folder.clear()
    return folder


def _warn_of_versions(config: RunConfig) -> None:
    now = versions()
    other = [
        f"{name} {value} (here {now.get(name)})" for name, value in config.versions.items() if now.get(name) != value
    ]
    if other:
        warnings.warn(
            f"this config was made with {', '.join(other)}: the last bits may differ", PalmetteWarning, stacklevel=4
        )


def _warn_of_objects(config: RunConfig, resolved: RunConfig) -> None:
    for role, given in config.given.items():
        now = resolved.given.get(role)
        if given.hash and (now is None or now.hash != given.hash):
            warnings.warn(
                f"the {role} is not the one this config was made with ({given.object})", PalmetteWarning, stacklevel=4
            )


@contextmanager
def _eyes(label: str, observer: Observer | None, progress: bool | None) -> Iterator[Observer | None]:
    """Give the caller's observer, or one that shows progress."""
    if observer is not None:
        if progress:
            raise BadInput("give observer= or progress=True, not both")
        yield observer
        return
    with watching(label, shown=progress) as eyes:
        yield eyes


def _check_keywords(algorithm: str | Algorithm, given: Mapping[str, Any]) -> None:
    """Refuse keywords of `run` that it does not have."""
    kind = kind_of(algorithm) if isinstance(algorithm, str) else type(algorithm)
    own = described(kind)
    for word in given:
        if word in EngineConfig.model_fields:
            continue
        if word in own:
            put = f"settings={{{word!r}: ...}}" if isinstance(algorithm, str) else f"{kind.__name__}({word}=...)"
            raise BadInput(f"{word!r} is a setting of {kind.name}; write it there: {put}")
        known = {**sentences(run), **sentences(EngineConfig), **own}
        raise BadInput(f"pm.run has no keyword {word!r}{suggestion(word, known)}")


def _check_population(population: Any) -> Population:
    """Return a population, or refuse what is none."""
    if not isinstance(population, Population):
        raise BadInput(
            f"population = {shown(population)} is a {type(population).__name__}, not a population; make one with "
            "pm.Population.from_arrays(x, y, device=...) or pm.make_population(name)"
        )
    return population


def _task(
    model: str | nn.Module, population: Population, seed: int = 0, about: Mapping[str, Any] | None = None
) -> Task:
    if isinstance(model, type):
        raise BadInput(f"model is the class {model.__name__}; give one made from it: {model.__name__}(...)")
    if not isinstance(model, str | nn.Module):
        raise BadInput(f"model must be a name, a module or a task, not {model!r}")
    return make_task(model, population.shape, population.classes, seed=seed, words=population.words, **(about or {}))


def prepare(
    config: RunConfig,
    method: Algorithm | None = None,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    threads: int | None = None,
    path: Path = Path(),
) -> Simulation:
    """Make the simulation of a config, which refuses all that could not be run, without a folder.

    Args:
        config: The run's config.
        method: The algorithm, where it is an object.
        population: The samples, where they are there already.
        model: The module or task, where it is an object.
        threads: Chunks of devices that run at the same time.
        path: The folder that the run would have.
    """
    people = config.population() if population is None else _check_population(population)
    refuse_unusable(people)
    method = check_method(method or config.method())
    made = config.task(people) if model is None else model
    task = made if isinstance(made, Task) else _task(made, people, config.seed, config.model.about)
    task = task.with_parts(method.parts, whole=method.whole_part)
    links = config.make_links(people.tree, flat=method.flat)
    text = people.classes is not None and people.y.dim() > 1
    make_measures(config.metrics, people.classes, text=text)  # refuses what does not fit before a folder is made
    if text and method.one_label:
        raise BadInput(
            f"{method.name} is for one label per sample, and each sample of {people.source} has {people.y[0].numel()}, as text "
            "has one for every token; choose another algorithm"
        )
    method.check(people.tree.flat() if method.flat else people.tree)  # what nodes keep is only defined on such trees
    refuse_absurd(config, method, people, task, links, path)
    if method.flat and set(config.participation) - {"devices"}:
        warnings.warn(
            f"{method.name} knows no teams: of participation, only devices applies to it", PalmetteWarning, stacklevel=3
        )
    of_links = (config.links, config.loss, link_names(people.tree))
    if left := unused(*of_links, flat=method.flat, again=config.replay is not None):
        why = "a replay loses those that the other run lost" if config.replay else f"{method.name} knows no teams"
        warnings.warn(f"{why}: this run has no use for {', '.join(left)}", PalmetteWarning, stacklevel=3)
    return Simulation(
        method,
        people,
        task,
        rounds=config.rounds,
        seed=config.seed,
        links=links,
        dtype=config.dtype(),
        threads=config.engine.threads if threads is None else threads,
        backend=config.engine.backend,
        device=config.engine.device,
        chunk=config.engine.chunk,
        held_out=config.engine.held_out,
        optimiser=config.optimiser,
        store=config.store(method, people, task, path),
        pace=config.pace(people.tree),
    )


def _work(
    simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None, track: Trackers
) -> Result:
    folder.lock()
    if forgotten := [name for name in tracking.kept(folder.path) if name not in track.makers]:
        more = " ".join(f"--track {name}" for name in forgotten)
        folder.warn(
            f"the run in {folder.path} was tracked by {', '.join(forgotten)} and is not now; {more} goes on with it"
        )
    tracked = tracking.Tracked(track, config, folder, observer) if track.makers else None
    try:
        execution = Execution(simulation, config, folder, observer if tracked is None else tracked)
        if tracked is not None:
            tracked.history = lambda: execution.history
        execution.run()
    except BaseException as error:
        if tracked is not None:
            tracked.end(_how(error), {})
        raise
    finally:
        for store in simulation.kept.values() if folder.in_place else ():
            store.remove()  # what is to be kept is in the checkpoint or in the models
        folder.unlock()
    result = Result(folder.path, trust=True)  # its code has just been run
    if tracked is not None:
        tracked.end("finished", tracking.summary_of(result.summary()))
    return result


def _how(error: BaseException) -> str:
    """Say in a word how a run ended that did not come to its end."""
    stopped = isinstance(error, Interrupted | KeyboardInterrupt)
    return "stopped" if stopped else "diverged" if isinstance(error, Diverged) else "failed"
