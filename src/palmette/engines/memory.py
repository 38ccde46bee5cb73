"""What the codecs of a link remember of every child, in the simulator: one copy for both ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from palmette.engines.store import Store


class LinkMemory:
    """Rows of every node of a tier by what they are of: direction, part of the message, shape and type.

    Args:
        size: Number of nodes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.stores: dict[str, Store] = {}
        self._lock = threading.Lock()  # chunks of devices are computed by several threads

    def read(self, key: str, ids: Tensor, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what is remembered of some nodes; the initial rows where that is nothing yet."""
        with self._lock:
            if key not in self.stores:
                self.add(key, initial)
        return self.stores[key].read(ids)

    def write(self, key: str, ids: Tensor, kept: Mapping[str, Tensor], round_: int) -> None:
        """Remember new rows of some nodes, whose numbers ascend."""
        if len(ids):
            self.stores[key].write(ids, kept, round_)

    def add(self, key: str, initial: Mapping[str, Tensor]) -> Store:
        """Make room for rows of a kind that was not there yet."""
        store = Store(self._size, {name: torch.zeros_like(row) for name, row in initial.items()})
        store.prepare()
        self.stores[key] = store
        return store
