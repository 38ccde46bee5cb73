"""What the codecs of a link remember of every child, in the simulator: one copy for both ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from palmette.engines.store import Store

Make = Callable[[str, int, Mapping[str, Tensor], Path | None, str], Store]


def _plain(key: str, size: int, initial: Mapping[str, Tensor], folder: Path | None, prefix: str) -> Store:
    return Store(size, initial, folder, prefix=prefix)


class LinkMemory:
    """Rows of every node of a tier by what they are of: direction, part of the message, shape and type.

    Args:
        size: Number of nodes.
        folder: Where files of the rows lie; ``None`` keeps them in memory.
        tier: The nodes' tier, for the files' names.
        make: Makes the store of one kind of rows, given its key, number of nodes, initial rows, folder and the files' prefix.
    """

    def __init__(self, size: int, folder: Path | None = None, tier: int = 0, make: Make | None = None) -> None:
        self._size, self._folder, self._tier = size, folder, tier
        self._make = make or _plain
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
        zeros = {name: torch.zeros_like(row) for name, row in initial.items()}
        store = self._make(key, self._size, zeros, self._folder, f"store-{self._tier}-link-{len(self.stores)}")
        store.prepare()
        self.stores[key] = store
        return store
