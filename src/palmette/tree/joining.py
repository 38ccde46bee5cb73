"""A tree that grows: one more child of a node, while everybody else stays who they are."""

from __future__ import annotations

import numpy as np

from palmette import address
from palmette.errors import BadInput
from palmette.tree.tree import Tree
from palmette.values import shown


def joined(tree: Tree, parent: int, name: str) -> Tree:
    """Return a tree with one more device, the last child of its parent; all others keep their names and addresses.

    Args:
        tree: The tree, which stays as it is.
        parent: The number of the parent, in tier 1.
        name: The new device's name.

    Raises:
        BadInput: A device of this name is there already.
    """
    if tree.known(0, name) is not None:
        raise BadInput(f"there is a device {shown(name)} already; names must differ")
    place = tree.children(1, parent).stop
    parents = (np.insert(tree.parents[0], place, parent), *tree.parents[1:])
    names = [tree.names(tier) for tier in range(tree.tiers)]
    names[0].insert(place, name)
    own = address.of_names((name,))[0]
    addresses = (np.insert(tree.addresses[0], place, own), *tree.addresses[1:])
    return Tree(parents, tuple(map(tuple, names)), addresses)


def places(before: Tree, after: Tree) -> list[list[int]]:
    """Return, for every tier, the number in a grown tree of each node of the tree before."""
    return [[after.find(tier, name) for name in before.names(tier)] for tier in range(before.tiers)]
