"""How a population was made, as plain data that makes it again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from palmette.datasets import Dataset, Pool
from palmette.population.partition import PARTITIONS, Few, Partition
from palmette.population.selection import Selection
from palmette.tree import Tree


@dataclass(frozen=True)
class Recipe:
    """What `make_population` was called with, every default that played a part written out.

    Attributes:
        values: The name of the source and the keywords of `make_population`, as numbers and words; not the tree, except
            where teams were found afterwards.
        seed: The seed of the partition, the teams and the split.
        objects: What cannot be written down, by its role (``"source"``, ``"partition"``): its import path. A recipe that names
            some does not make the population again.
    """

    values: Mapping[str, Any]
    seed: int
    objects: Mapping[str, str] = field(default_factory=dict)

    def dealt_on(self, tree: Tree | None) -> Recipe:
        """Return the recipe of a population whose teams are found: its tree is not the one it was dealt out on.

        Args:
            tree: The tree it was dealt out on; ``None`` where the data have one of their own.
        """
        values, objects = dict(self.values), dict(self.objects)
        values |= {"given_teams": values["teams"]} if "teams" in values else {}
        if tree is not None:
            values["tree"] = tree.spec()
            objects |= {} if tree.can_be_written else {"tree": "palmette.Tree"}
        return Recipe(values, self.seed, objects)


def write_down(
    source: str | Pool,
    entry: Dataset,
    dealing: Partition | Selection | None,
    options: Mapping[str, Any],
    *,
    seed: int,
    teams: str,
    shift: Mapping[str, Any],
    folder: str | Path | None,
    test: float,
    pixels: str,
    split: bool,
) -> Recipe:
    """Write a recipe down; what has no part in this population is left out.

    Args:
        source: The source.
        entry: Its row in the table of sources.
        dealing: The partition, or the choice of devices where they are the data's own.
        options: The source's own options that were given.
        seed: The seed.
        teams: How teams are formed.
        shift: How features differ by team and by device: the keywords.
        folder: Where the files are, if somebody said so.
        test: The part of each device's samples kept for testing.
        pixels: What pixels are turned into.
        split: Whether training and test samples are told apart by the source or the partition, not by ``test``.
    """
    own = isinstance(source, Pool)
    values: dict[str, Any] = {"name": source.name if isinstance(source, Pool) else source}
    objects = {"source": "palmette.population.Pool"} if own else {}
    if not own:
        known = inspect.signature(entry.read).parameters
        values |= {name: known[name].default for name in entry.own} | dict(options)
    if isinstance(dealing, Partition):
        values |= _partition(dealing, objects)
    elif dealing is not None:
        values |= {name: value for name, value in asdict(dealing).items() if value is not None}
    if not (split and dealing is None):
        values["teams"] = teams
    if not split:
        values["test"] = test
    if "pixels" in entry.takes:
        values["pixels"] = pixels
    values |= dict(shift) | ({} if folder is None else {"folder": str(folder)})
    return Recipe({name: _plain(value) for name, value in values.items()}, int(seed), objects)


def _partition(partition: Partition, objects: dict[str, str]) -> dict[str, Any]:
    """Return a partition's name and options; one of a user's own goes by its import path."""
    name = next((name for name, kind in PARTITIONS.items() if type(partition) is kind), None)
    if name is None:
        objects["partition"] = f"{type(partition).__module__}.{type(partition).__qualname__}"
        return {"partition": objects["partition"]}
    options = {entry.name: getattr(partition, entry.name) for entry in fields(partition)}  # type: ignore[arg-type]
    options = {option: value for option, value in options.items() if value is not None}
    if isinstance(partition, Few):
        inner = _partition(partition.of, objects)
        options |= {"of": inner.pop("partition"), **inner}
    return {"partition": name, **options}


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's."""
    return value.item() if isinstance(value, np.generic) else value
