"""The command ``palmette check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from palmette.theory import Check, Measured


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
        bool, typer.Option("--measure", help="Also run it and compare the distance to the optimum with the bound.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --measure: draw both into this PNG.")] = None,
    json: options.Json = False,
) -> None:
    """Hold settings against the theorems of an algorithm's paper.

    [bold]Example:[/bold]  palmette check permfl --set preset=published
    --set model.l2=0.1

    It estimates the curvature of the task on the devices, says which conditions hold, what is promised and which steps
    are allowed. It takes the options of [bold]run[/bold].
    """
    with one_line_errors():
        import torch

        from palmette.cli.configure import configure
        from palmette.errors import BadInput
        from palmette.simulate import Simulation
        from palmette.theory import check as hold
        from palmette.theory import measure as watch

        if plot is not None and not measure:
            raise BadInput("--plot draws what --measure measures; give both")
        if plot is not None and not plot.parent.is_dir():
            raise BadInput(f"--plot {plot}: there is no folder {plot.parent}")
        given = {"data.name": data, "tree": tree, "model.name": model, "rounds": rounds, "seed": seed}
        made = configure(algorithm, file=config, options=given, assignments=settings or [])
        people = made.population()
        simulation = Simulation(
            made.method(),
            people,
            made.task(people),
            rounds=made.rounds,
            seed=made.seed,
            links=made.links(people.tree),
            dtype=torch.float64,
            backend=made.engine.backend,
            device=made.engine.device,
            chunk=made.engine.chunk,
            held_out=made.engine.held_out,
        )
        found = hold(simulation)
        measured = watch(simulation, found) if measure else None
        if plot is not None and measured is not None:
            from palmette.report.convergence import draw

            draw(measured, found, plot)
        if json:
            told = {} if measured is None else {"measured": {"distance": measured.distance, "bound": measured.bound}}
            print_json({**found.as_dict(), **told})
            return
        from rich.console import Console

        Console(highlight=False).print(_picture(found, measured))


def _picture(found: Check, measured: Measured | None) -> RenderableType:
    """Lay a check out for a terminal of 80 columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=found.theorem, title_justify="left", title_style="bold")
    table.add_column("condition")
    table.add_column("yours", justify="right")
    table.add_column("allowed")
    table.add_column("holds")
    table.add_column("from", style="dim", overflow="fold")
    for one in found.conditions:
        word = (
            "[green]yes[/green]"
            if one.holds
            else "[bold red]diverges[/bold red]"
            if one.value > one.diverges
            else "[red]no[/red]"
        )
        table.add_row(one.what, f"{one.value:.4g}", one.allowed, word, one.source)
    lines = [f"constants: {', '.join(f'{name} = {value:.4g}' for name, value in found.constants.items())}"]
    lines.append(f"promised where all hold: {found.promise}")
    if found.rate is not None:
        lines.append(f"here: a factor of {found.rate:.6g} a round")
    lines += [f"largest allowed {name}: {value:.4g}" for name, value in found.largest.items()]
    lines += [f"asked for, {name}: {value:.4g}" for name, value in found.wanted.items()]
    if measured is not None:
        first, last = measured.distance[0], measured.distance[-1]
        text = f"measured: squared distance to the optimum {first:.4g} at the start, {last:.4g} after the last round"
        lines.append(
            text + (f"; the bound allows {measured.bound[-1]:.4g}" if measured.bound else "; no bound applies")
        )
    lines += [f"note: {note}" for note in found.notes]
    return Group(table, *(Text(line) for line in lines))
