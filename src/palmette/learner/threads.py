"""Torch's own threads, kept out of the way of ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_inside, _entered = threading.Lock(), {"count": 0, "threads": 1}


@contextmanager
def one_thread_inside() -> Iterator[None]:
    """Keep torch from splitting one operation over threads: chunks are the unit of parallelism.

    Simulations in several threads share the setting: the first to enter sets it, the last to leave puts it back.
    """
    with _inside:
        if _entered["count"] == 0:
            _entered["threads"] = torch.get_num_threads()
            torch.set_num_threads(1)
        _entered["count"] += 1
    try:
        yield
    finally:
        with _inside:
            _entered["count"] -= 1
            if _entered["count"] == 0:
                torch.set_num_threads(_entered["threads"])
