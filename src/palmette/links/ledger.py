"""What crossed each link: exchanges and bytes of payload, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from palmette.links.sparse import Sparse


@dataclass
class Traffic:
    """The traffic of one link; the link is named by the tier of the parents that ask on it."""

    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def add(self, exchanges: int, down: int, up: int) -> None:
        """Count some more."""
        self.exchanges += exchanges
        self.bytes_down += down
        self.bytes_up += up


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
            total.setdefault(tier, Traffic()).add(entry.exchanges, entry.bytes_down, entry.bytes_up)
        return total

    def rows(self) -> Iterator[dict[str, int]]:
        """Yield the entries as flat records, in order."""
        for (round_, tier), entry in sorted(self.entries.items()):
            yield {
                "round": round_,
                "tier": tier,
                "exchanges": entry.exchanges,
                "bytes_up": entry.bytes_up,
                "bytes_down": entry.bytes_down,
            }


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
