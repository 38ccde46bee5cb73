"""The numbers that tables, sentences and plots take from finished runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from palmette.algorithms import ALGORITHMS
from palmette.protocol import ModelKind
from palmette.runs import Result
from palmette.runs.folder import LOG

_BACKEND = re.compile(r"backend (\w+) \((.*)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Method:
    """One finished run among others.

    Attributes:
        label: What people call the method.
        result: Its run.
        kinds: Which of its models to show.
        main: The model the method is known for.
    """

    label: str
    result: Result
    kinds: tuple[ModelKind, ...]
    main: ModelKind

    @property
    def flat(self) -> bool:
        """Whether the method does without teams."""
        return ALGORITHMS[self.result.config.algorithm].flat


def top(result: Result) -> int:
    """Return the server's tier in the population's tree."""
    return int(pc.max(result.metrics["tier"]).as_py())


def by_node(result: Result, kind: ModelKind, tier: int, metric: str = "accuracy") -> dict[str, float]:
    """Return a metric of every node of a tier after the last round."""
    table = result.metrics
    wanted = {"model": kind, "metric": metric, "tier": tier, "when": "after", "on": "all", "weight": "samples"}
    keep = pc.equal(table["round"], pc.max(table["round"]))
    for column, value in wanted.items():
        keep = pc.and_(keep, pc.equal(table[column], value))
    part = table.filter(keep)
    return dict(zip(part["node"].to_pylist(), part["value"].to_pylist(), strict=True))


def link_bytes(result: Result) -> tuple[int, int]:
    """Return the bytes, both ways, on the cheap links below and on the dear one to the server."""
    lower = upper = 0
    server = top(result)
    for row in result.traffic.to_pylist():
        both = row["bytes_up"] + row["bytes_down"]
        lower, upper = (lower, upper + both) if row["tier"] == server else (lower + both, upper)
    return lower, upper


def seconds(result: Result) -> float:
    """Return how long a run took, evaluation and checkpoints included."""
    return float(sum(result.timings["seconds"].values()))


def backend(result: Result) -> tuple[str, str] | None:
    """Return which backend computed a run, and why that one, from the run's log."""
    path = result.folder / LOG
    found = _BACKEND.findall(path.read_text(encoding="utf-8")) if path.exists() else []
    return (found[-1][0], found[-1][1]) if found else None


def clearly_differ(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two models differ by more than chance: two standard errors of the devices' paired differences."""
    gaps = np.array([one[name] - other[name] for name in one if name in other])
    gaps = gaps[~np.isnan(gaps)]
    if len(gaps) < 2:
        return False
    return bool(abs(gaps.mean()) > 2 * gaps.std(ddof=1) / np.sqrt(len(gaps)))
