"""Read a config and check everything in it that can be checked without data; all problems are told at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from palmette.algorithms import ALGORITHMS, algorithm, kind_of, source_of
from palmette.engines.measures import check_measures
from palmette.errors import BadInput
from palmette.files import is_file
from palmette.guards.texts import from_toml
from palmette.learner import Optimiser
from palmette.links import Participation
from palmette.protocol import Algorithm
from palmette.protocol.sentences import brief, sentences, suggestion
from palmette.runs.config import RunConfig, rounds_of
from palmette.runs.linking import ClockConfig, LinkConfig, check_links
from palmette.runs.objects import hash_code
from palmette.runs.sections import DataConfig, EngineConfig, Given, ModelConfig, names
from palmette.tables import is_code
from palmette.task.own import find, is_path, whole_path
from palmette.tree import Tree
from palmette.values import one_line, plain, pointed, shown, unwritable


def read_config(path: Path, data: bytes | None = None) -> dict[str, Any]:
    """Read a config file.

    Args:
        path: The file.
        data: What is in it, where that has been read.
    """
    try:
        return from_toml(path.read_bytes() if data is None else data)
    except FileNotFoundError:
        raise BadInput(f"there is no config file {path}") from None
    except (ValueError, OSError) as error:  # among them what is no TOML, no UTF-8, or has no end
        raise BadInput(f"cannot read config {path}: {error}") from None


# What pydantic says of values, and what people say.
_WORDS = {
    r", (unable to parse string as an? \w+|got a number with a fractional part)": "",
    r"a valid dictionary( or instance of \w+)?": "a table",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid integer": "a whole number",
    "a (valid|finite) number": "a number",
}
# What pydantic adds to a key that may be of several kinds.
_BRANCHES = ("literal", "function", "constrained", "str", "int", "float", "list[", "dict[")


def _worded(said: str) -> str:
    """Return what pydantic says that a value should be, in the words of people who do not know Python."""
    said = said.removeprefix("Value error, ").removeprefix("Input ").removeprefix("should be ")
    for pattern, word in _WORDS.items():
        said = re.sub(pattern, word, said)
    return said


def make_config(values: Mapping[str, Any], *, kept: bool = False) -> RunConfig:
    """Check a config and everything in it that can be checked without data; all problems are told at once.

    Args:
        values: The config.
        kept: Whether it is what a run wrote into its folder. Code that it names is not loaded then: the folder may be a
            stranger's, and reading is not running.
    """
    try:
        values = plain(values)
    except RecursionError:
        raise BadInput("the config is nested too deeply; no setting has lists within lists without end") from None
    given = values.get("given", {})
    # Settings of any kind; a run is read also where an algorithm of its user's own cannot be imported.
    own = isinstance(given, Mapping) and "algorithm" in given
    problems = unwritable({key: value for key, value in values.items() if not (own and key == "settings")})
    if problems:
        raise BadInput("; ".join(map(one_line, problems)))
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found: dict[str, list[str]] = {}  # what is wrong, by key: one of several kinds has a message for each
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"] if not str(part).startswith(_BRANCHES))
            if item["type"] == "extra_forbidden":
                problems.append(f"unknown setting {where!r}{suggestion(where.split('.')[-1], _known(where))}")
            else:
                found.setdefault(f"{where}\0{shown(item['input'])}{pointed(item['input'])}", []).append(
                    _worded(item["msg"])
                )
        for key, told in found.items():
            where, _, value = key.partition("\0")
            about = _known(where).get(where.split(".")[-1])
            why = f" ({brief(about)})" if about else ""
            problems.append(f"{where}: should be {' or '.join(dict.fromkeys(told))}, not {value}{why}")
    settings, taking_part = values.get("settings", {}), values.get("participation", {})
    checks: list[Callable[[], Any]] = [lambda: Tree.parse(values.get("tree", "4x10"))]
    if isinstance(wanted := names(values.get("metrics", [])), list) and all(isinstance(one, str) for one in wanted):
        checks.append(lambda: check_measures(wanted))
    if kept:
        problems += _unaccounted(values, given if isinstance(given, Mapping) else {})
    if isinstance(settings, Mapping) and not own and not (kept and str(values.get("algorithm")) not in ALGORITHMS):
        checks.append(lambda: _method(values.get("algorithm"), settings))
    if not problems:
        problems += check_links(config.links, config.clock)
    if isinstance(taking_part, Mapping):
        checks.append(lambda: [Participation.parse(value, name) for name, value in taking_part.items()])
    for check in checks:
        try:
            check()
        except BadInput as error:
            problems.append(str(error))
    if problems:
        raise BadInput("; ".join(dict.fromkeys(map(one_line, problems))))
    if kept:
        return config
    if "algorithm" not in config.given and (source := source_of(config.algorithm)):
        config = _from_source(config, source)
    if "model" not in config.given and is_path(config.model.name):
        config = _with_model(config)
    if config.data.planted:
        return config  # how many rounds the settings ask for depends on the tree, which the data will tell
    if "rounds" not in values and config.source:
        config = config.model_copy(update={"rounds": rounds_of(config.method(), Tree.parse(config.tree))})
    return config


def _unaccounted(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Say which code a run names without what it writes down about code, so that it was not written by a run."""
    model = values.get("model", {})
    name = model.get("name", "") if isinstance(model, Mapping) else ""
    found = {"algorithm": str(values.get("algorithm")), "model": str(name)}
    known = {"algorithm": found["algorithm"] in ALGORITHMS, "model": not is_path(found["model"])}
    return [
        f"{role} {shown(found[role])} is none of Palmette's, and given.{role} does not say where it is from: no run wrote this"
        for role in found
        if not known[role] and role not in given
    ]


def code_of(config: RunConfig) -> dict[str, str]:
    """Return the code that running a config runs besides Palmette's own, by its role; nothing where there is none."""
    found = {}
    if config.source not in ALGORITHMS:
        found["algorithm"] = config.source or config.given["algorithm"].object
    if is_path(config.model.name):
        found["model"] = config.model.name
    if is_code(config.data.name):
        found["data"] = config.data.name
    if own := [name for name in config.metrics if ":" in name]:
        found["metrics"] = ", ".join(own)
    return found


def _from_source(config: RunConfig, source: str) -> RunConfig:
    """Write down where an algorithm of the user's own comes from, and what its code is, so that another is noticed."""
    given = {**config.given, "algorithm": Given(object=source, hash=hash_code(kind_of(source)))}
    named = source if is_file(config.algorithm) else config.algorithm
    return config.model_copy(update={"algorithm": named, "given": given})


def _with_model(config: RunConfig) -> RunConfig:
    """Write down where a model of the user's own comes from, and what its code is."""
    path = whole_path(config.model.name)
    given = {**config.given, "model": Given(object=path, hash=hash_code(find(path)))}
    return config.model_copy(update={"model": config.model.model_copy(update={"name": path}), "given": given})


def _method(name: Any, settings: Mapping[str, Any]) -> Algorithm | None:
    """Make the algorithm; what its name must be is said elsewhere."""
    return algorithm(name, **settings) if isinstance(name, str) else None


def _known(where: str) -> dict[str, str]:
    """Return the keys of the part of a config that a dotted key belongs to, with their sentences."""
    kinds: dict[str, type[BaseModel]] = {
        **{"engine": EngineConfig, "data": DataConfig},
        **{"model": ModelConfig, "optimiser": Optimiser},
        **{"links": LinkConfig, "clock": ClockConfig},
    }
    return sentences(kinds.get(where.split(".")[0], RunConfig) if "." in where else RunConfig)
