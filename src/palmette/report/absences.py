"""What a run tells of its links beyond bytes: replies that did not enter, who was absent, and the simulated clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from palmette.report import words
from palmette.runs import Result
from palmette.runs.folder import ABSENCES

_MOST = 3  # nodes of a tier that are named


def missing(link: Mapping[str, Any]) -> int:
    """Return how many replies did not enter on a link of `Result.links`."""
    return sum(link.get("missing", {}).values())


def missing_told(links: Iterable[Mapping[str, Any]]) -> str:
    """Say how many replies did not enter on all links together, and why; nothing where all did."""
    reasons: Counter[str] = Counter()
    twice = 0
    for link in links:
        reasons.update(link.get("missing", {}))
        twice += link.get("repeated", 0)
    told = []
    if count := reasons.total():
        why = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
        told.append(f"{_replies(count)} did not enter: {why}.")
    if twice:
        told.append(f"{_replies(twice)} came twice; the copies changed nothing.")
    return " ".join(told)


def wasted_told(result: Result) -> str:
    """Say how much of the devices' work was in vain, because a reply did not enter; nothing where none was."""
    wasted = result.timings.get("wasted_steps", 0)
    if not wasted:
        return ""
    steps = result.timings["device_steps"]
    share = 100 * wasted / steps
    return f"{wasted:,} of these steps ({share:.0f} %) changed nothing, because a reply did not enter"


def clock_told(result: Result) -> str:
    """Say how long the run took on the simulated clock; nothing where it had none."""
    times = result.times
    if not times:
        return ""
    last = max(times)
    return (
        f"{words.duration(times[last])} on the simulated clock ({words.duration(times[last] / max(1, last))} a round)"
    )


def absent_told(result: Result) -> Iterator[str]:
    """Say where the record of absences lies and who is in it most often, tier by tier."""
    table = result.absences
    if not len(table):
        return
    yield f"{ABSENCES} says who was absent when, and why"
    for whose, named in most_absent(table, result.config.make_tree().top):
        listed = ", ".join(f"{name} ({words.many(count, 'time')})" for name, count in named)
        yield f"most often of the {whose}: {listed}"


def most_absent(table: pa.Table, top: int) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield, tier by tier from the devices up, what its nodes are called and which of them were absent most often."""
    for tier in sorted(table["tier"].unique().to_pylist()):
        part = table.filter(pc.equal(table["tier"], tier))
        counts = part.group_by("node", use_threads=False).aggregate([("node", "count")]).to_pylist()
        ranked = sorted(((one["node"], one["node_count"]) for one in counts), key=lambda one: (-one[1], one[0]))
        whose = "devices" if tier == 0 else "teams" if tier == 1 and top > 1 else f"nodes of tier {tier}"
        yield whose, ranked[:_MOST]


def _replies(count: int) -> str:
    return "1 reply" if count == 1 else f"{count:,} replies"
