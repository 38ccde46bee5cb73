"""One thread with an asyncio loop for all ends of a process: `grpc.aio` disturbs itself with several loops in one process."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
_starting = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process, running in a daemon thread; started by the first who asks."""
    with _starting:
        return _started()


def wait_for(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run a coroutine in the loop's thread and return its result; never to be called from that thread."""
    return asyncio.run_coroutine_threadsafe(work, loop()).result(timeout)


@cache
def _started() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, name="palmette-links", daemon=True)
    thread.start()
    atexit.register(_stop, made, thread)
    return made


def _stop(made: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop the thread before Python takes itself apart under it."""
    made.call_soon_threadsafe(made.stop)
    thread.join(2)
    if not thread.is_alive():
        made.close()
