"""Where rows and samples live: a compute device that torch can really use."""

from __future__ import annotations

from typing import Any

import torch

from palmette.errors import BadInput
from palmette.values import shown


def place(name: Any) -> torch.device:
    """Return the compute device of a name (``"cpu"``, ``"cuda"``, ``"cuda:1"``), or refuse one that cannot compute here."""
    told = f"device: this machine's torch cannot compute on {shown(name)}; leave it out to use the cpu"
    if isinstance(name, bool) or not isinstance(name, str | torch.device):
        raise BadInput(told)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ValueError):
        raise BadInput(told) from None
    return device
