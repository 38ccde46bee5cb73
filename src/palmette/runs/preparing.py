"""From a config to the simulation of it: all that cannot be run is refused here, before there is a folder."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from palmette.engines.measures import make_measures
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, PalmetteWarning
from palmette.population import Population
from palmette.population.packing import refuse_unusable
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.runs.config import RunConfig
from palmette.runs.folder import CONFIG
from palmette.runs.limits import refuse_absurd
from palmette.runs.linking import link_names, unused
from palmette.runs.reading import make_config, read_config
from palmette.task import Task, make_task
from palmette.values import shown


def prepare(
    config: RunConfig,
    method: Algorithm | None = None,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    threads: int | None = None,
    path: Path = Path(),
    engine: Callable[..., Simulation] = Simulation,
) -> Simulation:
    """Make the simulation of a config, which refuses all that could not be run, without a folder.

    Args:
        config: The run's config.
        method: The algorithm, where it is an object.
        population: The samples, where they are there already.
        model: The module or task, where it is an object.
        threads: Chunks of devices that run at the same time.
        path: The folder that the run would have.
        engine: What makes the simulation.
    """
    people = config.population() if population is None else check_population(population)
    refuse_unusable(people)
    method = check_method(method or config.method())
    made = config.task(people) if model is None else model
    task = made if isinstance(made, Task) else task_of(made, people, config.seed, config.model.about)
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
    if config.replay is not None and (other := _unlike(config, method)):
        warnings.warn(
            f"the run in {config.replay} had {', '.join(other)}: only those of its absences that fit are repeated",
            PalmetteWarning,
            stacklevel=3,
        )
    of_links = (config.links, config.loss, link_names(people.tree))
    if left := unused(*of_links, flat=method.flat, again=config.replay is not None):
        why = "a replay loses those that the other run lost" if config.replay else f"{method.name} knows no teams"
        warnings.warn(f"{why}: this run has no use for {', '.join(left)}", PalmetteWarning, stacklevel=3)
    return engine(
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


def _unlike(config: RunConfig, method: Algorithm) -> list[str]:
    """Return what was otherwise in the run to repeat, as far as it decides who is asked when."""
    if not (config.replayed / CONFIG).is_file():
        return []  # a table of absences alone
    other = make_config(read_config(config.replayed / CONFIG), kept=True)
    settings = {
        name: list(value) if isinstance(value, tuple) else value  # as a file has them
        for name, value in dataclasses.asdict(method).items()  # type: ignore[call-overload]
    }
    own = {name: value for name, value in other.settings.items() if name in settings and settings[name] != value}
    said = [f"algorithm {other.algorithm}"] if other.algorithm != config.algorithm else []
    said += [f"{name} {value}" for name, value in own.items() if other.algorithm == config.algorithm]
    said += [f"another {word}" for word in ("seed", "tree", "participation") if _differ(config, other, word)]
    return said + ([f"only {other.rounds} rounds"] if other.rounds < config.rounds else [])


def _differ(one: RunConfig, other: RunConfig, word: str) -> bool:
    return bool(getattr(one, word) != getattr(other, word))


def check_population(population: Any) -> Population:
    """Return a population, or refuse what is none."""
    if not isinstance(population, Population):
        raise BadInput(
            f"population = {shown(population)} is a {type(population).__name__}, not a population; make one with "
            "pm.Population.from_arrays(x, y, device=...) or pm.make_population(name)"
        )
    return population


def task_of(
    model: str | nn.Module, population: Population, seed: int = 0, about: Mapping[str, Any] | None = None
) -> Task:
    """Return the task of a model's name or of a module."""
    if isinstance(model, type):
        raise BadInput(f"model is the class {model.__name__}; give one made from it: {model.__name__}(...)")
    if not isinstance(model, str | nn.Module):
        raise BadInput(f"model must be a name, a module or a task, not {model!r}")
    return make_task(model, population.shape, population.classes, seed=seed, words=population.words, **(about or {}))
