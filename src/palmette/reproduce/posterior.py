"""Posterior variances of the Bayesian view of group sharing: by the printed formula, the corrected one and the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.address import numpy_generator
from palmette.theory import bayes


def posterior_variances(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return what a client's parameter varies by given its own data, its group's and everybody's, and their ratios.

    Args:
        options: ``variances`` of one population, by group, with the variance ``between`` groups; without them ``populations``
            are drawn.
        methods: Not used.
        seed: Decides what is drawn.
    """
    if "variances" in options:
        cases = {"all": (options["variances"], float(options.get("between", 1.0)))}
    else:
        cases = dict(_drawn(int(options.get("populations", 100)), seed))
    found: dict[str, dict[str, float]] = {}
    for name, (variances, between) in cases.items():
        local, group = bayes.local_variance(variances), bayes.group_variance(variances)
        printed = bayes.global_variance(variances, between, as_published=True)
        corrected = bayes.global_variance(variances, between)
        exact = bayes.linear_gaussian_variance(variances, between)
        shares = 1 / (1 + sum(variances[0][0] / other for other in variances[0][1:]))
        numbers = {
            "local": local,
            "group": group,
            "global-printed": printed,
            "global-corrected": corrected,
            "global-exact": exact,
            "group/local": group / local,
            "group/local by formula": shares,
            "global/group": exact / group,
            "global/group as printed": printed / group,
            "printed/exact": printed / exact,
            "corrected/exact": corrected / exact,
        }
        for kind, value in numbers.items():
            found.setdefault(kind, {})[name] = value
    return found


def _drawn(count: int, seed: int) -> list[tuple[str, tuple[list[list[float]], float]]]:
    """Draw populations of 2 to 6 groups with 2 to 20 clients each, all variances log-normal."""
    generator = numpy_generator(seed, "posterior variances")
    made = []
    for number in range(count):
        sizes = generator.integers(2, 21, size=generator.integers(2, 7))
        variances = [generator.lognormal(0.0, 1.0, size=size).tolist() for size in sizes]
        made.append((f"population {number}", (variances, float(generator.lognormal()))))
    return made
