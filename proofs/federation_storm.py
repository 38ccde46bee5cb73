"""Kill and freeze the nodes of a real federation at random moments, then replay its record of absences in the simulator.

``python proofs/federation_storm.py [FAULTS] [SEED] [ROUNDS] [FOLDER]``: 12 processes under mutual TLS on this machine. Devices,
team servers and the server are killed (kill -9) and started again, or stopped (SIGSTOP) and let go on. In the end every row of
every node must be that of the simulation that lost the same replies.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pages import DOCS, write

from palmette.deploy.demo import RUN, TREE
from palmette.deploy.federation import Federation
from palmette.deploy.kits import Kits, make_kits
from palmette.deploy.launching import Processes, free_ports
from palmette.deploy.parity import parity
from palmette.tree import Tree

DEADLINE = 4.0  # seconds for a device
AWAY = (0.0, 6.0)  # seconds until a node that was killed is started again
FROZEN = (1.0, 12.0)  # seconds for which a node is stopped
LONGEST = 3000.0


def kits_of(folder: Path, rounds: int, **more: Any) -> Kits:
    """Make the kits of a federation that takes a while."""
    tree = Tree.parse(TREE)
    inner = [tree.name(tier, number) for tier in range(tree.top, 0, -1) for number in range(tree.size(tier))]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(inner, free_ports(len(inner)), strict=True)}
    run = {**RUN, "rounds": rounds, "settings": {"team_steps": 4, "local_steps": 150, "alpha": 0.02}, **more}
    return make_kits(Federation(name="storm", run=run, addresses=addresses, deadline=DEADLINE, patience=1.0), folder)


def storm(kits: Kits, kills: int, luck: random.Random) -> tuple[Counter[str], float]:
    """Let the federation train while nodes are killed and frozen; return what was done, and the seconds."""
    top, began = kits.whole.tree.top, time.monotonic()
    done: Counter[str] = Counter()
    later: list[tuple[float, str, Any]] = []  # what is done when: nodes that are started again, or go on
    with Processes(kits.nodes) as processes:
        while "the training is over" not in processes.output((top, 0)):
            now = time.monotonic()
            if now - began > LONGEST:
                raise SystemExit("the federation did not come to its end")
            for due in [one for one in later if one[0] <= now]:
                later.remove(due)
                (processes.start if due[1] == "start" else processes.thaw)(due[2])
            busy = {place for _, _, place in later}
            if sum(done.values()) < kills and len(busy) < 4 and "round 1 of" in processes.output((top, 0)):
                free = [place for place in kits.nodes if place not in busy and place not in processes.ended()]
                tier = luck.choices((0, 1, 2), (6, 3, 1))[0]
                mine = [place for place in free if place[0] == tier]
                if mine:
                    place = luck.choice(mine)
                    word = f"{('device', 'team', 'server')[tier]}"
                    if luck.random() < 0.7:
                        processes.kill(place)
                        done[f"{word} killed"] += 1
                        later.append((now + luck.uniform(*AWAY), "start", place))
                    else:
                        processes.freeze(place)
                        done[f"{word} frozen"] += 1
                        later.append((now + luck.uniform(*FROZEN), "thaw", place))
            for place, code in processes.ended().items():
                if code not in (0, -9) and place not in busy:
                    raise SystemExit(f"{kits.nodes[place]} failed with {code}: {processes.output(place)[-2000:]}")
            time.sleep(luck.uniform(0.2, 2.0))
        seconds = time.monotonic() - began
        for _, word, place in later:
            (processes.start if word == "start" else processes.thaw)(place)
        time.sleep(3)
    return done, seconds


def main() -> None:
    """Run the storm and print what came of it."""
    kills, seed = int((sys.argv[1:2] or ["40"])[0]), int((sys.argv[2:3] or ["1"])[0])
    rounds = int((sys.argv[3:4] or ["150"])[0])
    folder = Path((sys.argv[4:5] or [tempfile.mkdtemp()])[0])
    shutil.rmtree(folder, ignore_errors=True)
    kits = kits_of(folder, rounds)
    done, seconds = storm(kits, kills, random.Random(seed))
    found = parity(kits)
    told = ", ".join(f"{count} x {word}" for word, count in sorted(done.items()))
    missing, rows, wrong = found.absences, found.states, len(found.wrong)
    away = f"killed (kill -9) for up to {AWAY[1]:.0f} s, frozen (SIGSTOP) for up to {FROZEN[1]:.0f} s"
    lines = [
        f"PerMFL through {rounds} rounds on 12 processes with {sum(done.values())} faults in {seconds:.0f} s: {told};",
        f"{away}. {missing} replies were missing. Replayed in the simulator from the",
        f"record: {rows} rows of models and states compared, **{wrong} wrong**.",
    ]
    print(*lines, *found.wrong[:10], sep="\n")
    if len(sys.argv) == 1:
        write(DOCS / "how-to/deployment.md", "storm", "federation-storm", lines)
    sys.exit(0 if found.same else 1)


if __name__ == "__main__":
    main()
