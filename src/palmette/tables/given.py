"""Data that only Python can give: a torch data set, a function by its import path, a data set of Hugging Face."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from palmette.errors import BadInput, nearest
from palmette.imports import import_names
from palmette.population import Population
from palmette.population.recipe import Recipe
from palmette.tables.assemble import assemble, digest
from palmette.tables.read import read_table
from palmette.values import one_line, plain, shown
from palmette.values import seed as checked

HUB = "hf:"
Names = Callable[[int], Any] | Sequence[Any]


def read_dataset(
    dataset: Any, *, device: Names, team: Names | None = None, test: float = 0.25, unseen: float = 0.0, seed: int = 0
) -> Population:
    """Make a population from a torch data set whose samples are pairs of features and a label.

    Args:
        dataset: Anything with ``len(dataset)`` and ``dataset[i] -> (features, label)``.
        device: A function from a sample's number to its device's name, or one name per sample.
        team: The same for its team; several names, from the top down, for deeper trees.
        test: The part of each device's samples kept for testing.
        unseen: Part of the devices that is kept out of training.
        seed: Seed of the split and of the devices kept out.
    """
    try:
        count = len(dataset)
        samples = [dataset[number] for number in range(count)]
    except TypeError as error:
        raise BadInput(f"the data set must have a length and samples by number: {one_line(str(error))}") from None
    if not samples:
        raise BadInput("the data set has no samples")
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise BadInput(f"sample {number} is {shown(sample)}; it must be a pair of features and a label")
    try:
        x = torch.stack([torch.as_tensor(np.asarray(one)) if not torch.is_tensor(one) else one for one, _ in samples])
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"the features cannot be put together: {one_line(str(error))}") from None
    owners, above = _names(device, count, "device"), [()] * count if team is None else _names(team, count, "team")
    paths = [(*_path(teams), str(owner)) for teams, owner in zip(above, owners, strict=True)]
    name = type(dataset).__name__
    return assemble(
        x, plain([label for _, label in samples]), paths, source=name, seed=checked(seed), test=test, unseen=unseen
    )


def _names(given: Names, count: int, what: str) -> list[Any]:
    names = [given(number) for number in range(count)] if callable(given) else plain(list(given))
    if len(names) != count:
        raise BadInput(f"{what} has {len(names)} names for {count} samples; give one for each")
    lost = next((number for number, name in enumerate(names) if name is None), None)
    if lost is not None:
        raise BadInput(f"the {what} of sample {lost} is missing")
    return list(names)


def _path(teams: Any) -> tuple[str, ...]:
    return tuple(map(str, teams)) if isinstance(teams, tuple | list) else (str(teams),)


def read_function(path: str, *, seed: int = 0, **options: Any) -> Population:
    """Make a population with a function of the user's own.

    Args:
        path: Its import path, ``module:function``. It returns a population, or a table that is read with the other options.
        seed: Given to the function where it takes it, and used for the split of a table.
        **options: Those that the function takes are given to it; the others say how its table is read.
    """
    found, name = import_names(path, "the function", "my_function")
    function = found.get(name)
    if not callable(function):
        functions = [word for word, one in found.items() if inspect.isfunction(one)]
        raise BadInput(f"the module {path.partition(':')[0]} has no function {name!r}{nearest(name, functions)}")
    takes = inspect.signature(function).parameters
    own = {key: value for key, value in {**options, "seed": seed}.items() if key in takes}
    rest = {key: value for key, value in options.items() if key not in own}
    made = function(**own)
    if isinstance(made, Population):
        for key in rest:
            raise BadInput(
                f"data.{key} = {shown(rest[key])}: {path} takes no such option and returns a whole population"
            )
    else:
        made = read_table(made, seed=seed, **rest)
    return made.made_by(Recipe({"name": path, **plain(options), "fingerprint": digest(made)}, seed))


def read_hub(name: str, *, seed: int = 0, part: str = "train", **how: Any) -> Population:
    """Make a population from a data set of Hugging Face.

    Args:
        name: ``hf:NAME``, or ``hf:NAME:CONFIGURATION``.
        seed: Seed of the split and of the devices kept out.
        part: Which part of the data set is read; it is split into training and test rows here.
        **how: Which column is what, as in `read_table`.
    """
    try:
        import datasets
    except ImportError:
        raise BadInput(f"{name} needs the package 'datasets'; run: pip install 'palmette[data]'") from None
    repository, _, configuration = name.removeprefix(HUB).partition(":")
    try:
        loaded = datasets.load_dataset(repository, configuration or None, split=part)
    except Exception as error:  # of the network, of the hub and of the data set's own code
        raise BadInput(
            f"{name} (part {part!r}) cannot be loaded: {type(error).__name__}: {one_line(str(error))[:300]}; check the name, "
            "and that this machine is online or has the data set in its cache"
        ) from None
    made = read_table(loaded, seed=seed, **how)
    told = {"name": name, "part": part, **plain({key: value for key, value in how.items() if value is not None})}
    return made.made_by(Recipe({**told, "fingerprint": digest(made)}, seed))
