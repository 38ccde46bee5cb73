"""A link, the connections between two tiers: who is asked, how messages are encoded and timed, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.links.away import Away
from palmette.links.clock import SECOND, Line
from palmette.links.codecs import Codec
from palmette.links.participation import Participation
from palmette.links.record import AWAY, CORRUPT, LATE, LOST, NO_ANSWER, Absences
from palmette.protocol import Node
from palmette.tree.segments import SegmentMean

Aggregate = Callable[[Tensor, int, Tensor | None, Tensor | None], SegmentMean]
"""Makes what replies are reduced by, given each child's parent, the number of parents, weights and numbers of children."""


class Guard(Protocol):
    """What a child does to its reply before it is encoded and sent: clipping, noise, the mask of a secure sum."""

    def guarded(self, rows: Tensor, where: Tensor) -> Tensor:
        """Return the rows to send in place of rows.

        Args:
            rows: One row for each child; they never look at each other.
            where: For each child the address (int64) under which it may draw random numbers for this reply.
        """


@dataclass(frozen=True)
class Faults:
    """What goes wrong on a link. A reply that does not enter leaves no trace in its sender: it goes on from where it was.

    Attributes:
        lost: Chance that a reply is lost on its way; its sender has worked for nothing.
        late: Chance that a reply comes after its parent went on without it.
        corrupt: Chance that a reply arrives damaged; its checksum tells, and it is dropped.
        repeated: Chance that a reply arrives twice, and out of order; the copy changes nothing and is counted.
        deadline: Seconds of the clock after which a parent goes on without those that have not answered.
        away: When nodes are away.
        drop_bad: Whether a reply that is not finite (NaN or infinite) is dropped, in place of ending the run.
    """

    lost: float = 0.0
    late: float = 0.0
    corrupt: float = 0.0
    repeated: float = 0.0
    deadline: float | None = None
    away: Away | None = None
    drop_bad: bool = False

    def __post_init__(self) -> None:
        for name in ("lost", "late", "corrupt", "repeated"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if self.deadline is not None and not 0 < self.deadline < 1e9:
            raise BadInput(f"deadline must be above 0 seconds and below 1e9, not {self.deadline}")

    @property
    def drops(self) -> bool:
        """Whether a reply may not enter though its sender has worked."""
        return bool(self.lost or self.late or self.corrupt or self.deadline is not None or self.drop_bad)


@dataclass(frozen=True)
class Link:
    """How one link (the connections between two tiers) behaves.

    Attributes:
        participation: How many of a parent's children are asked each time.
        loss: Chance that a child that was asked does not answer; it has not worked.
        absences: A function that decides who does not answer, for tests and replays.
        barred: Which nodes of the lower tier are never asked (bool); they are kept out of training.
        faults: What goes wrong with replies, and who is away when.
        down: How messages to the children are encoded.
        up: How replies are encoded.
        line: How long messages take.
        guards: What children do to replies before they are sent.
        aggregate: How replies are reduced to a mean.
    """

    participation: Participation = field(default_factory=Participation)
    loss: float = 0.0
    absences: Absences | None = None
    barred: Tensor | None = None
    faults: Faults = Faults()
    down: Codec = field(default_factory=Codec)
    up: Codec = field(default_factory=Codec)
    line: Line = field(default_factory=Line)
    guards: tuple[Guard, ...] = ()
    aggregate: Aggregate = SegmentMean

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise BadInput(f"loss must be at least 0 and below 1, not {self.loss}")

    @cached_property
    def encodes(self) -> bool:
        """Whether rows arrive as anything else than they are."""
        return not (self.down.plain and self.up.plain)

    @property
    def certain(self) -> bool:
        """Whether everybody that is asked answers, and every reply enters, once."""
        faults = self.faults
        silent = self.loss or self.absences is not None or faults.away is not None
        return not (silent or faults.drops or faults.repeated)

    def absent(self, node: Node, exchange: Tensor, asked: Tensor, time: Tensor) -> Tensor:
        """Return why some of the asked children do not answer, before anybody works: places in `REASONS`, 0 for those that do.

        Args:
            node: The asking stack.
            exchange: For each asked child, the number of its parent's exchange within the round.
            asked: Their positions in `Node.child_ids`.
            time: For each, the time of its parent.
        """
        reason = torch.zeros(len(asked), dtype=torch.int8)
        if self.absences is not None:
            reason[self.absences(node.round, node.tier, exchange, node.child_ids[asked])] = NO_ANSWER
        if self.loss:
            reason[self.draw("loss", node, exchange, asked) < self.loss] = NO_ANSWER
        if self.faults.away is not None and self.absences is None:
            ids, seconds = node.child_ids[asked], time.to(torch.float64) / SECOND
            reason[self.faults.away.gone(node.tree, node.tier - 1, ids, node.seed, node.round, seconds)] = AWAY
        return reason

    def fate(self, node: Node, exchange: Tensor, asked: Tensor) -> Tensor:
        """Return what happens to the replies of some children on their way: places in `REASONS`, 0 where nothing does."""
        reason = torch.zeros(len(asked), dtype=torch.int8)
        faults = self.faults
        for word, chance, code in (
            ("late", faults.late, LATE),
            ("corrupt", faults.corrupt, CORRUPT),
            ("lost", faults.lost, LOST),
        ):
            if chance:
                reason[self.draw(word, node, exchange, asked) < chance] = code
        return reason

    def repeats(self, node: Node, exchange: Tensor, asked: Tensor) -> Tensor:
        """Return which of some children's replies arrive twice (bool)."""
        return self.draw("repeated", node, exchange, asked) < self.faults.repeated

    @staticmethod
    def draw(word: str, node: Node, exchange: Tensor, asked: Tensor) -> Tensor:
        """Return a random number in [0, 1) for each asked child."""
        base = address.mix(address.key(node.seed, word, node.round, node.tier), exchange)
        return address.uniform(address.mix(base, node.child_addresses[asked]))
