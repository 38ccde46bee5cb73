"""All that a machine of its own goes on from, and what the codecs of its links remember at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from palmette.links.office import Counters
from palmette.links.record import Record
from palmette.protocol import State


class Remembered:
    """What the codecs of a link remember at one end: rows by what they are of and by child."""

    def __init__(self, rows: Mapping[tuple[str, int], Mapping[str, Tensor]] | None = None) -> None:
        self.rows = dict(rows or {})

    def read(self, key: str, ids: Tensor, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what is remembered of some children; the initial rows where that is nothing yet."""
        found = [self.rows.get((key, child), initial) for child in ids.tolist()]
        return {name: torch.stack([rows[name] for rows in found]) for name in initial}

    def write(self, key: str, ids: Tensor, kept: Mapping[str, Tensor], round_: int) -> None:
        """Remember new rows of some children."""
        for place, child in enumerate(ids.tolist()):
            self.rows[key, child] = {name: rows[place] for name, rows in kept.items()}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that a machine goes on from.

    Attributes:
        rows: What its programs keep.
        mine: What it counts.
        theirs: What it counts of its children.
        round: The round of the last message it worked on; -1 for none.
        above: What the codecs of the link above it remember at its end.
        below: What those of the link below it remember at its end.
        record: Who of its children was absent when.
        entered: By child, the number of the state it had reached with its reply that last entered here.
    """

    rows: State
    mine: Counters
    theirs: Counters
    round: int = -1
    above: Remembered = field(default_factory=Remembered)
    below: Remembered = field(default_factory=Remembered)
    record: Record = field(default_factory=Record)
    entered: dict[int, int] = field(default_factory=dict)

    def going_on(self, round_: int) -> Snapshot:
        """Return a copy to go on from in a round; rows are never written into and so are not copied."""
        mine = self.mine.copy()
        if round_ != self.round:
            mine.exchange.zero_()
        return replace(
            self,
            mine=mine,
            theirs=self.theirs.copy(),
            round=round_,
            above=Remembered(self.above.rows),
            below=Remembered(self.below.rows),
            record=self.record.copy(),
            entered=dict(self.entered),
        )
