"""What the proofs of links share: methods at settings that are documented, run on rotated digits, and a line of a table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pages import DOCS

from palmette.runs import Result, RunConfig, execute, make_config

PAGE = DOCS / "how-to/reliability.md"
IMAGES = DOCS / "images"
TREE = "4x10"
ROTATED = {"name": "digits", "shift": "rotate"}
ALIKE = {"name": "digits", "partition": "iid"}
SEEDS = (0, 1, 2)
KINDS = ("PM", "TM", "GM")
ROUNDS = 15  # of the methods with teams, 20 team steps of 20 gradient steps each: 6,000 steps of every device


@dataclass(frozen=True)
class Method:
    """A method at its settings.

    Attributes:
        algorithm: Its name.
        settings: Its settings, but for those that are their defaults.
        rounds: As many as make 6,000 gradient steps of every device.
    """

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = ROUNDS


METHODS = (
    Method("permfl", {"team_steps": 20, "alpha": 0.3}),
    Method("hierfavg", {"team_steps": 20, "alpha": 0.3}),
    Method("mtgc", {"team_steps": 20, "alpha": 0.3}),
    Method("l2gd", {"smoothness": 17.0, "lam": 0.1, "gamma": 0.01}, 4 * ROUNDS),
    Method("fedavg", {"alpha": 0.3}, 20 * ROUNDS),
)
"""PerMFL as README runs it; the others take as many steps."""


def config_of(method: Method, seed: int, *, rounds: int | None = None, **more: Any) -> RunConfig:
    """Return the config of a method on rotated digits, or on what ``data`` says."""
    values = {"algorithm": method.algorithm, "settings": dict(method.settings), "rounds": rounds or method.rounds}
    return make_config({**values, "tree": TREE, "data": dict(ROTATED), "seed": seed, **more})


def train(folder: Path, config: RunConfig) -> Result:
    """Run a config in a folder, or read what is there already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return execute(config, folder, exist="resume")


def told(method: Method) -> str:
    """Write a method with its settings."""
    settings = ", ".join(f"{key} {value}" for key, value in method.settings.items())
    return f"`{method.algorithm}` {method.rounds} rounds, {settings}"


def mean(results: Iterable[Result], kind: str) -> float:
    """Return the mean accuracy of a kind of model over some runs; NaN where there is none."""
    found = [result.last(kind) for result in results if kind in result.kinds]
    return float(np.mean(found)) if found else float("nan")


def number(value: float) -> str:
    """Write an accuracy as the tables of the documentation do."""
    return "-" if value != value else f"{value:.3f}".removeprefix("0")


def signed(value: float) -> str:
    """Write a difference of accuracies."""
    return "-" if value != value else f"{value:+.4f}".replace("-", "−").replace("0.", ".", 1)


def drawn(lines: Sequence[tuple[str, Sequence[Result]]], kind: str, out: Path, **choice: Any) -> list[str]:
    """Draw lines under names of one's own as ``palmette figure`` does, and return what it would say.

    Args:
        lines: Names, each with its runs.
        kind: The kind of figure.
        out: The file.
        **choice: What is drawn; see `palmette.figures.lines.Choice`.
    """
    from palmette.figures.lines import Choice, Line
    from palmette.figures.make import drawer, write
    from palmette.report.style import PAPER, settings

    named = [Line(name, {result.config.seed: result for result in results}) for name, results in lines]
    with settings(PAPER):
        made = drawer(kind)(named, Choice("accuracy", **choice))
    write(made, out, csv=False)
    small(out)
    return made.told


def small(path: Path) -> None:
    """Make a picture modest in size: 128 colours show it well enough."""
    from PIL import Image

    picture = Image.open(path).convert("RGB")
    picture.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.name, path.stat().st_size)
