"""Small least-squares problems on which algorithms are tried; they run in milliseconds."""

from __future__ import annotations

import numpy as np
import torch

from palmette.engines.simulate import Simulation
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.task import Task, make_task
from palmette.tree import Tree


def regression(
    tree: str | Tree | list[int], *, dimension: int = 3, samples: int = 60, seed: int = 0, unequal: bool = False
) -> Population:
    """Make random least-squares problems, one per device.

    Args:
        tree: The tree, or what `Tree.parse` reads.
        dimension: Number of features.
        samples: Samples of every device, one of them for testing.
        seed: Draws the samples.
        unequal: Whether devices have different numbers of samples, up to twice as many.
    """
    tree = Tree.parse(tree)
    generator = np.random.default_rng(seed)
    counts = generator.integers(samples, 2 * samples, tree.devices) if unequal else np.full(tree.devices, samples)
    xs, ys = [], []
    for count in counts:
        xs.append(generator.normal(size=(count, dimension)))
        ys.append(generator.normal(size=count) + 2 * generator.normal())
    x, y = np.concatenate(xs), np.concatenate(ys)
    start = np.concatenate([[0], np.cumsum(counts)])
    return Population(
        tree=tree,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        start=torch.from_numpy(start),
        train=torch.from_numpy(counts - 1),
        classes=None,
    )


def task_of(population: Population, l2: float = 0.0) -> Task:
    """Return the linear model that goes with `regression`.

    Args:
        population: The population that `regression` made.
        l2: Weight of the squared norm in every device's loss.
    """
    return make_task("linear", population.shape, None, l2=l2)


def task_for(method: Algorithm, population: Population) -> Task:
    """Return a model to try an algorithm on: the linear one, or a network for methods that treat parts differently."""
    if not method.parts:
        return task_of(population)
    return make_task("dnn", population.shape, None, hidden=[4] * len(method.parts))


def simulate(
    method: Algorithm,
    population: Population,
    rounds: int,
    task: Task | None = None,
    *,
    stop: int | None = None,
    **options: object,
) -> Simulation:
    """Run an algorithm and return the simulation.

    Args:
        method: The algorithm.
        population: On whom.
        rounds: Rounds of the run.
        task: What is learned; by default the linear model.
        stop: The round to stop at, before the end.
        **options: Of `Simulation`; in float64 where nothing else is said.
    """
    keywords = {"dtype": torch.float64, "rounds": rounds, **options}
    simulation = Simulation(method, population, task or task_for(method, population), **keywords)  # type: ignore[arg-type]
    for _ in range(rounds if stop is None else stop):
        simulation.step()
    return simulation
