"""The command ``palmette reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from palmette.cli import options
from palmette.cli.failures import Stopped, one_line_errors, print_json
from palmette.guards.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from palmette.reproduce.experiment import Size

ALL = "all"


def reproduce(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments; see: palmette list experiments. Or a file.toml, or all."),
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="quick: at most some minutes each; whole: the published size.")
    ] = "quick",
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Repeat everything with N seeds. [dim](default: the experiment's)[/dim]"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="STUDY", help="Only this study of the experiment. Can be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs and results are kept.")] = Path("runs/reproduce"),
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write reproduction.md, a page of HTML, figures and results into this folder."
        ),
    ] = None,
    jobs: options.Jobs = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat published experiments, and say claim by claim whether they hold.

    [bold]Example:[/bold]  palmette reproduce l2gd-table1

    The paper's numbers stand beside ours, and every claim ends as
    holds, does not hold, or cannot be decided. A claim that
    does not hold is a result: the exit code is 0 all the same.

    The same command goes on after a stop; runs that are finished
    are not repeated.
    """
    with one_line_errors():
        from palmette.errors import BadInput
        from palmette.reproduce import names
        from palmette.reproduce.conduct import reproduce as run
        from palmette.runs import Interrupted
        from palmette.values import whole

        if not name and write is None:
            raise BadInput("name an experiment (palmette list experiments shows them), or all")
        if seeds is not None:
            whole("--seeds", seeds, 1, 1000)
        wanted = [one for given in name or () for one in (names() if given == ALL else [given])]
        if only and len(wanted) != 1:
            raise BadInput("--only names studies of one experiment; name one")
        results: list[dict[str, Any]] = []
        for one in dict.fromkeys(wanted):
            if len(wanted) > 1:
                say(f"{one} ({len(results) + 1} of {len(wanted)})")
            try:
                found = run(
                    one, size=cast("Size", size), seeds=seeds, only=only or (), out=out, jobs=jobs, shown=not quiet
                )
            except (Interrupted, KeyboardInterrupt) as error:
                raise Stopped(f"{str(error) or 'stopped'}; go on with the same command") from error
            results.append(found.result)
            if not json:
                _show(found.result)
        if write is not None:
            from palmette.reproduce.pages import write as write_pages

            for path in write_pages(write, out)[:2]:
                say(f"wrote {path}")
        if json:
            print_json(results[0] if len(results) == 1 else {"experiments": results})


def _show(result: Mapping[str, Any]) -> None:
    from palmette.guards.screen import Screen

    screen = Screen()
    for part in shown(result):
        screen.print(part)


def shown(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return a result as a terminal shows it: tables, what was cut, and the claims."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    from palmette.guards.screen import Text
    from palmette.reproduce import telling

    styles = {"holds": "bold green", "does not hold": "bold red", "cannot be decided": "bold yellow"}
    parts: list[RenderableType] = [Text(result["title"], style="bold"), Text(result["about"])]
    tables, claims, others = telling.asked(result)
    for table in tables:
        unit = table["unit"]
        sheet = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, show_lines=False)
        sheet.add_column(Text(f"{table['title']}{f' ({unit})' if unit else ''}"))
        for column in table["columns"]:
            sheet.add_column(Text(column["title"]), justify="right")
        for row in table["rows"]:
            cells = []
            for cell in row["cells"]:
                text = Text(telling.ours(cell, unit))
                if told := telling.theirs(cell, unit):
                    text.append(f"\n{told}", style="dim")
                cells.append(text)
            sheet.add_row(Text(row["title"]), *cells)
        parts.append(Padding(sheet, (1, 0, 0, 0)))
    notes = [*telling.cuts(result["studies"]), *([others] if others else [])]
    parts += [Padding(Text("\n".join(notes), style="dim"), (1, 0, 0, 0))] if notes else []
    for claim in claims:
        head = Text.assemble((telling.verdict(claim), styles[claim["verdict"]]), f"  {claim['id']}  {claim['says']}")
        lines = [telling.contrast(part, claim) for part in claim["parts"][:4]]
        if (more := len(claim["parts"]) - len(lines)) > 0:
            lines.append(f"and {more} more; {claim['why']}")
        elif not claim["parts"]:
            lines.append(claim["why"])
        lines += [claim["note"]] if claim["note"] else []
        for name, other in claim.get("readings", {}).items():
            same = "the same verdict" if other["verdict"] == claim["verdict"] else other["verdict"]
            lines.append(f"Read otherwise, {name}: {same}.")
        parts += [Padding(head, (1, 0, 0, 0)), Padding(Text("\n".join(lines), style="dim"), (0, 0, 0, 2))]
    parts.append(
        Padding(
            Text(f"{telling.READ}\nIn {result['folder']}, {telling.duration(result['seconds'])}.", style="dim"),
            (1, 0, 0, 0),
        )
    )
    return parts
