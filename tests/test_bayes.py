"""The Bayesian view of group sharing, against the whole linear-Gaussian posterior."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.errors import BadInput
from palmette.theory.bayes import global_variance, group_variance, linear_gaussian_variance, local_variance

EXAMPLE = [[1, 2, 0.5], [1, 1.5], [0.7, 0.9, 2, 1]]


def test_the_three_variances_of_the_worked_example() -> None:
    assert local_variance(EXAMPLE) == 1
    assert group_variance(EXAMPLE) == pytest.approx(0.285714, abs=5e-7)
    assert global_variance(EXAMPLE, 1) == pytest.approx(0.244625, abs=5e-7)
    assert global_variance(EXAMPLE, 1, as_published=True) == pytest.approx(0.235843, abs=5e-7)


def problems() -> list[tuple[list[list[float]], float]]:
    generator = np.random.default_rng(3)
    return [
        ([list(generator.uniform(0.1, 4, generator.integers(1, 6))) for _ in range(generator.integers(2, 6))], between)
        for between in generator.uniform(0.05, 3, 30)
    ]


def test_the_exact_formula_is_the_linear_gaussian_posterior() -> None:
    for variances, between in problems():
        assert global_variance(variances, between) == pytest.approx(
            linear_gaussian_variance(variances, between), rel=1e-12
        )


def test_the_printed_formula_is_too_sure_unless_foreign_groups_have_one_client() -> None:
    for variances, between in problems():
        printed = global_variance(variances, between, as_published=True)
        exact = linear_gaussian_variance(variances, between)
        if all(len(group) == 1 for group in variances[1:]):
            assert printed == pytest.approx(exact, rel=1e-12)
        else:
            assert printed < exact
    single = [[1.0, 2.0], [0.5], [3.0]]
    assert global_variance(single, 0.7, as_published=True) == pytest.approx(linear_gaussian_variance(single, 0.7))


def test_the_posterior_of_the_whole_model_matches_draws_from_it() -> None:
    """Draw worlds, estimate theta_1 by its posterior mean, and compare the squared error with the variance."""
    between, generator, worlds = 1.0, np.random.default_rng(0), 40_000
    means, weights = [], []
    theta = generator.normal(0, np.sqrt(between), (len(EXAMPLE), worlds))  # the flat prior does not matter: theta_0 = 0
    for m, group in enumerate(EXAMPLE):
        seen = theta[m] + generator.normal(size=(len(group), worlds)) * np.sqrt(np.array(group))[:, None]
        weight = 1 / np.array(group)
        means.append((weight[:, None] * seen).sum(0) / weight.sum())
        weights.append(weight.sum())
    others = [1 / (between + 1 / weight) for weight in weights[1:]]
    centre = sum(w * mean for w, mean in zip(others, means[1:], strict=True)) / sum(others)
    prior = 1 / (between + 1 / sum(others))
    estimate = (weights[0] * means[0] + prior * centre) / (weights[0] + prior)
    assert np.mean((estimate - theta[0]) ** 2) == pytest.approx(global_variance(EXAMPLE, between), rel=0.02)


def test_more_sharing_makes_surer() -> None:
    for variances, between in problems():
        assert global_variance(variances, between) < group_variance(variances) <= local_variance(variances)
    assert global_variance([[1.0, 2.0]], 1.0) == group_variance([[1.0, 2.0]])


@pytest.mark.parametrize(("variances", "between"), [([], 1), ([[]], 1), ([[1.0], [0.0]], 1), ([[1.0]], -1)])
def test_impossible_variances_are_refused(variances: list[list[float]], between: float) -> None:
    with pytest.raises(BadInput):
        global_variance(variances, between)
