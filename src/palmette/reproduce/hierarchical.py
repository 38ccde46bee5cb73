"""Estimators on the hierarchical linear model (5.1) of Async-L2GD, and how far each client's is from the truth.

The paper's pull of the single-cluster estimator is chosen by cross-validation in its text and by the truth (an oracle) in its
released code, which also has a slip: it adds ``lam tb`` outside of the inverse, ``H b + lam tb`` for ``H (b + lam tb)``. All
three are here. "Ours" of the paper is the single-coin algorithm after 50,000 iterations; the minimiser that it seeks is
``exact``, and `single_coin` runs the algorithm itself. Distances are not squared unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, nearest
from palmette.population import Population
from palmette.task import make_task
from palmette.theory import hlm
from palmette.tree import Tree

Estimate = Callable[[hlm.Sample], hlm.Floats]


def distances_to_truth(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return how far the estimates of all clients are from the truth.

    Args:
        options: ``samples`` per client (m); ``clusters`` and ``clients`` of each, ``dimension``; ``squared`` for squares.
        methods: Names of `ESTIMATORS`; all by default.
        seed: Decides the draw.
    """
    sample = _draw(options, seed)
    found = {}
    for name in methods or ESTIMATORS:
        if name not in ESTIMATORS:
            raise BadInput(f"there is no estimator {name!r}{nearest(name, ESTIMATORS)}")
        away = sample.distances(ESTIMATORS[name](sample))
        found[name] = by_client(sample, away**2 if options.get("squared") else away)
    return found


def single_coin(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return how far the single-coin algorithm comes: to the truth, and to the minimiser that it seeks.

    The paper's losses are sums over a client's m samples, with pulls of 1 of clients to clusters and of clusters to the centre;
    ours are means, so pulls are divided by m and the step is multiplied by it.

    Args:
        options: Those of `distances_to_truth`, ``rounds`` of 100 iterations, and under ``settings`` others of ``l2gd-coin``.
        methods: Not used: ``l2gd-coin`` and ``exact`` are distances to the truth, ``to-exact`` is that between the two.
        seed: Decides the draw and the coins.
    """
    sample = _draw(options, seed)
    m, size = sample.x.shape[1], int((sample.cluster == 0).sum())
    given = {"lam": 1 / m, "gamma": 1 / (size * m), "eta": 1e-4 * m, "smoothness": 1.0, **options.get("settings", {})}
    people, best = population(sample), hlm.exact(sample)[0]
    rounds = int(options.get("rounds", 500))
    task = make_task("linear", people.shape, None)
    coin = algorithm("l2gd-coin", **given)
    simulation = Simulation(coin, people, task, rounds=rounds, seed=seed, dtype=torch.float64, threads=1)
    for _ in range(rounds):
        simulation.step()
    reached = simulation.stores[0].rows["model"].numpy()
    return {
        "l2gd-coin": by_client(sample, sample.distances(reached)),
        "exact": by_client(sample, sample.distances(best)),
        "to-exact": by_client(sample, np.linalg.norm(reached - best, axis=1)),
    }


def population(sample: hlm.Sample) -> Population:
    """Return a draw as devices in teams, all samples for training."""
    n, m, d = sample.x.shape
    return Population(
        tree=Tree.parse(np.bincount(sample.cluster).tolist()),
        x=torch.from_numpy(sample.x.reshape(n * m, d).copy()),
        y=torch.from_numpy(sample.y.reshape(-1).copy()),
        start=torch.arange(n + 1) * m,
        train=torch.full((n,), m),
    )


def by_client(sample: hlm.Sample, values: hlm.Floats) -> dict[str, float]:
    """Return numbers by the name of the client, after the name of its cluster."""
    pairs = zip(sample.cluster.tolist(), values.tolist(), strict=True)
    return {f"{cluster}/{client}": value for client, (cluster, value) in enumerate(pairs)}


def _draw(options: Mapping[str, Any], seed: int) -> hlm.Sample:
    sizes = [int(options.get("clients", 20))] * int(options.get("clusters", 20))
    return hlm.draw(sizes, samples=int(options["samples"]), dimension=int(options.get("dimension", 20)), seed=seed)


# -- the single-cluster estimator, three ways --------------------------------------------------------------------------


def _best(sample: hlm.Sample, fit: Callable[[float], hlm.Floats]) -> hlm.Floats:
    """Return the fit with the pull that the truth shows to be best on average, as the released code chooses it."""
    return min((fit(pull) for pull in hlm.LAMBDAS), key=lambda found: float(sample.distances(found).mean()))


def _oracle(sample: hlm.Sample) -> hlm.Floats:
    return _best(sample, lambda pull: hlm.single_cluster(sample, pull))


def _released(sample: hlm.Sample) -> hlm.Floats:
    """Fit as the released code does: ``H b + lam tb``, with the pull chosen by the truth."""
    eye = np.eye(sample.x.shape[2])

    def fit(pull: float) -> hlm.Floats:
        inverse = np.linalg.inv(sample.gram + pull * eye)
        shrunk = np.einsum("nde,ne->nd", inverse, sample.moment)
        mean = np.linalg.solve(eye - pull * inverse.mean(0), shrunk.mean(0))
        return np.asarray(shrunk + pull * mean)

    return _best(sample, fit)


ESTIMATORS: dict[str, Estimate] = {
    "local": hlm.local,
    "single-model": hlm.single_model,
    "single-cluster": lambda sample: hlm.single_cluster(sample, hlm.choose_pull(sample)),
    "single-cluster-oracle": _oracle,
    "single-cluster-released": _released,
    "exact": lambda sample: hlm.exact(sample)[0],
}
