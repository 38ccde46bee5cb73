"""``palmette figure``: runs and studies drawn for a paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from palmette.cli.failures import one_line_errors
from palmette.guards.terminal import say


class Kind(StrEnum):
    """What a figure shows."""

    convergence = "convergence"
    devices = "devices"
    traffic = "traffic"
    time = "time"
    tree = "tree"
    paired = "paired"


class Over(StrEnum):
    """What is counted along a figure of convergence."""

    rounds = "rounds"
    steps = "steps"


class Width(StrEnum):
    """How wide a figure is."""

    column = "column"
    page = "page"


KindOption = Annotated[
    Kind,
    typer.Option(
        help="A metric over the rounds (convergence), its distribution over devices (devices), the metric over the bytes "
        "sent (traffic) or over the simulated clock (time), every node of the tree coloured by it (tree), or the differences "
        "device by device (paired).",
        show_default=False,
    ),
]


def figure(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of runs and of studies.", show_default=False)
    ],
    kind: KindOption,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The figure (.pdf, .svg or .png); its numbers go beside it as .csv.")
    ],
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What was measured. [dim](default: accuracy, else loss)[/dim]")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="The models: PM, TM or GM. Can be repeated. [dim](default: all of one run, PM of several)[/dim]",
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Draw this method only. Can be repeated.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="paired: the method to compare with. [dim](default: the first)[/dim]"),
    ] = None,
    over: Annotated[
        Over, typer.Option(help="convergence: count global rounds, or gradient steps of a device.")
    ] = Over.rounds,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="traffic, time: say how many bytes and seconds it takes until the metric is this good, and mark it.",
        ),
    ] = None,
    width: Annotated[Width, typer.Option(help="As wide as one column of a paper, or as its page.")] = Width.column,
    csv: Annotated[bool, typer.Option("--csv/--no-csv", help="Write the numbers of the figure beside it.")] = True,
) -> None:
    """Draw runs and studies for a paper: PDF, SVG or PNG, and the numbers as CSV.

    Runs of several seeds are drawn as their mean. Colours can be
    told apart by colour-blind readers, lines also in grey, and
    fonts are embedded.

    [bold]Example:[/bold]  palmette figure runs/compared --kind paired --out fig.pdf
    """
    with one_line_errors():
        from palmette.errors import BadInput
        from palmette.figures.make import COSTS, check_out, made, write

        if against is not None and kind is not Kind.paired:
            raise BadInput("--against is for --kind paired")
        if over is not Over.rounds and kind is not Kind.convergence:
            raise BadInput("--over is for --kind convergence")
        if target is not None and kind.value not in COSTS:
            raise BadInput(f"--target is for --kind {' and '.join(COSTS)}")
        check_out(out, csv=csv)
        drawn = made(
            folders, kind.value, metric=metric, model=model or (), method=method or (), against=against, over=over.value,
            target=target, width=width.value,
        )  # fmt: skip
        for note in (*drawn.notes, *drawn.told):
            say(note)
        for file in write(drawn, out, csv=csv):
            say(f"wrote {file}")
