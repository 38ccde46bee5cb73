"""Objects that a config cannot hold, named by where they are imported from and by a hash of what they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from palmette.algorithms import ALGORITHMS
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs.digests import described, digest_of
from palmette.task import Task, make_task
from palmette.task.own import find, is_path

Named = tuple[str, str]
"""An import path and a hash."""


def named_objects(
    method: Algorithm, population: Population, task: Task, made: Mapping[str, Any] | None
) -> dict[str, Named]:
    """Return what of a run only Python can give, by its role: ``algorithm``, ``data``, ``model``, ``loss``, ``metrics``.

    Args:
        method: The algorithm.
        population: The data.
        task: What is learned.
        made: The recipe of its model (`recipe_of`).
    """
    found: dict[str, Named] = {}
    if not is_named(method):
        found["algorithm"] = import_path(type(method)), hash_code(type(method))
    recipe = population.recipe
    if recipe is None or recipe.objects or not population.tree.can_be_written:
        own = dict(recipe.objects) if recipe is not None else {}
        own |= {} if population.tree.can_be_written else {"tree": "palmette.Tree"}
        path = ", ".join(f"{role} {where}" for role, where in own.items()) or "palmette.Population"
        found["data"] = path, hash_samples(population)
    if made is None:
        found["model"] = import_path(type(task.module)), hash_module(task.module)
    elif is_path(made["name"]):
        found["model"] = made["name"], hash_code(find(made["name"]))
    if not isinstance(task.loss, str):
        found["loss"] = import_path(task.loss), _short(described(task.loss))
    if task.metrics is not None:
        paths = ", ".join(f"{name} = {import_path(metric)}" for name, metric in task.metrics.items())
        found["metrics"] = paths or "none", _short(described(task.metrics))
    return found


def is_named(method: Algorithm) -> bool:
    """Return whether an algorithm is one of Palmette's, which its name and settings make again."""
    return ALGORITHMS.get(method.name) is type(method)


def recipe_of(task: Task, population: Population) -> dict[str, Any] | None:
    """Return the recipe of a named model, or ``None`` where it would not make the module as it is now."""
    if task.recipe is None:
        return None
    options = dict(task.recipe)
    name, words = options.pop("name"), population.words
    again = make_task(name, population.shape, population.classes, words=words, **options).module
    return dict(task.recipe) if hash_module(again) == hash_module(task.module) else None


def import_path(thing: Any) -> str:
    """Return where a class or function is imported from; of another object, its class."""
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def hash_code(kind: Any) -> str:
    """Return a hash of the source of an algorithm or a model and of all of the user's own that it reads from outside."""
    return _short(described(kind))


def hash_samples(population: Population) -> str:
    """Return a hash of all samples, who has them, and the tree."""
    tree, about = population.tree, repr((population.affine, population.classes))
    names = ["\0".join(tree.names(tier)) for tier in range(tree.tiers)]
    parents = map(torch.from_numpy, tree.parents)
    unseen = [] if population.unseen is None else [population.unseen]
    return _short(about, *names, *parents, population.x, population.y, population.start, population.train, *unseen)


def hash_module(module: nn.Module) -> str:
    """Return a hash of a module's layers, its parameters and which of them learn, and its buffers."""
    return _short(described(module), *(value.detach() for value in module.parameters()))


def _short(*values: Tensor | str) -> str:
    return digest_of(*values)[:32]
