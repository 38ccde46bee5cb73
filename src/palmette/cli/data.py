"""The commands of ``palmette data``: list and get public data sets, check and pack tables of one's own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.collection import get, list_
from palmette.cli.failures import BAD_INPUT, OneLineGroup, one_line_errors, print_json
from palmette.cli.info import info
from palmette.guards.terminal import tell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from palmette.tables import Check

data = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Get and look at public data sets; check and pack tables of your own.",
)
data.command("list")(list_)
data.command()(get)
data.command()(info)
Source = Annotated[str, typer.Argument(metavar="FILE", help="A CSV or Parquet file, or a folder of them.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Say what a column is, such as device=ward. Can be repeated."),
]


@data.command()
def check(source: Source, settings: Set = None, seed: options.Seed = None, json: options.Json = False) -> None:
    """Say what a table means and all that is wrong with it, without training.

    [bold]Example:[/bold]  palmette data check visits.csv --set device=ward
    --set team=region,hospital --set label=readmitted

    It takes the data settings of [bold]run[/bold], with or without "data."
    before them. A row is counted from the first one under
    the header. The exit code is 0 if the table can be used,
    also with warnings, and 2 if there is a problem.
    """
    with one_line_errors():
        from palmette.tables import check_table

        found = check_table(source, seed=seed or 0, **_given(settings))
        if not any(text.startswith("data.") for text in settings or []):
            found = _without_prefix(found)
        if json:
            print_json(found.as_dict())
        else:
            from palmette.guards.screen import Screen

            Screen().print(_picture(found))
        if not found.sound:
            raise typer.Exit(BAD_INPUT)


@data.command()
def pack(
    source: Source,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new folder for the packed population.")],
    settings: Set = None,
    seed: options.Seed = None,
    json: options.Json = False,
) -> None:
    """Pack a table once, so that runs open it at once.

    [bold]Example:[/bold]  palmette data pack visits.csv --out visits.packed
    --set device=ward --set team=region,hospital
    --set label=readmitted

    The table may be larger than memory. Then train with
    palmette run permfl --data visits.packed
    """
    with one_line_errors():
        from palmette.tables import read_table

        made = read_table(source, seed=seed or 0, into=out, **_given(settings))
        size = sum(file.stat().st_size for file in out.iterdir())
        if json:
            told = {"folder": str(out), "devices": made.devices, "samples": len(made.x), "bytes": size}
            print_json({**told, "fingerprint": made.recipe.values["fingerprint"] if made.recipe else None})
            return
        tell(made.summary())
        tell(f"packed into {out} ({size / 1e6:.1f} MB); train with: palmette run permfl --data {out}")


def _given(assignments: list[str] | None) -> dict[str, Any]:
    """Read what is said about a table; unknown words are refused."""
    from palmette.cli.configure import literal
    from palmette.errors import BadInput, nearest
    from palmette.tables import options_of_tables

    given: dict[str, Any] = {}
    known = [*options_of_tables(), "size", "grey"]
    for text in assignments or []:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("data.")
        if not equals:
            raise BadInput(f"--set takes key=value, not {text!r}")
        if name not in known:
            raise BadInput(f"unknown setting {key.strip()!r}{nearest(name, known)}")
        given[name] = literal(value.strip())
    return given


def _without_prefix(found: Check) -> Check:
    """Name the settings as this command takes them, ``drop=`` in place of ``data.drop``; a run takes them with the prefix."""
    from palmette.tables import options_of_tables
    from palmette.tables.problems import Findings

    names = "|".join(options_of_tables())

    def short(text: str) -> str:
        return re.sub(rf"\bdata\.({names})\b(?=(\)?))", lambda one: one[1] + ("=" if one[2] else ""), text)

    problems, warned = (
        [replace(one, text=short(one.text)) for one in some]
        for some in (found.findings.problems, found.findings.warnings)
    )
    return replace(found, findings=Findings(problems, warned, [short(note) for note in found.findings.notes]))


def _picture(found: Check) -> RenderableType:
    """Lay out what was found."""
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(found.summary).items():
        facts.add_row(name, Text(text))
    shown: list[RenderableType] = [Text(found.name, "bold"), facts]
    for title, style, lines in (
        ("problems", "bold red", [str(one) for one in found.findings.problems]),
        ("warnings", "bold yellow", [str(one) for one in found.findings.warnings]),
        ("guessed or changed", "bold", found.findings.notes),
    ):
        if lines:
            shown += [Text(), Text(f"{title}: {len(lines)}", style), *(Text(f"  {line}") for line in lines)]
    verdict = "It can be used." if found.sound else "It cannot be used before the problems are solved."
    return Group(*shown, Text(), Text(verdict, "bold"))


def _facts(known: dict[str, Any]) -> dict[str, str]:
    """Write what was understood, in words."""
    told: dict[str, str] = {}
    if "rows" not in known:
        return {"columns": _some(known.get("columns", []))} if known.get("columns") else {}
    told["rows"] = f"{known['rows']:,}"
    if "samples" in known:
        told["rows"] += f", used {known['samples']:,}: {known['train']:,} for training, {known['test']:,} for testing"
        unseen = f", {known['unseen']:,} of them kept out of training" if known["unseen"] else ""
        folders = "shape" in known
        where = "a folder each" if folders else f"column {known['device']!r}"
        told["devices"] = f"{known['devices']:,} ({where}){unseen}"
        counts = zip(known["teams"], known["team"], strict=True)
        if teams := [f"{count:,} ({name if folders else f'column {name!r}'})" for count, name in counts]:
            told["teams"] = ", ".join(teams)
    if "classes" in known:
        told["label"] = f"{known['label']!r}, {len(known['classes'])} classes: {_some(known['classes'])}"
    elif "target" in known:
        told["label"] = f"{known['label']!r}, numbers from {known['target']['low']:g} to {known['target']['high']:g}"
    for kind in ("number", "category", "token"):
        if names := [name for name, one in known["features"].items() if one == kind]:
            told[{"number": "numbers", "category": "categories", "token": "tokens"}[kind]] = _some(names)
    if known["left_out"]:
        told["left out"] = _some(known["left_out"])
    if known["missing"]:
        told["missing"] = _some([f"{name} {count:,}" for name, count in known["missing"].items()])
    return told


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
