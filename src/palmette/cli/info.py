"""The command ``palmette data info``: what a population is like, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json
from palmette.guards.terminal import tell
from palmette.guards.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from palmette.population.description import Description

_LINES = 12  # teams and labels that the table has room for


def info(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A data set, or the path of your own data.")],
    tree: options.Tree = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one value, such as data.partition=iid. Can be repeated."),
    ] = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The picture (.png, .pdf or .svg). [dim](default: NAME-info.png here)[/dim]"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show a population: its devices, teams and labels, and how far they lie apart.

    [bold]Example:[/bold]  palmette data info digits --tree 4x10
    --set data.partition=two-level --set data.between_teams=0.3

    It takes the data settings of [bold]run[/bold], with or without "data."
    before them, and draws a picture; with --json only if --out
    says where to.
    """
    with one_line_errors():
        from palmette.cli.configure import configure
        from palmette.population.description import describe
        from palmette.report.picture import check_picture
        from palmette.runs.sections import DataConfig

        if out is not None:
            check_picture("--out", out)
        given = {"data.name": name, "tree": tree, "seed": seed}
        made = configure("local", file=None, options=given, assignments=_of_data(settings or []))
        people = made.population()
        about = describe(people, seed=people.recipe.seed if people.recipe is not None else 0)
        place = out if out is not None or json else Path(f"{DataConfig(name=name).label}-info.png")
        if place is not None:
            from palmette.report.population_plot import plot_population

            plot_population(about, place, f"{made.data.title}: {_in_short(about)}")
        if json:
            print_json({"name": name, **_origin(name), **about.as_dict(), "picture": str(place) if place else None})
            return
        from palmette.guards.screen import Screen

        Screen().print(_table(name, about))
        tell(f"picture  {place}")


def _of_data(assignments: list[str]) -> list[str]:
    """Refuse settings that are not the data's; those without a group are theirs."""
    from palmette.errors import BadInput

    found = []
    for text in assignments:
        key = text.partition("=")[0].strip()
        if key in ("tree", "seed") or key.startswith("data."):
            found.append(text)
        elif "." in key:
            raise BadInput(
                f"--set {key} is no setting of the data; data info takes those of data, as in data.partition=iid"
            )
        else:
            found.append(f"data.{text.strip()}")
    return found


def _origin(name: str) -> dict[str, str]:
    """Return where a named data set comes from and what its licence allows."""
    from palmette.datasets import DATASETS

    entry = DATASETS.get(name)
    known = (
        {} if entry is None else {"description": entry.description, "origin": entry.origin, "licence": entry.licence}
    )
    return {key: text for key, text in known.items() if text}


def _in_short(about: Description) -> str:
    made = about.population
    teams = f" in {made.tree.size(1):,} teams" if len(about.team_sizes) else ""
    return f"{made.devices:,} devices{teams}, {len(made.x):,} samples"


def _table(name: str, about: Description) -> RenderableType:
    """Lay out what there is to know for people."""
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for key, text in {**_origin(name), **_facts(about)}.items():
        facts.add_row(key, Text(text))
    shown: list[RenderableType] = [facts, Text()]
    if about.apart:
        shown += [_distances(about), Text()]
    shown += [_by_team(about), Text()]
    return Group(*shown)


def _facts(about: Description) -> dict[str, str]:
    made = about.population
    told = {"population": _in_short(about) + f", tree {made.tree}"}
    kind = "regression" if made.classes is None else f"{made.classes:,} classes"
    tokens = " tokens" if _tokens(about) else ""
    told["samples"] = (
        f"shape {made.shape}{tokens}, {kind}; {int(made.train.sum()):,} for training, {int(made.tests.sum()):,} for testing"
    )
    if made.unseen is not None:
        told["unseen"] = f"{int(made.unseen.sum()):,} of the devices are kept out of training"
    if made.notes:
        told["left out"] = "; ".join(made.notes)
    if len(about.team_sizes):
        told["devices per team"] = _five(about.team_sizes)
    told["samples per device"] = _five(made.start.diff().numpy())
    if made.classes is not None and not about.grouped:
        told["labels per device"] = _five((about.device_shares > 0).sum(1))
    if made.found is not None:
        told["found"] = str(made.found)
    if about.silhouettes:
        told["silhouette"] = ", ".join(f"{value:.2f} by {by}" for by, value in about.silhouettes.items())
        told["silhouette"] += " (1: teams lie far apart, 0: they overlap)"
    if not about.whole:
        told["looked at"] = (
            f"{len(about.devices):,} devices, for labels and distances; for the silhouette those of 40 teams at most"
        )
    return told


def _five(values: Any) -> str:
    """Write the least, the quartiles and the largest."""
    from palmette.population.description import five

    low, first, middle, third, high = (f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in five(values))
    return f"{low} each" if low == high else f"{low} to {high}, quartiles {first}, {middle}, {third}"


def _distances(about: Description) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("mean distance")
    table.add_column("measured", justify="right")
    table.add_column("by chance", justify="right")
    words = {
        "teams": "teams from all",
        "devices": "devices from their team" if len(about.team_sizes) else "devices from all",
    }
    for what, one in about.apart.items():
        kind, _, who = what.partition(" of ")
        table.add_row(f"{kind}: {words[who]}", f"{one.mean:.3f}", f"{one.chance:.3f}")
    labels = "Labels: 0 for the same shares, 1 for no label in common. " if about.label_counts is not None else ""
    labels += "Classes are compared in 64 groups (label modulo 64). " if about.grouped else ""
    tokens = "Features of tokens are the shares of 256 groups of them. " if _tokens(about) else ""
    far = "Features: the distance of the means, in standard deviations of a sample. "
    chance = "By chance: what random groups of the same sizes have."
    return Group(table, Text(labels + far + tokens + chance, "dim"))


def _tokens(about: Description) -> bool:
    return "int64" in str(about.population.x.dtype)


def _by_team(about: Description) -> RenderableType:
    """Return the labels of every team in percent, or the target's mean; of many teams or labels the first ones."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    names = about.population.tree.names(1) if len(about.team_sizes) else ["all"]
    lines = about.label_counts if about.label_counts is not None else about.targets
    assert lines is not None
    title = "groups of labels in %" if about.grouped else "labels in %"
    table.add_column(title if about.label_counts is not None else "target", overflow="fold")
    wide = min(lines.shape[1], _LINES)
    heads = [str(label) for label in range(wide)] if about.label_counts is not None else ["mean", "deviation"]
    for head in heads:
        table.add_column(head, justify="right")
    for name, line in list(zip(map(visible, names), lines, strict=True))[:_LINES]:
        if about.label_counts is not None:
            table.add_row(name, *(f"{100 * value / max(line.sum(), 1):.0f}" for value in line[:wide]))
        else:
            table.add_row(name, *(f"{value:.4g}" for value in line))
    more = [f"{len(lines) - _LINES:,} more teams"] if len(lines) > _LINES else []
    kind = "groups of labels" if about.grouped else "labels"
    more += [f"{lines.shape[1] - wide:,} more {kind}"] if lines.shape[1] > wide else []
    return Group(table, Text(f"and {' and '.join(more)}: --json has all", "dim")) if more else table
