"""What there is: algorithms, data sets, models, experiments, as data and as a table."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from palmette.algorithms import ALGORITHMS
from palmette.cli.configure import model_keys
from palmette.population import FORMATIONS, PARTITIONS, SHIFTS, SOURCES
from palmette.population.partition import option_names
from palmette.runs.config import ModelConfig
from palmette.studies.reproduce import EXPERIMENTS
from palmette.task.models import MODELS


def listed(topic: str) -> list[dict[str, Any]]:
    """Return the entries of a topic as data."""
    return {"algorithms": _algorithms, "datasets": _datasets, "models": _models, "experiments": _experiments}[topic]()


def picture(topic: str, entries: list[dict[str, Any]]) -> RenderableType:
    """Return the entries of a topic for people."""
    if not entries:
        return Text(f"no {topic} yet")
    table = Table.grid(padding=(0, 2, 1 if topic == "algorithms" else 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for entry in entries:
        lines = [Text(entry["summary"])]
        if "paper" in entry:
            lines.append(Text(entry["paper"], style="italic"))
        if entry.get("settings"):
            lines.append(Text(" ".join(f"{key}={_short(value)}" for key, value in entry["settings"].items()), "dim"))
        if entry.get("presets"):
            lines.append(Text(f"presets: {', '.join(entry['presets'])}", style="dim"))
        if "partition" in entry:
            lines.append(Text(f"partition: {entry['partition'] or 'comes by device'}", style="dim"))
        table.add_row(entry["name"], Group(*lines))
    return Group(table, *_notes(topic))


def _experiments() -> list[dict[str, Any]]:
    return [{"name": name, "summary": experiment.description} for name, experiment in EXPERIMENTS.items()]


def _algorithms() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "summary": _first_line(kind),
            "paper": kind.paper,
            "settings": {field.name: _plain(field.default) for field in dataclasses.fields(kind)},  # type: ignore[arg-type]
            "presets": list(kind.presets),
            "flat": kind.flat,
        }
        for name, kind in ALGORITHMS.items()
    ]


def _datasets() -> list[dict[str, Any]]:
    return [
        {"name": name, "summary": source.description, "partition": source.partition} for name, source in SOURCES.items()
    ]


def _models() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "summary": _first_line(make),
            "settings": {
                f"model.{key}": _plain(inspect.signature(make).parameters[key].default)
                for key in model_keys(name)
                if key not in ModelConfig.model_fields
            },
        }
        for name, make in MODELS.items()
    ]


def _notes(topic: str) -> list[RenderableType]:
    """Return what to know about using the entries."""
    if topic == "algorithms":
        return [_note("palmette run permfl --set team_steps=30 --set preset=published")]
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


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").split("\n", 1)[0].replace("``", "")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    return str(value).replace(" ", "")
