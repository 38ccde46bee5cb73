"""Who was absent when: the record of a run, and a run that repeats it.

A reply that did not enter (lost, late, damaged, or never sent) leaves no trace in its sender, so the states of a run depend on
its seed, its settings and this record alone: a run that is told who is absent, and loses nobody by itself, ends with the same
models. What happened below a node whose own reply did not enter is not in the record, because it did not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

REASONS: Final = ("", "no answer", "away", "lost", "late", "corrupt", "not finite")
"""Why a reply did not enter; the first stands for one that did."""
NO_ANSWER, AWAY, LOST, LATE, CORRUPT, BAD = range(1, 7)
COLUMNS: Final = ("round", "tier", "exchange", "node", "reason")
"""Of the record: the round (from 0), the asking tier, its node's exchange within the round, the child's number, the reason."""

Absences = Callable[[int, int, Tensor, Tensor], Tensor]
"""``(round, parents' tier, exchange of each child, child numbers) -> bool``: which of those asked never answer."""


class Record:
    """Who was absent when."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, round_: int, tier: int, exchange: Tensor, children: Tensor, reason: Tensor) -> None:
        """Write down who is absent from an exchange.

        Args:
            round_: The round.
            tier: The asking tier.
            exchange: For each child, the number of its parent's exchange within the round.
            children: Their numbers within their tier.
            reason: Why, as a place in `REASONS`.
        """
        same = torch.ones_like(children)
        self._parts.append(torch.stack([round_ * same, tier * same, exchange, children, reason.to(torch.int64)], 1))

    def copy(self) -> Record:
        """Return a record of its own to go on from; parts of it are replaced, never written into."""
        other = Record()
        other._parts = [*self._parts]
        return other

    def strike(self, since: int, below: Mapping[int, Tensor]) -> None:
        """Strike out what was written since a length, about some children.

        Args:
            since: The length of the record then.
            below: Which children of each asking tier (bool).
        """
        for at in range(since, len(self._parts)):
            part = self._parts[at]
            if len(part) and (gone := below.get(int(part[0, 1]))) is not None:
                self._parts[at] = part[~gone[part[:, 3]]]

    def table(self) -> Tensor:
        """Return all of it, ``(absences, 5)``: see `COLUMNS`."""
        if len(self._parts) != 1:
            self._parts = [torch.cat(self._parts) if self._parts else torch.zeros((0, len(COLUMNS)), dtype=torch.int64)]
        return self._parts[0]

    def since(self, round_: int) -> Tensor:
        """Return what was written in a round or later, as a table."""
        table = self.table()
        return table[table[:, 0] >= round_]

    def restore(self, table: Tensor, since: int = 0) -> None:
        """Go on from a table; what was written before a round stays."""
        before = self.table()
        self._parts = [torch.cat([before[before[:, 0] < since], table])]


def replay(table: Tensor) -> Absences:
    """Return who is absent by a record."""
    known = {}
    for round_, tier in {(int(row[0]), int(row[1])) for row in table}:
        there = table[(table[:, 0] == round_) & (table[:, 1] == tier)]
        known[round_, tier] = np.unique(_joined(there[:, 2], there[:, 3]))

    def absent(round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        listed = known.get((round_, tier))
        if listed is None:
            return torch.zeros(len(children), dtype=torch.bool)
        return torch.from_numpy(np.isin(_joined(exchange, children), listed))

    return absent


def _joined(exchange: Tensor, children: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return one number for an exchange and a child; trees have fewer than 2**31 nodes."""
    joined: np.ndarray[tuple[int], np.dtype[np.int64]] = (exchange * 2**31 + children).numpy()
    return joined
