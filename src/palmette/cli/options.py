"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only errors and the result.")]

Algo = Annotated[
    str | None,
    typer.Argument(metavar="ALGO", help="The algorithm; see: palmette list algorithms", show_default=False),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|PATH",
        help="The data set, see: palmette list datasets; or your own CSV or Parquet file, see: palmette data check --help. "
        "[dim](default: digits)[/dim]",
    ),
]
Tree = Annotated[
    str | None,
    typer.Option(help="Number of teams x devices per team. [dim](default: 4x10)[/dim]", metavar="TREE"),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The model to train; see: palmette list models. [dim](default: mclr)[/dim]"),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        metavar="T",
        help="Number of communication rounds. [dim](default: 20, or what the algorithm's settings ask for)[/dim]",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="S", help="Random seed: the same seed and settings give the same result. [dim](default: 0)[/dim]"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one value, such as alpha=0.1 or data.shift=rotate. Can be repeated."
    ),
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read settings from this file, such as a run's config.toml.")
]
