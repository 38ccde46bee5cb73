"""From options, ``--set`` and a config file to one checked config; all problems are told at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette.algorithms import ALGORITHMS, kind_of
from palmette.algorithms.installed import clashes, installed
from palmette.cli.keys import GROUPS, TOP, Key, data_keys, known_keys, model_keys, settings_of, table_keys, takes_any
from palmette.datasets import DATASETS, dataset_of
from palmette.errors import BadInput
from palmette.files import is_file
from palmette.guards.terminal import say
from palmette.guards.texts import from_toml
from palmette.learner.place import place
from palmette.population import PARTITIONS
from palmette.population.partition import option_names
from palmette.protocol.importing import whole_path
from palmette.protocol.sentences import suggestion
from palmette.runs import RunConfig, make_config, read_config
from palmette.runs.reading import code_of
from palmette.tables import is_own
from palmette.tables.given import HUB
from palmette.task import own as own_model
from palmette.task.making import check_name
from palmette.values import one_line, shown


def configure(
    algorithm: str | None,
    *,
    file: Path | None,
    options: Mapping[str, Any],
    assignments: Sequence[str],
    base: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Make the config of a run: the file's values, then the options, then ``--set``.

    Args:
        algorithm: The algorithm named on the command line.
        file: A config file.
        options: Values by dotted key; those that are ``None`` were not given.
        assignments: ``key=value`` texts.
        base: Values to begin with where there is no file.
    """
    values: dict[str, Any] = read_config(file) if file is not None else copy.deepcopy(dict(base or {}))
    problems: list[str] = []
    values["algorithm"] = _algorithm(algorithm, values, file)
    options = {key: _whole(value) if key == "model.name" else value for key, value in options.items()}
    wanted = {key: value for key, value in options.items() if value is not None}
    wanted |= {key.strip(): literal(value.strip()) for key, _, value in (text.partition("=") for text in assignments)}
    _drop_options_of_others(values, wanted, file)
    _drop_what_a_preset_says(values, wanted, file)
    _forget_found_teams(values, wanted, file)
    for key, value in options.items():
        if value is not None:
            _put(values, key.split("."), value, problems)
    for text in assignments:
        _assign(values, text, problems)
    problems += _tree_of_own_data(values, wanted)
    problems += _unknown_names(values) + _unusable_device(values)
    try:
        config = make_config(values)
    except BadInput as error:
        problems.append(str(error))
    if problems:
        raise BadInput("; ".join(dict.fromkeys(map(one_line, problems))))
    return config


def say_code(place: Path, *configs: RunConfig, **moved: str | None) -> None:
    """Say which code a command is going to run because a run or a study names it; it may be a stranger's.

    Args:
        place: The folder they are from.
        *configs: The configs.
        **moved: Code that the user names in place of it, by role.
    """
    for role, path in dict.fromkeys(found for config in configs for found in code_of(config).items()):
        if not moved.get(role):
            say(f"the {role} of {place} is code, which is run: {path}")


def _whole(model: Any) -> Any:
    """Return the path of a model of the user's own as a config has it; any other name as it is."""
    return own_model.whole_path(model) if isinstance(model, str) and is_file(model) else model


def literal(text: str) -> Any:
    """Read a TOML value; what is none is a string."""
    try:
        read = from_toml(f"value = {text}".encode())
    except ValueError:  # no TOML; a number of thousands of digits; brackets without end
        return text
    value = read.get("value")
    plain = len(read) == 1 and isinstance(value, str | int | float | bool | list | dict)
    return value if plain else text


def _algorithm(named: str | None, values: dict[str, Any], file: Path | None) -> str:
    """Return the algorithm that is meant; a file's settings of another one do not apply and are left out, aloud."""
    kept = values.get("algorithm")
    if named is None and kept is None:
        raise BadInput("name an algorithm, as in palmette run permfl. All there are: palmette list algorithms")
    if named in ALGORITHMS and named in installed():
        for clash in clashes([named]):
            say(clash)
    named = whole_path(named) if named is not None and is_file(named) else named
    if named is not None and kept is not None and named != kept and values.pop("settings", None):
        say(f"the [settings] in {file} are those of {kept}; {named} runs with its defaults and what --set says")
    if named is not None and is_known(named) and isinstance(given := values.get("given"), dict):
        given.pop("algorithm", None)
    return str(kept if named is None else named)


def _drop_options_of_others(values: dict[str, Any], wanted: Mapping[str, Any], file: Path | None) -> None:
    """Leave out, aloud, the file's options of a data set, partition or model in whose place another is wanted."""
    for group, kept in (("data", ("name", "seed")), ("model", ("name", "l2", "loss", "seed"))):
        table, name = values.get(group), wanted.get(f"{group}.name")
        if name is None or not isinstance(table, dict) or name == table.get("name"):
            continue
        if isinstance(given := values.get("given"), dict):
            given.pop(group, None)
        if others := [key for key in table if key not in kept]:
            values[group] = {key: value for key, value in table.items() if key in kept}
            say(f"{group}.{', '.join(others)} in {file} are for {table.get('name')}; {name} has its own defaults")
    data, partition = values.get("data"), wanted.get("data.partition")
    if isinstance(data, dict) and partition is not None and data.get("partition", partition) != partition:
        known = {
            option
            for name in (data["partition"], data.get("of"))
            if isinstance(name, str) and name in PARTITIONS
            for option in option_names(name)
        }
        if others := [key for key in data if key in known]:
            values["data"] = {key: value for key, value in data.items() if key not in others}
            say(f"data.{', '.join(others)} in {file} are for {data['partition']}; {partition} has its own defaults")


def _drop_what_a_preset_says(values: dict[str, Any], wanted: Mapping[str, Any], file: Path | None) -> None:
    """Leave out, aloud, the file's settings that a preset of the command line has others for; single ones win over a preset."""
    name, settings = wanted.get("preset"), values.get("settings")
    if not isinstance(name, str) or not isinstance(settings, dict) or not is_known(values["algorithm"]):
        return
    preset = kind_of(values["algorithm"]).presets.get(name, {})
    others = [key for key in preset if key in settings and settings[key] != preset[key]]
    if file is not None and others:
        values["settings"] = {key: value for key, value in settings.items() if key not in others}
        say(f"settings.{', '.join(others)} in {file} are left out; preset {name} has its own")


def _forget_found_teams(values: dict[str, Any], wanted: Mapping[str, Any], file: Path | None) -> None:
    """Leave out, aloud, what a file says of found teams where others are wanted, and put the tree back that was dealt on."""
    data, teams = values.get("data"), wanted.get("data.teams")
    if not isinstance(data, dict) or data.get("teams") != "found" or teams in (None, "found"):
        return
    if "tree" in data:
        values["tree"] = data.pop("tree")
    if others := [key for key in ("found_by", "found_teams", "given_teams") if data.pop(key, None) is not None]:
        say(f"data.{', '.join(others)} in {file} are for found teams; data.teams={teams} does without")


def _assign(values: dict[str, Any], text: str, problems: list[str]) -> None:
    """Put one ``key=value`` where it belongs."""
    key, equals, value = text.partition("=")
    key = key.strip()
    path = key.split(".")
    if not equals or not all(path):
        problems.append(f"--set takes key=value, not {text!r}")
    elif len(path) > 1 and path[0] not in GROUPS:
        problems.append(f"unknown setting {key!r}{suggestion(key, _known(values))}")
    elif len(path) == 1 and key in GROUPS and not _is_setting(values["algorithm"], key):
        problems.append(f"{key} is a group of settings; set one of them, as in --set {key}.{_example(key)}")
    elif len(path) > 1 or key in TOP:
        _put(values, path, literal(value.strip()), problems)
    elif not is_known(values["algorithm"]) or key in (known := _known(values)):
        _put(values, ["settings", key], literal(value.strip()), problems)
    else:
        problems.append(f"unknown setting {key!r}{suggestion(key, known)}")


def _put(values: dict[str, Any], path: Sequence[str], value: Any, problems: list[str]) -> None:
    place = values
    for depth, part in enumerate(path[:-1]):
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            problems.append(f"{'.'.join(path[: depth + 1])} is {shown(inner)}, which has no {path[depth + 1]!r} to set")
            return
        place = inner
    place[path[-1]] = value


def _tree_of_own_data(values: dict[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Refuse a tree beside data that have one of their own; one that a run wrote down is left out."""
    data = values.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    natural = isinstance(name, str) and name in DATASETS and DATASETS[name].natural
    if isinstance(data, dict) and wanted.get("tree") is not None:
        data.pop("tree", None)  # of found teams: another tree to deal the samples out on
    if not natural and not _own(data):
        return []
    values.pop("tree", None)
    values.pop("server", None)
    if wanted.get("tree") is None:
        return []
    if natural:
        return [
            f"{name} has devices and teams of its own, so leave --tree out; --set data.per_team=10 keeps ten devices "
            "of each team"
        ]
    return ["your own data say who is in which team; leave --tree out and name the columns of teams with data.team"]


def _own(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("name"), str) and is_own(data["name"])


def _unknown_names(values: Mapping[str, Any]) -> list[str]:
    """Check what `make_config` leaves to later: names of data sets and models, and the keys of their options."""
    problems = []
    data, model = values.get("data", {}), values.get("model", {})
    given = objects if isinstance(objects := values.get("given"), dict) else {}  # these have no name to know
    if _own(data) and "data" not in given:
        by_function = ":" in data["name"] and not data["name"].startswith(HUB)  # it has options of its own
        problems += [] if by_function else _strangers("data", data, table_keys())
    elif isinstance(data, dict) and "data" not in given:
        try:
            dataset_of(str(data.get("name", "digits")))
        except BadInput as error:
            problems.append(str(error))
        problems += _strangers("data", data, data_keys())
    if isinstance(model, dict) and "model" not in given:
        name = str(model.get("name", "mclr"))
        try:
            if not own_model.is_path(name):
                check_name(name)
            problems += [] if takes_any(name) else _strangers("model", model, model_keys(name))
        except BadInput as error:
            problems.append(str(error))
    return problems


def _strangers(group: str, given: Mapping[str, Any], keys: Sequence[Key]) -> list[str]:
    """Refuse keys of a group that nobody knows."""
    known = {key.name: key.sentence for key in keys}
    return [
        f"unknown setting '{group}.{key}'{suggestion(f'{group}.{key}', known)}"
        for key in given
        if f"{group}.{key}" not in known
    ]


def _unusable_device(values: Mapping[str, Any]) -> list[str]:
    """Try the compute device before anything is read."""
    engine = values.get("engine", {})
    name = engine.get("device") if isinstance(engine, dict) else None
    try:
        place(name if isinstance(name, str) else "cpu")  # what is no text is refused with the other values
    except BadInput as error:
        return [f"engine.{error}"]
    return []


def is_known(algorithm: str) -> bool:
    """Tell whether there is such an algorithm; `make_config` says what is wrong with another."""
    try:
        kind_of(algorithm)
    except BadInput:
        return False
    return True


def _is_setting(algorithm: str, key: str) -> bool:
    """Tell whether an algorithm has a setting of this name, which may also be a group's, as pfedbayes' optimiser is."""
    return is_known(algorithm) and any(setting.name == key for setting in settings_of(algorithm))


def _known(values: Mapping[str, Any]) -> dict[str, str]:
    """Return every key that ``--set`` takes, with its sentence."""
    model = values.get("model", {})
    name = str(model.get("name", "mclr")) if isinstance(model, dict) else ""
    return known_keys(values["algorithm"] if is_known(values["algorithm"]) else None, name)


def _example(group: str) -> str:
    return {
        "participation": "devices=0.5",
        "links": "devices.codec=int8",
        "clock": "preset=edge",
        "engine": "backend=loop",
        "optimiser": "momentum=0.9",
        "settings": "alpha=0.1",
    }.get(group, "name=NAME")
