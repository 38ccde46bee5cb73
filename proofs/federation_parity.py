"""Every method on tiers over real links: 12 processes under mutual TLS, and the simulation's bits.

``python proofs/federation_parity.py [NAME ...]``: each method with everybody taking part, and with two of three teams and half
of their devices. The result goes into docs/how-to/deployment.md when all were run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pages import DOCS, table, write

from palmette.deploy.demo import TREE
from palmette.deploy.federation import Federation
from palmette.deploy.kits import make_kits
from palmette.deploy.launching import Processes, free_ports
from palmette.deploy.parity import Parity, parity
from palmette.tree import Tree

STEPS = {"team_steps": 2, "local_steps": 3, "alpha": 0.1}
METHODS: dict[str, dict[str, Any]] = {
    "permfl": STEPS,
    "pfedmt": STEPS,
    "hierfavg": STEPS,
    "sfedhp": {"team_steps": 2, "local_steps": 3},
    "ladder": {"team_steps": 2, "local_steps": 3, "tune_steps": 3, "alpha": 0.1},
    "l2gd": {"iterations": 12},
    "l2gd-coin": {"iterations": 12},
    "al2sgd": {"iterations": 6, "refresh": 0.3},
    "fl": {"batch_size": 5},
    "groupfl": {"batch_size": 5},
    "groupperfl": {"batch_size": 5, "rates": [0.01, 0.1]},
    "mtgc": STEPS,
    "edge-mixing": STEPS,
    "fedrep": {"team_steps": 2, "local_steps": 2, "head_steps": 2, "alpha": 0.1},
    "fedbuff": {"team_steps": 2, "local_steps": 3, "buffer": 9, "team_buffer": 3},
}
PARTIAL = {"devices": 0.5, "teams": 2}
LONGEST = 900.0


def train(name: str, settings: dict[str, Any], participation: dict[str, Any]) -> tuple[Parity, float, bool]:
    """Run one federation; return how it compares, the seconds, and whether the upper link counted the same bytes."""
    from palmette.runs import load

    tree = Tree.parse(TREE)
    inner = [tree.name(tier, number) for tier in range(tree.top, 0, -1) for number in range(tree.size(tier))]
    addresses = {node: f"127.0.0.1:{port}" for node, port in zip(inner, free_ports(len(inner)), strict=True)}
    model = {"name": "dnn", "hidden": [8]} if name == "fedrep" else {"name": "mclr"}
    run = {
        **{"algorithm": name, "rounds": 3, "tree": TREE, "settings": settings, "data": {"name": "digits"}},
        **{"model": model, "participation": participation},
    }
    folder = Path(tempfile.mkdtemp())
    try:
        kits = make_kits(Federation(name=name, run=run, addresses=addresses, deadline=120, patience=30), folder)
        began, top = time.monotonic(), (kits.whole.tree.top, 0)
        with Processes(kits.nodes) as processes:
            while len(processes.ended()) < len(kits.nodes):
                processes.check()
                if time.monotonic() - began > LONGEST:
                    raise SystemExit(f"{name} did not end: {processes.output(top)[-2000:]}")
                time.sleep(0.1)
        seconds = time.monotonic() - began
        found = parity(kits)
        links = load(kits.nodes[top] / "run").links[-1]
        return found, seconds, (links["bytes_up"], links["bytes_down"]) == (found.bytes_up, found.bytes_down)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run all of them and write the table."""
    wanted = sys.argv[1:] or list(METHODS)
    rows, wrong = [], 0
    for name in wanted:
        for word, participation in (("all", {}), ("half of the devices, 2 of 3 teams", PARTIAL)):
            found, seconds, bytes_ = train(name, METHODS[name], participation)
            good = found.same and bytes_ and not found.absences
            wrong += not good
            row = [name, word, "yes" if found.same else "NO", str(found.states), "yes" if bytes_ else "NO"]
            rows.append(row)
            print(*row, f"{seconds:.0f} s", *found.wrong[:3], flush=True)
    heads = ("method", "participation", "same bits", "rows compared", "bytes of the upper link as in the simulator")
    if wanted == list(METHODS):
        said = f"{len(rows)} federations of 12 processes, {wrong} of them not as the simulation."
        write(DOCS / "how-to/deployment.md", "parity", "federation-parity", [said, "", *table(heads, rows)])
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
