"""What there is: algorithms, data sets, models, experiments, as data and as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from palmette.cli.reference import NAMES, entry
from palmette.population import FORMATIONS, PARTITIONS, SHIFTS
from palmette.population.partition import option_names


def listed(topic: str) -> list[dict[str, Any]]:
    """Return the entries of a topic as data; `palmette.cli.reference.entry` has all about one."""
    return [_in_short(topic, entry(topic, name)) for name in NAMES[topic]]


def picture(topic: str, entries: list[dict[str, Any]]) -> RenderableType:
    """Return the entries of a topic for people."""
    if not entries:
        return Text(f"no {topic} yet")
    table = Table.grid(padding=(0, 2, 1 if topic == "algorithms" else 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for told in entries:
        lines = [Text(told["summary"])]
        if "paper" in told:
            lines.append(Text(told["paper"], style="italic"))
        if told["settings"]:
            lines.append(Text(" ".join(f"{key}={_short(value)}" for key, value in told["settings"].items()), "dim"))
        if told.get("presets"):
            lines.append(Text(f"presets: {', '.join(told['presets'])}", style="dim"))
        if "partition" in told:
            lines.append(Text(f"partition: {told['partition'] or 'comes by device'}", style="dim"))
        table.add_row(told["name"], Group(*lines))
    return Group(table, *_notes(topic))


def _in_short(topic: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with no more than its settings' defaults and its presets' names."""
    own = [one for one in told["settings"] if topic != "datasets" and one["name"] != "model.l2"]
    short = {key: value for key, value in told.items() if key not in ("settings", "presets", "example")}
    presets = {"presets": list(told["presets"])} if "presets" in told else {}
    return {**short, "settings": {one["name"]: one["default"] for one in own}, **presets}


def _notes(topic: str) -> list[RenderableType]:
    """Return what to know about using the entries."""
    if topic == "algorithms":
        return [
            _note("palmette run permfl --set team_steps=30 --set preset=published"),
            Text.assemble(("What the settings mean:  ", "bold"), "palmette list algorithms permfl"),
        ]
    if topic == "models":
        return [Text(), _note("palmette run permfl --model dnn --set model.hidden=[100]")]
    if topic == "experiments":
        return [Text(), _note("palmette reproduce l2gd-table1")]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name in PARTITIONS:
        options = ", ".join(f"data.{option}" for option in option_names(name))
        table.add_row(f"data.partition={name}", Text(f"takes {options}" if options else "takes no options"))
    for name, about in FORMATIONS.items():
        table.add_row(f"data.teams={name}", Text(about))
    for name, about in SHIFTS.items():
        table.add_row(f"data.shift={name}", Text(about))
    return [Text("\nHow samples come to devices, each with --set:", style="bold"), table]


def _note(command: str) -> Text:
    return Text.assemble(("For instance:  ", "bold"), command)


def _short(value: Any) -> str:
    return str(value).replace(" ", "")
