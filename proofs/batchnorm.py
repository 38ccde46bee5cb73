"""A small ResNet with BatchNorm on MNIST, its running statistics each device's own or averaged, beside GroupNorm.

Run by hand: ``make prove-batchnorm``. Images of team i are turned by i * 90 degrees, so that devices of different teams see
different statistics. Prints the accuracy of the personal, the teams' and the global model.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

import palmette as pm
from palmette.population.partition import Few, Iid
from zoo import group_norm, resnet

SEEDS = 1
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    'BatchNorm, buffers="own"': (nn.BatchNorm2d, {"buffers": "own"}),
    'BatchNorm, buffers="averaged"': (nn.BatchNorm2d, {"buffers": "averaged"}),
    "GroupNorm": (group_norm, {}),
}
METHODS = {
    "permfl": pm.PerMFL(team_steps=2, local_steps=10, alpha=0.1, lam=2.0, gamma=1.0, eta=0.3, beta=0.9),
    "hierfavg": pm.HierFAVG(team_steps=2, local_steps=10, alpha=0.1),
}


def accuracies(method: pm.Algorithm, norm: Any, about: dict[str, Any], seed: int, rounds: int) -> dict[str, float]:
    """Train once and return the accuracy of every kind of model."""
    people = pm.make_population("mnist", tree="4x2", shift="rotate", partition=Few(100, Iid()), seed=seed)
    torch.manual_seed(seed)  # the initial weights of a module of one's own
    module = nn.Sequential(nn.AvgPool2d(2), *resnet(10, norm=norm))
    simulation = pm.Simulation(method, people, pm.Task(module, **about), rounds=rounds, seed=seed)
    for _ in range(rounds):
        simulation.step()
    return {kind: scores.by_samples("accuracy") for kind, scores in pm.evaluate(simulation).items()}


def main() -> int:
    """Print a table; the number of rounds may be given."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print("| method | network | PM | TM | GM |\n|---|---|---|---|---|")
    for name, method in METHODS.items():
        for network, (norm, about) in NETWORKS.items():
            start = time.perf_counter()
            found = [accuracies(method, norm, about, seed, rounds) for seed in range(SEEDS)]
            shown = [
                f"{statistics.mean(one[kind] for one in found):.3f}" if kind in found[0] else "-"
                for kind in ("PM", "TM", "GM")
            ]
            print(f"| {name} | {network} | {' | '.join(shown)} |", flush=True)
            print(f"  {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
