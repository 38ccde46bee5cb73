"""What a client pays in the four methods of Group Personalized FL, by the methods' own plans of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palmette.algorithms import algorithm
from palmette.algorithms.groupperfl import Staged
from palmette.tree import Tree

KINDS = ("downloads", "uploads", "epochs")


def client_costs(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return the models that a client of one group receives and sends, and its local epochs.

    Args:
        options: ``groups``, how many clients each has; the number of the ``group``, the first by default; under
            ``settings`` others than the published ones.
        methods: Names of algorithms.
        seed: Not used: nothing is drawn.
    """
    tree = Tree.parse([int(size) for size in options["groups"]])
    found = {}
    for name in methods:
        method = algorithm(name, preset="published", **options.get("settings", {}))
        assert isinstance(method, Staged)
        cost = method.cost(tree, int(options.get("group", 0)))
        found[name] = {kind: float(getattr(cost, kind)) for kind in KINDS}
    return found
