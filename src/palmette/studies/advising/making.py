"""How the study's populations are made, as far as `palmette.make_population` does not make them by itself.

Everything is drawn from the seed. All functions can be sent to another process, as can a `functools.partial` of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from palmette.address import numpy_generator
from palmette.datasets.natural import pruned
from palmette.population import Population, make_population
from palmette.tree import Tree

_WRITERS = 30  # of each of the two teams
_OTHER = 1000  # is added to the seed where the same people are to be drawn anew
_LEAS, _LECTURERS = 20, 12  # education authorities in all; lecturers of each department
_ANGLE = 20.0  # degrees, the standard deviation of the angles of devices
_TEAMS, _DEVICES, _TESTS = 8, 8, 100  # of linear populations: teams, devices of each, test samples of each


def dealt(
    seed: int, source: str, train: int | None = None, test: int | None = None, tree: str = "4x10", **options: Any
) -> Population:
    """Return the samples of a named data set on a tree, cut where that is wanted.

    Args:
        seed: Decides who has which samples.
        source: The data set.
        train: The most training samples of a device; all by default.
        test: The most test samples of a device; all by default.
        tree: The tree.
        **options: Further arguments of `palmette.make_population`.
    """
    return cut(make_population(source, tree=tree, seed=seed, **options), train, test)


def cut(population: Population, train: int | None = None, test: int | None = None) -> Population:
    """Return a population in which devices have so many samples at most; they lie in random order and the first are kept.

    Args:
        population: The population; it is not changed.
        train: The most training samples of a device.
        test: The most test samples of a device.
    """
    trains = population.train if train is None else population.train.clamp(max=train)
    tests = population.tests if test is None else population.tests.clamp(max=test)
    size = population.start.diff()
    place = torch.arange(len(population.x)) - population.start[:-1].repeat_interleave(size)
    late = place - population.train.repeat_interleave(
        size
    )  # the place among the test samples, where it is not negative
    keep = (place < trains.repeat_interleave(size)) | ((late >= 0) & (late < tests.repeat_interleave(size)))
    start = torch.cat([torch.zeros(1, dtype=torch.int64), (trains + tests).cumsum(0)])
    return replace(population, x=population.x[keep], y=population.y[keep], start=start, train=trains)


def only(population: Population, keep: Tensor) -> Population:
    """Return a population with some of its devices, all of which train; teams without any go with them.

    Args:
        population: The population; it is not changed.
        keep: Whether to keep each device (bool).
    """
    size = population.start.diff()
    samples = keep.repeat_interleave(size)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), size[keep].cumsum(0)])
    tree = pruned(population.tree, keep.numpy())
    x, y, train = population.x[samples], population.y[samples], population.train[keep]
    return replace(population, tree=tree, x=x, y=y, start=start, train=train, unseen=None, notes=())


def tilted(seed: int) -> Population:
    """Return digits dealt out at random, those of every device turned by an angle of its own.

    Args:
        seed: Decides who has which digits, and the angles.
    """
    made = make_population("digits", tree="4x10", seed=seed, partition="iid")
    angles = numpy_generator(seed, "advising angles").normal(0.0, _ANGLE, made.devices)
    turned = made.x.to(torch.float32)
    for device, angle in enumerate(angles.tolist()):
        own = slice(int(made.start[device]), int(made.start[device + 1]))
        images = ndimage.rotate(turned[own].numpy(), angle, axes=(3, 2), reshape=False, order=1)
        turned[own] = torch.from_numpy(images)
    return replace(made, x=turned)


def writers(seed: int, train: int | None = None, *, others: bool = False) -> Population:
    """Return thirty writers of MNIST's training digits from each of the two teams.

    Args:
        seed: Draws the writers and decides which of their digits are for testing.
        train: The most training samples of a writer.
        others: Whether to draw the writers anew, so that another case with the same seed has others.
    """
    drawn = seed + _OTHER if others else seed
    made = make_population("mnist-writers", seed=drawn, per_team=_WRITERS)
    assert made.unseen is not None
    return cut(only(made, ~made.unseen), train)


def schools(seed: int) -> Population:
    """Return all schools of twenty English education authorities, with the chemistry scores of their pupils.

    Args:
        seed: Draws the authorities and decides which pupils are for testing.
    """
    made = make_population("chem97", seed=seed)
    drawn = numpy_generator(seed, "advising authorities").choice(made.tree.size(1), _LEAS, replace=False)
    return only(made, torch.from_numpy(np.isin(made.tree.parents[0], drawn)))


def table(seed: int, source: str) -> Population:
    """Return a table of the multilevel literature with all its devices.

    Args:
        seed: Decides which rows are for testing.
        source: The data set.
    """
    return make_population(source, seed=seed)


def lectures(seed: int, train: int) -> Population:
    """Return twelve lecturers of each department of ETH Zurich, with the ratings of their lectures.

    Args:
        seed: Draws the lecturers and decides which ratings are for testing.
        train: The most training samples of a lecturer.
    """
    return cut(make_population("insteval", seed=seed, per_team=_LECTURERS), train)


def linear(
    seed: int,
    name: str,
    centres: float | Sequence[float],
    devices: float | Sequence[float],
    noise: float,
    train: int,
    dimension: int = 10,
) -> Population:
    """Return a draw of the hierarchical linear model: a common centre, one for each team, one for each device, and noise.

    With features x ~ N(0, I), a device's targets are x theta + N(0, noise), where theta is its own centre.

    Args:
        seed: Decides everything, together with the name.
        name: The name of the case, so that no two of them share their numbers.
        centres: Variance of the teams' centres around the common one, in all directions or in each.
        devices: Variance of the devices around their team's centre, likewise.
        noise: Variance of the noise.
        train: Training samples of every device.
        dimension: How many features there are.
    """
    random = numpy_generator(seed, f"advising {name}")
    count, each = _TEAMS * _DEVICES, train + _TESTS
    common = random.normal(size=dimension)
    teams = common + np.sqrt(centres) * random.normal(size=(_TEAMS, dimension))
    truth = np.repeat(teams, _DEVICES, axis=0) + np.sqrt(devices) * random.normal(size=(count, dimension))
    x = random.normal(size=(count, each, dimension))
    y = np.einsum("nmd,nd->nm", x, truth) + np.sqrt(noise) * random.normal(size=(count, each))
    return Population(
        tree=Tree.parse(f"{_TEAMS}x{_DEVICES}"),
        x=torch.from_numpy(x.reshape(-1, dimension).astype(np.float32)),
        y=torch.from_numpy(y.reshape(-1).astype(np.float32)),
        start=torch.arange(count + 1) * each,
        train=torch.full((count,), train),
        source=name,
    )
