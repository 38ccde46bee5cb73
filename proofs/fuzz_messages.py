"""Messages of the wire: the codecs' own fuzz where it is there, else damaged copies of good messages."""

from __future__ import annotations

import importlib
import importlib.util
import random
from pathlib import Path

import torch
from fuzz_damage import scratched
from safetensors import SafetensorError

from palmette.links.wire import decode, encode


def case(luck: random.Random, place: Path) -> str:
    """Run one case of `fuzz_wire`, which comes with the codecs."""
    if importlib.util.find_spec("fuzz_wire") is not None:
        return f"{importlib.import_module('fuzz_wire').case(luck)}"
    return _damaged(luck)


def _damaged(luck: random.Random) -> str:
    """Decode a damaged message; this reader has no error of its own yet, and is to be dropped when it has."""
    from palmette.links import wire

    body = {"x": torch.zeros(1, luck.choice((1, 9))), "steps": 3}
    data = encode(wire.Envelope(1, 2, 3, 4, body))
    try:
        decode(scratched(luck, data))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError, OverflowError):
        return "refused"
    return "read"
