"""The figures Palmette promises, each looked up in the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.bench.workloads import WORKLOADS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One promise about one value of one row.

    Attributes:
        text: What is promised.
        workload: The row's workload.
        engine: The row's engine.
        field: The value's name in the row.
        bound: What it is held against.
        most: Whether the bound is the most it may be; else the least.
        threads: The row's threads.
    """

    text: str
    workload: str
    engine: str
    field: str
    bound: float
    most: bool = False
    threads: int = 1

    def check(self, rows: Sequence[Row]) -> dict[str, Any] | None:
        """Return what was measured beside the bound, or nothing where it was not measured."""
        wanted = self.workload, self.engine, self.threads
        for row in rows:
            value = row[self.field]
            if (row["workload"], row["engine"], row["threads"]) == wanted and value is not None:
                met = value <= self.bound if self.most else value >= self.bound
                text = f"{self.workload}: {self.text}"
                return {"figure": text, "bound": self.bound, "at_most": self.most, "measured": value, "met": met}
        return None


def _least(text: str, engine: str, field: str, bounds: Mapping[str, float], threads: int = 1) -> list[Figure]:
    return [Figure(text, workload, engine, field, bound, threads=threads) for workload, bound in bounds.items()]


_PEER = {"mclr 784-10": 15.0, "dnn 784-100-10": 4.0, "cnn 32-64": 1.5}
_PLAIN = {name: 1.0 for name, workload in WORKLOADS.items() if not workload.chain}
_PRODUCTS = {"mclr 784-10": 0.65, "dnn 784-100-10": 0.75}
_JAX = dict.fromkeys(("mclr 784-10", "dnn 784-100-10", "mclr 60-10"), 1.5)
_TWO = {"mclr 784-10": 1.6, "dnn 784-100-10": 1.6, "mclr 60-10": 1.5, "cnn 32-64": 1.6}

FIGURES = [
    *_least("simulator against JAX by hand", "jax", "simulator_ratio", _JAX),
    *_least("simulator against pfl-research", "pfl", "simulator_ratio", _PEER),
    *_least("simulator against the plain loop", "plain", "simulator_ratio", _PLAIN),
    *_least("simulator against the DataLoader loop", "plain-loader", "simulator_ratio", {"mclr 60-10": 50.0}),
    *_least("simulator against the product limit", "simulator", "ratio_to_limit", _PRODUCTS),
    *_least("two threads against one", "simulator", "speed_up", _TWO, threads=2),
    *(Figure("overhead of the simulator", name, "simulator", "overhead", 0.1, most=True) for name in WORKLOADS),
]


_JOB = "cnn 32-64"  # whose estimate and memory were once most of it
_ESTIMATE, _PEAK = 0.05, 2.5  # of the job's time; GB

LARGE, SLOWER = 100_000, 1.3  # devices of the large population, and how much slower than a thousand's its steps may be


def figures(rows: Sequence[Row], scaling: Sequence[Row] = (), jobs: Sequence[Row] = ()) -> list[dict[str, Any]]:
    """Return every promise that the rows can speak to, with what was measured.

    Args:
        rows: Rows of workloads and engines.
        scaling: Rows of populations.
        jobs: Rows of whole jobs.
    """
    found = [made for figure in FIGURES if (made := figure.check(rows)) is not None]
    for row in scaling:
        value = row["time_ratio_to_1000"]
        if row["devices"] == LARGE and value is not None:
            found.append(_most(f"time per step, {LARGE:,} devices against 1,000", SLOWER, value))
    for row in jobs:
        if row["job"] == _JOB:
            share = row["estimate"] / row["seconds"]
            found.append(_most(f"{_JOB}: the estimate's share of a whole job", _ESTIMATE, share))
            found.append(_most(f"{_JOB}: GB of memory at the job's peak", _PEAK, row["peak_bytes"] / 1e9))
    return found


def _most(text: str, bound: float, value: float) -> dict[str, Any]:
    return {"figure": text, "bound": bound, "at_most": True, "measured": value, "met": value <= bound}
