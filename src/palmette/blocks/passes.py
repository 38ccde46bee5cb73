"""Passes over clients as rounds: everybody is drawn once per pass, some at a time; and what that costs a client."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What one client pays, as in Table 4 of the paper on GroupPerFL.

    Attributes:
        downloads: Models received: one in every round, whether the client is drawn or not.
        uploads: Models sent: one per pass begun; the paper does not count them.
        epochs: Local epochs.
    """

    downloads: int
    uploads: int
    epochs: int


@dataclass(frozen=True)
class Plan:
    """How many rounds the stages take.

    Attributes:
        first: Rounds of stage 1, over all clients.
        groups: For every group, its rounds of stage 2; empty where there is no such stage.
        pass_: Rounds of one pass of stage 1.
        group_pass: For every group, rounds of one pass of stage 2.
    """

    first: int
    groups: tuple[int, ...]
    pass_: int = 1
    group_pass: tuple[int, ...] = ()

    @staticmethod
    def of(clients: int, groups: tuple[int, ...], drawn: int, passes: int, group_passes: int) -> Plan:
        """Plan whole passes.

        Args:
            clients: How many there are.
            groups: How many there are in every group.
            drawn: How many are drawn in a round.
            passes: Passes over all.
            group_passes: Passes over every group.
        """
        each = tuple(-(-size // drawn) for size in groups)
        whole = -(-clients // drawn)
        return Plan(passes * whole, tuple(group_passes * one for one in each), whole, each)

    @property
    def rounds(self) -> int:
        """Rounds of both stages; the groups work side by side."""
        return self.first + max(self.groups, default=0)

    def within(self, rounds: int) -> Plan:
        """Return the plan for a run of another length: every stage that exists has at least one round while there are any."""
        second = max(self.groups, default=0)
        if rounds == self.rounds:
            return self
        if not second:
            return Plan(rounds, (), self.pass_)
        first = min(max(1, round(rounds * self.first / self.rounds)), max(1, rounds - 1))
        left = rounds - first
        groups = tuple(min(left, max(1, round(own * left / second))) for own in self.groups)
        return Plan(first, groups, self.pass_, self.group_pass)

    def costs(self, epochs: float, tuned: float = 0.0) -> list[Cost]:
        """Return what a client of each group pays; of anybody where there are no groups.

        Args:
            epochs: Local epochs of a client that is drawn.
            tuned: Local epochs at the end.
        """
        begun = math.ceil(self.first / self.pass_)
        seconds = [(own, math.ceil(own / one)) for own, one in zip(self.groups, self.group_pass, strict=True)]
        return [
            Cost(self.first + rounds, begun + passes, math.ceil((begun + passes) * epochs + tuned))
            for rounds, passes in seconds or [(0, 0)]
        ]
