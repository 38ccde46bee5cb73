"""One algorithm, data set, model or experiment on a terminal, with all its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.cli.collection import state
from palmette.cli.reference import shown
from palmette.guards.screen import Text

_MODELS = {
    "PM": "a model for every device (PM)",
    "TM": "a model for every team (TM)",
    "GM": "a global model (GM)",
}


def details(told: Mapping[str, Any]) -> RenderableType:
    """Lay an entry of `palmette.cli.reference` out for people."""
    parts: list[RenderableType] = [Text(told["name"], style="bold cyan"), Text(told["summary"])]
    if "paper" in told:
        parts.append(Text(told["paper"], style="italic"))
    if told.get("models"):
        parts.append(Text(f"With its default settings it makes {_joined([_MODELS[kind] for kind in told['models']])}."))
    if told.get("flat"):
        parts.append(Text("It ignores teams: all devices talk to the server directly."))
    if told.get("tiers"):
        parts.append(Text(f"It is defined on trees of {' or '.join(map(str, told['tiers']))} tiers."))
    if "absent" in told:
        parts.append(Text(told["absent"]))
    if "backend" in told:
        parts.append(Text(f"Backend: {told['backend']}."))
    if "partition" in told:
        dealt = (
            f"Its default partition is {told['partition']}; see: palmette list datasets" if told["partition"] else ""
        )
        parts.append(Text(dealt or "It comes device by device, so it takes no partition."))
    if "files" in told:
        parts += _files(told)
    if told["settings"]:
        parts += [Text("\nSettings", style="bold"), _settings(told["settings"])]
    if "claims" in told:
        parts += _experiment(told)
    if told.get("layers"):
        parts += [
            Text(f"\nLayers with parameters, for {told['made_for']}", style="bold"),
            _layers(told["layers"]),
            Text(
                "A layer's name is also a pattern, as in --set model.parts.head='last(1)' or --set model.freeze=1",
                style="dim",
            ),
        ]
    for preset, values in told.get("presets", {}).items():
        text = "  ".join(f"{key}={shown(value)}" for key, value in values.items())
        parts += [Text.assemble(("\nPreset ", "bold"), (preset, "bold cyan")), Padding(Text(text), (0, 2))]
    return Group(*parts, Text.assemble(("\nFor instance:  ", "bold"), _example(told)))


def _experiment(told: Mapping[str, Any]) -> list[RenderableType]:
    """Say what an experiment runs, what its paper does not state, and which claims it tests."""
    parts: list[RenderableType] = [Text(told["about"])] if told["about"] else []
    for title, lines in (
        ("Studies", told["studies"]),
        ("What the paper does not state, and what is taken", dict.fromkeys(told["unstated"], "")),
        ("Claims", told["claims"]),
    ):
        if not lines:
            continue
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan" if any(lines.values()) else "")
        table.add_column()
        for name, text in lines.items():
            table.add_row(*((Text(name), Text(text)) if text else (Text(f"- {name}"),)))
        parts += [Text(f"\n{title}", style="bold"), table]
    return parts


def _files(told: Mapping[str, Any]) -> list[RenderableType]:
    """Say where a data set comes from, what its licence is, and which of its files are here."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    facts = {"Origin": told["origin"], "Licence": told["licence"]}
    facts |= {key.capitalize(): f"{told[key]:,}" for key in ("samples", "devices") if told[key]}
    facts["Files"] = f"{state(told)}; {told['how']}" if told["how"] and not told["here"] else state(told)
    for name, text in facts.items():
        if text:
            table.add_row(name, Text(text))
    for name, paths in told["files"].items():
        table.add_row("", Text(f"{name}: {', '.join(paths) or 'not here'}"))
    return [Text(), table]


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _settings(settings: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for one in settings:
        default = "" if one["default"] is None else f"={shown(one['default'])}"
        name = Text(one["name"]).append(default, style="default")
        if len(name) > 24:
            name = Text(one["name"]).append(f"\n  {default}", style="default")
        table.add_row(name, Group(Text(one["about"]), Text(one["allowed"], style="dim")))
    return table


def _layers(layers: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    table.add_column(justify="right")
    for one in layers:
        shapes = ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in one["shapes"].items())
        table.add_row(one["name"], shapes, f"{one['size']:,} numbers")
    return table


def _example(told: Mapping[str, Any]) -> str:
    one = next((one for one in told["settings"] if one["default"] is not None), None)
    setting = "" if one is None else f" --set {one['name']}={shown(one['default']).replace(' ', '')}"
    return f"{told['example']}{setting}"
