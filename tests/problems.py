"""Small problems with known answers, shared by the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.algorithms import algorithm
from palmette.blocks.mixing import KINDS
from palmette.engines.simulate import Simulation
from palmette.engines.store import Store
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.task import Task
from palmette.testing import regression as regression
from palmette.testing import simulate as simulate_method
from palmette.testing import task_of as task_of

Floats = NDArray[np.float64]


def quadratics(population: Population) -> list[tuple[Floats, Floats]]:
    """Each device's loss as ``1/2 t'At - b't``, on its training samples."""
    forms = []
    for i in range(population.devices):
        lo = int(population.start[i])
        hi = lo + int(population.train[i])
        x, y = population.x[lo:hi].numpy(), population.y[lo:hi].numpy()
        forms.append((x.T @ x / (hi - lo), x.T @ y / (hi - lo)))
    return forms


def tree_minimiser(population: Population, pulls: list[float], weighted: bool = False) -> list[Floats]:
    """Solve for the minimiser of the nested objective directly: rows of every tier, devices first.

    Every node's objective is the (weighted) mean of its children's, each child with ``pull/2 |child - parent|^2``.
    """
    tree, forms = population.tree, quadratics(population)
    dimension = len(forms[0][1])
    offset = np.concatenate([[0], np.cumsum([tree.size(tier) for tier in range(tree.tiers)])])
    total = int(offset[-1])
    weight = [np.ones(tree.size(tree.top))]
    size = [population.train.numpy().astype(float)]
    for tier in range(tree.top):
        size.append(np.bincount(tree.parents[tier], weights=size[-1]))
    for tier in range(tree.top - 1, -1, -1):
        parent = tree.parents[tier]
        share = size[tier] / size[tier + 1][parent] if weighted else 1 / np.bincount(parent)[parent]
        weight.insert(0, weight[0][parent] * share)
    matrix, right = np.zeros((total * dimension,) * 2), np.zeros(total * dimension)
    eye = np.eye(dimension)

    def block(node: int) -> slice:
        return slice(node * dimension, (node + 1) * dimension)

    for i, (a, b) in enumerate(forms):
        matrix[block(i), block(i)] += weight[0][i] * a
        right[block(i)] += weight[0][i] * b
    for tier, pull in enumerate(pulls):
        for i, parent in enumerate(tree.parents[tier]):
            child, above = block(int(offset[tier]) + i), block(int(offset[tier + 1]) + int(parent))
            strength = weight[tier][i] * pull * eye
            matrix[child, child] += strength
            matrix[above, above] += strength
            matrix[child, above] -= strength
            matrix[above, child] -= strength
    solution = np.linalg.solve(matrix, right).reshape(total, dimension)
    return [solution[offset[tier] : offset[tier + 1]] for tier in range(tree.tiers)]


def simulate(
    name: str | Algorithm,
    population: Population,
    rounds: int,
    task: Task | None = None,
    *,
    stop: int | None = None,
    **options: object,
) -> Simulation:
    """Run an algorithm, which may be a name, in float64, to its end or to the round ``stop``, and return the simulation."""
    made = algorithm(name) if isinstance(name, str) else name
    return simulate_method(made, population, rounds, task, stop=stop, **options)


def exchange_counts(stores: Sequence[Store]) -> dict[str, list[int]]:
    """Return the averages that a run of a method with coins asked for: one number for the server and one per team."""
    rows = {"between": stores[2].rows["counts"], "within": stores[1].rows["counts"]}
    return {f"{name}_{kind}": value[:, k].tolist() for name, value in rows.items() for k, kind in enumerate(KINDS)}
