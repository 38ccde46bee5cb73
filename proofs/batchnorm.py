"""A small ResNet with BatchNorm on MNIST, its running statistics each device's own or averaged, beside GroupNorm.

Run by hand: ``make prove-batchnorm``. The images of the second team are turned by 90 degrees, so that the teams see
different statistics. Prints the accuracy of the personal, the teams' and the global model.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch
from torch import nn

import palmette as pm
from palmette.population.partition import Few, Iid
from zoo import group_norm, resnet

ROUNDS = 25
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    'BatchNorm, buffers="own"': (nn.BatchNorm2d, {"buffers": "own"}),
    'BatchNorm, buffers="averaged"': (nn.BatchNorm2d, {"buffers": "averaged"}),
    "GroupNorm": (group_norm, {}),
}
METHOD = pm.PerMFL(team_steps=2, local_steps=10, alpha=0.1, lam=2.0, gamma=1.0, eta=0.3, beta=0.9)


def accuracies(norm: Any, about: dict[str, Any], seed: int, rounds: int) -> dict[str, float]:
    """Train once and return the accuracy of every kind of model."""
    people = pm.make_population("mnist", tree="2x4", shift="rotate", partition=Few(100, Iid()), seed=seed)
    torch.manual_seed(seed)  # the initial weights of a module of one's own
    module = nn.Sequential(nn.AvgPool2d(2), *resnet(10, norm=norm, pool=3))
    simulation = pm.Simulation(METHOD, people, pm.Task(module, **about), rounds=rounds, seed=seed)
    for _ in range(rounds):
        simulation.step()
    return {kind: scores.by_samples("accuracy") for kind, scores in pm.evaluate(simulation).items()}


def main() -> int:
    """Print a table; the number of seeds may be given."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print("| network | PM | TM | GM |\n|---|---|---|---|")
    for network, (norm, about) in NETWORKS.items():
        found = [accuracies(norm, about, seed, ROUNDS) for seed in range(seeds)]
        shown = [f"{statistics.mean(one[kind] for one in found):.3f}" for kind in ("PM", "TM", "GM")]
        print(f"| {network} | {' | '.join(shown)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
