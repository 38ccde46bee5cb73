"""pFedMT: PerMFL's programs with every mean weighted by training samples.

The published line 12 multiplies the mean of the teams by beta where the paper's own equation (4) has beta * gamma; unless
gamma is 1 it makes a consensus grow without bound. It is the option ``as_published=["line-12"]``.

Sourasekhar Banerjee, Alp Yurtsever, Monowar Bhuyan: Personalized Multi-tier Federated Learning (workshop version).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from palmette.algorithms.permfl import MoreauTree
from palmette.protocol import Reduce
from palmette.protocol.settings import settings

# The convex experiments; T is 600 or 100, the batch size is not told.
PUBLISHED = {
    **{"team_steps": 30, "local_steps": 20, "alpha": 0.01, "eta": 0.03},
    **{"beta": 1.0, "gamma": 0.1, "lam": 15.0, "teams": "restart"},
}


@settings
class PFedMT(MoreauTree):
    """Personalized multi-tier federated learning (pFedMT): PerMFL with means weighted by training samples."""

    name: ClassVar[str] = "pfedmt"
    paper: ClassVar[str] = "Banerjee, Yurtsever, Bhuyan: Personalized Multi-tier Federated Learning (pFedMT)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    reduce: ClassVar[Reduce] = "samples"
