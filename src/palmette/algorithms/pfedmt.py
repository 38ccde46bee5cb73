"""pFedMT: PerMFL's programs with every mean weighted by training samples.

The published line 12 multiplies the mean of the teams by beta where the paper's own equation (4) has beta * gamma; unless
gamma is 1 it makes a consensus grow without bound. It is the option ``as_published=["line-12"]``.

Sourasekhar Banerjee, Alp Yurtsever, Monowar Bhuyan: Personalized Multi-tier Federated Learning (workshop version).
"""

from __future__ import annotations

from typing import ClassVar

from palmette.algorithms.permfl import MoreauTree
from palmette.protocol import Reduce
from palmette.protocol.settings import settings


@settings
class PFedMT(MoreauTree):
    """Personalized multi-tier federated learning with Moreau envelopes, children weighted by samples."""

    name: ClassVar[str] = "pfedmt"
    paper: ClassVar[str] = "Banerjee, Yurtsever, Bhuyan: Personalized Multi-tier Federated Learning (pFedMT)"
    reduce: ClassVar[Reduce] = "samples"
