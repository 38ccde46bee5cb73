"""What the nodes of a tier keep between messages: named rows, written only where a node took part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from palmette.errors import ProtocolError
from palmette.protocol import State


class Store:
    """The state of all nodes of one tier.

    Memory is taken for the rows of nodes that took part; the others still have the initial row.

    Args:
        size: Number of nodes.
        initial: Initial row ``(width,)`` of every name.
    """

    def __init__(self, size: int, initial: Mapping[str, Tensor]) -> None:
        self.initial = dict(initial)
        self.rows = {name: _zeros(size, row) for name, row in initial.items()}
        self.last = torch.full((size,), -1, dtype=torch.int64)
        """The round in which each node last took part; -1 for never."""

    def read(self, ids: Tensor) -> State:
        """Return the rows of some nodes, as copies."""
        seen = self.last[ids] >= 0
        state = {}
        for name, rows in self.rows.items():
            part = rows.index_select(0, ids.to(rows.device))
            if not bool(seen.all()):
                part[(~seen).to(rows.device)] = self.initial[name]
            state[name] = part
        return state

    def write(self, ids: Tensor, state: State, round_: int) -> None:
        """Keep new rows of some nodes; ``ids`` ascend."""
        if state.keys() != self.rows.keys():
            raise ProtocolError(f"a program returned the state {sorted(state)} but declared {sorted(self.rows)}")
        # Chunks of devices are mostly neighbours, and a slice is copied several times faster than scattered rows.
        low, high = int(ids[0]), int(ids[-1]) + 1
        together = high - low == len(ids)
        for name, rows in state.items():
            if together:
                self.rows[name][low:high] = rows
            else:
                self.rows[name].index_copy_(0, ids.to(rows.device), rows)
        self.last[ids] = round_


def _zeros(size: int, row: Tensor) -> Tensor:
    """Make empty rows; numpy takes them from the system untouched, torch would write every page."""
    if row.device.type != "cpu":
        return row.new_zeros((size, *row.shape))
    return torch.from_numpy(np.zeros((size, *row.shape), dtype=row.numpy().dtype))
