"""What crossed each link: exchanges, bytes of payload and replies that did not enter, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from palmette.links.record import REASONS
from palmette.links.sparse import Sparse


@dataclass
class Traffic:
    """The traffic of one link; the link is named by the tier of the parents that ask on it.

    Bytes are those of encoded payload, down to everybody that was asked, up from those whose replies entered.

    Attributes:
        exchanges: Asks of a parent with their replies.
        bytes_down: Bytes of messages.
        bytes_up: Bytes of replies.
        no_answer: Children that were asked and did not answer.
        away: Children that were asked while they were away.
        lost: Replies that were lost.
        late: Replies that came too late.
        corrupt: Replies that were damaged.
        not_finite: Replies that were dropped because they were NaN or infinite.
        repeated: Replies that came twice.
        time: The latest time of a parent on the clock, in nanoseconds.
    """

    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    no_answer: int = 0
    away: int = 0
    lost: int = 0
    late: int = 0
    corrupt: int = 0
    not_finite: int = 0
    repeated: int = 0
    time: int = 0

    def add(self, exchanges: int, down: int, up: int) -> None:
        """Count some more."""
        self.exchanges += exchanges
        self.bytes_down += down
        self.bytes_up += up

    def miss(self, reasons: Sequence[int]) -> None:
        """Count replies that did not enter, by the numbers of each of `REASONS`."""
        for word, count in zip(REASONS[1:], reasons[1:], strict=True):
            name = word.replace(" ", "_")
            setattr(self, name, getattr(self, name) + count)

    def join(self, other: Traffic) -> None:
        """Count what another counted; of two times the later one."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.time = max(self.time, other.time)

    @property
    def missing(self) -> dict[str, int]:
        """How many replies did not enter, by reason, where there are some."""
        found = {word: getattr(self, word.replace(" ", "_")) for word in REASONS[1:]}
        return {word: count for word, count in found.items() if count}


COUNTS = tuple(one.name for one in fields(Traffic) if one.name != "time")
_FIRST = ("exchanges", "bytes_up", "bytes_down")
COLUMNS = ("round", "tier", *_FIRST, *(one.name for one in fields(Traffic) if one.name not in _FIRST))
"""The columns of a ledger's rows."""


@dataclass
class Ledger:
    """All traffic of a run by (round, tier)."""

    entries: dict[tuple[int, int], Traffic] = field(default_factory=dict)

    def at(self, round_: int, tier: int) -> Traffic:
        """Return the entry of one link in one round, to be added to."""
        return self.entries.setdefault((round_, tier), Traffic())

    def totals(self) -> dict[int, Traffic]:
        """Return the run's traffic by tier."""
        total: dict[int, Traffic] = {}
        for (_, tier), entry in sorted(self.entries.items()):
            total.setdefault(tier, Traffic()).join(entry)
        return dict(sorted(total.items()))

    def rows(self) -> Iterator[dict[str, int]]:
        """Yield the entries as flat records, in order; see `COLUMNS`."""
        for (round_, tier), entry in sorted(self.entries.items()):
            yield {"round": round_, "tier": tier, **{name: getattr(entry, name) for name in COLUMNS[2:]}}

    @staticmethod
    def of(rows: Iterable[Mapping[str, int]]) -> Ledger:
        """Make a ledger of its rows; what a row does not name is none."""
        made = Ledger()
        for row in rows:
            counts = {name: value for name, value in row.items() if name not in ("round", "tier")}
            made.entries[row["round"], row["tier"]] = Traffic(**counts)
        return made


def table_of(ledger: Ledger) -> Tensor:
    """Return a ledger as a table; see `COLUMNS`."""
    return torch.tensor([list(row.values()) for row in ledger.rows()], dtype=torch.int64).reshape(-1, len(COLUMNS))


def ledger_of(table: Tensor) -> Ledger:
    """Return the ledger of a table."""
    return Ledger.of(dict(zip(COLUMNS, row, strict=True)) for row in table.tolist())


def joined(tables: Sequence[Tensor]) -> Tensor:
    """Return the table of several ledgers together."""
    whole = Ledger()
    for table in tables:
        for (round_, tier), entry in ledger_of(table).entries.items():
            whole.at(round_, tier).join(entry)
    return table_of(whole)


def payload(value: Any) -> int:
    """Return the bytes one child's copy of a message takes: its row of every tensor, 8 per plain number."""
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.nbytes // value.shape[0] if value.shape[0] else 0
    if isinstance(value, Mapping):
        return sum(payload(part) for part in value.values())
    return 8


def total_payload(value: Any, lines: Tensor | None, count: int) -> int:
    """Return the bytes of a message's copies for several children, whose encodings may differ in length.

    Args:
        value: Rows, sparse rows, a mapping of names to such rows and numbers, or nothing.
        lines: For each child, the line that it is sent; ``None`` where every line goes to one child.
        count: How many children.
    """
    if isinstance(value, Sparse):
        sizes = value.sizes()
        return int((sizes if lines is None else sizes[lines]).sum())
    if isinstance(value, Mapping):
        return sum(total_payload(part, lines, count) for part in value.values())
    return payload(value) * count
