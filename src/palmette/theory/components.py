"""Variance components of a population: how much teams differ, how much the devices of a team, and how noisy samples are.

The population is seen as a mixed (multilevel) linear model on its tree, `palmette.blocks.variances`, on the raw features of the
training samples. Its variances are the likeliest ones (restricted maximum likelihood, REML), and from them follow how strongly
models should be pulled to those above them:

    lam_ij = h c^2 / (r n_ij)   for a device of n_ij samples,     gamma_i = h c^2 / (R n_i)   for a team of n_i,

with r and R the variances of devices and of teams over that of the noise, for features divided by c. For a softmax ``h`` is the
mean curvature of the loss, 1 for squared errors. Everything is computed here in one place; `palmette.blocks.survey` finds the
same over a federation's links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from palmette.blocks.variances import LEAST, MOST, Fit, Known, concluded, lift, renewed, search, settle
from palmette.errors import BadInput
from palmette.population import Population
from palmette.theory.surrogate import REAL, Frame, Seen, predicted, seen, solved
from palmette.tree import Tree

_SURE = 0.99  # the most that a surrogate's accuracy counts, since h would be 0 beyond
_EM = 10  # steps of the EM algorithm for one variance per direction
_STEP = 0.4  # of the logarithm of a ratio, in second differences of the evidence
_ROUGH = 1.0  # standard error of a logarithm beyond which little is known
_FEW = 3  # samples per direction below which little is known


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


def by_direction(known: Known, parents: Sequence[Tensor], base: Sequence[float], squares: float, samples: int) -> list[Tensor]:
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


@dataclass(frozen=True, eq=False)
class Components:
    """The variance components of a population, and what follows from them.

    Attributes:
        tree: The tree over the devices.
        frame: How features were scaled and turned; ``frame.scale`` is c.
        noise: The variance of the noise (s2), of one column of the targets.
        ratios: For every tier below the server, the devices' first, the variance of its nodes around their parents over
            that of the noise, the same in all directions of the scaled features; 0 where they do not differ.
        errors: Standard errors of the logarithms of the ratios; infinite where there is no ratio or it is not known.
        directions: The ratios of every tier in each direction; ``None`` unless asked for.
        shares: What the targets' differences from the common model are made of: a share for every tier below the server,
            the devices' first, and the last for noise. They add up to 1.
        accuracy: The share of training samples that the linear surrogate classifies rightly; ``None`` for numbers.
        h: Mean curvature of the loss in a model's output.
        counts: The training samples under every node, tier by tier below the server.
        doubts: Sentences where little is known.
    """

    tree: Tree
    frame: Frame
    noise: float
    ratios: tuple[float, ...]
    errors: tuple[float, ...]
    directions: tuple[Tensor, ...] | None
    shares: tuple[float, ...]
    accuracy: float | None
    h: float
    counts: tuple[Tensor, ...]
    doubts: tuple[str, ...] = field(default=())

    @property
    def variances(self) -> tuple[float, ...]:
        """The variance of each tier below the server, the devices' first, for features divided by c."""
        return tuple(self.noise * ratio for ratio in self.ratios)

    def pulls(self, tier: int) -> Tensor:
        """Return the pull of every node of a tier to its parent, infinite where they do not differ: lam or gamma."""
        ratio = self.ratios[tier]
        if ratio == 0:
            return torch.full_like(self.counts[tier], math.inf)
        return self.h * self.frame.scale**2 / (ratio * self.counts[tier].clamp(min=1.0))

    def pull(self, tier: int) -> float:
        """Return the pull of a node of a tier with the mean number of samples."""
        ratio, each = self.ratios[tier], float(self.counts[tier].mean().clamp(min=1.0))
        return math.inf if ratio == 0 else self.h * self.frame.scale**2 / (ratio * each)

    @property
    def lam(self) -> float:
        """The pull of a device with the mean number of samples to its team."""
        return self.pull(0)

    @property
    def gamma(self) -> float:
        """The pull of a team with the mean number of samples to the model above; infinite where there are no teams."""
        return self.pull(1) if len(self.ratios) > 1 else math.inf

    def _part(self, pull: float) -> Tensor:
        """Return, of each direction of the features, the share that a pull leaves to the model above."""
        curved = self.h * self.frame.spectrum
        return torch.ones_like(curved) if math.isinf(pull) else pull / (curved + pull)

    @property
    def own(self) -> float:
        """The share of a device's model that is its own, directions counted by their variance."""
        energy = self.frame.spectrum
        return float((energy * (1 - self._part(self.lam))).sum() / energy.sum())

    @property
    def own_df(self) -> float:
        """The share of a device's model that is its own, all directions alike."""
        return float((1 - self._part(self.lam)).mean())

    @property
    def up(self) -> float:
        """The share of a team's model that is the common one, directions counted by their variance."""
        energy = self.frame.spectrum
        return float((energy * self._part(self.gamma)).sum() / energy.sum())

    @property
    def share(self) -> float:
        """The share of the rounds that should go to the global model: of a team's model it is the common one's, all directions."""
        return float(self._part(self.gamma).mean())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the numbers of single nodes are left out."""
        return {
            "noise": self.noise,
            "variances": list(self.variances),
            "ratios": list(self.ratios),
            "log_errors": list(self.errors),
            "shares": list(self.shares),
            "lam": self.lam,
            "gamma": [self.pull(tier) for tier in range(1, len(self.ratios))],
            "share": self.share,
            "own": self.own,
            "own_df": self.own_df,
            "up": self.up,
            "h": self.h,
            "accuracy": self.accuracy,
            "scale": self.frame.scale,
            "doubts": list(self.doubts),
        }


def components(
    population: Population, *, directions: int = 30, per_direction: bool = False, constant: bool | None = None
) -> Components:
    """Return the variance components of a population's training samples.

    Args:
        population: The population; its test samples are not looked at.
        directions: How many principal directions of the features are looked at; all where there are no more features.
        per_direction: Whether to find one variance for each direction, too.
        constant: Whether the model has a bias; by default where there are classes.
    """
    people = seen(population, directions=directions, constant=constant)
    return components_of(people, people.moments(), per_direction=per_direction)[0]


def components_of(people: Seen, known: Known, *, per_direction: bool = False) -> tuple[Components, Evidence]:
    """Return the variance components of samples that were turned to few directions, and how likely other ratios are.

    Args:
        people: The samples.
        known: Their moments.
        per_direction: Whether to find one variance for each direction, too.
    """
    tree, parents = people.tree, people.parents
    if tree.devices < 2:
        raise BadInput("there is one device only; variance components tell how much devices differ, and need two")
    free, doubts = _told_apart(tree)
    evidence = Evidence(known, parents, people.squares, len(people.z))
    ratios = evidence.best(free)
    columns = people.targets.shape[1]
    errors = evidence.errors(ratios, 1.0 if people.labels is None else (columns - 1) / columns)
    fit = evidence.at(ratios)
    accuracy, h = _curvature(people, known, ratios)
    made = Components(
        tree=tree,
        frame=people.frame,
        noise=fit.noise,
        ratios=tuple(ratios),
        errors=tuple(errors),
        directions=tuple(by_direction(known, parents, ratios, people.squares, len(people.z))) if per_direction else None,
        shares=_shares(known, ratios, len(people.z)),
        accuracy=accuracy,
        h=h,
        counts=tuple(people.counts(tier) for tier in range(tree.top)),
        doubts=(*doubts, *_doubts(people, ratios, errors)),
    )
    return made, evidence


def _told_apart(tree: Tree) -> tuple[list[int], list[str]]:
    """Return the tiers whose variances can be told apart, and what to say of the others."""
    free, doubts = [0], list[str]()
    for tier in range(1, tree.top):
        if tree.size(tier) == 1:
            doubts.append("There is one team only, so nothing can be said of how much teams differ.")
        elif tree.size(tier) == tree.size(tier - 1):
            below = "device" if tier == 1 else "team below it"
            doubts.append(f"Every team has one {below}, so how much teams and their members differ cannot be told apart.")
        else:
            free.append(tier)
    return free, doubts


def _doubts(people: Seen, ratios: Sequence[float], errors: Sequence[float]) -> list[str]:
    """Say where little is known."""
    samples, width = people.z.shape
    found = []
    if samples < _FEW * width:
        found.append(f"{samples} training samples in all are few for {width} directions: everything here is a rough guess.")
    for tier, (ratio, error) in enumerate(zip(ratios, errors, strict=True)):
        if ratio > 0 and error > _ROUGH and ratio < MOST:
            who = ("devices", "teams")[tier] if tier < 2 else f"nodes of tier {tier}"
            factor = f"a factor of {math.exp(error):.0f}" if error < 3 else "any useful bound"
            found.append(f"How much {who} differ is not known within {factor}: there are too few of them or too few samples.")
    return found


def _shares(known: Known, ratios: Sequence[float], samples: int) -> tuple[float, ...]:
    """Return what the differences from the common model are made of: each tier's part, then the noise's."""
    energy = float(known.gram.diagonal(dim1=1, dim2=2).sum()) / samples  # mean square of all scaled features
    parts = [ratio * energy for ratio in ratios] + [1.0]
    return tuple(part / sum(parts) for part in parts)


def _curvature(people: Seen, known: Known, ratios: Sequence[float]) -> tuple[float | None, float]:
    """Return the accuracy of the surrogate on its training samples, and the mean curvature of the loss."""
    if people.labels is None:
        return None, 1.0
    own = solved(known, people.parents, ratios)[0]
    found = float((predicted(people.z, own, people.owner).argmax(1) == people.labels).double().mean())
    sure, classes = min(found, _SURE), people.targets.shape[1]
    if classes < 2:
        raise BadInput("there is one class only; nothing is to be learned")
    return found, (1 - sure**2 - (1 - sure) ** 2 / (classes - 1)) / (classes - 1)
