"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only errors and the result.")]

Algo = Annotated[
    str | None,
    typer.Argument(
        metavar="ALGO", help="The algorithm, see: palmette list algorithms; or your own: ./mine.py", show_default=False
    ),
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
    typer.Option(
        metavar="NAME",
        help="The model to train; see: palmette list models. Also your own: ./mine.py:make [dim](default: mclr)[/dim]",
    ),
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

Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Give every method N gradient steps on each device, fine-tuning counted; this decides the rounds.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Repeat everything with N seeds; --set seed=S names the first. [dim](default: 3)[/dim]"
    ),
]
SetMethod = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one value: alpha=0.1 for all methods that have it, permfl.alpha=0.1 for one. Can be repeated.",
    ),
]
Tune = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Try N settings of every method, the given ones among them, on validation samples. Needs Optuna.",
    ),
]
TuneOne = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Try N settings that Optuna chooses, in place of the whole grid. Without --grid it searches what the algorithm "
        "declares.",
    ),
]
By = Annotated[
    str,
    typer.Option(metavar="KIND", help="The models that settings are chosen by: PM, TM or GM."),
]
StudyOut = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The study's folder; one that holds it goes on. [dim](default: a new one in runs/)[/dim]"
    ),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Runs at the same time. [dim](default: one per core)[/dim]")
]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Also log the numbers to tensorboard, wandb or mlflow. Can be repeated."),
]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as CSV.")]
Latex = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as LaTeX.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the results (.png, .pdf or .svg).")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run code that the run names, as of a model of your own. Only for runs of people you trust."
    ),
]
