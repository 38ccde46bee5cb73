"""What sparsity costs and saves: sFedHP on MNIST at its published weights, dense and with each schedule for gamma.

Run by hand: ``PALMETTE_DATA=... python proofs/sfedhp.py FOLDER dense none each both`` (five to ten minutes of one core each);
``SEED=1`` before it takes another seed. A run that was stopped goes on where it was when the command is given again. Prints
accuracies, densities, and bytes on the upper link against dense float32, per round and in all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from palmette import Result
from palmette.runs import Interrupted, execute, make_config, resume
from palmette.runs.folder import CONFIG

ROUNDS, TOLERANCE, EDGES, PARAMETERS = 150, 1e-4, 4, 79510
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"gamma_1": 0.0, "gamma_2": 0.0},
    "none": {"schedule": "none"},
    "each": {"schedule": "each"},
    "both": {"schedule": "both"},
}
TIERS = ("PM", "TM", "GM")


def prove(kind: str, out: Path) -> None:
    """Run one variant, or go on with it, and print its course."""
    folder = out / kind
    config = {
        "algorithm": "sfedhp",
        "settings": {"preset": "published", "zero_tol": TOLERANCE, **KINDS[kind]},
        "rounds": ROUNDS,
        "seed": int(os.environ.get("SEED", "0")),
        "tree": f"{EDGES}x5",
        "data": {"name": "mnist", "partition": "labels", "classes_per_device": 5, "pixels": "unit"},
        "model": {"name": "dnn"},
        "evaluate_every": 1,
    }
    try:
        show(kind, resume(folder) if (folder / CONFIG).exists() else execute(make_config(config), folder))
    except Interrupted as stopped:
        print(stopped)


def show(kind: str, result: Result) -> None:
    """Print some rounds of what was measured and reported."""
    traffic = result.traffic.filter(pc.equal(result.traffic["tier"], 2)).to_pylist()
    accuracy = {name: result.curve(name) for name in TIERS}
    density = {name: result.curve(name, "density") for name in TIERS}
    # By the formula every edge sends its model and gets the global one, both as they are at the end of a round.
    paper = {name: result.curve(name, "paper_bytes") for name in ("TM", "GM")}
    total = dense = published = 0.0
    for row in traffic:
        done, whole = row["round"] + 1, 2 * EDGES * PARAMETERS * 4
        sent = row["bytes_up"] + row["bytes_down"]
        total, dense = total + sent, dense + whole
        published += EDGES * (paper["TM"][done] + paper["GM"][done]) / 2  # its dense model has 64 bits
        if done % 20 == 0 or done in (1, 10, ROUNDS):
            scores = " ".join(f"{name} {accuracy[name][done]:.3f}" for name in TIERS)
            filled = " ".join(f"{name} {density[name][done]:.3f}" for name in TIERS)
            print(
                f"{kind:5} {done:3}  accuracy {scores}  density {filled}  upper link {sent / whole:.3f}"
                f" of dense, in all {total / dense:.3f}, by Remark 1 {published / dense:.3f}"
            )


if __name__ == "__main__":
    for name in sys.argv[2:] or list(KINDS):
        prove(name, Path(sys.argv[1]))
