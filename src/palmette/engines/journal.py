"""What nodes kept before a message, so that those whose reply did not enter go back to it, with everything below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from palmette.engines.store import Before, Store
from palmette.links.office import Counters
from palmette.links.record import Record
from palmette.tree import Tree


class Journal:
    """Notes what the stores of some tiers held before they were written to, from when it was opened.

    Args:
        tree: The tree.
        tier: The tier whose nodes work on a message; it and all tiers below are watched.
        stores: The stores of a tier that there are now.
        counters: For each tier, what its nodes count.
        record: The record of absences.
    """

    def __init__(
        self,
        tree: Tree,
        tier: int,
        stores: Callable[[int], list[Store]],
        counters: Sequence[Counters],
        record: Record,
    ) -> None:
        self._tree, self._tier, self._stores, self._counters, self._record = tree, tier, stores, counters, record
        self._before = [counter.table.clone() for counter in counters[: tier + 1]]
        self._written = len(record)
        self._notes: dict[Store, list[Before]] = {store: [] for at in range(tier + 1) for store in stores(at)}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Watch the stores."""
        for store, notes in self._notes.items():
            store.watch(notes)
        try:
            yield
        finally:
            for store, notes in self._notes.items():
                store.unwatch(notes)

    def undo(self, ids: Tensor) -> None:
        """Put back what some nodes of the tier, and all below them, kept when the journal was opened."""
        gone = torch.zeros(self._tree.size(self._tier), dtype=torch.bool)
        gone[ids] = True
        below: dict[int, Tensor] = {}
        for at in range(self._tier + 1):
            mine = gone[torch.from_numpy(self._tree.ancestors(self._tier, at))]
            below[at + 1] = mine
            self._counters[at].table[:, mine] = self._before[at][:, mine]
            for store in self._stores(at):
                # One that was made since held nothing then.
                store.put_back(self._notes[store], mine) if store in self._notes else store.forget(mine)
        # That the nodes themselves are absent is written by the tier above, after this.
        self._record.strike(self._written, {asking: mine for asking, mine in below.items() if asking <= self._tier})
