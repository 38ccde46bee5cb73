"""A sample of very many devices: enough to see how teams and devices differ, in about a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.population import Population
from palmette.studies.advising.making import only
from palmette.theory.components import Components

MOST = 500
"""Devices that an advice looks at."""
_EACH = 8  # devices of a team that are looked at where there are very many teams


def sampled(population: Population, seed: int) -> tuple[Population, Tensor]:
    """Return a population of at most about `MOST` devices, and which these are, by their numbers in the whole.

    There are as many of each team, and of some teams only where there are very many.

    Args:
        population: The population; where it is small it is returned as it is.
        seed: Decides who is in the sample.
    """
    if population.devices <= MOST:
        return population, torch.arange(population.devices)
    tree, team = population.tree, population.tree.parents[0]
    teams = tree.size(1)
    chosen = np.ones(teams, dtype=bool)
    if teams > MOST // _EACH:
        chosen = _rank(tree.addresses[1], np.zeros(teams, dtype=np.int64), seed) < MOST // _EACH
    fits = chosen[team] if population.unseen is None else chosen[team] & ~population.unseen.numpy()
    rank = np.full(tree.devices, MOST)
    rank[fits] = _rank(tree.addresses[0][fits], team[fits], seed)
    keep = torch.from_numpy(rank < max(2, MOST // int(chosen.sum())))
    return only(population, keep), keep.nonzero().squeeze(1)


def _rank(addresses: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """Return the place of each node in a random order of its group."""
    drawn = address.mix(address.key(seed, "advice"), torch.from_numpy(addresses)).numpy()
    order = np.lexsort((drawn, groups))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
    return rank


def for_everybody(found: Components, population: Population) -> Components:
    """Return what a sample showed as components of the whole population, whose nodes have samples of their own numbers.

    Args:
        found: What the sample showed.
        population: The whole population.
    """
    counts: list[Tensor] = [population.train.double()]
    if population.unseen is not None:
        counts[0] = counts[0] * ~population.unseen
    for tier in range(population.tree.top - 1):
        above = torch.zeros(population.tree.size(tier + 1), dtype=torch.float64)
        counts.append(above.index_add_(0, torch.from_numpy(population.tree.parents[tier]), counts[-1]))
    return replace(found, tree=population.tree, counts=tuple(counts))
