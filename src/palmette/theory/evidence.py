"""How likely a population's training samples are under ratios of variances, and the likeliest of these.

The mathematics is that of `palmette.blocks.variances`; here all moments lie in one place, so that the search may go on from the
best of a grid, and second differences say how surely the best is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from palmette.blocks.variances import LEAST, MOST, Fit, Known, concluded, lift, renewed, search, settle
from palmette.theory.surrogate import REAL

_EM = 10  # steps of the EM algorithm for one variance per direction
_STEP = 0.4  # of the logarithm of a ratio, in second differences of the evidence


class Evidence:
    """How likely the training samples are under ratios of variances.

    Args:
        known: What is known of the devices.
        parents: The parent of every node, tier by tier from the devices up.
        squares: The sum of the squared targets.
        samples: The number of samples.
    """

    def __init__(self, known: Known, parents: Sequence[Tensor], squares: float, samples: int) -> None:
        self.parents, self.squares, self.samples = parents, squares, samples
        self._lifted: dict[tuple[float, ...], tuple[Known, float, float]] = {(): (known, 0.0, 0.0)}
        self._fits: dict[tuple[float, ...], Fit] = {}

    def at(self, ratios: Sequence[float]) -> Fit:
        """Return what follows from ratios that are the same in all directions, the devices' first."""
        key = tuple(ratios)
        if key not in self._fits:
            self._fits[key] = concluded(*self._up(key), self.squares, self.samples)
        return self._fits[key]

    def _up(self, key: tuple[float, ...]) -> tuple[Known, float, float]:
        """Return what comes up from the tiers of some ratios; points that share their lower ratios share the work."""
        if key in self._lifted:
            return self._lifted[key]
        known, fit, cost = self._up(key[:-1])
        parent, ratio = self.parents[len(key) - 1], key[-1]
        if ratio > 0:
            told = lift(known, torch.full((known.gram.shape[1],), ratio, dtype=REAL))
            known, fit, cost = told.known, fit + float(told.fit.sum()), cost + float(told.cost.sum())
        found = known.added(parent, int(parent[-1]) + 1), fit, cost
        if len(key) < len(self.parents):
            self._lifted[key] = found
        return found

    def best(self, free: Sequence[int], fixed: dict[int, float] | None = None, *, polish: bool = True) -> list[float]:
        """Return the likeliest ratios of all tiers below the server, the devices' first.

        Args:
            free: The tiers whose ratios are looked for.
            fixed: The ratios of the others; 0 by default.
            polish: Whether to go on from the best of a grid.
        """
        base = [(fixed or {}).get(tier, 0.0) for tier in range(len(self.parents))]

        def whole(values: Sequence[float]) -> list[float]:
            point = list(base)
            for tier, value in zip(free, values, strict=True):
                point[tier] = float(value)
            return point

        if not free:
            return base
        looking = search(len(free))
        points = next(looking)
        try:
            while True:
                points = looking.send([self.at(whole(point)).evidence for point in points])
        except StopIteration as end:
            found = whole(end.value)
        return self._polished(found, [tier for tier in free if found[tier] > 0]) if polish else found

    def _polished(self, found: list[float], free: Sequence[int]) -> list[float]:
        """Go on from the best of a grid, on the logarithms of the ratios that are not 0."""
        if not free:
            return found

        def point(logs: Any) -> list[float]:
            made = list(found)
            for tier, value in zip(free, np.exp(logs).clip(LEAST, MOST).tolist(), strict=True):
                made[tier] = value
            return made

        begin = np.log([found[tier] for tier in free])
        simplex = np.vstack([begin, begin + 0.15 * np.eye(len(free))])
        limits = {"initial_simplex": simplex, "xatol": 0.02, "fatol": 1e-3, "maxfev": 30 * len(free)}
        end = minimize(lambda logs: -self.at(point(logs)).evidence, begin, method="Nelder-Mead", options=limits)
        return [0.0 if value <= 2 * LEAST else value for value in point(end.x)]

    def errors(self, ratios: Sequence[float], columns: float) -> list[float]:
        """Return the standard errors of the logarithms of the ratios; infinite where there is none or it is not known.

        Args:
            ratios: The likeliest ones.
            columns: How many of the columns are independent, over how many there are.
        """
        free = [tier for tier, ratio in enumerate(ratios) if LEAST < ratio < MOST]
        logs = np.log([ratios[tier] for tier in free])

        def value(shift: Any) -> float:
            point = list(ratios)
            for tier, moved in zip(free, np.exp(logs + _STEP * shift), strict=True):
                point[tier] = float(moved)
            return self.at(point).evidence * columns

        size, middle = len(free), value(np.zeros(len(free)))
        bend, unit = np.zeros((size, size)), np.eye(size)
        for i in range(size):
            bend[i, i] = -(value(unit[i]) - 2 * middle + value(-unit[i])) / _STEP**2
            for j in range(i):
                both = value(unit[i] + unit[j]) + value(-unit[i] - unit[j])
                bend[i, j] = bend[j, i] = -(both - value(unit[i] - unit[j]) - value(unit[j] - unit[i])) / (4 * _STEP**2)
        known = size > 0 and float(np.linalg.eigvalsh(bend)[0]) > 1e-6
        widths = np.sqrt(np.linalg.inv(bend).diagonal()).tolist() if known else [math.inf] * size
        return [dict(zip(free, widths, strict=True)).get(tier, math.inf) for tier in range(len(ratios))]


def by_direction(
    known: Known, parents: Sequence[Tensor], base: Sequence[float], squares: float, samples: int
) -> list[Tensor]:
    """Return the ratios of every tier below the server, one for each direction, by EM from those that are the same in all.

    Args:
        known: What is known of the devices.
        parents: The parent of every node, tier by tier from the devices up.
        base: The likeliest ratios that are the same in all directions.
        squares: The sum of the squared targets.
        samples: The number of samples.
    """
    width, columns = known.moment.shape[1:]
    ratios = [torch.full((width,), value, dtype=REAL) for value in base]
    for _ in range(_EM):
        levels, fit, cost = [known], 0.0, 0.0
        for parent, ratio in zip(parents, ratios, strict=True):
            told = lift(levels[-1], ratio)
            fit, cost = fit + float(told.fit.sum()), cost + float(told.cost.sum())
            levels.append(told.known.added(parent, int(parent[-1]) + 1))
        end = concluded(levels[-1], fit, cost, squares, samples)
        mean, spread = end.mean[None], end.spread[None]
        for tier in reversed(range(len(parents))):
            parent = parents[tier]
            if base[tier] == 0:
                mean, spread = mean[parent], spread[parent]
                continue
            now = settle(levels[tier], ratios[tier], mean[parent], spread[parent], end.noise)
            mean, spread = now.mean, now.spread
            ratios[tier] = renewed(ratios[tier], now.squares.sum(0), len(now.squares), columns, base[tier])
    return ratios
