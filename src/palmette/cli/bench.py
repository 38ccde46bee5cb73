"""The command ``palmette bench``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json
from palmette.guards.terminal import tell


class Clock(StrEnum):
    """What measures time."""

    wall = "wall"
    cpu = "cpu"


def bench(
    workload: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this workload, such as mclr-784-10. Can be repeated.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this engine, such as fused. Can be repeated.")
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Threads of the simulator. Can be repeated. [dim](default: 1 and all cores)[/dim]"
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="R", help="How often to measure every engine. [dim](default: 7)[/dim]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only two short repeats: a first impression.")] = False,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also measure how speed depends on the number of devices, 40 to 100,000.")
    ] = False,
    jobs: Annotated[
        bool,
        typer.Option("--jobs", help="Also measure whole jobs, from the start of the process to the results on disk."),
    ] = False,
    clock: Annotated[
        Clock, typer.Option(help="Measure wall time, or processor (cpu) time, which depends less on what else runs.")
    ] = Clock.wall,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the speeds (.png, .pdf or .svg).")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the tables to this file, as Markdown.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how many gradient steps per second are simulated, beside other tools.

    [bold]Example:[/bold]  palmette bench --workload mclr-784-10 --plot bench.png

    An engine is one way to compute the steps: Palmette's
    own, a plain PyTorch loop, pfl-research if it is
    installed. A workload is a model with its sizes:
    mclr-784-10 is a softmax regression of 784 features and
    10 classes. All engines run once per repeat; speeds are
    medians over repeats. What is promised is the speed of
    the simulator: whole rounds, not gradient steps alone.
    """
    with one_line_errors():
        from palmette.bench import CROWDS, JOBS, QUICK, Timing, benchmark
        from palmette.bench.markdown import markdown as write
        from palmette.bench.show import plot as draw
        from palmette.bench.show import report
        from palmette.guards.screen import Screen
        from palmette.report.picture import check_file, check_picture

        if plot is not None:
            check_picture("--plot", plot)
        if markdown is not None:
            check_file("--markdown", markdown)
        base = QUICK if quick else Timing()
        timing = Timing(base.repeats if repeats is None else repeats, base.seconds)
        screen = Screen(stderr=True, quiet=quiet)
        with screen.status("starting") as status:
            last = ""

            def hear(what: str, about: str) -> None:
                nonlocal last
                status.update(f"{what}: {about}")
                if not screen.is_terminal and what != last:
                    screen.print(f"bench: {what}")
                    last = what

            made = benchmark(
                workload,
                engine,
                threads,
                timing=timing,
                clock=clock.value,
                crowds=CROWDS if scaling else (),
                whole=JOBS if jobs else (),
                tell=hear,
            )
        if plot is not None:
            draw(made, plot)
        if markdown is not None:
            markdown.write_text(write(made), encoding="utf-8")
        if json:
            print_json(made.as_json())
            return
        Screen().print(report(made))
        if plot is not None:
            tell(f"plot: {plot}")
