"""Whole jobs: from the start of a process to the results on disk, and what each part of it takes.

Steps per second leave out what a user waits for besides: importing torch, making the population, the estimate of curvature,
evaluation, checkpoints, saving every model. Each job here is a process of its own that does all of it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.errors import PalmetteError

PARTS = ("import", "data", "estimate", "training", "evaluation", "checkpoints", "rest")
_PALMETTE = {"estimate": "estimate", "rounds": "training", "evaluation": "evaluation", "checkpoints": "checkpoints"}
_PROGRAM = "import json, sys; from palmette.bench.jobs import whole_job; print(json.dumps(whole_job(*sys.argv[1:])))"


@dataclass(frozen=True)
class Job:
    """A run of PerMFL on a workload of the benchmark.

    Attributes:
        workload: A name of `palmette.bench.workloads.WORKLOADS`.
        rounds: Global rounds.
    """

    workload: str
    rounds: int


JOBS = (Job("mclr 784-10", 20), Job("dnn 784-100-10", 5), Job("mclr 60-10", 20), Job("cnn 32-64", 20))


def jobs(
    wanted: tuple[Job, ...],
    repeats: int,
    clock: str,
    threads: int = 1,
    tell: Callable[[str, str], None] = lambda what, about: None,
) -> list[dict[str, Any]]:
    """Return one row per job: the seconds of each part, of all of it (the median over repeats), and the peak of memory.

    Args:
        wanted: The jobs.
        repeats: How often to run each.
        clock: ``"wall"`` or ``"cpu"``.
        threads: Threads of the simulator.
        tell: Called with what is under way and how far it is.
    """
    found: list[dict[str, Any]] = []
    for job in wanted:
        tried = []
        for repeat in range(repeats):
            tell(f"job {job.workload}", f"repeat {repeat + 1}/{repeats}")
            tried.append(_run(job, clock, threads))
        middle = statistics.median_low(one["seconds"] for one in tried)
        row = next(one for one in tried if one["seconds"] == middle)
        row["peak_bytes"] = max(one["peak_bytes"] for one in tried)
        found.append({"job": job.workload, "rounds": job.rounds, "threads": threads, "repeats": repeats, **row})
    return found


def _run(job: Job, clock: str, threads: int) -> dict[str, Any]:
    """Run one job in a process of its own and return what it took."""
    words = [sys.executable, "-c", _PROGRAM, job.workload, str(job.rounds), clock, str(threads), repr(time.time())]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise PalmetteError(f"the job {job.workload} failed: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def whole_job(workload: str, rounds: str, clock: str, threads: str, began: str) -> dict[str, Any]:
    """Do a job in this process and return its parts in seconds; the rest is what they leave of the whole."""

    def now() -> float:
        return time.process_time() if clock == "cpu" else time.time() - float(began)

    from palmette.bench.workloads import PULL, RATE, WORKLOADS, Case
    from palmette.runs import run

    spent = {"import": now()}
    case = Case(WORKLOADS[workload], now)
    people, task, steps = case.population, case.task, case.workload
    spent["data"] = now() - spent["import"]
    settings = {"alpha": RATE, "lam": PULL, "batch_size": steps.batch}
    settings |= {"local_steps": steps.local_steps, "team_steps": steps.team_steps}
    with tempfile.TemporaryDirectory() as place:
        given: dict[str, Any] = {"rounds": int(rounds), "threads": int(threads), "progress": False}
        before, start = now(), time.perf_counter()
        result = run("permfl", people, task, settings=settings, out=f"{place}/run", **given)
        whole = now()
    # What a run takes down is wall time; its parts are taken to have the same shares of processor time.
    share = (whole - before) / (time.perf_counter() - start)
    timed = result.timings["seconds"]
    spent |= {_PALMETTE[name]: share * value for name, value in timed.items() if name in _PALMETTE}
    spent["rest"] = max(0.0, whole - sum(spent.values()))
    return {**spent, "seconds": whole, "peak_bytes": _peak()}


def _peak() -> int:
    """Return the most memory this process has held; what `getrusage` tells on Linux has the parent's memory in it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
