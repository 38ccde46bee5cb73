"""What nodes of a tier need to ask their children: the link, what they count, what its codecs remember, the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.links.link import Link
from palmette.links.post import Memory
from palmette.links.record import Record


class Counters:
    """What is counted of every node of a tier.

    Attributes:
        table: The counts below, ``(5, nodes)``, in one piece to be copied and put back.
        exchange: Exchanges that the node began within the round.
        turn: Exchanges that it began in all.
        time: Its time on the clock, in nanoseconds.
        steps: Gradient steps of a device whose reply entered, where replies may not.
        due: For a node at work for which its parent does not wait: when it will have ended, plus one; 0 for others.
    """

    def __init__(self, size: int) -> None:
        self.table = torch.zeros((5, size), dtype=torch.int64)
        self.exchange, self.turn, self.time, self.due, self.steps = self.table

    def copy(self) -> Counters:
        """Return the same counts as an object of their own."""
        other = Counters(self.table.shape[1])
        other.table.copy_(self.table)
        return other

    def widen(self, size: int) -> None:
        """Count more nodes from now on, which come after those that there are."""
        more = max(0, size - self.table.shape[1])
        self.table = torch.cat([self.table, self.table.new_zeros((len(self.table), more))], 1)
        self.exchange, self.turn, self.time, self.due, self.steps = self.table

    def next(self, ids: Tensor, asking: Tensor | None, *, again: bool = False) -> tuple[Tensor, Tensor]:
        """Return the numbers of the exchanges the nodes would begin, and count those of the nodes that do.

        An exchange with those that were drawn before (``again``) is nobody's turn.
        """
        where, by = ids.numpy(), 1 if asking is None else asking.numpy()
        # The same memory; numpy's small calls are cheaper.
        exchange, turn = self.exchange.numpy(), self.turn.numpy()
        before = exchange[where], turn[where]
        exchange[where], turn[where] = before[0] + by, before[1] + (0 if again else by)
        return torch.from_numpy(before[0]), torch.from_numpy(before[1])


Counted = Callable[[Tensor, Callable[[Tensor], int]], int]


def _counted_here(ids: Tensor, count: Callable[[Tensor], int]) -> int:
    return count(torch.arange(len(ids)))


@dataclass(frozen=True, eq=False)
class Office:
    """What nodes of a tier need to ask their children.

    Attributes:
        link: How the link to the children behaves.
        mine: What the asking nodes count.
        theirs: What is counted of the children.
        memory: What the link's codecs remember.
        record: Who was absent when.
        method: The algorithm's name, for errors.
        clocked: Whether there is a clock.
        counted: Counts something of some children, where what the codecs remember of them lies: it gives some of their places
            to a function, and returns the sum of what that returns.
    """

    link: Link
    mine: Counters
    theirs: Counters
    memory: Memory
    record: Record
    method: str = ""
    clocked: bool = False
    counted: Counted = _counted_here
