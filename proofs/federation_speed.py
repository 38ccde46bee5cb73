"""How long a round of PerMFL takes over real links: mclr 784-10, K = 10 exchanges, 10 devices, mutual TLS, 12 processes.

``python proofs/federation_speed.py [ROUNDS]``: devices take one step in each exchange, so that nearly all of a round is the
federation's own: messages, their encryption, states on the disk before each reply.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pages import DOCS, table, write

from palmette.deploy.federation import Federation
from palmette.deploy.kits import make_kits
from palmette.deploy.launching import Processes, free_ports
from palmette.deploy.parity import parity
from palmette.engines.simulate import Simulation


def memory(pid: int) -> float:
    """Return the megabytes that a process has resident."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def cpu(pid: int) -> float:
    """Return the seconds of processor time that a process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Measure and print."""
    rounds = int((sys.argv[1:2] or ["30"])[0])
    run = {
        "algorithm": "permfl",
        "rounds": rounds,
        "tree": {"team": [f"d{number}" for number in range(10)]},
        "settings": {"team_steps": 10, "local_steps": 1, "alpha": 0.01},
        "data": {"name": "mnist", "partition": "few", "samples": 40},
        "evaluate_every": rounds,
    }
    one, two = free_ports(2)
    places = {"server": f"127.0.0.1:{one}", "team": f"127.0.0.1:{two}"}
    folder = Path(tempfile.mkdtemp())
    kits = make_kits(Federation(name="speed", run=run, addresses=places), folder)
    sizes: dict[str, float] = {}
    with Processes(kits.nodes) as processes:
        while "round 5 of" not in processes.output((2, 0)):
            processes.check()
            time.sleep(0.05)
        begun = {place: cpu(one.pid) for place, one in processes.running.items()}
        while f"round {rounds - 1} of" not in processes.output((2, 0)):
            processes.check()
            time.sleep(0.02)
        spent = {place: cpu(one.pid) - begun[place] for place, one in processes.running.items()}
        for place, word in (((2, 0), "server"), ((1, 0), "team server"), ((0, 0), "device")):
            sizes[word] = memory(processes.running[place].pid)
        while (2, 0) not in processes.ended():
            processes.check()
            time.sleep(0.2)
    seconds = [float(found) for found in re.findall(r"round \d+ of \d+: ([0-9.]+) s", processes.output((2, 0)))][2:]
    whole = kits.whole
    alone = Simulation(
        whole.algorithm, whole.population, whole.task, rounds=3, backend=whole.learner.backend.name, chunk=1, threads=1
    )
    alone.step()
    began = time.perf_counter()
    alone.step()
    steps = time.perf_counter() - began
    found = parity(kits)
    each = {place: one / (rounds - 6) for place, one in spent.items()}
    lines = [
        "PerMFL, softmax regression 784-10 (31 kB), K = 10 exchanges in a round, 10 devices that take one step in each:",
        "",
        *table(
            ("what", "measured"),
            [
                ("a round, median (slowest)", f"{statistics.median(seconds):.2f} s ({max(seconds):.2f} s)"),
                ("the same round in the simulator, one device after the other", f"{steps:.2f} s"),
                ("processor time of a round, all 12 processes", f"{sum(each.values()):.2f} s"),
                ("... of the team server", f"{each[1, 0]:.2f} s"),
                *((f"resident memory of a {word}", f"{size:.0f} MB") for word, size in sizes.items()),
                ("same bits as the simulation", "yes" if found.same else "NO"),
                ("load of the machine", f"{os.getloadavg()[0]:.1f}"),
            ],
        ),
    ]
    print("\n".join(lines))
    if len(sys.argv) == 1:
        write(DOCS / "how-to/deployment.md", "speed", "federation-speed", lines)


if __name__ == "__main__":
    main()
