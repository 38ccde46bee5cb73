"""A training to which a device is added: everybody else goes on as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.setup import Setup
from palmette.engines.state import LINK
from palmette.errors import BadInput
from palmette.tree import Tree
from palmette.tree.joining import joined, places

_NOT_NOW = "so no device can be added to a training under way; stop it, and begin a new one with the device in its tree"


def grown(setup: Setup, name: str, parent: str, child: int | None, samples: int) -> Setup:
    """Return what a machine is told once a device is below it that was not there before.

    Args:
        setup: What it was told before.
        name: The device.
        parent: The device's parent.
        child: Which of the machine's children the device is below; ``None`` where it is a child itself, the last one.
        samples: The device's training samples.

    Raises:
        BadInput: The algorithm keeps something whose size depends on how many devices there are.
    """
    tier, top = setup.tier, setup.tree.top
    tree, counts = setup.tree, list(setup.samples)
    if tier == top:
        number = tree.find(1, parent)
        tree = joined(tree, number, name)
        counts = _on_path(counts, setup.tree, number, samples)
    elif tier == 1:
        tree = joined(tree, 0, name)
        counts = _on_path(counts, setup.tree, 0, samples)
    else:  # it knows of its children alone what is below them
        assert child is not None
        counts = [_more(count, child if at < tier else 0, samples) for at, count in enumerate(counts)]
    below = list(setup.below)
    if child is None:
        below.append((1,))
    else:
        below[child] = (below[child][0] + 1, *below[child][1:])
    after = replace(setup, tree=tree, samples=counts, below=tuple(below))
    _check(setup, after)
    return after


def grown_state(tensors: Mapping[str, Any], before: Tree, after: Tree) -> dict[str, Any]:
    """Return a simulation's state as one on a grown tree would have it; see `Simulation.state`.

    Args:
        tensors: The state, whole.
        before: The tree that the algorithm ran on.
        after: The same tree with more devices.
    """
    at = [torch.tensor(one) for one in places(before, after)]
    found = dict(tensors)
    for name in (name for name in tensors if name.startswith("ids/")):
        _, store, *link = name.split("/")
        found[name] = at[int(link[0] if store == LINK else store)][tensors[name]]
    for tier, where in enumerate(at):
        if (counts := tensors[f"counts/{tier}"]).shape[1]:
            wide = torch.zeros((len(counts), after.size(tier)), dtype=counts.dtype)
            wide[:, where] = counts
            found[f"counts/{tier}"] = wide
    record = tensors["record"].clone()
    for row in record:
        row[3] = at[int(row[1]) - 1][row[3]]
    return {**found, "record": record}


def _on_path(counts: list[Tensor], tree: Tree, parent: int, samples: int) -> list[Tensor]:
    """Return the numbers of samples of all nodes of a tree once one of tier 1 has one more child."""
    place = tree.children(1, parent).stop
    above = [_more(counts[tier], int(tree.ancestors(tier, 1)[parent]), samples) for tier in range(1, tree.tiers)]
    return [torch.from_numpy(np.insert(counts[0].numpy(), place, samples)), *above]


def _more(counts: Tensor, node: int, samples: int) -> Tensor:
    found = counts.clone()
    found[node] += samples
    return found


def check_plan(before: Setup, after: Setup, rounds: int) -> None:
    """Refuse to grow where an algorithm's plan of a training follows from the number of devices; for the server.

    Args:
        before: What its machine was told.
        after: What it would be told.
        rounds: Rounds of the run.
    """
    method = before.algorithm
    if any(method.stage(before.tree, one, rounds) != method.stage(after.tree, one, rounds) for one in range(rounds)):
        raise BadInput(f"{method.name} plans its stages by the number of devices, {_NOT_NOW}")


def _check(before: Setup, after: Setup) -> None:
    """Refuse to grow where nodes keep rows whose size depends on the tree."""
    tiers = range(before.tier, before.tree.tiers if before.tier == before.tree.top else before.tier + 1)
    for tier in tiers:
        one, two = (_kept(setup, tier) for setup in (before, after))
        if one != two:
            raise BadInput(f"{before.algorithm.name} keeps something for each child of a node, {_NOT_NOW}")


def _kept(setup: Setup, tier: int) -> dict[str, tuple[int, ...]]:
    rows = rules.kept(setup.algorithm, setup.tree, tier, setup.layout, setup.initial)
    return {name: tuple(row.shape) for name, row in rows.items()}
