"""Links on which everything goes wrong that can, and a clock, for the contract."""

from __future__ import annotations

from palmette.links import Faults, Link, Participation
from palmette.links.amounts import Amount
from palmette.links.clock import Line, Pace
from palmette.links.codecs import Codec

_LINE = Line(Amount.parse("lognormal 0.05 0.5 each", "latency"), Amount.parse(1000, "bandwidth"))
PACE = Pace(0.01, Amount.parse("lognormal 1 0.5", "speeds"))
ROUNDED, CHANGES = Codec.parse("int8"), Codec.parse("delta+int8")
STORM = {
    0: Link(
        Participation("fraction", 0.8),
        loss=0.1,
        faults=Faults(lost=0.1, late=0.1, corrupt=0.1, repeated=0.2, deadline=0.4),
        down=CHANGES,
        up=ROUNDED,
        line=_LINE,
    ),
    1: Link(
        Participation("count", 2),
        faults=Faults(lost=0.2, late=0.1, corrupt=0.1, repeated=0.2),
        down=ROUNDED,
        up=CHANGES,
        line=_LINE,
    ),
}
"""Links on which everything goes wrong that can."""
