"""The commands ``palmette predict``, ``palmette adapt`` and ``palmette export``: what one does with a finished run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import one_line_errors, print_json
from palmette.guards.terminal import hand_over, say, tell
from palmette.guards.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
Table = Annotated[str, typer.Option("--data", metavar="FILE", help="A CSV or Parquet file, or a folder of them.")]
Kind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="PM (a device's own), TM (a team's) or GM (global), if nodes share the name."),
]


class Format(StrEnum):
    """How a model is written."""

    safetensors = "safetensors"
    onnx = "onnx"


def predict(
    run: Run,
    data: Table,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Predict all rows with the model of this device or team.")
    ] = None,
    kind: Kind = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a CSV file. [dim](default: standard output)[/dim]")
    ] = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Predict the label of every row of a table.

    [bold]Example:[/bold]  palmette predict runs/permfl-visits-1 --data new.csv

    Columns are found by their names. Every row is predicted
    by its own device's model. A device that did not train
    has its team's model, or the global one if its team is
    not known.
    """
    with one_line_errors():
        import pyarrow as pa
        from pyarrow.csv import write_csv

        from palmette.errors import BadInput
        from palmette.runs import predict as foresee

        if out is not None and out.exists():
            raise BadInput(f"{out} is there already; choose another file or remove it first")
        found = foresee(run, data, node=node, kind=kind, trust=trust)
        for note in found.notes:
            say(note)
        if out is not None:
            write_csv(found.table, out)
        if json:
            print_json({"predictions": found.table.to_pylist(), "notes": found.notes})
        elif out is None:
            sink = pa.BufferOutputStream()
            write_csv(found.table, sink)
            hand_over(sink.getvalue().to_pybytes().decode())
        else:
            tell(f"{found.table.num_rows:,} predictions in {out}")


def adapt(
    run: Run,
    data: Table,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the new models to this folder, a file for each device.")
    ] = None,
    test: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of each device's rows kept to measure its model.")
    ] = 0.25,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Make personal models for devices that did not train.

    [bold]Example:[/bold]  palmette adapt runs/permfl-visits-1 --data new.csv
    --out new-models

    Each device begins from its team's model, or from the
    global one if its team is not known, and takes the steps
    that the algorithm takes for a new device. The table
    needs labels.
    """
    with one_line_errors():
        from palmette.runs import adapt as make

        found = make(run, data, test=test, trust=trust)
        for note in found.notes:
            say(note)
        written = found.save(out) if out is not None else []
        if json:
            print_json({"devices": found.devices, "files": list(map(str, written)), "notes": found.notes})
            return
        from palmette.guards.screen import Screen

        Screen().print(_devices(found.devices))
        if out is not None:
            tell(f"{len(written)} models in {out}")
        else:
            say("the models were not kept; give a folder for them with --out")


def export(
    run: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to.")],
    node: Annotated[str | None, typer.Option(metavar="NAME", help="The device or team whose model is wanted.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Write the models of all devices, teams and the server.")] = False,
    kind: Kind = None,
    format_: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.safetensors,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    r"""Write models of a run to files that others can read.

    [bold]Example:[/bold]  palmette export runs/permfl-visits-1 --node w3 --out models

    A safetensors file holds the scaling of the columns and
    the names of the classes too, so that a few lines of
    torch use it. ONNX needs: pip install 'palmette\[onnx]'
    """
    with one_line_errors():
        from palmette.errors import BadInput
        from palmette.runs import export as write

        if (node is None) != all_:
            raise BadInput("say whose model: --node NAME for one, or --all for every device, team and the server")
        written = write(run, out, node=node, kind=kind, format=format_.value, trust=trust)
        if json:
            print_json({"files": list(map(str, written))})
            return
        tell(f"{written[0]}" if len(written) == 1 else f"{len(written)} models in {out}")


def _devices(entries: list[dict[str, Any]]) -> RenderableType:
    """Lay out what adapting did for every device, of many the first."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid

    from palmette.guards.screen import Text

    metric = next((name for one in entries for name in one["after"] if name != "loss"), "loss")
    table = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("device", "from", "rows", f"{metric} before", "after"):
        table.add_column(name, justify="left" if name in ("device", "from") else "right", overflow="fold")
    for one in entries[:40]:
        before, after = (f"{one[when][metric]:.3f}" if metric in one[when] else "-" for when in ("before", "after"))
        table.add_row(
            Text(visible(one["device"])), Text(visible(one["from"])), str(one["train"] + one["test"]), before, after
        )
    rest = [Text(f"and {len(entries) - 40} more devices; --json lists all")] if len(entries) > 40 else []
    return Group(table, *rest)
