"""Ctrl-C and SIGTERM, while something is under way that is to end well."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hearing(stop: Callable[[], None], pause: float = 0.0) -> Iterator[None]:
    """Call a function at every Ctrl-C and SIGTERM; they reach the main thread only, so elsewhere nothing changes.

    Args:
        stop: The function.
        pause: Seconds within which a second one is taken for the first: torchrun passes on what its processes heard already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    heard = -math.inf

    def handle(number: int, frame: Any) -> None:
        nonlocal heard
        before, heard = heard, time.monotonic()
        if heard - before >= pause:
            stop()

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
