"""Messages of the wire: made up, or good ones that are damaged, as `fuzz_wire` makes them."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz_wire
from fuzz_commands import Refused


def case(luck: random.Random, place: Path) -> str:
    """Read a message or a row of a codec."""
    end = fuzz_wire.case(luck)
    if end == "refused":
        raise Refused("a WireError of one line")
    return end
