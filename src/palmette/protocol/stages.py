"""The stages of a run: what an algorithm says of every round, counted once."""

from __future__ import annotations

from palmette.protocol.algorithm import Algorithm
from palmette.tree import Tree


class Stages:
    """Says of every round of a run which stage it belongs to, and how many rounds of that came before.

    Args:
        method: The algorithm.
        tree: The whole tree.
        rounds: Rounds of the run.
    """

    def __init__(self, method: Algorithm, tree: Tree, rounds: int) -> None:
        self._method, self._tree, self._rounds = method, tree, rounds
        self._last: tuple[int, int, int] | None = None  # the round that was asked for last, its stage and turn

    def at(self, round_: int) -> tuple[int, int]:
        """Return the stage of a round, and its turn within it."""
        if type(self._method).stage is Algorithm.stage:
            return 0, round_
        if self._last is None or self._last[0] > round_:
            self._last = 0, self._stage(0), 0
        at, stage, turn = self._last
        for after in range(at + 1, round_ + 1):
            now = self._stage(after)
            stage, turn = now, turn + 1 if now == stage else 0
        self._last = round_, stage, turn
        return stage, turn

    def _stage(self, round_: int) -> int:
        return self._method.stage(self._tree, round_, self._rounds)
