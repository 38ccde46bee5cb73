"""The command ``palmette sweep``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors

_RANGE = re.compile(r"([^.]+(?:\.\d+)?)\.\.([^.]+(?:\.\d+)?)")


def sweep(
    algorithm: options.Algo = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a setting to try, as in beta=0.1,0.3,1. Can be repeated: all combinations are run. "
            "With --tune also a range: beta=0.1..1.",
        ),
    ] = None,
    tune: options.TuneOne = 0,
    by: options.By = "PM",
    data: options.Data = None,
    tree: options.Tree = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    steps: options.Steps = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Repeat everything with N seeds; --set seed=S names the first.")
    ] = 1,
    settings: options.Set = None,
    config: options.Config = None,
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
    """Try settings of one algorithm, on validation samples, and test the best.

    [bold]Example:[/bold]  palmette sweep permfl --grid lam=0.03,0.1,0.3 --grid
    gamma=0.001,0.01,0.1 --plot grid.png

    A quarter of each device's training samples is kept out of
    training and decides between the settings. The best ones
    are then trained on all training samples and tested. Test
    samples have no part in the choice.

    All is kept in a folder. The same command with the same
    --out, or palmette resume, goes on after a stop. The exit
    code is 1 if a run diverged or failed.
    """
    with one_line_errors():
        from palmette.cli.configure import configure
        from palmette.cli.studying import Outputs, conducted, seeds_of
        from palmette.errors import BadInput
        from palmette.studies.compare import Choice
        from palmette.studies.plan import Arm
        from palmette.studies.steps import Objects
        from palmette.studies.sweep import plan_sweep
        from palmette.track.tracker import names_of

        outputs = Outputs(csv, latex, markdown, plot)
        outputs.check()
        trackers = names_of(track or (), "--track")
        if steps is not None and rounds is not None:
            raise BadInput("--steps decides the number of rounds; give --steps or --rounds, not both")
        given = {"data.name": data, "tree": tree, "model.name": model, "rounds": rounds}
        made = configure(algorithm, file=config, options=given, assignments=settings or [])
        arm = Arm(made.label, made)
        command = f"palmette {shlex.join(sys.argv[1:])}"
        choice = Choice(seeds_of(seeds, [arm]), steps, tune, by=by, command=command)
        plan, _ = plan_sweep(arm, read_grid(grid or []), choice, Objects())
        conducted(
            plan, out, f"sweep-{arm.name}-{made.data.label}", outputs, jobs=jobs, json=json, quiet=quiet, track=trackers
        )


def read_grid(texts: Sequence[str], option: str = "--grid") -> dict[str, Any]:
    """Read the options ``--grid`` or ``--search``: by key a list of values, or a range."""
    from palmette.cli.configure import literal
    from palmette.errors import BadInput

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise BadInput(f"{option} takes KEY=VALUES, as in beta=0.1,0.3,1 or beta=0.1..1, not {text!r}")
        if key in found:
            raise BadInput(f"{option} {key} is given twice; list all its values in one, as in {key}=0.1,0.3,1")
        if (both := _RANGE.fullmatch(values)) and "," not in values:
            low, high = literal(both[1]), literal(both[2])
            numbers = [one for one in (low, high) if isinstance(one, int | float) and not isinstance(one, bool)]
            if len(numbers) < 2 or not 0 < low < high:
                raise BadInput(
                    f"{option} {text}: a range goes from a number above 0 to a larger one, as in {key}=0.01..1"
                )
            whole = {"whole": True} if isinstance(low, int) and isinstance(high, int) else {}
            found[key] = {"low": low, "high": high, **whole}
            continue
        found[key] = [literal(value) for value in split(values)]
    return found


def split(text: str) -> list[str]:
    """Split at commas, but not inside brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]
