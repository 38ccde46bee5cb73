"""Experiments of the papers, each by name: what they measured, ours and theirs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import BadInput, nearest
from palmette.studies.reproduce.l2gd import coin, figure1, table1


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper.

    Attributes:
        description: What it shows, in a sentence.
        function: Runs it. It takes the folder for its plots (or ``None``) and returns ``rows`` (data, ours and the paper's), a
            ``table`` (the same for people), ``notes`` and ``files`` (what it wrote).
    """

    description: str
    function: Callable[[Path | None], dict[str, Any]]


EXPERIMENTS: Mapping[str, Experiment] = {
    "l2gd-table1": Experiment(
        "Table 1 of Async-L2GD: distance to the truth of four estimators on the hierarchical linear model, m = 10 and 100",
        table1,
    ),
    "l2gd-figure1": Experiment(
        "Figure 1 of Async-L2GD: the same four estimators over the number of samples per client, 1 to 200", figure1
    ),
    "l2gd-table1-coin": Experiment(
        "Table 1 of Async-L2GD by its own algorithm: 50,000 iterations of the single coin on one draw (minutes)", coin
    ),
}


def run(name: str, out: str | Path | None = None) -> dict[str, Any]:
    """Run an experiment by name.

    Args:
        name: A name of `EXPERIMENTS`.
        out: Folder for its plots, its table and its rows; ``None`` writes nothing.
    """
    if name not in EXPERIMENTS:
        raise BadInput(f"unknown experiment {name!r}{nearest(name, EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    result = {"name": name, "description": experiment.description, **experiment.function(folder)}
    if folder is not None:
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        (folder / f"{name}.txt").write_text(result["table"] + "\n")
    return result
