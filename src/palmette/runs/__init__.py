"""Runs: start one, continue one, read one back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs.config import RunConfig as RunConfig
from palmette.runs.config import make_config as make_config
from palmette.runs.config import read_config as read_config
from palmette.runs.config import rounds_of
from palmette.runs.execute import Execution as Execution
from palmette.runs.execute import Interrupted as Interrupted
from palmette.runs.execute import Observer as Observer
from palmette.runs.folder import CONFIG, Folder, claimed
from palmette.runs.result import Result as Result
from palmette.runs.result import load as load
from palmette.task import Task, make_task


def run(
    algorithm: str | Algorithm,
    population: Population,
    model: str | nn.Module | Task = "mclr",
    *,
    rounds: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    participation: Mapping[str, str | int | float] | None = None,
    loss: float = 0.0,
    evaluate_every: int | str = "auto",
    threads: int | None = None,
    observer: Observer | None = None,
    **engine: Any,
) -> Result:
    """Run an algorithm on a population of your own and return what it left in its folder.

    Args:
        algorithm: A name with ``settings``, or an algorithm, which may be one of your own.
        population: Whose samples; see `Population.from_arrays` and `make_population`.
        model: The name of a model, a module, or a task with its own loss and metrics.
        rounds: Global rounds; by default as many as the settings ask for, 20 where they do not say.
        seed: Decides participation, batches and the initial weights of a named model.
        settings: The algorithm's settings, ``preset`` among them.
        out: The run's folder; a new one under ``runs/`` by default.
        participation: Who takes part, as in ``{"devices": 0.5, "teams": "all"}``.
        loss: Chance that a node that was asked does not answer.
        evaluate_every: Rounds between evaluations.
        threads: Chunks of devices that run at the same time; one per core by default.
        observer: Somebody who watches.
        **engine: ``backend``, ``dtype``, ``device``, ``chunk``, ``held_out``, ``store``.
    """
    given = ["data"]
    if isinstance(algorithm, Algorithm):
        if settings:
            raise BadInput("settings go with an algorithm's name; this one has its settings already")
        method: Algorithm | None = algorithm
        named, chosen = algorithm.name, {}
        given.append("algorithm")
    else:
        method, named, chosen = None, algorithm, dict(settings or {})
    if not isinstance(model, str):
        given.append("model")
    task = model if isinstance(model, Task) else _task(model, population, seed)
    config = make_config(
        {
            "algorithm": named,
            "settings": chosen,
            **({} if rounds is None else {"rounds": rounds}),
            "seed": seed,
            "tree": population.tree.spec(),
            "data": {"name": population.source},
            "model": {"name": task.name, "l2": task.l2},
            "participation": dict(participation or {}),
            "loss": loss,
            "evaluate_every": evaluate_every,
            "engine": engine,
            "given": given,
        }
    )
    if rounds is None and method is not None:
        config = config.model_copy(update={"rounds": rounds_of(method, population.tree)})
    return execute(config, out, method=method, population=population, task=task, threads=threads, observer=observer)


def execute(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    method: Algorithm | None = None,
    population: Population | None = None,
    task: Task | None = None,
    threads: int | None = None,
    observer: Observer | None = None,
) -> Result:
    """Run a config in a new folder and return the result; what it lists as given is handed over here."""
    with claimed(
        Path(out) if out is not None else None, Path("runs"), f"{config.algorithm}-{config.data.name}"
    ) as path:
        simulation = _simulation(config, method, population, task, threads, path)
        resolved = config.resolved(simulation.algorithm)
        resolved.to_toml()  # what cannot be written down is told before a folder is made
        return _work(simulation, resolved, Folder.create(path), observer)


def resume(
    folder: str | Path,
    *,
    method: Algorithm | None = None,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    threads: int | None = None,
    observer: Observer | None = None,
) -> Result:
    """Continue a run that was stopped, killed or never got far; a finished one is only read.

    Args:
        folder: The run's folder.
        method: The algorithm, where the run was given one as an object.
        population: The samples, where the run was given them.
        model: The module or task, where the run was given one.
        threads: Chunks of devices that run at the same time.
        observer: Somebody who watches.
    """
    files = Folder.open(Path(folder))
    if not files.finished:
        config = make_config(read_config(files.path / CONFIG))
        files.lock()
        try:
            simulation = _simulation(config, method, population, model, threads, files.path)
        except BaseException:
            files.unlock()
            raise
        return _work(simulation, config, files, observer)
    return Result(files.path)


def _task(model: str | nn.Module, population: Population, seed: int = 0) -> Task:
    if not isinstance(model, str | nn.Module):
        raise BadInput(f"model must be a name, a module or a task, not {model!r}")
    return make_task(model, population.shape, population.classes, seed=seed)


def _simulation(
    config: RunConfig,
    method: Algorithm | None,
    population: Population | None,
    model: nn.Module | Task | None,
    threads: int | None,
    path: Path,
) -> Simulation:
    people = population or config.population()
    method = method or config.method()
    made = config.task(people) if model is None else model
    task = made if isinstance(made, Task) else _task(made, people, config.seed)
    if method.flat and set(config.participation) - {"devices"}:
        warnings.warn(f"{method.name} knows no teams: of participation, only devices applies to it", stacklevel=3)
    return Simulation(
        method,
        people,
        task,
        rounds=config.rounds,
        seed=config.seed,
        links=config.links(people.tree),
        dtype=config.dtype(),
        threads=threads,
        backend=config.engine.backend,
        device=config.engine.device,
        chunk=config.engine.chunk,
        held_out=config.engine.held_out,
        store=config.store(method, people, task, path),
    )


def _work(simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None) -> Result:
    folder.lock()
    try:
        Execution(simulation, config, folder, observer).run()
    finally:
        for store in simulation.stores:
            store.remove()  # what is to be kept is in the checkpoint or in the models
        folder.unlock()
    return Result(folder.path)
