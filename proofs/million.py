"""A million devices in one process, and what a device's step costs among many.

Run by hand: ``make prove-million``. First, one round of PerMFL with one per cent of a million devices in every exchange, what
they keep lying on disk, inside 12 GiB. Second, a whole run of two rounds on them as a user has it, inside 8 GiB: a sample of
the devices is measured before the end, all of them after the last round, and all their models are saved. Third, 2,000
participants of 100,000 against 1,000 of 1,000, in turn, many times: the time per device-step may be at most 1.3 times as long.
Each part has a process of its own. Fails where a bound is broken.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from palmette.algorithms import PerMFL
from palmette.engines.simulate import Simulation
from palmette.links import Link, Participation
from palmette.population import make_population
from palmette.runs import execute, make_config
from palmette.runs.folder import CHECKPOINT, Folder
from palmette.runs.journal import Journal
from palmette.task import make_task

GIB = 1 << 30
MEMORY, EVALUATED = 12 * GIB, 8 * GIB
RATIO = 1.3
PAIRS = 15
METHOD = PerMFL(team_steps=10, local_steps=20, alpha=0.05)


def peak() -> int:
    """Return the most memory this process has held at any time, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def simulation(tree: str, participants: int | str, store: Path | str = "memory", *, rounds: int = 1) -> Simulation:
    """Make devices of 16 training samples and 60 features, some of each team taking part."""
    population = make_population("crowd", tree=tree, samples=16, test_samples=1)
    task = make_task("mclr", population.shape, population.classes)
    links = {0: Link(Participation.parse(participants))}
    return Simulation(METHOD, population, task, rounds=rounds, links=links, store=store)


def million(place: Path) -> bool:
    """Run one round with one per cent of a million devices in each of ten exchanges."""
    start = time.perf_counter()
    made = simulation("1000x1000", "1%", place)
    data = made.population.x.nbytes + made.population.y.nbytes
    print(f"1,000,000 devices made in {time.perf_counter() - start:.1f} s: data {data / 1e9:.2f} GB, ", end="")
    print(f"store {made.stores[0].nbytes / 1e9:.2f} GB on disk; peak memory {peak() / GIB:.2f} GiB")
    start = time.perf_counter()
    made.step()
    seconds = time.perf_counter() - start
    took = int((made.stores[0].last >= 0).sum())
    used = sum(file.stat().st_blocks * 512 for file in made.stores[0].files)
    print(
        f"one round: {seconds:.1f} s, {made.device_steps:,} device-steps, {made.device_steps / seconds:,.0f} a second, ",
        end="",
    )
    print(f"{took:,} devices took part; their rows take {used / 1e9:.2f} GB on disk")
    start = time.perf_counter()
    Journal(Folder(place)).save(made.state(), {})
    size = (place / CHECKPOINT).stat().st_size
    print(f"checkpoint: {time.perf_counter() - start:.1f} s, {size / 1e9:.2f} GB")
    most = peak()
    print(f"peak memory {most / GIB:.2f} GiB of at most {MEMORY / GIB:.0f}")
    return most <= MEMORY


def evaluated(place: Path) -> bool:
    """Run two rounds on a million devices as a user does, with evaluations, checkpoints and all models saved."""
    start = time.perf_counter()
    config = {
        "algorithm": "permfl",
        "settings": {"alpha": METHOD.alpha},
        "rounds": 2,
        "tree": "1000x1000",
        "data": {"name": "crowd", "samples": 16, "test_samples": 1},
        "participation": {"devices": "1%"},
    }
    result = execute(make_config(config), place / "run")
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.timings["seconds"].items() if seconds >= 1)
    print(f"a whole run with evaluation: {time.perf_counter() - start:.0f} s, of which {spent}; ", end="")
    print(f"processor time {time.process_time():.0f} s")
    print(f"PM {result.last('PM'):.3f} of all devices, {result.last('PM', on='sampled'):.3f} of 2,000 sampled ones")
    print(f"peak memory {peak() / GIB:.2f} GiB of at most {EVALUATED / GIB:.0f}")
    return peak() <= EVALUATED


def ratio() -> bool:
    """Compare the time per device-step of few among many with that of all of few."""
    sides = [simulation("100x1000", 20, rounds=PAIRS + 1), simulation("100x10", "all", rounds=PAIRS + 1)]
    ratios, speeds, busy = [], [], []
    for pair in range(PAIRS + 1):
        cost, work = [], []
        for side in sides:
            before, start, used = side.device_steps, time.perf_counter(), time.process_time()
            side.step()
            cost.append((time.perf_counter() - start) / (side.device_steps - before))
            work.append((time.process_time() - used) / (side.device_steps - before))
        if pair:  # the first round touches memory for the first time
            ratios.append(cost[0] / cost[1])
            speeds.append([1 / each for each in cost])
            busy.append(work[0] / work[1])
    many, few = (statistics.median(column) for column in zip(*speeds, strict=True))
    middle = statistics.median(ratios)
    print(
        f"2,000 of 100,000: {many:,.0f} device-steps a second; 1,000 of 1,000: {few:,.0f}; time per device-step ",
        end="",
    )
    print(f"x{middle:.2f} (median of {PAIRS} pairs, {min(ratios):.2f} to {max(ratios):.2f}), at most x{RATIO}")
    print(f"processor time per device-step, which other programs disturb less: x{statistics.median(busy):.2f}")
    return middle <= RATIO


def main() -> int:
    """Measure all three, each in a process of its own; give ``million``, ``evaluated`` or ``ratio`` for one of them."""
    if len(sys.argv) < 2:
        parts = [[sys.executable, __file__, part] for part in ("million", "evaluated", "ratio")]
        return max(subprocess.run(part, check=False).returncode for part in parts)
    with tempfile.TemporaryDirectory() as place:
        good = {"million": lambda: million(Path(place)), "evaluated": lambda: evaluated(Path(place)), "ratio": ratio}
        return 0 if good[sys.argv[1]]() else 1


if __name__ == "__main__":
    sys.exit(main())
