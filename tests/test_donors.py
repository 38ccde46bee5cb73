"""The generated donors: what the paper says of them, that nothing but the seed decides them, and the exact solve."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.datasets import load
from palmette.datasets.donors import CLUSTERS
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.theory.multilevel import exact_logistic
from palmette.theory.objectives import objective_of


def test_the_population_is_what_the_paper_tells() -> None:
    made = pm.make_population("donors", devices=3000, test=0.2)
    sizes = made.start.diff()
    assert made.tree.names(1) == list(CLUSTERS)
    assert (made.devices, made.classes, made.shape, int(sizes.min())) == (3000, 2, (3,), 5)
    assert bool((made.x[:, 0] == 1).all())
    assert float(made.y.double().mean()) == pytest.approx(0.058, abs=0.003)
    assert 90 < float(sizes.double().median()) < 110
    assert bool((made.tests >= 1).all())
    assert float(made.x[:, 1].exp().min()) >= 0.999  # a day at least
    assert float(made.x[:, 2].min()) == 0  # one donation at least


def test_the_numbers_are_pinned() -> None:
    pool = load("donors", devices=200)
    found = hashlib.sha256()
    for array in (pool.start, pool.y, (pool.x * 1000).round().astype(np.int64), pool.tree.parents[0]):  # type: ignore[union-attr]
        found.update(np.ascontiguousarray(array).tobytes())
    assert (len(pool.y), found.hexdigest()[:16]) == (29_642, "f6963c8621489494")


def test_a_client_is_the_same_among_any_number_and_another_with_another_seed() -> None:
    def of(devices: int, name: str, seed: int = 0) -> tuple[bytes, bytes]:
        pool = load("donors", devices=devices, seed=seed)
        assert pool.tree is not None
        assert pool.start is not None
        at = pool.tree.names(0).index(name)
        own = slice(pool.start[at], pool.start[at + 1])
        return pool.x[own].tobytes(), pool.y[own].tobytes()

    assert of(40, "zip-00017") == of(3000, "zip-00017")
    assert of(40, "zip-00017") != of(40, "zip-00017", seed=1)
    assert of(40, "zip-00017") != of(40, "zip-00018")


def test_without_spread_every_client_has_the_truth_that_is_documented() -> None:
    pool = load("donors", devices=3000, spread=0.0)
    x = pool.x.astype(np.float64) - [0, 5, 1]
    model = np.zeros(3)
    for _ in range(10):
        chance = 1 / (1 + np.exp(-x @ model))
        model += np.linalg.solve((x * (chance * (1 - chance))[:, None]).T @ x, x.T @ (pool.y - chance))
    np.testing.assert_allclose(model, [-2.9, -0.25, 0.2], atol=0.03)


@pytest.mark.parametrize(("lam", "between"), [(1.36, 0.01), (0.05, 1.0)])
def test_the_exact_solve_minimises_what_l2gd_does(lam: float, between: float) -> None:
    of = pm.make_population("donors", devices=12, samples=20, test=0.2)
    sizes = np.diff(of.tree.offsets[0]).tolist()
    gamma = {name: between / size for name, size in zip(of.tree.names(1), sizes, strict=True)}
    task = pm.make_task("logistic", of.shape, of.classes, bias=False)
    method = pm.algorithm("l2gd", lam=lam, gamma=gamma)
    simulation = Simulation(method, of, task, rounds=1, dtype=torch.float64, threads=1)
    objective = objective_of(simulation)
    devices, _, top = exact_logistic(of, lam, between)
    value, gradient = objective(torch.from_numpy(devices))
    assert float(gradient.abs().max()) < 1e-8
    assert float(value) < float(objective(torch.from_numpy(devices * 1.001))[0])
    np.testing.assert_allclose(objective.top(torch.from_numpy(devices)).numpy(), top, atol=1e-6)


def test_a_run_and_its_config_make_the_same_population(tmp_path: object) -> None:
    made = pm.make_population("donors", devices=20, samples=10)
    result = pm.run("l2gd", made, "logistic", rounds=1, settings={"iterations": 10}, out=f"{tmp_path}/run")
    assert result.config.model.loss == "logistic"
    again = result.config.population()
    assert again.devices == 20
    assert torch.equal(again.x, made.x)
    assert torch.equal(again.y, made.y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 3}, "devices = 3 must be a whole number of at least 5"),
        ({"samples": 4}, "samples = 4 must be"),
        ({"spread": -1.0}, "spread = -1.0 must be from 0 to 100"),
        ({"devices": 10**12}, "donors of 1,000,000,000,000 devices"),
        ({"tree": "2x3"}, "devices and teams of its own"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        pm.make_population("donors", **options)  # type: ignore[arg-type]


def test_the_solver_says_what_it_cannot_do() -> None:
    with pytest.raises(BadInput, match="two classes"):
        exact_logistic(pm.make_population("digits", tree="2x3"), 1.0, 1.0)
