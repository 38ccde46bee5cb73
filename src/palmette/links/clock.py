"""A clock that no machine has: how long devices compute and messages travel, in whole nanoseconds, the same everywhere.

Every node has a time of its own. A message that a node sends at its time t reaches a child after the latency of the link and
the bytes it takes; the child begins when it has ended what it did before, and its reply travels back the same way. The asking
node goes on when the last reply that it waits for is there. Whole numbers make the order of sums irrelevant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from palmette import address
from palmette.errors import PalmetteError
from palmette.links.amounts import Amount
from palmette.tree import Tree

SECOND = 1_000_000_000  # nanoseconds
_LONGEST = 2**58  # nanoseconds of one message or one piece of work: nine years
_END = 2**62  # nanoseconds; a century and a half. Some messages more are still no overflow


@dataclass(frozen=True)
class Pace:
    """How fast devices compute.

    Attributes:
        step: Seconds of one gradient step of a device of speed 1.
        speeds: How fast each device is: one of speed 2 takes half the time.
    """

    step: float = 0.01
    speeds: Amount = field(default_factory=lambda: Amount(one=1.0))

    def duration(self, tree: Tree, ids: Tensor, steps: Tensor, seed: int, round_: int, exchange: Tensor) -> Tensor:
        """Return the nanoseconds that some devices take for some gradient steps each."""
        where = address.key(seed, "speed")
        speed = self.speeds.of(tree, 0, ids, 1.0, where, exchange, round_)
        return whole(steps.to(torch.float64) * self.step / speed)


@dataclass(frozen=True)
class Line:
    """How long messages take between a node and its parent.

    Attributes:
        latency: Seconds from one end to the other.
        bandwidth: Bytes a second; 0 for no limit.
    """

    latency: Amount = field(default_factory=Amount)
    bandwidth: Amount = field(default_factory=Amount)

    def delay(
        self, tree: Tree, tier: int, ids: Tensor, length: Tensor, seed: int, round_: int, exchange: Tensor
    ) -> Tensor:
        """Return the nanoseconds that messages of some bytes take between some nodes and their parents."""
        late, width = address.key(seed, "latency", tier), address.key(seed, "bandwidth", tier)
        seconds = self.latency.of(tree, tier, ids, 0.0, late, exchange, round_)
        speed = self.bandwidth.of(tree, tier, ids, 0.0, width, exchange, round_)
        seconds = seconds + torch.where(speed > 0, length.to(torch.float64) / speed.clamp(min=1e-300), 0.0)
        return whole(seconds)


def whole(seconds: Tensor) -> Tensor:
    """Return seconds as whole nanoseconds, at most nine years."""
    return (seconds * SECOND).clamp(max=float(_LONGEST)).round().to(torch.int64)


def check_end(time: int) -> None:
    """Refuse to go on where the clock would soon have no numbers left."""
    if time > _END:
        raise PalmetteError(
            "a century has passed on the simulated clock, which is as far as it goes: lower latency, clock.step or the rounds, "
            "or raise bandwidth and clock.speeds"
        )


Times = Callable[[Tensor], Tensor]
"""The own times of some nodes, by their numbers."""
