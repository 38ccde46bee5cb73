"""The hierarchical linear model: every closed form against another way to the same answer."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.errors import BadInput
from palmette.theory import hlm
from problems import Floats

UNEQUAL = {"sizes": [3, 4, 2], "dimension": 3, "spread": (0.7, 1.3, 0.5)}


def dense(sample: hlm.Sample) -> Floats:
    """Minimise (5.2) over clients, clusters and the common centre as one linear system."""
    s_c, s_d, s_e = sample.spread
    n, d = sample.truth.shape
    k = int(sample.cluster.max()) + 1
    size = (n + k + 1) * d
    matrix, right, eye = np.zeros((size, size)), np.zeros(size), np.eye(d)

    def block(i: int) -> slice:
        return slice(i * d, (i + 1) * d)

    pairs = [(i, n + int(j), 1 / s_d) for i, j in enumerate(sample.cluster)] + [
        (n + j, n + k, 1 / s_c) for j in range(k)
    ]
    for one, other, strength in pairs:
        for a, b in ((one, other), (other, one)):
            matrix[block(a), block(a)] += strength * eye
            matrix[block(a), block(b)] -= strength * eye
    for i in range(n):
        matrix[block(i), block(i)] += sample.x[i].T @ sample.x[i] / s_e
        right[block(i)] = sample.x[i].T @ sample.y[i] / s_e
    return np.linalg.solve(matrix, right).reshape(-1, d)


@pytest.mark.parametrize("samples", [1, 5])
def test_the_exact_solution_minimises_the_objective(samples: int) -> None:
    sample = hlm.draw(samples=samples, seed=2, **UNEQUAL)  # type: ignore[arg-type]
    solution = dense(sample)
    for mine, theirs in zip(hlm.exact(sample), (solution[:9], solution[9:12], solution[12]), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-11)


@pytest.mark.parametrize("samples", [2, 5])
def test_marginal_least_squares_is_the_exact_solution_when_variances_are_known(samples: int) -> None:
    # Proposition 5.3 has it better or equal; it is equal.
    sample = hlm.draw(samples=samples, seed=1, **UNEQUAL)  # type: ignore[arg-type]
    clients = hlm.exact(sample)[0]
    for client in range(9):
        np.testing.assert_allclose(hlm.marginal_gls(sample, client), clients[client], atol=1e-10)


def test_wrong_variances_part_marginal_least_squares_from_the_exact_solution() -> None:
    sample = hlm.draw(samples=5, seed=1, **UNEQUAL)  # type: ignore[arg-type]
    wrong = hlm.Sample(sample.x, sample.y, sample.cluster, sample.truth, (1.4, 1.3, 0.5))
    assert np.abs(hlm.marginal_gls(wrong, 0) - hlm.exact(sample)[0][0]).max() > 1e-3


def test_orthonormal_designs_give_the_shrinkage_forms() -> None:
    sample = hlm.draw(samples=6, seed=4, orthonormal=2.5, **UNEQUAL)  # type: ignore[arg-type]
    np.testing.assert_allclose(sample.gram, np.broadcast_to(2.5 * np.eye(3), (9, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(hlm.orthonormal(sample, 2.5), hlm.exact(sample)[0], atol=1e-12)


def test_the_single_cluster_estimator_minimises_its_objective() -> None:
    sample = hlm.draw(samples=2, seed=5, **UNEQUAL)  # type: ignore[arg-type]
    estimate = hlm.single_cluster(sample, 0.7)
    residual = np.einsum("nde,ne->nd", sample.gram, estimate) - sample.moment
    np.testing.assert_allclose(residual + 0.7 * (estimate - estimate.mean(0)), 0, atol=1e-11)


def test_no_pull_is_local_training_and_a_strong_one_a_single_model() -> None:
    sample = hlm.draw(samples=8, seed=5, **UNEQUAL)  # type: ignore[arg-type]
    np.testing.assert_allclose(hlm.single_cluster(sample, 1e-9), hlm.local(sample), atol=1e-6)
    np.testing.assert_allclose(hlm.single_cluster(sample, 1e7), hlm.single_model(sample), atol=1e-4)


def test_local_training_with_few_samples_takes_the_shortest_solution() -> None:
    sample = hlm.draw(samples=2, seed=6, **UNEQUAL)  # type: ignore[arg-type]
    estimate = hlm.local(sample)
    for i in range(9):
        np.testing.assert_allclose(estimate[i], np.linalg.pinv(sample.x[i]) @ sample.y[i], atol=1e-10)


def test_cross_validation_follows_the_spread_of_the_clients() -> None:
    close, wide = (hlm.draw([6] * 4, samples=6, dimension=4, seed=7, spread=(s, s, 1.0)) for s in (0.01, 30.0))
    assert hlm.choose_pull(close) > 1.5
    assert hlm.choose_pull(wide) < 0.3


def test_james_and_stein_beat_the_best_unbiased_estimator_and_the_printed_weights_lose_to_it() -> None:
    # A.12 prints the weights of y_1 and of the others' mean exchanged: (y_i + mean) / 2 is the best unbiased estimator.
    generator = np.random.default_rng(0)
    n, d, error = 5, 10, np.zeros(3)
    for _ in range(2000):
        theta = 0.1 + generator.normal(size=(n, d))
        y = theta + generator.normal(size=(n, d))
        others = (y.sum(0) - y) / (n - 1)
        printed = (n - 1) / (2 * n) * y + (n + 1) / (2 * n) * others
        for k, guess in enumerate((hlm.james_stein(y), (y + y.mean(0)) / 2, printed)):
            error[k] += np.square(guess - theta).sum(1).mean() / 2000
    assert error[0] < 0.95 * error[1]
    assert error[1] == pytest.approx(d * (1 / 2 + 1 / (2 * n)), rel=0.02)
    assert error[2] > 1.1 * error[1]


def test_a_draw_depends_on_its_seed_alone() -> None:
    one, same, other = (hlm.draw([2, 3], samples=4, dimension=2, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(one.y, same.y)
    assert not np.allclose(one.y, other.y)
    assert one.cluster.tolist() == [0, 0, 1, 1, 1]


def test_the_spread_of_a_draw_is_what_was_asked_for() -> None:
    sample = hlm.draw([50] * 200, samples=1, dimension=4, seed=0, spread=(2.0, 0.5, 0.1))
    centres = np.stack([sample.truth[sample.cluster == j].mean(0) for j in range(200)])
    assert centres.var() == pytest.approx(2.0 + 0.5 / 50, rel=0.15)
    assert (sample.truth - centres[sample.cluster]).var() == pytest.approx(0.5 * 49 / 50, rel=0.05)
    noise = sample.y - np.einsum("nmd,nd->nm", sample.x, sample.truth)
    assert noise.var() == pytest.approx(0.1, rel=0.05)


def test_what_cannot_be_drawn_or_estimated_is_refused() -> None:
    with pytest.raises(BadInput, match="positive"):
        hlm.draw([2, 0], samples=3)
    with pytest.raises(BadInput, match="at least 4 samples"):
        hlm.draw([2], samples=3, dimension=4, orthonormal=1.0)
    with pytest.raises(BadInput, match="more than 3 dimensions"):
        hlm.james_stein(np.zeros((4, 3)))
