"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only errors and the result.")]

Algo = Annotated[str | None, typer.Argument(metavar="ALGO", help="See: palmette list algorithms", show_default=False)]
Data = Annotated[str | None, typer.Option(metavar="NAME", help="Whose samples. [dim](default: digits)[/dim]")]
Tree = Annotated[
    str | None, typer.Option(help="Teams x devices, such as 4x10. [dim](default: 4x10)[/dim]", metavar="TREE")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="What is learned. [dim](default: mclr)[/dim]")]
Rounds = Annotated[
    int | None, typer.Option(metavar="T", help="Global rounds. [dim](default: as settings ask, else 20)[/dim]")
]
Seed = Annotated[int | None, typer.Option(metavar="S", help="Decides all luck. [dim](default: 0)[/dim]")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the algorithm or of the config; repeat it."),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Start from this config.toml.")]
