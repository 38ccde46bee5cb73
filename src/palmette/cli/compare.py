"""The command ``palmette compare``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors
from palmette.guards.terminal import say

if TYPE_CHECKING:
    from palmette.studies.plan import Arm


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD",
            help="Algorithms, such as permfl or ./mine.py; NAME=ALGO gives one a name; or folders of runs.",
        ),
    ],
    data: options.Data = None,
    tree: options.Tree = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    steps: options.Steps = None,
    seeds: options.Seeds = None,
    settings: options.SetMethod = None,
    config: options.Config = None,
    tune: options.Tune = 0,
    tune_on: Annotated[
        str,
        typer.Option(metavar="SEEDS", help="each: every seed chooses settings; first: the first seed for all of them."),
    ] = "each",
    tuned_only: Annotated[
        bool, typer.Option("--tuned-only", help="With --tune, do not run the methods with the given settings as well.")
    ] = False,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=LOW..HIGH", help="With --tune, where to look for a setting: alpha=0.01..0.1."),
    ] = None,
    by: options.By = "PM",
    against: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Compare device by device with this one. [dim](default: the first)[/dim]"),
    ] = None,
    no_local: Annotated[bool, typer.Option("--no-local", help="Do not add local training as the reference.")] = False,
    out: options.StudyOut = None,
    jobs: options.Jobs = None,
    json: options.Json = False,
    csv: options.Csv = None,
    latex: options.Latex = None,
    markdown: options.Markdown = None,
    plot: options.Plot = None,
    track: options.Track = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on the same devices, samples and participation.

    [bold]Example:[/bold]  palmette compare permfl fedavg local --seeds 3 --steps 400
    --set data.shift=rotate --set permfl.lam=0.1

    Every method runs with every seed. It ends in tables: how
    good the models are, how much better or worse each
    device fares, whom a method hurts, and what it costs.

    All is kept in a folder. The same command with the same
    --out, or palmette resume, goes on after a stop; runs that
    are finished are not repeated. The exit code is 1 if a
    run diverged or failed.
    """
    with one_line_errors():
        from palmette.cli.methods import arms_of
        from palmette.cli.studying import Outputs, conducted, seeds_of
        from palmette.cli.sweep import read_grid
        from palmette.errors import BadInput
        from palmette.studies.compare import Choice, plan_comparison
        from palmette.track.tracker import names_of

        outputs = Outputs(csv, latex, markdown, plot)
        outputs.check()
        trackers = names_of(track or (), "--track")
        if steps is not None and rounds is not None:
            raise BadInput("--steps decides the number of rounds; give --steps or --rounds, not both")
        given = {"data.name": data, "tree": tree, "model.name": model, "rounds": rounds}
        arms, notes = arms_of(methods, file=config, options=given, assignments=settings or [], local=not no_local)
        equal = steps if steps is not None or rounds is not None else _as_the_run(arms)
        if equal is not None and steps is None:
            notes.append(f"Steps as in the run given: {equal:,} on each device; --rounds or --steps changes it.")
        choice = Choice(
            seeds=seeds_of(seeds, arms),
            steps=equal,
            tune=tune,
            tune_on=cast(Any, tune_on),  # what it may be is checked with the rest
            tuned_only=tuned_only,
            by=by,
            against=against,
            command=f"palmette {shlex.join(sys.argv[1:])}",
            notes=tuple(notes),
            search=read_grid(search or [], "--search"),
        )
        plan, _ = plan_comparison(arms, choice, {})
        for note in notes:
            say(note)
        conducted(
            plan,
            out,
            f"compare-{plan.arms[0].config.data.label}",
            outputs,
            jobs=jobs,
            json=json,
            quiet=quiet,
            track=trackers,
        )


def _as_the_run(arms: list[Arm]) -> int | None:
    """Return the steps that a finished run took on each device, where others are to be trained beside it."""
    from palmette.report.numbers import device_count
    from palmette.runs import Result

    kept = [path for arm in arms for path in arm.runs.values()]
    if not kept or all(arm.runs for arm in arms):
        return None
    result = Result(Path(kept[0]))
    if not result.finished:
        return None
    steps: int = result.timings["device_steps"] + result.timings.get("adapt_steps", 0)
    return round(steps / device_count(result))
