"""Which devices take part, where devices are the data's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from palmette import address
from palmette.datasets.natural import left_out, smaller
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.values import whole


@dataclass(frozen=True)
class Selection:
    """A choice among the devices of data that have devices and teams of their own.

    Attributes:
        least: Least number of samples of a device; devices with fewer are left out.
        per_team: Number of devices kept in each team, chosen by the seed; by default all. Unseen devices count apart.
    """

    least: int = 2
    per_team: int | None = None

    def __post_init__(self) -> None:
        whole("least", self.least, 1)
        if self.per_team is not None:
            whole("per_team", self.per_team, 1)

    def apply(self, pool: Pool, seed: int) -> Pool:
        """Return the pool with the chosen devices only."""
        assert pool.tree is not None
        assert pool.start is not None
        sizes = np.diff(pool.start)
        keep = sizes >= self.least
        notes = left_out(sizes[~keep], f"fewer than {self.least:,} samples", setting=f"data.least = {self.least:,}")
        if self.per_team is not None:
            drawn = address.mix(address.key(seed, "selection"), torch.from_numpy(pool.tree.addresses[0])).numpy()
            new = np.zeros(len(sizes), dtype=bool) if pool.unseen is None else pool.unseen
            order = np.lexsort((drawn, ~keep, new, pool.tree.parents[0]))
            group = (pool.tree.parents[0] * 2 + new)[order]
            first = np.searchsorted(group, group)
            rank = np.empty(len(sizes), dtype=np.int64)
            rank[order] = np.arange(len(sizes)) - first
            keep &= rank < self.per_team
        trains = keep if pool.unseen is None else keep & ~pool.unseen
        # A team of unseen devices alone learns nothing.
        alone = keep & ~np.isin(pool.tree.parents[0], pool.tree.parents[0][trains])
        keep &= ~alone
        notes += left_out(sizes[alone], "no device that trains in the team")
        if not trains.any():
            raise BadInput(
                f"{pool.name} has no device with {self.least} samples (the largest has {int(sizes.max())}); lower least"
            )
        return pool if keep.all() else replace(smaller(pool, keep), notes=pool.notes + notes)
