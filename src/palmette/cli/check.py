"""The command ``palmette check``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import FAILED, one_line_errors, print_json
from palmette.guards.terminal import say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from palmette.engines.simulate import Simulation
    from palmette.runs import RunConfig
    from palmette.theory import Check, Condition, Measured, Suggestion

_KEPT = "\0"  # stands for a blank that is no place for a line to end
_LETTERS = "L is a largest curvature (smoothness), mu a least curvature (strong convexity); f is the loss of a device."
_SECONDS = 3  # between two lines that say how far a measurement is


def check(
    algorithm: options.Algo = None,
    data: options.Data = None,
    tree: options.Tree = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    settings: options.Set = None,
    config: options.Config = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run it, and compare what is measured with the theorem's bound.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="With --measure: how many random runs to average. [dim](default: 5)[/dim]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --measure: draw measurement and bound (.png, .pdf or .svg)."),
    ] = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Also give settings that meet the theorem, and what it promises for them.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="End with exit code 1 if a condition fails.")] = False,
    json: options.Json = False,
) -> None:
    """Check whether settings meet the theorem of an algorithm's paper.

    [bold]Example:[/bold]  palmette check permfl --set preset=published
    --set model.l2=0.1 --suggest

    It works out the smoothness (L_f) and the strong
    convexity (mu_f) of the devices' losses, and says which
    conditions of the theorem hold, what the theorem then
    promises, and the largest learning rates it allows. It
    takes the options of [bold]run[/bold].

    With --measure it also computes the optimum, runs the
    algorithm, and prints what was measured beside the
    theorem's bound. If the algorithm is random, the bound is
    about the average over random runs; the average of
    --seeds runs is compared with it.

    The exit code is 0 even if conditions fail, unless you
    give --strict.
    """
    with one_line_errors():
        from palmette.cli.configure import configure
        from palmette.errors import BadInput
        from palmette.report.picture import check_picture
        from palmette.runs.limits import refuse_absurd
        from palmette.theory import check as hold
        from palmette.theory import check_solvable
        from palmette.theory import measure as watch
        from palmette.theory import suggest as find

        if not measure and (plot is not None or seeds is not None):
            raise BadInput("--plot and --seeds only work together with --measure; add --measure")
        if plot is not None:
            check_picture("--plot", plot)
        given = {"data.name": data, "tree": tree, "model.name": model, "rounds": rounds, "seed": seed}
        made = configure(algorithm, file=config, options=given, assignments=settings or [])
        first, *others = _simulations(made, seeds or 5 if measure else 1)
        simulation = first()
        if measure:
            check_solvable(simulation)
            refuse_absurd(made, made.method(), simulation.population, simulation.task, simulation.links, Path())
        found = hold(simulation)
        advised = find(simulation) if suggest else None
        measured = watch(simulation, found, others=(other() for other in others), tell=Now()) if measure else None
        if plot is not None and measured is not None:
            from palmette.report.convergence import draw

            draw(measured, found, plot)
        if json:
            told = {} if measured is None else {"measured": measured.as_dict()}
            told |= {} if advised is None else {"suggest": advised.as_dict()}
            print_json({**found.as_dict(), **told})
        else:
            from palmette.guards.screen import Screen

            screen = Screen()
            screen.print(_picture(found, measured, advised, screen.width))
        if strict and not found.holds:
            raise typer.Exit(FAILED)


class Now:
    """Tells on standard error how far a long measurement is, every few seconds."""

    def __init__(self) -> None:
        self._last = monotonic()

    def __call__(self, text: str) -> None:
        """Print a sentence, if the last one is a while ago."""
        if monotonic() - self._last >= _SECONDS:
            self._last = monotonic()
            say(text)


def _simulations(made: RunConfig, seeds: int) -> list[Callable[[], Simulation]]:
    """Return how to make the simulation of a config, and the same with the seeds that follow; the data stay."""
    import torch

    from palmette.engines.simulate import Simulation

    people = made.population()
    made = made.on(people, made.method())
    task, links = made.task(people), made.make_links(people.tree, flat=made.method().flat)

    def simulation(seed: int) -> Simulation:
        return Simulation(
            made.method(),
            people,
            task,
            rounds=made.rounds,
            seed=seed,
            links=links,
            dtype=torch.float64,
            backend=made.engine.backend,
            device=made.engine.device,
            chunk=made.engine.chunk,
            held_out=made.engine.held_out,
            optimiser=made.optimiser,
        )

    return [partial(simulation, made.seed + more) for more in range(seeds)]


def _picture(found: Check, measured: Measured | None, advised: Suggestion | None, width: int) -> RenderableType:
    """Lay a check out for a terminal of 60 columns and more."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    from palmette.guards.screen import Text
    from palmette.theory.conditions import down

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("condition")
    table.add_column("yours", justify="right", overflow="fold")
    table.add_column("allowed", overflow="fold")
    table.add_column("holds")
    table.add_column("source", style="dim", overflow="fold")
    for one in found.conditions:
        table.add_row(Text(one.what), one.yours, Text(one.allowed), Text(*_word(one)), Text(one.source))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in found.constants.items())
    facts.add_row("constants", Group(Text(constants), Text(_LETTERS, style="dim")))
    facts.add_row("result", Text(_verdict(found)))
    if found.rate is not None:
        facts.add_row("rate", Text(f"the bound is multiplied by {found.rate:.6g} in every round"))
    allowed = ", ".join(f"{name} {down(value)}" for name, value in found.largest.items())
    if allowed:
        facts.add_row("at most", Text(f"{allowed} (the largest values that the theorem allows)"))
    for name, value in found.wanted.items():
        facts.add_row("needed", Text(f"{value:.4g} {name}"))
    for note in found.notes:
        facts.add_row("note", Text(note))
    shown: list[RenderableType] = [Text(found.theorem, "bold"), Text(), table, Text(), facts]
    if advised is not None:
        shown += ["", *_advised(advised, width)]
    if measured is not None:
        shown += [
            "",
            Text(f"measured: {measured.quantity}", "bold"),
            _curve(measured),
            *(Text(line) for line in measured.sentences()),
        ]
    return Group(*shown)


def _verdict(found: Check) -> str:
    if found.promises:
        return f"promised: {found.promise}"
    broken = [one.what for one in found.conditions if one.theorem and not one.holds]
    some = "condition fails" if len(broken) == 1 else "conditions fail"
    return (
        f"nothing is promised, as {len(broken)} {some} ({', '.join(broken)}); if all held, the theorem would promise "
        f"{found.promise}"
    )


def _advised(advised: Suggestion, width: int) -> list[RenderableType]:
    from palmette.guards.screen import Text

    if advised.obstacle:
        return [Text("no settings meet the theorem:", "bold"), Text(advised.obstacle)]
    whole = advised.options.replace("--set ", f"--set{_KEPT}")  # so that no line ends between the two
    lines = wrap(whole, min(width, 80) - 4, break_long_words=False, break_on_hyphens=False)
    joined = " \\\n".join(f"  {line.replace(_KEPT, ' ')}" for line in lines)
    return [Text("settings that meet the theorem:", "bold"), Text(joined), *(Text(line) for line in advised.achieves)]


def _word(one: Condition) -> tuple[str, str]:
    """Return whether a condition holds, and the style of that word."""
    if one.holds:
        return "yes", "green"
    return ("diverges", "bold red") if one.divergent else ("no", "red")


def _curve(measured: Measured) -> RenderableType:
    """Return a table of what was measured at up to eight rounds, evenly chosen."""
    from rich.table import Table

    table = Table()
    table.add_column("round", justify="right")
    if measured.iterations > 1:
        table.add_column("iterations", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    last = len(measured.values) - 1
    for i in sorted({round(last * part / 7) for part in range(8)}):
        done = measured.rounds[i]
        often = [f"{done * measured.iterations}"] if measured.iterations > 1 else []
        bound = f"{measured.bound[i]:.4g}" if measured.bound else "none"
        table.add_row(f"{done}", *often, f"{measured.values[i]:.4g}", bound)
    return table
