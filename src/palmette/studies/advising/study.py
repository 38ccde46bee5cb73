"""Runs the study: one small file of results for every population and seed, so that it can be stopped and gone on with.

Results of one kind lie in a folder of their own, ``<folder>/<kind>/<case>-<seed>.json``. The kind ``"classic"`` is the full
search over the classic families; other methods are run on the same populations by `run_each` under names of their own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from palmette.runs.files import Files
from palmette.studies.advising.populations import CASES, Case
from palmette.studies.advising.search import search

SEEDS = (0, 1, 2)
CLASSIC = "classic"
_THREADS = "OMP_NUM_THREADS"

Work = Callable[[Case, int], dict[str, Any]]
"""What is done for a population and a seed; a function at the top of a module, as it is sent to other processes."""


def classic(case: Case, seed: int) -> dict[str, Any]:
    """Return what the full search over the classic families finds on a population.

    Args:
        case: The population.
        seed: Decides the population and the trainings.
    """
    return search(case.make(seed), case.model, case.options, seed)


def run_classic(
    folder: Path,
    cases: Sequence[Case] = CASES,
    seeds: Sequence[int] = SEEDS,
    jobs: int = 1,
    told: Callable[[str], None] = print,
) -> None:
    """Run the full search over the classic families on every population with every seed, as far as results are missing.

    Args:
        folder: Where the results lie.
        cases: The populations.
        seeds: The seeds.
        jobs: Processes that work at the same time.
        told: Is told a line for every result.
    """
    run_each(folder, CLASSIC, classic, cases, seeds, jobs, told)


def run_each(
    folder: Path,
    kind: str,
    work: Work,
    cases: Sequence[Case] = CASES,
    seeds: Sequence[int] = SEEDS,
    jobs: int = 1,
    told: Callable[[str], None] = print,
) -> None:
    """Do some work on every population with every seed, as far as its results are missing.

    When it is interrupted, the results so far stay and the next call goes on.

    Args:
        folder: Where the results lie.
        kind: The name of the work, which its results lie under.
        work: Returns the result, plain data.
        cases: The populations.
        seeds: The seeds; all populations have their turn with the first of them before the next.
        jobs: Processes that work at the same time.
        told: Is told a line for every result.
    """
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    wanted = [(case, seed) for seed in seeds for case in cases if not _path(folder, kind, case.name, seed).exists()]
    with closing((_here if jobs == 1 else _beside)(place, work, wanted, jobs)) as done:
        for number, line in enumerate(done, 1):
            told(f"{number} of {len(wanted)}: {line}")


def results(
    folder: Path, kind: str = CLASSIC, cases: Sequence[Case] = CASES
) -> Iterator[tuple[Case, int, dict[str, Any]]]:
    """Return the results that are there: the population, the seed and what was found.

    Args:
        folder: Where the results lie.
        kind: The name of the work.
        cases: The populations.
    """
    for case in cases:
        for path in sorted((folder / kind).glob(f"{case.name}-*.json")):
            seed = path.stem.removeprefix(f"{case.name}-")
            if seed.isdecimal():  # not of another case whose name goes on
                yield case, int(seed), json.loads(path.read_text(encoding="utf-8"))


def _path(folder: Path, kind: str, name: str, seed: int) -> Path:
    return folder / kind / f"{name}-{seed}.json"


def _one(place: Path, work: Work, case: Case, seed: int) -> str:
    """Do the work for a population and a seed, write its result as a whole, and return a line about it."""
    found = work(case, seed)
    about = {"case": case.name, "seed": seed, "half": case.half, "model": case.model}
    name = f"{case.name}-{seed}.json"
    Files(place).write(name, (json.dumps({**about, **found}, allow_nan=False) + "\n").encode())
    return f"{case.name}, seed {seed}{_told(found)}"


def _told(found: dict[str, Any]) -> str:
    return f", {found['seconds']:.0f} s" if "seconds" in found else ""


def _here(place: Path, work: Work, wanted: Sequence[tuple[Case, int]], jobs: int) -> Generator[str, None, None]:
    """Do the work in this process, one after the other."""
    for case, seed in wanted:
        yield _one(place, work, case, seed)


def _beside(place: Path, work: Work, wanted: Sequence[tuple[Case, int]], jobs: int) -> Generator[str, None, None]:
    """Do the work in processes beside this one; after an interrupt or an error nothing more begins."""
    with _one_thread_each(), ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin) as pool:
        waiting = [pool.submit(_one, place, work, case, seed) for case, seed in wanted]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """Set up a process: its operations use one thread, and Ctrl-C ends it without a word."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that are started compute on one thread each, which must be said before they import anything."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
