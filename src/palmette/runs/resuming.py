"""Runs that go on: those that were stopped, and those that are given more rounds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import nn

from palmette.algorithms import source_of
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, PalmetteWarning
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs import kept
from palmette.runs.config import RunConfig
from palmette.runs.execution import Observer
from palmette.runs.folder import STATE, Folder
from palmette.runs.preparing import prepare
from palmette.runs.reading import make_config
from palmette.runs.result import Result
from palmette.runs.sections import Given
from palmette.runs.together import engine
from palmette.runs.working import eyes_of, work
from palmette.task import Task
from palmette.task.own import is_path, whole_path
from palmette.track.tracker import Track, chosen
from palmette.values import whole


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
    with eyes_of(config.title, observer, progress) as eyes:
        files.lock()
        try:
            simulation = prepared_again(config, method, population, model, threads, files.path, engine())
        except BaseException:
            files.unlock()
            raise
        return work(simulation, config, files, eyes, trackers)


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


def prepared_again(
    config: RunConfig,
    method: Algorithm | None,
    people: Population | None,
    task: nn.Module | Task | None,
    threads: int | None,
    path: Path,
    made_by: Callable[..., Simulation],
) -> Simulation:
    """Prepare a run that goes on: with the backend that ``"auto"`` took when it began, where that can be had.

    Args:
        config: The run's config.
        method: The algorithm, where it is an object.
        people: The samples, where they are there already.
        task: The module or task, where it is an object.
        threads: Chunks of devices that run at the same time.
        path: The run's folder.
        made_by: What makes the simulation.
    """
    took = config.engine.took
    if config.engine.backend == "auto" and took is not None:
        named = config.model_copy(update={"engine": config.engine.model_copy(update={"backend": took})})
        with suppress(BadInput):  # whatever else is wrong is told below
            return prepare(named, method, people, task, threads, path, made_by)
    simulation = prepare(config, method, people, task, threads, path, made_by)
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
