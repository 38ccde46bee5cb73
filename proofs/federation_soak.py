"""Half an hour of training on 12 processes: does anything grow?

``python proofs/federation_soak.py [MINUTES]``: PerMFL under mutual TLS on this machine, an evaluation in every tenth round,
and every two minutes a device that is killed and started again. Memory, open files, threads and bytes on the disk of every
process are read every half minute.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from federation_speed import memory
from pages import DOCS, table, write

from palmette.deploy.demo import RUN, TREE
from palmette.deploy.federation import Federation
from palmette.deploy.kits import make_kits
from palmette.deploy.launching import Place, Processes, free_ports
from palmette.tree import Tree

WORDS = ("device", "team server", "server")
PAUSE, KILL = 30.0, 120.0  # seconds between looks, and between kills
EVERY, RESULTS = 10, 0.06  # rounds between evaluations; megabytes of the rows of one, measured apart with 600 of them
WARM = 0.2  # of the time, after which growth is counted


def looked(processes: Processes, place: Place) -> tuple[float, int, int, float]:
    """Return the megabytes, open files and threads of a node, and the kilobytes of its kit."""
    pid = processes.running[place].pid
    files = len(os.listdir(f"/proc/{pid}/fd"))
    threads = len(os.listdir(f"/proc/{pid}/task"))
    disk = sum(path.stat().st_size for path in processes.kits[place].rglob("*") if path.is_file()) / 1000
    return memory(pid), files, threads, disk


def main() -> None:
    """Train, look and print."""
    minutes = float((sys.argv[1:2] or ["30"])[0])
    tree = Tree.parse(TREE)
    inner = [tree.name(tier, number) for tier in range(tree.top, 0, -1) for number in range(tree.size(tier))]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(inner, free_ports(len(inner)), strict=True)}
    # More rounds than there is time for: the server is told to stop.
    run = {
        **RUN,
        "rounds": 100_000,
        "settings": {"team_steps": 10, "local_steps": 20, "alpha": 0.02},
        "evaluate_every": EVERY,
    }
    folder = Path(tempfile.mkdtemp())
    kits = make_kits(Federation(name="soak", run=run, addresses=addresses, deadline=20, patience=3), folder / "kits")
    seen: dict[Place, list[tuple[float, int, int, float]]] = {place: [] for place in kits.nodes}
    victims = [place for place in kits.nodes if place[0] == 0][1:]
    with Processes(kits.nodes) as processes:
        while "round 1 of" not in processes.output((2, 0)):
            processes.check()
            time.sleep(0.1)
        began, kills = time.monotonic(), 0
        while (past := time.monotonic() - began) < 60 * minutes:
            processes.check()
            if past > KILL * (kills + 1):
                processes.kill(victims[kills % len(victims)])
                processes.start(victims[kills % len(victims)])
                kills += 1
            for place in seen:
                seen[place].append(looked(processes, place))
            time.sleep(PAUSE)
        done = int(re.findall(r" round (\d+) of ", processes.output((2, 0)))[-1])
    rows = []
    for tier, word in enumerate(WORDS):
        place = (tier, 0)  # the first device is never killed
        first, last = seen[place][int(WARM * len(seen[place]))], seen[place][-1]
        rows.append((word, *(f"{a:,.0f} → {b:,.0f}" for a, b in zip(first, last, strict=True))))
    lines = [
        f"PerMFL on 12 processes for {minutes:.0f} minutes: {done:,} rounds, {10 * done:,} exchanges of each team with its "
        f"devices, {kills} kills of devices. Each figure is that after a fifth of the time, and at the end:",
        "",
        *table(("node", "memory, MB", "open files", "threads", "its kit on the disk, kB"), rows),
        "",
        f"(load of the machine {os.getloadavg()[0]:.1f}) What the server has more is what it measured: it keeps 90 numbers of "
        f"each of the {done // EVERY} evaluations, as rows of a table, {RESULTS * 1000:.0f} kB in memory.",
    ]
    print("\n".join(lines))
    shutil.rmtree(folder, ignore_errors=True)
    if len(sys.argv) == 1:
        write(DOCS / "how-to/deployment.md", "soak", "federation-soak", lines)
    grown = []
    for tier, word in enumerate(WORDS):
        first, last = seen[tier, 0][int(WARM * len(seen[tier, 0]))][0], seen[tier, 0][-1][0]
        results = RESULTS * done / EVERY if tier == 2 else 0.0
        if last > 1.05 * first + results:
            grown.append(word)
    sys.exit(f"the memory of {', '.join(grown)} grew" if grown else 0)


if __name__ == "__main__":
    main()
