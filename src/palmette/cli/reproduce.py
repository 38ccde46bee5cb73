"""The command ``palmette reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json
from palmette.guards.terminal import tell


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment; see: palmette list experiments")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write tables and plots into this folder.")] = None,
    json: options.Json = False,
) -> None:
    """Repeat a published experiment and print the paper's numbers beside ours.

    [bold]Example:[/bold]  palmette reproduce l2gd-table1
    """
    with one_line_errors():
        from palmette.studies.reproduce import run

        found = run(name, out=out)
        if json:
            print_json(found)
            return
        tell(found["table"])
        for line in [*found["notes"], *(f"wrote {file}" for file in found["files"])]:
            tell(line)
