"""The commands ``palmette data list`` and ``palmette data get``: the public data sets, and how their files come here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import Stopped, one_line_errors, print_json
from palmette.guards.terminal import say, tell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from palmette.datasets import Dataset, File
    from palmette.datasets.download import Watch

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder of data sets. [dim](default: the environment variable PALMETTE_DATA, else ~/.cache/palmette)[/dim]",
    ),
]


def list_(folder: Folder = None, json: options.Json = False) -> None:
    """List the data sets: what they are, and which of them are here.

    [bold]Example:[/bold]  palmette data list
    """
    with one_line_errors():
        from palmette.datasets import DATASETS
        from palmette.datasets.files import data_folder

        told = [{"name": name, **about(entry, folder)} for name, entry in DATASETS.items()]
        if json:
            print_json(told)
            return
        from palmette.guards.screen import Screen

        Screen().print(_picture(told, data_folder(folder)))


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of [bold]palmette data list[/bold].")],
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Download the files of a data set and check them.

    [bold]Example:[/bold]  palmette data get fashion-mnist

    A download that was stopped goes on where it ended. Files
    that are there already are left as they are.
    """
    with one_line_errors():
        from palmette.datasets import dataset_of
        from palmette.datasets import download as downloads
        from palmette.datasets.files import data_folder

        entry = dataset_of(name)
        try:
            got = downloads.get(name, entry, folder, _watching)
        except KeyboardInterrupt as error:
            raise Stopped(
                f"stopped; what has come so far is kept in {data_folder(folder)}, and it goes on with: palmette data get {name}"
                + (f" --folder {folder}" if folder is not None else "")
            ) from error
        if json:
            files = [
                {
                    "path": str(one.path),
                    "bytes": one.path.stat().st_size,
                    "downloaded": one.downloaded,
                    "note": one.note or None,
                }
                for one in got
            ]
            print_json({"name": name, "folder": str(data_folder(folder)), "files": files})
            return
        for one in got:
            if one.note:
                say(f"{one.path} is {one.note}")
        tell(_told(name, [one.path for one in got if one.downloaded], [one.path for one in got], folder))


def _told(name: str, new: list[Path], every: list[Path], folder: Path | None) -> str:
    """Say what was done and how to go on."""
    from palmette.datasets import DATASETS
    from palmette.values import size

    there = " --set data.folder=" + str(folder) if folder is not None else ""
    model = f" --model {fits}" if (fits := DATASETS[name].model) else ""
    run = f"train with: palmette run permfl --data {name}{model}{there}"
    if not every:
        return f"{name} needs no files; {run}"
    if not new:
        return f"{name} is here already, in {every[0].parent}; {run}"
    files = "1 file" if len(new) == 1 else f"{len(new)} files"
    return f"{files} of {name}, {size(sum(path.stat().st_size for path in new))}, now in {new[0].parent}; {run}"


@contextmanager
def _watching(file: File) -> Iterator[Watch]:
    """Show a bar on a terminal, and one line elsewhere."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from palmette.runs.progress import draws, errors_console

    screen = errors_console()
    if not draws(screen):
        say(f"downloading {file.url}")
        yield lambda have, total: None
        return
    columns = (TextColumn(file.name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as bars:
        bar = bars.add_task(file.name, total=file.size or None)
        yield lambda have, total: bars.update(bar, completed=have, total=total or None)


def about(entry: Dataset, folder: Path | None) -> dict[str, Any]:
    """Return what a data set is, and which of its files are here, as data."""
    from palmette.datasets.files import present

    found = {file.name: [str(path) for path in present(file, folder)] for file in entry.files}
    missing = [file for file in entry.files if not found[file.name]]
    return {
        "description": entry.description,
        "samples": entry.samples or None,
        "devices": entry.devices or None,
        "licence": entry.licence or None,
        "origin": entry.origin or None,
        "files": found,
        "here": not missing,
        "download": all(file.url for file in missing),
        "bytes": sum(file.size for file in missing),
        "how": entry.how or None,
    }


def state(told: Mapping[str, Any]) -> str:
    """Say whether the files of a data set are here, and how much there is to download."""
    from palmette.values import size

    if not told["files"]:
        return "needs no files"
    if told["here"]:
        return "here"
    if not told["download"]:
        return "not here, to be got by hand"
    return f"not here, {size(told['bytes'])} to download" if told["bytes"] else "not here, to be downloaded"


def _picture(told: list[dict[str, Any]], folder: Path) -> RenderableType:
    """Lay the data sets out for people."""
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for one in told:
        facts = [f"{one['samples']:,} samples"] if one["samples"] else []
        facts += [f"{one['devices']:,} devices of its own"] if one["devices"] else []
        facts += [f"Licence: {one['licence']}"] if one["licence"] else []
        text = state(one)
        status = Text(f"{text[:1].upper()}{text[1:]}.", style="green" if one["here"] else "yellow")
        status.append("".join(f" {fact}." for fact in facts), style="default dim")
        table.add_row(one["name"], Group(Text(f"{one['description']}."), status))
    return Group(
        table,
        Text(f"\nThe folder of data sets is {folder}."),
        Text.assemble(("Download one:  ", "bold"), "palmette data get NAME"),
        Text.assemble(("More about one:  ", "bold"), "palmette list datasets NAME"),
    )
