"""Two-level heterogeneity: how far teams differ in their labels, and how far the devices of a team do, by a knob each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.population.partition.base import Partition, Parts, at_least, take_in_order
from palmette.population.partition.sizes import Floats, Sizes, check_sizes, in_proportion, weights
from palmette.tree import Ints, Tree
from palmette.values import real, shown

_STEPS = 200  # of the fitting of proportions to the samples that there are
_LEAST = 1e-2  # of a concentration; with less, a device has one label of its team anyway


@dataclass(frozen=True)
class TwoLevel(Partition):
    """Labels differ between teams and, apart from that, between the devices of a team: a knob for each.

    From the top down, the label proportions q of every node are drawn around those of its parent, p: q ~ Dirichlet(a C p) with
    C classes, where a is ``between_teams`` for teams and ``within_teams`` for devices. Devices of a team with few labels
    would differ less for the same a. So the concentration of the draw, a C + 1, is multiplied by (r(p) / r(all))^2 with
    r(p) = sum_c sqrt(p_c (1 - p_c)), which keeps the mean distance of devices from their team nearly the same, whatever
    ``between_teams`` is. Every sample is used exactly once and sizes are given, so the proportions are then fitted to both
    by scaling rows and columns in turn, at most 200 times. Trees of any depth are allowed; all teams have one knob.

    Attributes:
        between_teams: Concentration of the labels between teams: near 0 teams have few labels in common, large values make them
            alike; ``"alike"`` switches it off.
        within_teams: Concentration of the labels between the devices of a team: near 0 the devices of a team have few labels
            in common; ``"alike"`` switches it off.
        sizes: How many samples devices have: ``"equal"`` to within one sample, ``"lognormal"``, or ``"power-law"``, where few
            devices have most samples.
        size_spread: How unequal the sizes are, from 0: the standard deviation of the logarithm of a lognormal size (1 by
            default); for a power law the inverse of its exponent (1 by default).
        least: Least number of samples of a device.
    """

    between_teams: float | Literal["alike"] = 1.0
    within_teams: float | Literal["alike"] = 1.0
    sizes: Sizes = "equal"
    size_spread: float | None = None
    least: int = 4

    def __post_init__(self) -> None:
        for name in ("between_teams", "within_teams"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "alike":
                raise BadInput(f"{name} = {shown(value)} must be a number above 0, or alike")
            if not isinstance(value, str) and real(name, value) <= 0:
                raise BadInput(f"{name} = {shown(value)} must be a number above 0, or alike")
        check_sizes(self.sizes, self.size_spread, get_args(Sizes))
        at_least("least", self.least, 1)

    @property
    def knows_teams(self) -> bool:
        """Unit ``u`` is meant for leaf ``u``."""
        return True

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples; see `Partition.assign`."""
        if tree.top < 2:
            raise BadInput(
                f"the partition two-level needs teams, and tree = {tree} has none; use the partition dirichlet, or a tree such "
                "as 4x10"
            )
        weight = weights(self.sizes, self.size_spread, tree.devices, address.numpy_generator(seed, "sizes"))
        sizes = [in_proportion(len(y), weight, self.least)]
        for parent in tree.parents[:-1]:
            sizes.append(np.bincount(parent, weights=sizes[-1]).astype(np.int64))
        counts: Ints = np.bincount(y, minlength=classes)[None, :]
        overall = counts[0] / len(y)
        for tier in range(tree.top - 1, -1, -1):
            knob = self.within_teams if tier == 0 else self.between_teams
            # A stream for each tier: one knob leaves alone what the other drew.
            random = address.numpy_generator(seed, "partition", tier)
            wanted = _proportions(counts, tree.parents[tier], overall, knob, random)
            counts = _fit(wanted, tree.parents[tier], sizes[tier], counts, random)
        shuffled = address.numpy_generator(seed, "partition").permutation(len(y))
        label = np.tile(np.arange(classes, dtype=np.int64), tree.devices)
        dealt = take_in_order(y[shuffled], label, counts.reshape(-1), classes, classes)
        return Parts(shuffled[dealt.index], dealt.start)


def _proportions(counts: Ints, parent: Ints, overall: Floats, knob: float | str, random: np.random.Generator) -> Floats:
    """Draw the label proportions of some nodes around those of their parents.

    Args:
        counts: Samples of every parent by class.
        parent: The parent of every node.
        overall: The label proportions of all samples.
        knob: The concentration, or ``"alike"``.
        random: The generator.
    """
    above: Floats = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if isinstance(knob, str):
        return above[parent]
    room = (_roughness(above) / np.maximum(_roughness(overall), 1e-12)) ** 2
    total = np.maximum((float(knob) * len(overall) + 1) * room - 1, _LEAST)
    shape = np.maximum((above * total[:, None])[parent], 1e-12)
    # A gamma number of a small shape is one of the shape plus 1 times uniform ** (1 / shape), here by its logarithm.
    drawn: Floats = np.log(random.standard_gamma(shape + 1)) - random.standard_exponential(shape.shape) / shape
    drawn = np.exp(drawn - drawn.max(1, keepdims=True))
    drawn /= drawn.sum(1, keepdims=True)
    return drawn


def _roughness(proportions: Floats) -> Floats:
    """Return sum_c sqrt(p_c (1 - p_c)): how far small random parts lie from the whole, but for a factor."""
    found: Floats = np.sqrt(np.maximum(proportions * (1 - proportions), 0)).sum(-1)
    return found


def _fit(wanted: Floats, parent: Ints, sizes: Ints, counts: Ints, random: np.random.Generator) -> Ints:
    """Return whole numbers near wanted proportions that use up every class of every parent and give every node its size."""
    first = np.searchsorted(parent, np.arange(len(counts)))
    cells: Floats = np.maximum(wanted, 1e-200) * sizes[:, None].astype(np.float64)
    cells[counts[parent] == 0] = 0.0
    for _ in range(_STEPS):
        cells *= (counts / np.maximum(np.add.reduceat(cells, first), 1e-290))[parent]
        cells *= (sizes / np.maximum(cells.sum(1), 1e-290))[:, None]
        if np.abs(np.add.reduceat(cells, first) - counts).max() < 0.5:
            break
    cells *= np.minimum(1.0, counts / np.maximum(np.add.reduceat(cells, first), 1e-290))[parent]
    whole = np.floor(cells).astype(np.int64)
    # What is left of sizes and classes, one sample at a time: those of a parent are as many in the two lists. A class stays
    # together, so that a node gets few of them also where the scaling had not come to its end.
    nodes = np.repeat(np.arange(len(sizes)), sizes - whole.sum(1))
    left = counts - np.add.reduceat(whole, first)
    order = np.argsort(random.random(left.shape), axis=1)
    label = np.repeat(order.reshape(-1), np.take_along_axis(left, order, 1).reshape(-1))
    np.add.at(whole, (nodes, label), 1)
    return whole
