"""``palmette deploy demo``: a whole federation on one machine, held against the simulation of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from palmette.deploy.federation import Federation
from palmette.deploy.kits import Kits, make_kits
from palmette.deploy.launching import Processes, free_ports
from palmette.deploy.parity import Parity, parity
from palmette.engines.evaluation import evaluate
from palmette.errors import PalmetteError
from palmette.tree import Tree

TREE = {
    "oslo": ["camera-1", "camera-2", "camera-3"],
    "lima": ["camera-4", "camera-5", "camera-6"],
    "pune": ["camera-7", "camera-8"],
}
RUN = {
    "algorithm": "permfl",
    "rounds": 5,
    "tree": TREE,
    "settings": {"team_steps": 10, "local_steps": 10, "alpha": 0.3},
    "data": {"name": "digits", "shift": "rotate"},
}
_PAUSE = 0.2


@dataclass(frozen=True)
class Shown:
    """What the demo came to.

    Attributes:
        kits: The kits.
        run: The folder of the federation's run.
        scores: Accuracy of each kind of model, of the federation and of the simulation.
        parity: How the two compare.
        seconds: From the first process to the last.
        training: Of these, the seconds of the rounds.
    """

    kits: Kits
    run: Path
    scores: dict[str, tuple[float, float]]
    parity: Parity
    seconds: float
    training: float


def demo(folder: Path, told: Callable[[str], None], longest: float = 600.0) -> Shown:
    """Make a federation of three sites and eight devices, run it with a process for each node, and compare.

    Args:
        folder: Where the kits go.
        told: Is told what happens.
        longest: Seconds after which it is given up.
    """
    from palmette.runs import load

    tree = Tree.parse(TREE)
    inner = [tree.name(tier, number) for tier in range(tree.top, 0, -1) for number in range(tree.size(tier))]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(inner, free_ports(len(inner)), strict=True)}
    kits = make_kits(Federation(name="demo", run=RUN, addresses=addresses), folder)
    told(f"{len(kits.nodes)} kits in {folder}: 1 server, 3 team servers, 8 devices, each with a certificate of its own")
    server, began = (kits.whole.tree.top, 0), time.monotonic()
    with Processes(kits.nodes) as processes:
        shown = 0
        while len(processes.ended()) < len(kits.nodes):
            processes.check()
            lines = [line for line in processes.output(server).splitlines() if " round " in line]
            for line in lines[shown:]:
                told(line.partition("+00:00 ")[2])
            shown = len(lines)
            if time.monotonic() - began > longest:
                raise PalmetteError(
                    f"the demo was not over after {longest:.0f} s; see the files output.txt in {folder}"
                )
            time.sleep(_PAUSE)
        processes.check()
    seconds = time.monotonic() - began
    run = load(kits.nodes[server] / "run")
    found = parity(kits)
    simulated = evaluate(found.simulation)
    scores = {kind: (run.last(kind), score.by_samples()) for kind, score in simulated.items()}
    return Shown(kits, run.folder, scores, found, seconds, float(run.timings["seconds"]["rounds"]))
