"""What groups are worth: fl, perfl, groupfl and groupperfl on rotated digits with few samples per device, and on newsgroups.

Run by hand: ``PALMETTE_DATA=... python proofs/groupperfl.py``. Prints the accuracy of the clients' own models, mean over seeds,
for several numbers of training samples per device, and the share of clients that groupperfl serves better than perfl.
"""

from __future__ import annotations

import sys

import numpy as np

import palmette
from palmette.algorithms.groupperfl import Staged
from palmette.evaluation import evaluate
from palmette.population.partition import Dirichlet, Few
from palmette.simulate import Simulation

METHODS = ("fl", "perfl", "groupfl", "groupperfl")
SETTINGS = {"passes": 60, "group_passes": 40, "clients": 20}


def scores(samples: int, seed: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return every client's accuracy under each method."""
    partition = Few(samples, Dirichlet(alpha=1.0, within="team"))
    population = palmette.make_population("digits", tree="4x10", shift="rotate", partition=partition, seed=seed)
    task = palmette.make_task("mclr", population.shape, population.classes)
    found = {}
    for name in METHODS:
        method = palmette.algorithm(name, **SETTINGS)
        assert isinstance(method, Staged)
        rounds = method.plan(population.tree).rounds
        simulation = Simulation(method, population, task, rounds=rounds, held_out=0.25, seed=seed)
        for _ in range(rounds):
            simulation.step()
        found[name] = evaluate(simulation)["PM"].per_device().numpy()
    return found


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for samples in (4, 8, 16, 30):
        each = [scores(samples, seed) for seed in range(seeds)]
        means = {name: np.mean([np.nanmean(one[name]) for one in each]) for name in METHODS}
        better = np.mean([np.nanmean(one["groupperfl"] > one["perfl"]) for one in each])
        print(f"{samples:3} samples: " + "  ".join(f"{n} {v:.3f}" for n, v in means.items()) + f"  better for {better:.0%}")
