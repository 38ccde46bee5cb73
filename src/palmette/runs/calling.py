"""A run of what a Python program has in its hands: an algorithm, a population, a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from palmette.algorithms import check_name, kind_of
from palmette.engines.measures import named
from palmette.errors import BadInput
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.protocol.sentences import sentences, suggestion
from palmette.protocol.settings import described
from palmette.runs import objects
from palmette.runs.config import about, rounds_of
from palmette.runs.execution import Observer
from palmette.runs.preparing import check_population, task_of
from palmette.runs.reading import make_config
from palmette.runs.result import Result
from palmette.runs.running import Exist, execute
from palmette.runs.sections import EngineConfig
from palmette.runs.working import eyes_of
from palmette.task import Task
from palmette.track.tracker import Track, chosen


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
    metrics: str | Sequence[str | Callable[..., Any]] = (),
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
        settings: The algorithm's settings, as in ``{"alpha": 0.1}``; ``{"preset": "published"}`` takes those of its paper.
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
        metrics: Further metrics, as in ``["auc", "f1"]``: auc, f1, balanced-accuracy, calibration, perplexity; for regression
            r2 and rmse; ``"my_module:my_metric"``; or functions of your own of all outputs and targets, which return one
            number, or one per sample; see ``palmette.engines.measures``.
        optimiser: Optimiser of the devices' steps, as in ``{"momentum": 0.9}``; plain gradient descent by default.
        threads: Chunks of devices that run at the same time; by default as many as the config says (``engine.threads``), or
            one per core. No result depends on it.
        progress: Whether to show progress on standard error; by default in a terminal and in a notebook.
        observer: An object that is told of every round, in place of progress; see `Observer`.
        track: Where the numbers go besides: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, a `Tracker` of your own, or several.
        **engine: How it is computed, the settings ``engine.*``: ``backend``, ``dtype``, ``device``, ``chunk``, ``held_out``,
            ``store``, ``keep_state``, ``check_steps``.
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
    tree = check_population(population).tree
    task = model if isinstance(model, Task) else task_of(model, population, seed)
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
        "metrics": named(metrics),
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
    with eyes_of(config.title, observer, progress) as eyes:
        return execute(
            config, out, exist=exist, method=method, population=population, task=task, threads=threads, observer=eyes,
            track=trackers,
        )  # fmt: skip


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
