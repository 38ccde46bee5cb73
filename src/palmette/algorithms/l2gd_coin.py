"""The single-coin variant of Async-L2GD, which its experiments use: all devices step, or all average.

It minimises what `palmette.algorithms.l2gd` does. At every iteration one coin decides for everybody: with chance ``between``
every device moves to ``w_i = a_i tb + (1 - a_i) tb_i``, else it takes a local step. That is Algorithm 1 with ``p_i = 0`` and
``tau_i = 1``, and runs as such. The released code also stops when the local gradients vanish; at a minimiser with pulls they do
not, so the test never fires and is left out. Its losses are sums over a device's samples where ours are means: with m samples
its eta of 1e-4 and pull of 1 are an eta of m * 1e-4 and a pull of 1 / m here.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from palmette.algorithms.l2gd import CoinTree
from palmette.blocks import mixing
from palmette.protocol.settings import settings
from palmette.tree import Tree

# The donors' logistic regression: 5,000 iterations (50 rounds) with lambda_j = 0.01 for each of 5 clusters of 29,490 clients.
PUBLISHED = {"between": 0.1, "eta": 0.001, "lam": 1.36, "gamma": 0.01 / (29_490 / 5), "iterations": 100}


@settings
class L2GDCoin(CoinTree):
    """Async-L2GD with one coin for everybody: in an iteration all devices take a local step, or all average.

    Attributes:
        between: Chance that everybody averages in an iteration, instead of taking a local step (p in the paper).
    """

    name: ClassVar[str] = "l2gd-coin"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}

    between: Annotated[float, Field(gt=0, lt=1)] = 0.1

    def coins(self, tree: Tree, pulls: mixing.Pulls, smoothness: float) -> mixing.Coins:
        """Return the one coin; teams have none of their own."""
        return mixing.Coins.fair(tree, pulls, smoothness, self.between, 0.0)
