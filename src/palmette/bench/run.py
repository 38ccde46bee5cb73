"""One run of the benchmark: workloads one after another, their engines in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palmette.bench.engines import ENGINES, Lane, lanes
from palmette.bench.figures import figures
from palmette.bench.jobs import Job, jobs
from palmette.bench.machine import machine
from palmette.bench.measure import Timing, measure, rows
from palmette.bench.scaling import Crowd, scaling
from palmette.bench.workloads import WORKLOADS, Case, Workload, pick
from palmette.errors import BadInput

Clock = Literal["wall", "cpu"]
Tell = Callable[[str, str], None]

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
QUICK = Timing(repeats=2, seconds=0.05)
_JOB_REPEATS = 3  # a whole job takes seconds to a minute


@dataclass(frozen=True)
class Benchmark:
    """What came out of a run.

    Attributes:
        rows: One per workload, engine and number of threads.
        scaling: One per population size, where asked for.
        jobs: One per whole job, where asked for.
        figures: What Palmette promises beside what was measured.
        machine: What it ran on.
        clock: What measured time.
        notes: What a reader should know, such as an engine that is not installed.
    """

    rows: list[dict[str, Any]]
    scaling: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    machine: dict[str, Any]
    clock: str
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dict(vars(self))


def benchmark(
    workloads: Sequence[str | Workload] | None = None,
    engines: list[str] | None = None,
    threads: list[int] | None = None,
    *,
    timing: Timing | None = None,
    clock: Clock = "wall",
    crowds: tuple[Crowd, ...] = (),
    whole: tuple[Job, ...] = (),
    tell: Tell = lambda what, about: None,
) -> Benchmark:
    """Compare engines on workloads.

    Args:
        workloads: Names of `WORKLOADS` or workloads of one's own, all of `WORKLOADS` by default.
        engines: Names of `ENGINES`, all by default.
        threads: Numbers of threads for the simulator; by default one and as many as there are cores.
        timing: How long and how often to measure.
        clock: ``"wall"``, or ``"cpu"`` for the processor time of the whole process, which other programs on the machine
            change less; it can say nothing about more than one thread.
        crowds: Populations to measure as well, such as `palmette.bench.CROWDS`.
        whole: Whole jobs to measure as well, such as `palmette.bench.JOBS`, each in a process of its own, on one thread.
        tell: Called with what is under way and how far it is.
    """
    timing = timing or Timing()
    if timing.repeats < 1:
        raise BadInput(f"repeats must be at least 1, not {timing.repeats}")
    if clock not in CLOCKS:
        raise BadInput(f"clock must be 'wall' or 'cpu', not {clock!r}")
    chosen = _workloads(workloads)
    pick("engine", engines, ENGINES)  # a mistyped name should not cost a minute
    wanted, notes = _threads(threads, clock)
    found: list[dict[str, Any]] = []
    before = machine()
    for workload in chosen:
        case = Case(workload, CLOCKS[clock])
        tell(workload.name, "making the data")
        made, missing = lanes(case, engines, wanted)
        notes += [note for note in missing if note not in notes]

        def say(lane: Lane, repeat: int, name: str = workload.name) -> None:
            tell(name, _about(lane, repeat, timing.repeats))

        found += rows(workload.name, made, measure(made, timing, case.clock, say))
    sizes: list[dict[str, Any]] = []
    if crowds:
        tell("scaling", "making the populations")
        sizes = scaling(
            crowds, timing, CLOCKS[clock], lambda lane, repeat: tell("scaling", _about(lane, repeat, timing.repeats))
        )
    ended = jobs(whole, min(timing.repeats, _JOB_REPEATS), clock, tell=tell)
    return Benchmark(found, sizes, ended, figures(found, sizes, ended), before, clock, notes)


def _workloads(wanted: Sequence[str | Workload] | None) -> list[Workload]:
    if not wanted:
        return list(WORKLOADS.values())
    names = [entry for entry in wanted if isinstance(entry, str)]
    own = [entry for entry in wanted if isinstance(entry, Workload)]
    return (pick("workload", names, WORKLOADS) if names else []) + own


def _threads(wanted: list[int] | None, clock: Clock) -> tuple[list[int], list[str]]:
    """Return the numbers of threads, one among them, since speed-ups are against it."""
    cores = os.cpu_count() or 1
    for number in wanted or []:
        if number < 1:
            raise BadInput(f"threads must be at least 1, not {number}")
    if clock == "cpu":
        return [1], ["only one thread was measured: processor time cannot compare numbers of threads"]
    numbers = sorted({1, *(wanted or [cores])})
    over = [number for number in numbers if number > cores]
    return numbers, [f"{max(over)} threads were asked for, but there are only {cores} cores"] if over else []


def _about(lane: Lane, repeat: int, repeats: int) -> str:
    threads = f" x{lane.threads}" if lane.threads > 1 else ""
    return f"{lane.engine}{threads}, " + (f"repeat {repeat}/{repeats}" if repeat else "warming up")
