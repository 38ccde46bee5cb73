"""The commands ``palmette serve`` and ``palmette deploy ...``: federations on real machines."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import OneLineGroup, one_line_errors, print_json
from palmette.errors import BadInput
from palmette.guards.terminal import say, tell

deploy = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Train on real machines: make kits for the nodes, look at a running federation.",
)
_AGAIN = 0.2  # seconds
KitsFolder = Annotated[
    Path, typer.Option("--kits", metavar="DIR", help="The folder that deploy init made.", show_default=False)
]


def serve(
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The node's kit, made by deploy init.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The device's own samples, where the kit has none; they never leave it."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run one node of a federation: the server, a team server or a device.

    It ends when the training is over. A node that was killed
    goes on where it was when it is started again.

    [bold]Example:[/bold]  palmette serve --kit kits/camera-1
    """
    with one_line_errors():
        from palmette.deploy.serving import serve as run

        result = run(kit, data, say)
        if json:
            print_json({"folder": result or None, "kit": str(kit)})
        elif result:
            tell(f"run   {result}")
            tell(f"page  palmette report {result} --open")


@deploy.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The federation's file.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the kits go.")] = Path("kits"),
    plain: Annotated[
        bool, typer.Option("--plain", help="No certificates: plain text, which only works on one machine.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Make one kit for each node: its certificate and key, its settings, its neighbours.

    Bring each kit to its machine and run it there with
    [bold]palmette serve --kit DIR[/bold]. A kit is a secret:
    who has it is that node.

    [bold]Example:[/bold]  palmette deploy init federation.toml --out kits
    """
    with one_line_errors():
        from palmette.deploy.federation import read_federation
        from palmette.deploy.kits import make_kits

        made = make_kits(read_federation(file), out, plain=plain)
        if json:
            nodes = {made.whole.tree.name(*place): str(path) for place, path in made.nodes.items()}
            print_json({"kits": nodes, "operator": str(out / "operator"), "notes": made.notes})
            return
        tell(f"{len(made.nodes)} kits in {out}, one for each node, and one for the operator")
        for note in made.notes:
            tell(f"- {note}")
        tell("Keep the folder 'authority' to yourself: its key makes new nodes.")
        tell(f"next  palmette serve --kit {out}/NAME     on each node's own machine")


@deploy.command()
def status(
    kits: KitsFolder = Path("kits"),
    seconds: Annotated[
        float, typer.Option(help="How long to wait for the server and its answer.", min=0.5, max=60)
    ] = 5.0,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    json: options.Json = False,
) -> None:
    """Show a running federation: who is connected, the round, bytes per link, accuracy.

    [bold]Example:[/bold]  palmette deploy status --kits kits --watch
    """
    with one_line_errors():
        from palmette.cli.federated import show, show_live

        if json:
            print_json(_status(kits, seconds))
        elif watch:
            show_live(lambda: _status(kits, seconds))
        else:
            show(_status(kits, seconds))


def _status(kits: Path, seconds: float) -> dict[str, Any]:
    """Ask the server how its federation is; a server that was just started may take some seconds to listen."""
    from palmette.deploy.asking import ask

    end = monotonic() + seconds
    while True:
        try:
            return ask(kits, {"do": "status", "seconds": seconds}, seconds + 2)
        except BadInput as error:
            if "nobody listens" not in str(error) or monotonic() > end:
                raise
        sleep(_AGAIN)


@deploy.command()
def enrol(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device.", show_default=False)],
    parent: Annotated[
        str | None, typer.Option(metavar="TEAM", help="The team it comes under, where there are several.")
    ] = None,
    kits: KitsFolder = Path("kits"),
    json: options.Json = False,
) -> None:
    """Add a device to a running federation, and make its kit.

    It brings its own samples, and takes part from the next round on
    once it has connected. A device that was revoked gets a
    new certificate and goes on where it was.

    [bold]Example:[/bold]  palmette deploy enrol camera-9 --parent lima --kits kits
    """
    with one_line_errors():
        from palmette.deploy.enrolling import enrol as add

        made = add(kits, name, parent)
        if json:
            print_json({"kit": str(made.kit), "parent": made.parent, "again": made.again})
            return
        what = "has a new certificate" if made.again else "may connect from now on"
        tell(f"{name!r} {what}, under {made.parent!r}")
        tell(f"next  palmette serve --kit {made.kit}{'' if made.dealt else ' --data PATH'}     on its own machine")


@deploy.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node.", show_default=False)],
    kits: KitsFolder = Path("kits"),
    json: options.Json = False,
) -> None:
    """Shut a node out of a running federation, at once and for good.

    Its certificate goes on the list of revoked ones, and its
    parent closes the connection. Training goes on without it.
    """
    with one_line_errors():
        from palmette.deploy.asking import revoke as shut_out

        found = shut_out(kits, name)
        if json:
            print_json(found)
        else:
            reached = found["reached"]
            tell(f"{name!r} is revoked; {reached} node{'s know' if reached != 1 else ' knows'} of it")


@deploy.command()
def demo(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the kits go.")] = None,
    json: options.Json = False,
) -> None:
    """Run a whole federation on this machine, a process for each of 12 nodes, and compare it with the simulation."""
    with one_line_errors():
        from palmette.deploy.demo import demo as run
        from palmette.runs.folder import claimed

        with claimed(out, Path("runs"), "federation") as folder:
            shown = run(folder, say)
        from palmette.page import write_report

        page = write_report(shown.run)
        if json:
            print_json(_told(shown, page))
            return
        from palmette.cli.federated import show_demo

        show_demo(shown)
        tell(f"page  {page}")


def _told(shown: Any, page: Path) -> dict[str, Any]:
    return {
        "same_bits": shown.parity.same,
        "rows": shown.parity.states,
        "scores": {kind: {"federation": mine, "simulation": other} for kind, (mine, other) in shown.scores.items()},
        "seconds": shown.seconds,
        "folder": str(shown.run),
        "page": str(page),
    }
