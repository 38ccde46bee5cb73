"""What one machine of a federation is told before it starts, and how that follows from the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.learner import Learner
from palmette.links import Link
from palmette.links.clock import Pace
from palmette.links.record import Absences
from palmette.population import Population
from palmette.protocol import Algorithm, ModelKind
from palmette.task.layout import Layout
from palmette.tree import Tree, view


@dataclass(frozen=True, eq=False)
class Setup:
    """What one machine is told before it starts: of itself, of those above it and of its children, and of nobody else.

    Attributes:
        algorithm: The algorithm; its settings by name are those of nodes in ``tree``.
        tree: The tree as this node knows it (`palmette.tree.view`); the server's is whole.
        tier: Its own tier, in which it is the only node that it knows.
        layout: Which numbers of a model's row belong to which layer.
        initial: The initial model.
        links: How the links above and below it behave.
        samples: Training samples of the nodes in ``tree``, tier by tier.
        seed: The run's seed.
        top: The tier under which the only link of a method without teams is counted.
        learner: A device's own, with its own samples; ``None`` above the devices.
        below: For each of its children, how many nodes of every tier it has below it, itself included, from the devices up.
        pace: How fast devices compute, where there is a clock.
        kinds: The kinds of models that are measured.
    """

    algorithm: Algorithm
    tree: Tree
    tier: int
    layout: Layout
    initial: Tensor
    links: Mapping[int, Link]
    samples: list[Tensor]
    seed: int
    top: int
    learner: Learner | None = None
    below: tuple[tuple[int, ...], ...] = ()
    pace: Pace | None = None
    kinds: tuple[ModelKind, ...] = ()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.tree.name(self.tier, 0)

    @property
    def children(self) -> int:
        """How many children it has."""
        return len(self.below)


def setup_of(whole: Simulation, tier: int, number: int, *, bare: bool = False) -> Setup:
    """Return what one node of a simulation would be told on a machine of its own.

    Args:
        whole: The simulation.
        tier: The node's tier.
        number: Its number within it.
        bare: Whether a device is told without its samples.
    """
    tree = view(whole.tree, tier, number)
    children = whole.tree.children(tier, number)
    return Setup(
        algorithm=known_settings(whole.algorithm, tree),
        tree=tree,
        tier=tier,
        layout=whole.task.layout,
        initial=whole.learner.initial(),
        links=_links(whole, tier, children),
        samples=_samples(whole, tree, tier, number),
        seed=whole.seed,
        top=whole.population.tree.top,
        learner=None if tier or bare else _learner(whole, tree, number),
        below=tuple(_below(whole.tree, tier - 1, child) for child in children),
        pace=whole.pace,
        kinds=tuple(whole.kinds),
    )


def known_settings(method: Algorithm, tree: Tree) -> Algorithm:
    """Return an algorithm whose settings by name are those of the nodes of a tree alone."""
    by_name = {name: vars(method)[name] for name in method.by_name if isinstance(vars(method).get(name), Mapping)}
    if not by_name:
        return method
    known = {
        name: {node: given.get(node, next(iter(given.values()))) for node in tree.names(method.by_name[name])}
        for name, given in by_name.items()
    }
    return dataclasses.replace(method, **known)  # type: ignore[type-var]


def of_device(people: Population, number: int, tree: Tree) -> Population:
    """Return the samples of one device, on a tree in which it is the only one."""
    begin, end = people.start[number : number + 2].tolist()
    unseen = None if people.unseen is None else people.unseen[number : number + 1]
    start = torch.tensor([0, end - begin])
    return replace(
        people,
        tree=tree,
        x=people.x[begin:end],
        y=people.y[begin:end],
        start=start,
        train=people.train[number : number + 1],
        unseen=unseen,
        found=None,
    )


def _learner(whole: Simulation, tree: Tree, number: int) -> Learner:
    shared = whole.learner
    return Learner(
        whole.task,
        of_device(whole.population, number, tree),
        seed=whole.seed,
        batch_size=whole.algorithm.batch_size,
        dtype=shared.dtype,
        device=shared.device,
        backend=shared.backend.name,
        held_out=whole.held_out,
        optimiser=shared.optimiser,
    )


def _samples(whole: Simulation, tree: Tree, tier: int, number: int) -> list[Tensor]:
    """Return the training samples of the nodes that one node knows."""
    if tier == whole.tree.top:
        return whole.samples
    children = torch.tensor(whole.tree.children(tier, number), dtype=torch.int64)
    below = [whole.samples[tier - 1][children]] * tier if tier else []
    path = whole.tree.ancestors
    above = [whole.samples[at][int(path(at, tier)[number])].reshape(1) for at in range(tier, tree.tiers)]
    return [*below, *above]


def _links(whole: Simulation, tier: int, children: range) -> dict[int, Link]:
    """Return the links above and below a node, as it numbers its children."""
    found = {at: link for at, link in whole.links.items() if at in (tier, tier - 1)}
    if (link := found.get(tier - 1)) is None:
        return found
    here: dict[str, Any] = {}
    if link.barred is not None:
        here["barred"] = link.barred[children.start : children.stop]
    if link.absences is not None:
        here["absences"] = _moved(link.absences, children.start)
    return {**found, tier - 1: replace(link, **here)}


def _moved(absences: Absences, first: int) -> Absences:
    """Return who never answers, for a node that numbers its children from 0."""
    return lambda round_, tier, exchange, children: absences(round_, tier, exchange, children + first)


def _below(tree: Tree, tier: int, node: int) -> tuple[int, ...]:
    """Return how many nodes of every tier there are below one, itself included, from the devices up."""
    return tuple(int(np.count_nonzero(tree.ancestors(tier, of) == node)) for of in range(tier + 1))
