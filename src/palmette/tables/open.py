"""Data by the path or name that a person gives: a table, a packed population, and the other ways in."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from palmette.datasets import DATASETS
from palmette.errors import BadInput, nearest
from palmette.population import Population, load_population
from palmette.population.found import found_again
from palmette.population.recipe import Recipe
from palmette.population.saved import is_saved
from palmette.tables.assemble import digest
from palmette.tables.folders import is_folders, read_folders
from palmette.tables.given import HUB, read_function, read_hub
from palmette.tables.read import read_table
from palmette.tables.source import open_table
from palmette.values import plain, shown

APART = ("source", "seed", "into")  # keywords of `read_table` that are no settings of the data


def is_own(name: str) -> bool:
    """Return whether a data set's name is the path of a user's own data rather than the name of a public data set."""
    return name not in DATASETS and (bool(re.search(r"[/\\.:]", name)) or Path(name).exists())


def is_code(name: str) -> bool:
    """Return whether data come from a function by its import path, or from a data set of Hugging Face, which may hold code."""
    if name in DATASETS:
        return False
    return name.startswith(HUB) or (":" in name and not Path(name).expanduser().exists())


def label_of(name: str) -> str:
    """Return a short name for data, to be used in the name of a folder."""
    return re.sub(r"[^\w-]+", "-", Path(name).name.split(".")[0] or "data") if is_own(name) else name


def options_of_tables() -> list[str]:
    """Return the settings that a table takes."""
    return [name for name in inspect.signature(read_table).parameters if name not in APART]


def open_data(name: str, *, seed: int = 0, fingerprint: str | None = None, **options: Any) -> Population:
    """Make the population of a user's own data.

    Args:
        name: The path.
        seed: Seed of the split.
        fingerprint: What the data were known by when the config was written; other data are refused.
        **options: Settings of the data, such as ``device`` and ``label``; for teams that are found ``teams="found"``,
            ``found_by`` and ``found_teams``.
    """
    found = options.get("teams") == "found"
    finding = {word: options.pop(word, None) for word in ("teams", "found_by", "found_teams")} if found else {}
    made = _open(name, seed, options, fingerprint)
    _refuse_others(name, fingerprint, None if made.recipe is None else made.recipe.values.get("fingerprint"))
    return found_again(made, finding["found_by"], finding["found_teams"], made.recipe) if found else made


def _refuse_others(name: str, fingerprint: str | None, now: str | None) -> None:
    """Refuse data that are not those a config was written for."""
    if fingerprint and now != fingerprint:
        raise BadInput(
            f"{name} is not what it was when this config was written: its fingerprint was {fingerprint} and is {now}. Put the "
            "old data back, or start a new run without it (--set data.fingerprint=)"
        )


def _open(name: str, seed: int, options: dict[str, Any], fingerprint: str | None) -> Population:
    path = Path(name).expanduser()
    if is_saved(path):
        for option in options:
            raise BadInput(
                f"{name} is packed already, so data.{option} cannot be chosen any more; leave it out or pack again"
            )
        return load_population(path)
    if name.startswith(HUB):
        return read_hub(name, seed=seed, **options)
    if is_code(name):
        return read_function(name, seed=seed, **options)
    if is_folders(path):
        made = read_folders(path, seed=seed, **options)
        return made if made.recipe is not None else _known_by_samples(made, path, options, seed)
    known = options_of_tables()
    for option in options:
        if option not in known:
            raise BadInput(f"data.{option} = {shown(options[option])} is no setting of a table{nearest(option, known)}")
    words = {key: options[key] for key in ("encoding", "delimiter") if isinstance(options.get(key), str)}
    table = open_table(path, **words)
    if fingerprint:  # told before what may be wrong with other data
        _refuse_others(name, fingerprint, table.fingerprint)
    return read_table(table, seed=seed, **options)


def _known_by_samples(made: Population, path: Path, options: dict[str, Any], seed: int) -> Population:
    """Note how a population was made of a folder; it is known by its samples, since the files are many."""
    return made.made_by(Recipe({"name": str(path.absolute()), **plain(options), "fingerprint": digest(made)}, seed))
