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

import torch
from torch import Tensor

from palmette.blocks.variances import MOST, Known, told_apart
from palmette.errors import BadInput
from palmette.population import Population
from palmette.theory.evidence import Evidence, by_direction
from palmette.theory.surrogate import Frame, Seen, predicted, seen, solved
from palmette.tree import Tree

_SURE = 0.99  # the most that a surrogate's accuracy counts, since h would be 0 beyond
_ROUGH = 1.0  # standard error of a logarithm beyond which little is known
_LITTLE = 0.01  # a share of all differences that does not matter
_FEW = 3  # samples per direction below which little is known


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
        """Return the pull of every node of a tier to its parent, infinite where they do not differ: lam or gamma.

        Args:
            tier: The tier: 0 for devices, 1 for teams.
        """
        ratio = self.ratios[tier]
        if ratio == 0:
            return torch.full_like(self.counts[tier], math.inf)
        return self.h * self.frame.scale**2 / (ratio * self.counts[tier].clamp(min=1.0))

    def pull(self, tier: int) -> float:
        """Return the pull of a node of a tier with the mean number of samples.

        Args:
            tier: The tier of the node: 0 gives lam, 1 gamma.
        """
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
        """The share of the rounds for the global model: of a team's model, what is the common one, all directions alike."""
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
    shares = _shares(known, ratios, len(people.z))
    made = Components(
        tree=tree,
        frame=people.frame,
        noise=fit.noise,
        ratios=tuple(ratios),
        errors=tuple(errors),
        directions=tuple(by_direction(known, parents, ratios, people.squares, len(people.z)))
        if per_direction
        else None,
        shares=shares,
        accuracy=accuracy,
        h=h,
        counts=tuple(people.counts(tier) for tier in range(tree.top)),
        doubts=(*doubts, *_doubts(people, ratios, errors, shares)),
    )
    return made, evidence


def _told_apart(tree: Tree) -> tuple[list[int], list[str]]:
    """Return the tiers whose variances can be told apart, and what to say of the others."""
    doubts = list[str]()
    for tier in range(1, tree.top):
        if tree.size(tier) == 1:
            doubts.append("There is one team only, so nothing can be said of how much teams differ.")
        elif tree.size(tier) == tree.size(tier - 1):
            below = "device" if tier == 1 else "team below it"
            doubts.append(
                f"Every team has one {below}, so how much teams and their members differ cannot be told apart."
            )
    return told_apart(tree), doubts


def _doubts(people: Seen, ratios: Sequence[float], errors: Sequence[float], shares: Sequence[float]) -> list[str]:
    """Say where little is known."""
    samples, width = people.z.shape
    found = []
    if samples < _FEW * width:
        found.append(
            f"{samples} training samples in all are few for {width} directions: everything here is a rough guess."
        )
    for tier, (ratio, error, share) in enumerate(zip(ratios, errors, shares[:-1], strict=True)):
        if 0 < ratio < MOST and error > _ROUGH and share > _LITTLE:
            who = ("devices", "teams")[tier] if tier < 2 else f"nodes of tier {tier}"
            factor = f"a factor of {math.exp(error):.0f}" if error < 3 else "any useful bound"
            found.append(
                f"How much {who} differ is not known within {factor}: there are too few of them or too few samples."
            )
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
    return found, (1 - sure**2 - (1 - sure) ** 2 / (classes - 1)) / (classes - 1)
