"""A rehearsal before kits are made: some rounds of the same training on made-up samples, to learn what will cross the links."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from palmette.deploy.kit import shape_of, stand_in
from palmette.engines.setup import known_settings
from palmette.engines.simulate import Simulation
from palmette.runs.config import RunConfig
from palmette.tree import Tree

_ROUNDS = 3
_LEAST, _MARGIN = 1 << 20, 8  # bytes of the largest message at least; how much larger than any seen it may be


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal found.

    Attributes:
        asks: For each tier of parents, the most exchanges with their children within one exchange of their own parent's ...
        limit: Bytes of the largest message that is taken.
    """

    asks: dict[int, int]
    limit: int


def rehearse(whole: Simulation, config: RunConfig) -> Rehearsed:
    """Run some rounds with one node in every tier, on samples that are nobody's."""
    tree = _narrow(whole.tree)
    people = stand_in(shape_of(whole.population), tree)
    trial = Simulation(
        known_settings(whole.algorithm, tree),
        people,
        whole.task,
        rounds=_ROUNDS,
        seed=config.seed,
        dtype=config.dtype(),
        backend=whole.learner.backend.name,
        threads=1,
        optimiser=config.optimiser,
    )
    widest = 0
    for _ in range(trial.rounds):
        trial.step()
    per_round = dict.fromkeys(range(tree.tiers), 1)
    for (_, tier), entry in trial.ledger.entries.items():
        per_round[tier] = max(per_round[tier], entry.exchanges)
        widest = max(widest, entry.bytes_down // max(1, entry.exchanges), entry.bytes_up // max(1, entry.exchanges))
    asks = {tier + 1: math.ceil(per_round[tier] / per_round[tier + 1]) for tier in range(1, tree.top)}
    state = sum(row.numel() * row.element_size() for row in trial.stores[0].initial.values())
    return Rehearsed({1: 1, **asks}, max(_LEAST, _MARGIN * max(widest, state)))


def _narrow(tree: Tree) -> Tree:
    """Return a tree of as many tiers with one node in each."""
    return Tree(
        tuple(np.zeros(1, dtype=np.int64) for _ in tree.parents),
        tuple((tree.name(tier, 0),) for tier in range(tree.tiers)),
    )
