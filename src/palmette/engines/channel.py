"""The way from a machine to its children and back: what a transport must offer, and queues within one process."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Protocol

from palmette.errors import PalmetteError

Mail = tuple[int, bytes | BaseException | None]
"""From which child, and what: a message, an error of its program, or ``None``: the connection to it is lost."""


class Children(Protocol):
    """The way to the children of one machine, which are numbered from 0."""

    def send(self, child: int, data: bytes) -> bool:
        """Send a message to a child; return whether it is connected. The same bytes may go to many."""

    def receive(self, seconds: float | None) -> Mail | None:
        """Wait for what comes next, so long at most; ``None`` where nothing came."""


class Queues:
    """Children in the same process, a queue to each and one from all of them.

    Attributes:
        inboxes: The children's queues.
        returns: What comes from them; ``None`` says that nothing more will.
    """

    def __init__(self) -> None:
        self.inboxes: dict[int, SimpleQueue[bytes | None]] = {}
        self.returns: SimpleQueue[Mail | None] = SimpleQueue()

    def send(self, child: int, data: bytes) -> bool:
        """Put a message into a child's queue; it is always there."""
        self.inboxes[child].put(data)
        return True

    def receive(self, seconds: float | None) -> Mail | None:
        """Wait for what comes next."""
        try:
            mail = self.returns.get(timeout=seconds)
        except Empty:
            return None
        if mail is None:
            raise PalmetteError("the training ended while a node waited for its children")
        return mail
