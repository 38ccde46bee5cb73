"""Two processes that torchrun started, beside two that know nothing of each other: the same bits, and how fast.

Run by hand: ``make prove-distributed``. Each of two processes has a simulation of its own and half of a common one. They take
turns: both run an exchange of their own at the same time, then both together one of the common simulation. A ratio is taken
within a turn, because other users of a machine come and go; the median over turns is reported, with the quartiles. The
processes use one thread each. Then every algorithm of the contract table runs on two and on three processes and is compared
with one, bit for bit. Writes docs/how-to/distributed.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pages import DOCS, table, write

from pairs import CASES, TABLE, Pair, differences
from palmette.algorithms import ALGORITHMS, PerMFL
from palmette.bench.workloads import Case, Workload
from palmette.engines.distributed import Distributed
from palmette.engines.peers import COMMAND
from palmette.engines.simulate import Simulation
from palmette.protocol.settings import build

WORKLOADS = (
    Workload("dnn 784-100-10", "dnn", (784,), {"hidden": (100,)}, tree="4x100", samples=40, tests=4),
    Workload("mclr 784-10", "mclr", (784,), tree="4x100", samples=40, tests=4),
    Workload("mclr 60-10", "mclr", (60,), tree="4x100", samples=40, tests=4),
)
TURNS = 15
SECONDS = 1.0  # of a turn, about
WANTED = 0.9


def rate(work: Callable[[], int]) -> float:
    """Return the device-steps per second of some work."""
    begun = time.perf_counter()
    return work() / (time.perf_counter() - begun)


def rounds(simulation: Simulation, many: int) -> int:
    """Run some rounds and return their device-steps."""
    before = simulation.device_steps
    for _ in range(many):
        simulation.step()
    return simulation.device_steps - before


def measured(pair: Pair, workload: Workload) -> dict[str, object]:
    """Measure a workload; what rank 0 returns counts."""
    case = Case(workload, time.perf_counter)
    method = build(
        PerMFL, "permfl", {"alpha": 0.01, "team_steps": 1, "local_steps": workload.local_steps, "batch_size": 20}
    )
    given = method, case.population, case.task
    alone = Simulation(*given, rounds=1 << 30, threads=1)
    common = Distributed(*given, rounds=1 << 30, threads=1, peers=pair.peers)

    def together(many: int) -> int:
        before = common.device_steps
        for _ in range(many):
            if not pair.leads:
                pair.peers.meet(COMMAND)  # where rank 0 says that a round begins
            common.step()
        return common.device_steps - before

    rounds(alone, 1), together(1)
    begun = time.perf_counter()
    rounds(alone, 1)
    took = max(one["took"] for one in pair.peers.meet(COMMAND, {"took": time.perf_counter() - begun}))
    together(1)
    many = max(1, round(SECONDS / took))
    ratios, apart, joined = [], [], []
    for _ in range(TURNS):
        pair.peers.meet(COMMAND)
        own = rate(lambda: rounds(alone, many))
        total = sum(one["rate"] for one in pair.peers.meet(COMMAND, {"rate": own}))
        found = rate(lambda: together(many))
        apart.append(total)
        joined.append(found)
        ratios.append(found / total)
    different: list[str] = []
    if pair.leads:
        different = differences(alone, common)
        common.command("end")
    else:
        common.follow()
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "workload": workload.name,
        "apart": statistics.median(apart),
        "joined": statistics.median(joined),
        "low": low,
        "ratio": middle,
        "high": high,
        "different": different,
    }


def seconds_of(simulation: Simulation) -> tuple[float, float]:
    """Return the processor seconds of a round: of this thread, which takes chunks as the others do, and of all threads."""
    mine, everybody = time.thread_time(), time.process_time()
    simulation.step()
    return time.thread_time() - mine, time.process_time() - everybody


def of_threads(workload: Workload) -> list[str]:
    """Measure what one thread and two threads work, and return it as a row."""
    case = Case(workload, time.perf_counter)
    method = build(
        PerMFL, "permfl", {"alpha": 0.01, "team_steps": 2, "local_steps": workload.local_steps, "batch_size": 20}
    )
    made = [Simulation(method, case.population, case.task, rounds=1 << 30, threads=count) for count in (1, 2)]
    for simulation in made:
        rounds(simulation, 2)
    turns = [[seconds_of(simulation) for simulation in made] for _ in range(TURNS)]
    one = statistics.median(turn[0][1] for turn in turns)
    own, both = (statistics.median(turn[1][at] for turn in turns) for at in (0, 1))
    longer = max(own, both - own)
    return [workload.name, f"{one:.3f} s", f"{own:.3f} s + {both - own:.3f} s", f"{one / longer:.2f}"]


def child() -> None:
    """Be one of the two processes."""
    import torch

    torch.set_num_threads(1)
    pair = Pair()
    for workload in WORKLOADS:
        found = measured(pair, workload)
        if pair.leads:
            print(json.dumps(found), flush=True)


def torchrun(processes: int, *words: str) -> str:
    """Run a program in several processes and return what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> int:
    """Measure and compare, and write the page."""
    lines = [json.loads(line) for line in torchrun(2, __file__, "child").splitlines()]
    rows, wrong = [], 0
    for one in lines:
        spread = f"{one['ratio']:.0%} ({one['low']:.0%} to {one['high']:.0%})"
        wrong += bool(one["different"])
        rows.append(
            [
                one["workload"],
                f"{one['apart']:,.0f}",
                f"{one['joined']:,.0f}",
                spread,
                "different" if one["different"] else "the same",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    heads = ["400 devices in 4 teams", "two alone, together", "one run on two", "ratio (quartiles)", "its bits"]
    pairs, compared = str(Path(__file__).parent.parent / "tests" / "pairs.py"), []
    for processes in (2, 3):
        told = torchrun(processes, pairs, *CASES).splitlines()
        wrong += len(told) - 1
        compared.append([str(processes), str(len(TABLE)), ", ".join(CASES), str(len(told) - 1)])
        print(*told, sep="\n", flush=True)
    about = (
        f"Device-steps per second, medians of {TURNS} turns of about a second, one thread per process, a machine of "
        f"{os.cpu_count()} cores that others use, too (load {os.getloadavg()[2]:.1f} over the last 15 minutes)."
    )
    more = (
        f"Every algorithm ({len(ALGORITHMS)}, some with several settings), {len(CASES)} ways each, beside one process:"
    )
    names = ["processes", "rows of the contract table", "links", "differences"]
    write(
        DOCS / "how-to/distributed.md",
        "measured",
        "distributed",
        [about, "", *table(heads, rows), "", more, "", *table(names, compared)],
    )
    shares = [of_threads(workload) for workload in WORKLOADS]
    print(*map(" | ".join, shares), sep="\n", flush=True)
    heads = ["processor seconds of a round", "one thread", "two threads", "speed-up where both have a core"]
    write(DOCS / "how-to/distributed.md", "threads", "distributed", table(heads, shares))
    reached = lines[0]["ratio"] >= WANTED
    print("reached" if reached else f"{lines[0]['ratio']:.0%} of two alone, not {WANTED:.0%}")
    return int(wrong > 0 or not reached)


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        child()
    else:
        sys.exit(main())
