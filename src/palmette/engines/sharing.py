"""Who computes which chunk of an exchange, and who goes on with whose sum.

The chunks are those of one process. Neighbouring chunks form blocks, and the blocks go round the processes. A mean is summed
device after device, so a block goes on with the sum of the one before it: as children of one parent are neighbours, that is
the row of a single parent, the one whose children are in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

_WAITING = 1 << 28  # bytes of replies that may wait in a process until the sum that they are added to comes by


@dataclass(frozen=True)
class Block:
    """Neighbouring chunks that one process computes.

    Attributes:
        rank: The process.
        first: The number of its first chunk.
        chunks: The chunks, as places in the parcel.
    """

    rank: int
    first: int
    chunks: list[slice]

    @property
    def all(self) -> slice:
        """All its participants."""
        return slice(self.chunks[0].start, self.chunks[-1].stop)


def blocks_of(chunks: list[slice], processes: int, row_bytes: int) -> list[Block]:
    """Return the blocks of an exchange: one for each process, or several where their replies would take too much memory.

    Args:
        chunks: The chunks, in order.
        processes: How many processes there are.
        row_bytes: The bytes of one reply, about.
    """
    each = chunks[0].stop - chunks[0].start
    most = max(1, _WAITING // max(1, each * row_bytes))
    count = min(len(chunks), processes * -(-len(chunks) // (processes * most)))
    borders = [len(chunks) * at // count for at in range(count + 1)]
    return [Block(at % processes, low, chunks[low:high]) for at, (low, high) in enumerate(pairwise(borders))]


def homes_of(blocks: list[Block], trained: Tensor) -> Tensor:
    """Return the home of every device: the process that computes it when everybody takes part.

    Args:
        blocks: The blocks when everybody takes part.
        trained: Which devices may take part (bool); the others live with their neighbours.
    """
    homes = torch.cat([torch.full((block.all.stop - block.all.start,), block.rank) for block in blocks])
    place = (trained.cumsum(0) - 1).clamp(min=0)
    return homes[place]


class Shares:
    """An exchange cut up among processes.

    Args:
        blocks: The blocks.
        ids: The participants' numbers.
        parents: For each participant the position of its parent, ascending.
        homes: The home of every device.
    """

    def __init__(self, blocks: list[Block], ids: Tensor, parents: Tensor, homes: Tensor) -> None:
        self.blocks, self.ids, self.parents = blocks, ids, parents
        self._homes = homes[ids]

    def of(self, rank: int) -> list[Block]:
        """Return the blocks of one process."""
        return [block for block in self.blocks if block.rank == rank]

    def continues(self, number: int) -> bool:
        """Return whether a block goes on with the sum of the one before it."""
        low = self.blocks[number].all.start if number < len(self.blocks) else 0
        return low > 0 and int(self.parents[low - 1]) == int(self.parents[low])

    def number(self, block: Block) -> int:
        """Return the place of a block among all."""
        return self._numbers[block.first]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {block.first: number for number, block in enumerate(self.blocks)}

    def finished(self, block: Block) -> slice:
        """Return the parents whose sums are whole after a block, and not before."""
        last = int(self.parents[block.all.stop - 1])
        return slice(int(self.parents[block.all.start]), last + (not self.continues(self.number(block) + 1)))

    @cached_property
    def guests(self) -> dict[tuple[int, int], Tensor]:
        """By home and by the process that computes them, the participants that these are two for, ascending."""
        owner = torch.cat([torch.full((block.all.stop - block.all.start,), block.rank) for block in self.blocks])
        moved = owner != self._homes
        pairs = torch.stack([self._homes, owner], 1)[moved]
        return {
            (int(home), int(rank)): self.ids[moved][(pairs == torch.tensor([home, rank])).all(1)]
            for home, rank in pairs.unique(dim=0).tolist()
        }
