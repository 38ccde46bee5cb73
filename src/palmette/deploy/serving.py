"""``palmette serve``: run one node of a federation until the training is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from palmette.deploy.journal import Journal
from palmette.deploy.kit import Kit
from palmette.deploy.server import Server
from palmette.deploy.worker import Worker
from palmette.learner.threads import one_thread_inside


def serve(folder: Path, data: Path | None = None, aloud: Callable[[str], None] | None = None) -> str:
    """Run a node from its kit until the training is over or the process is told to stop; return where results are.

    Args:
        folder: The kit.
        data: Where a device's own samples are, where they were not dealt out.
        aloud: Is told every line of its log, too.
    """
    kit, stop = Kit(folder, data), threading.Event()
    journal = Journal(folder, aloud)
    for word in (signal.SIGINT, signal.SIGTERM):
        signal.signal(word, lambda *_: stop.set())
    node = Server(kit, journal) if kit.node.parent is None else Worker(kit, journal)
    journal.line(f"{kit.node.name!r} of the federation {kit.node.federation!r}, start {node.machine.starts}")
    with one_thread_inside():
        node.run(stop)
    return node.result if isinstance(node, Server) else ""
