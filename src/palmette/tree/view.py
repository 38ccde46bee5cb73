"""What one node knows of a tree: who is above it, itself, and its children; nobody beside it."""

from __future__ import annotations

import numpy as np

from palmette.tree.planting import Ints
from palmette.tree.tree import Tree


def view(tree: Tree, tier: int, node: int) -> Tree:
    """Return the tree as one of its nodes knows it; the server knows it whole.

    Every node in it has the name and the address that it has in the whole tree, so a program that runs on it draws the same
    random numbers. A tree has devices at its bottom: where the node's children are no devices, each stands there with one node
    in every tier below it, which stands for all it has.

    Args:
        tree: The whole tree.
        tier: The node's tier.
        node: Its number within it.
    """
    if tier == tree.top:
        return tree
    chain = [np.array([number]) for number in _path(tree, tier, node)]
    children = np.array(tree.children(tier, node), dtype=np.int64)
    known: list[Ints] = [children] * tier + chain
    sizes = [len(one) for one in known]
    parents = tuple(
        np.arange(sizes[at]) if sizes[at + 1] == sizes[at] else np.zeros(sizes[at], dtype=np.int64)
        for at in range(tree.top)
    )
    labels, addresses = [], []
    for at, numbers in enumerate(known):
        of = max(at, tier - 1)  # below the children, each child's own
        names = [tree.name(of, int(number)) for number in numbers]
        labels.append(tuple(names if at == of else (f"all below {name}" for name in names)))
        addresses.append(tree.addresses[of][numbers])
    return Tree(parents, tuple(labels), tuple(addresses))


def _path(tree: Tree, tier: int, node: int) -> list[int]:
    """Return the numbers of a node and of all above it, from itself up."""
    found = [node]
    for parent in tree.parents[tier:]:
        found.append(int(parent[found[-1]]))
    return found
