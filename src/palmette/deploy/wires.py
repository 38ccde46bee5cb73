"""The children of a node over the network, numbered as its machine numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty

from palmette.deploy.below import Below
from palmette.deploy.kit import Place
from palmette.engines.channel import Mail
from palmette.errors import PalmetteError


class Wires:
    """The way to children on machines of their own.

    Args:
        below: The end of the links.
        children: The children, in their order.
    """

    def __init__(self, below: Below, children: Sequence[Place]) -> None:
        self._below = below
        self._ids = [child.id for child in children]
        self._number = {id_: number for number, id_ in enumerate(self._ids)}

    def add(self, id_: str) -> None:
        """Number one more child, the last one."""
        self._number[id_] = len(self._ids)
        self._ids.append(id_)

    def send(self, child: int, data: bytes) -> bool:
        """Queue a message to a child; return whether it is connected."""
        return self._below.send(self._ids[child], data)

    def receive(self, seconds: float | None) -> Mail | None:
        """Wait for what comes next."""
        while True:
            try:
                sender, data = self._below.mail.get(timeout=seconds) if seconds != 0 else self._below.mail.get_nowait()
            except Empty:
                return None
            if not sender:
                raise PalmetteError("the node was told to stop")
            if (number := self._number.get(sender)) is not None:
                return number, data
