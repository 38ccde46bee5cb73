"""The first look at a table: what every column holds, cell by cell, without keeping it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from palmette.tables import columns
from palmette.tables.columns import Floats

MOST = 10_000  # different texts of a column that are counted
SHOWN = 5  # rows that are named of those with the same problem
_MIXED = 0.8  # the part of a column's cells that must be numbers for its texts to be mistakes


@dataclass
class Column:
    """What a column holds.

    Attributes:
        name: Its name.
        decimal: Whether a comma within a number can only be a decimal comma.
        rows: Cells that were looked at.
        missing: Cells without a value.
        numbers: Cells that are numbers.
        commas: Cells that are numbers with a decimal comma.
        dates: Cells that are dates.
        infinite: Cells that are infinite.
        whole: Whether all numbers are whole.
        rising: Whether every number is larger than the one before.
        seen: The first numbers, as long as all are whole and different; no more than `MOST`.
        low: The smallest number.
        high: The largest number.
        texts: How often each text occurs; no more than `MOST` are counted.
        first: The first rows with a missing cell, an infinite one, and one that is no number, each with the cell.
        odd: A type that is neither numbers, texts nor dates.
    """

    name: str
    decimal: bool = False
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    commas: int = 0
    dates: int = 0
    infinite: int = 0
    whole: bool = True
    rising: bool = True
    seen: set[float] | None = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf
    texts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {"missing": [], "infinite": [], "text": []})
    odd: str = ""

    def add(self, array: Any, begin: int) -> None:
        """Look at the next cells.

        Args:
            array: The cells, from `columns.plain`.
            begin: Rows before them.
        """
        count, kind = len(array), columns.family(array.type)
        self.rows += count
        gone = array.null_count
        self.missing += gone
        if gone:
            self._note("missing", np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)) + begin)
        if kind == "other":
            self.odd = str(array.type)
        elif kind == "date":
            self.dates += count - gone
            self._count(array.cast("string"))
        elif kind == "text":
            self._texts(array, begin)
        elif kind != "nothing":
            self.numbers += count - gone
            self._numbers(columns.numbers(array), begin)

    def _texts(self, array: Any, begin: int) -> None:
        values = columns.numbers(array)
        other = array.is_valid().to_numpy(zero_copy_only=False) & np.isnan(values)
        found = int(other.sum())
        self.numbers += len(array) - array.null_count - found
        if not found:
            self._numbers(values, begin)
            return
        rest = array.filter(other)
        commas = columns.is_number(array, comma=True).to_numpy(zero_copy_only=False)
        self.commas += int(commas.sum())
        self._numbers(np.where(commas, columns.numbers(array, comma=True), values), begin)
        self.dates += int(pc.sum(columns.is_date(rest)).as_py() or 0)
        self._count(rest)
        rows = np.flatnonzero(other & ~commas if self.decimal else other)[:SHOWN]
        room = SHOWN - len(self.first["text"])
        self.first["text"] += [(int(row) + begin, str(array[int(row)])) for row in rows[:room]]

    def _count(self, texts: Any) -> None:
        if len(self.texts) > MOST:
            return
        for entry in pc.value_counts(texts.drop_null()).to_pylist():
            self.texts[entry["values"]] = self.texts.get(entry["values"], 0) + entry["counts"]

    def _numbers(self, values: Floats, begin: int) -> None:
        endless = np.isinf(values)
        if endless.any():
            self.infinite += int(endless.sum())
            self._note("infinite", np.flatnonzero(endless) + begin)
        known = values[np.isfinite(values)]
        if not len(known):
            return
        self.rising = self.rising and bool(known[0] > self.high) and bool((known[1:] > known[:-1]).all())
        self.whole = self.whole and bool((known == np.floor(known)).all())
        self._differ(known)
        self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))

    def _differ(self, known: Floats) -> None:
        if self.seen is None or len(self.seen) == MOST:
            return
        some = known[: MOST - len(self.seen)].tolist()
        more = self.seen | set(some)
        self.seen = more if self.whole and len(more) == len(self.seen) + len(some) else None

    def _note(self, what: str, rows: Any) -> None:
        room = SHOWN - len(self.first[what])
        self.first[what] += [(int(row), "") for row in rows[:room]]

    @property
    def known(self) -> int:
        """Cells with a value."""
        return self.rows - self.missing

    @property
    def strange(self) -> int:
        """Cells with a value that is no number."""
        return self.known - self.numbers - (self.commas if self.decimal else 0)

    @property
    def kind(self) -> str:
        """What the column is: ``number``, ``comma``, ``date``, ``text``, ``mixed``, ``empty`` or ``other``."""
        if self.odd:
            return "other"
        if not self.known:
            return "empty"
        if self.numbers == self.known:
            return "number"
        if self.commas and self.numbers + self.commas == self.known:
            return "comma"
        if self.dates == self.known:
            return "date"
        return "mixed" if self.known - self.strange >= _MIXED * self.known else "text"
