"""What sparsity costs and saves: sFedHP on MNIST at its published weights, dense and with each schedule for gamma.

Run by hand: ``PALMETTE_DATA=... python proofs/sfedhp.py FOLDER dense none each both`` (five to ten minutes of one core each). A
run that was stopped goes on where it was when the command is given again. Prints accuracies, densities, and bytes on both links
against dense float32, per round and in all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import palmette
from palmette.runs import Interrupted, resume
from palmette.runs.folder import CONFIG
from palmette.sparsity import DensityLog

ROUNDS, TOLERANCE, EDGES, DEVICES, TEAM_STEPS = 150, 1e-4, 4, 20, 20
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"gamma_1": 0.0, "gamma_2": 0.0},
    "none": {"schedule": "none"},
    "each": {"schedule": "each"},
    "both": {"schedule": "both"},
}


def prove(kind: str, out: Path) -> None:
    """Run one variant, or go on with it, and print its course."""
    population = palmette.make_population("mnist", tree="4x5", partition="labels", classes_per_device=5, pixels="unit")
    folder, notes = out / kind, out / f"{kind}.jsonl"
    settings = {"preset": "published", "zero_tol": TOLERANCE, **KINDS[kind]}
    log = DensityLog(TOLERANCE, file=notes)
    given: dict[str, Any] = {"observer": log}
    try:
        if (folder / CONFIG).exists():
            method = palmette.algorithm("sfedhp", **settings)
            task = palmette.make_task("dnn", population.shape, population.classes)
            resume(folder, method=method, population=population, task=task, **given)
        else:
            out.mkdir(parents=True, exist_ok=True)
            notes.unlink(missing_ok=True)
            palmette.run(
                "sfedhp", population, "dnn", settings=settings, rounds=ROUNDS, evaluate_every=10, out=folder, **given
            )
    except Interrupted as stopped:
        print(stopped)
    show(kind, notes)


def show(kind: str, notes: Path) -> None:
    """Print some rounds of what was noted."""
    rows = {row["round"]: row for row in map(json.loads, notes.read_text().splitlines())}
    total = dense = published = 0.0
    for done, row in sorted(rows.items()):
        total, dense = total + row["bytes"], dense + row["dense_bytes"]
        published += row["published_bytes"] / 2  # its dense model has 64 bits
        if done % 20 == 0 or done in (1, 10, 150):
            scores = " ".join(f"{name} {row.get(f'{name} accuracy', 0):.3f}" for name in ("PM", "TM", "GM"))
            filled = " ".join(f"{name} {row[name]:.3f}" for name in ("PM", "TM", "GM"))
            print(
                f"{kind:5} {done:3}  accuracy {scores}  density {filled}  upper link {row['bytes'] / row['dense_bytes']:.3f}"
                f" of dense, in all {total / dense:.3f}, by Remark 1 {published / dense:.3f}"
            )


if __name__ == "__main__":
    for name in sys.argv[2:] or list(KINDS):
        prove(name, Path(sys.argv[1]))
