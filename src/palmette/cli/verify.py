"""``palmette verify``: whether run folders are as the runs left them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import BAD_INPUT, FAILED, one_line_errors, print_json
from palmette.errors import BadInput
from palmette.guards.terminal import say, tell
from palmette.guards.visible import visible

if TYPE_CHECKING:
    from palmette.runs import Verification


def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs.")],
    json: options.Json = False,
) -> None:
    """Check that the files of runs are undamaged.

    It compares every file of a finished run, and the
    checkpoints of a stopped run, with the checksums that
    were written with them. The exit code is 0 if all files
    are as they were written, 1 if one is damaged or missing,
    and 2 if a folder is not a run.

    [bold]Example:[/bold]  palmette verify runs/*
    """
    with one_line_errors():
        from palmette.runs import verify as look_at

        found, code = [], 0
        for folder in folders:
            try:
                result = look_at(folder)
            except BadInput as error:
                say(str(error))
                found.append({"folder": str(folder), "sound": False, "refused": str(error)})
                code = BAD_INPUT
                continue
            found.append(result.summary())
            code = max(code, 0 if result.sound else FAILED)
            if not json:
                tell(_told(result))
        if json:
            print_json({"runs": found})
        if code:
            raise typer.Exit(code)


def _told(result: Verification) -> str:
    """Write what was found, a line for each thing that is wrong."""
    state = "finished" if result.finished else "not finished"
    size = f"{result.bytes / 1e6:.1f} MB" if result.bytes >= 1e6 else f"{result.bytes / 1e3:.1f} kB"
    lines = [f"{result.folder}: {state}; {result.files} files ({size}), all as they were written"]
    if not result.sound:
        lines = [f"{result.folder}: {state}; {len(result.problems)} of {result.files} files not as they were written"]
        lines += [f"  {visible(name)}: {problem}" for name, problem in result.problems.items()]
    if result.others:
        lines.append(f"  not written by the run, so not checked: {', '.join(map(visible, result.others))}")
    return "\n".join(lines)
