"""What there is: algorithms, data sets, models, experiments, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from palmette.algorithms import ALGORITHMS
from palmette.algorithms.installed import clashes, installed
from palmette.cli.reference import NAMES, entry
from palmette.errors import BadInput
from palmette.guards.screen import Text
from palmette.population import FORMATIONS, PARTITIONS, SHIFTS
from palmette.population.partition import option_names
from palmette.runs.sections import ModelConfig

_LONG = (
    "settings",
    "presets",
    "example",
    "layers",
    "made_for",
    "about",
    "unstated",
    "studies",
    "claims",
)  # of an entry: told of one, not of all


def listed(topic: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of a topic as data, and sentences about what other packages bring and cannot be used.

    `palmette.cli.reference.entry` has all about one.
    """
    found = [_in_short(topic, entry(topic, name, layers=False)) for name in NAMES[topic]]
    problems = clashes(ALGORITHMS) if topic == "algorithms" else []
    for name in installed() if topic == "algorithms" else ():
        if name in ALGORITHMS:
            continue
        try:
            found.append(_in_short(topic, entry(topic, name)))
        except BadInput as error:
            problems.append(str(error))
    return found, problems


def picture(topic: str, entries: list[dict[str, Any]]) -> RenderableType:
    """Return the entries of a topic for people."""
    if not entries:
        return Text(f"no {topic} yet")
    if topic == "algorithms":
        return Group(*_families(entries), *_notes(topic))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for told in entries:
        lines = [Text(_capital(told["summary"]))]
        if told["settings"]:
            given = {key: value for key, value in told["settings"].items() if value is not None}
            lines += [Text(" ".join(f"{key}={_short(value)}" for key, value in given.items()), "dim")] if given else []
        if "backend" in told:
            lines.append(Text(f"backend: {told['backend']}", style="dim"))
        if "partition" in told:
            dealt = (
                f"default partition: {told['partition']}"
                if told["partition"]
                else "made device by device, so no partition"
            )
            lines.append(Text(dealt, style="dim"))
        table.add_row(told["name"], Group(*lines))
    return Group(table, *_notes(topic))


def _families(entries: list[dict[str, Any]]) -> list[RenderableType]:
    """Return the algorithms family by family, a line or two for each: name, models, preset, first sentence."""
    shown: list[RenderableType] = []
    wide = max(len(told["name"]) for told in entries)
    for family in dict.fromkeys(told["family"] for told in entries):
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="bold cyan", no_wrap=True, min_width=wide)
        table.add_column(style="green", no_wrap=True, min_width=8)
        table.add_column(style="magenta", no_wrap=True, min_width=1)
        table.add_column()
        for told in entries:
            if told["family"] == family:
                models = " ".join(kind if kind in told["models"] else "  " for kind in ("PM", "TM", "GM"))
                table.add_row(told["name"], models, "*" if told["presets"] else "", Text(_capital(told["summary"])))
        shown += [Text(family, style="bold"), table, Text()]
    return shown


def _in_short(topic: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with no more than its settings' defaults and its presets' names."""
    general = {f"model.{name}" for name in ModelConfig.model_fields}  # what every model has
    own = [one for one in told["settings"] if topic != "datasets" and one["name"] not in general]
    short = {key: value for key, value in told.items() if key not in _LONG}
    presets = {"presets": list(told["presets"])} if "presets" in told else {}
    return {**short, "settings": {one["name"]: one["default"] for one in own}, **presets}


def _notes(topic: str) -> list[RenderableType]:
    """Return what to know about using the entries."""
    if topic == "algorithms":
        return [
            Text(
                "PM: every device gets a model of its own. TM: every team does. GM: there is a global model.",
                style="dim",
            ),
            Text("* has presets, named sets of settings, such as those of its paper.", style="dim"),
            Text(),
            Text.assemble(("Settings and presets of one:  ", "bold"), "palmette list algorithms permfl"),
            _note("palmette run permfl --set team_steps=30 --set preset=published"),
            Text.assemble(("A method of your own:  ", "bold"), "palmette new --help"),
        ]
    if topic == "models":
        return [
            Text(
                "\nBackend: how the models of many devices are computed. fused: as stacked products, the fastest; vmap: by "
                "torch.func.vmap; loop: one device after the other.",
                style="dim",
            ),
            Text(),
            Text.assemble(("Settings and layers of one:  ", "bold"), "palmette list models vgg"),
            _note("palmette run permfl --model dnn --set model.hidden=[100]"),
        ]
    if topic == "experiments":
        return [
            Text(),
            Text.assemble(("What one runs and claims:  ", "bold"), "palmette list experiments pfedmt-table1"),
            _note("palmette reproduce l2gd-table1"),
        ]
    return [
        Text("\nPartition: how samples are dealt out to devices", style="bold"),
        _choices("partition", {name: _partition(name) for name in PARTITIONS}),
        Text("\nTeams: which devices belong together", style="bold"),
        _choices("teams", FORMATIONS),
        Text(
            "\nShift: how features differ by team and by device; sizes are data.shift_teams and data.shift_devices",
            style="bold",
        ),
        _choices("shift", SHIFTS),
        Text(),
        _note("palmette run permfl --set data.partition=iid --set data.shift=rotate"),
        Text.assemble(("Your own data:  ", "bold"), "palmette data check --help"),
    ]


def _choices(key: str, about: Mapping[str, str]) -> Table:
    """Return the values of one key of the data, each with what it does."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, text in about.items():
        table.add_row(f"data.{key}={name}", Text(_capital(text)))
    return table


def _partition(name: str) -> str:
    """Say what a partition does and which options it takes."""
    options = ", ".join(f"data.{option}" for option in option_names(name))
    about = (PARTITIONS[name].__doc__ or "").split("\n", 1)[0]
    return f"{about} Options: {options}." if options else about


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _note(command: str) -> RenderableType:
    return Text.assemble(("For instance:  ", "bold"), command)


def _short(value: Any) -> str:
    return str(value).replace(" ", "")
