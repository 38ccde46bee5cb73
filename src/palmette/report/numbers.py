"""The numbers that tables, sentences and plots take from finished runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np
import pyarrow.compute as pc

from palmette.errors import BadInput
from palmette.protocol import ModelKind
from palmette.runs import Result

_SMALL = 0.005  # a smaller difference of accuracies is not called a win
_BACKEND = re.compile(r"backend (\w+) \((.*)\)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Method:
    """One method's finished runs on one population, a run for each seed.

    Attributes:
        label: What people call the method; a label that begins with two spaces goes on from the method before.
        results: Its runs, seed by seed.
        why: Which of its models to show, each with the reason why it is the best where it is.
    """

    label: str
    results: tuple[Result, ...]
    why: Mapping[ModelKind, str]


@dataclass(frozen=True, eq=False)
class Entry:
    """One kind of model of one method.

    Attributes:
        name: The method, in full.
        label: How a table lists it.
        kind: The kind of model.
        values: Its test accuracy after the last round, seed by seed.
        sent: Bytes over the link to the server in one run, on average.
        why: Why it is the best where it is.
    """

    name: str
    label: str
    kind: ModelKind
    values: tuple[float, ...]
    sent: float
    why: str

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds; NaN for one seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several methods on one population.

    Attributes:
        title: What people call the population, in two or three words.
        about: Who the devices are, in a sentence.
        methods: The methods, all with the same seeds.
    """

    title: str
    about: str
    methods: tuple[Method, ...]

    @cached_property
    def entries(self) -> list[Entry]:
        """Every model that is shown."""
        found: list[Entry] = []
        whole = ""
        for method in self.methods:
            whole = whole + method.label[1:] if method.label.startswith("  ") else method.label
            sent = float(np.mean([link_bytes(result)[1] for result in method.results]))
            for line, (kind, why) in enumerate(method.why.items()):
                values = tuple(result.last(kind) for result in method.results)
                found.append(Entry(whole, "" if line else method.label, kind, values, sent, why))
            whole = whole.split(" +")[0]
        return found

    @property
    def best(self) -> Entry:
        """The model with the highest mean."""
        return max(self.entries, key=lambda entry: entry.mean)

    @property
    def level(self) -> list[Entry]:
        """The best model and those that are not clearly worse, best first; the list ends at the first that is."""
        ranked = sorted(self.entries, key=lambda entry: -entry.mean)
        return list(takewhile(lambda entry: not clearly_above(ranked[0].values, entry.values), ranked))


def top(result: Result) -> int:
    """Return the server's tier in the population's tree."""
    return int(pc.max(result.metrics["tier"]).as_py())


def by_node(
    result: Result, kind: ModelKind, tier: int, metric: str = "accuracy", *, on: str | None = None
) -> dict[str, float]:
    """Return a metric of every node of a tier after the last round.

    Args:
        result: The run.
        kind: The kind of model.
        tier: The nodes' tier.
        metric: What was measured.
        on: Which devices count; by default those of `Result.on`, so that devices kept out of training are left out.
    """
    table = result.metrics
    on = result.on if on is None else on
    wanted = {"model": kind, "metric": metric, "tier": tier, "when": "after", "on": on, "weight": "samples"}
    keep = pc.equal(table["round"], pc.max(table["round"]))
    for column, value in wanted.items():
        keep = pc.and_(keep, pc.equal(table[column], value))
    part = table.filter(keep)
    return dict(zip(part["node"].to_pylist(), part["value"].to_pylist(), strict=True))


def device_count(result: Result) -> int:
    """Return how many devices were measured after the last round; a finished run has measured some."""
    found = len(by_node(result, "PM", 0, result.lead))
    if not found:
        raise BadInput(
            f"the run in {result.folder} has no numbers of single devices after its last round; no run wrote this"
        )
    return found


def link_bytes(result: Result) -> tuple[int, int]:
    """Return the bytes, both ways, on the links below the teams and on the one to the server."""
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
    found = _BACKEND.findall("\n".join(result.log))
    return (found[-1][0], found[-1][1]) if found else None


def clearly_above(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one accuracy is above another by half a point at least, and by more than the luck of the seeds explains.

    The second is Student's test of the differences seed by seed, at 5 %. The first is needed because a few seeds may agree by
    chance, and because so small a difference is no reason to choose a method. With a single seed nothing is clear.
    """
    from scipy.special import stdtrit  # takes a while to load, and only comparisons need it

    gaps = np.array(one) - np.array(other)
    if len(gaps) < 2 or gaps.mean() < _SMALL:
        return False
    return bool(gaps.mean() > stdtrit(len(gaps) - 1, 0.975) * gaps.std(ddof=1) / np.sqrt(len(gaps)))
