"""The commands ``palmette report`` and ``palmette watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json
from palmette.guards.terminal import say, tell

Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or studies.", show_default=False)
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page. [dim](default: report.html in the folder; for several folders, in the current one)[/dim]",
        ),
    ] = None,
    theory: Annotated[
        bool,
        typer.Option(
            "--theory/--no-theory",
            help="Whether to check the conditions of the algorithm's theorem, as palmette check.",
        ),
    ] = True,
    open_: Open = False,
    json: options.Json = False,
) -> None:
    """Write a page about a run or a study: curves, tree, devices, traffic, settings.

    The page is one HTML file that needs no network. Several
    runs are compared on one page, device by device.

    [bold]Example:[/bold]  palmette report runs/permfl-digits-1 --open
    """
    with one_line_errors():
        from palmette.page import write_report
        from palmette.report.words import size

        path = write_report(*folders, out=out, theory=theory).absolute()
        if json:
            print_json({"page": str(path), "bytes": path.stat().st_size})
        else:
            tell(f"page  {path} ({size(path.stat().st_size)})")
            tell(f"open  {path.as_uri()}")
        if open_:
            _browse(path.as_uri())


def watch(
    folders: Folders,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 takes any that is free.")
    ] = 0,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on, such as 0.0.0.0 for all: then everybody who reaches this machine can read the "
            "page. [dim](default: this machine only)[/dim]",
        ),
    ] = None,
    open_: Open = False,
) -> None:
    """Show the page of a run or a study in the browser while it goes on.

    It only reads, and never changes a run. Stop it with
    Ctrl-C; the run goes on.

    [bold]Example:[/bold]  palmette watch runs/permfl-digits-1 --open
    """
    with one_line_errors():
        from palmette.page.live import HOST, Server, Watch

        watched = Watch(folders)
        watched.data()  # what cannot be read is told before anybody opens a page
        with Server(watched, host or HOST, port) as server:
            if host is not None and not server.own_only:
                say("warning: everybody who can reach this machine can read this page")
            try:
                tell(f"watch  {server.address}  (stop with Ctrl-C)")
                if open_:
                    _browse(server.address)
                server.serve_forever(poll_interval=0.2)
            except KeyboardInterrupt:
                say("stopped watching; a run that is going on goes on")


def _browse(address: str) -> None:
    """Open an address in the browser; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(address):
        say(f"no browser could be started here; open {address} yourself")
