"""Columns that say which rows are for testing: by a word, or by time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from palmette.tables import columns
from palmette.tables.meaning import Flags, Understood
from palmette.tables.source import Table
from palmette.tables.survey import SHOWN, Column
from palmette.values import shown

_TRAIN, _TEST = {"train", "training"}, {"test", "testing"}


class Split:
    """Collects a column that says which rows are for training and which for testing."""

    def __init__(self) -> None:
        self._test: list[Flags] = []
        self._wrong: list[tuple[int, str]] = []
        self._count = 0

    def add(self, array: Any, begin: int) -> None:
        """Take in the next cells; ``begin`` rows are before them."""
        words = [None if word is None else word.lower() for word in columns.names(array).to_pylist()]
        self._test.append(np.array([word in _TEST for word in words], dtype=bool))
        wrong = [(begin + row, str(word)) for row, word in enumerate(words) if word not in _TEST and word not in _TRAIN]
        self._count += len(wrong)
        self._wrong += wrong[: SHOWN - len(self._wrong)]

    def flags(self, found: Understood, table: Table) -> Flags:
        """Return which rows are for testing; words that are neither are told."""
        name = found.how.split
        for row, word in self._wrong:
            found.findings.problem(
                f"it says {shown(word)}, not train or test", table.where(row), name, found.device_of(row)
            )
        if self._count > len(self._wrong):
            found.findings.problem(
                f"{self._count - len(self._wrong):,} more rows say neither train nor test", None, name
            )
        flags = np.concatenate(self._test)
        if not self._wrong and not flags.any():
            found.findings.problem("no row is for testing", None, name)
        return flags


class Moments:
    """Collects a column that says when a row was made: numbers, dates like 2024-05-31, or dates that end in the year.

    Of these the day or the month may come first; a day above 12 somewhere in the column tells which.
    """

    def __init__(self) -> None:
        self._ways: dict[str, list[NDArray[np.float64] | None]] = {"year": [], "day": [], "month": []}

    def add(self, array: Any) -> None:
        """Take in the next cells."""
        values = columns.numbers(array)
        ways = [values] * 3 if np.isnan(values).all() else [values, None, None]
        if (
            columns.family(array.type) == "text"
            and np.isnan(values[array.is_valid().to_numpy(zero_copy_only=False)]).any()
        ):
            ways = [columns.moments(array), *(columns.turned_moments(array, order) for order in ("%d.%m", "%m.%d"))]
        for parts, found in zip(self._ways.values(), ways, strict=True):
            parts.append(found)

    @property
    def first(self) -> list[str]:
        """What may come first in its dates: the year (also for numbers), the day or the month; of these two perhaps both."""
        fit = [first for first, parts in self._ways.items() if all(part is not None for part in parts)]
        return fit[:1] if "year" in fit else fit

    def all(self, found: Understood) -> NDArray[np.float64]:
        """Return the time of every row; what is no time is told."""
        name, first = found.how.time, self.first
        moments = np.concatenate(
            [part for part in self._ways[(first or ["year"])[0]] if part is not None] or [np.zeros(0)]
        )
        if len(first) == 2:
            text = (
                "the day or the month may come first in its dates, and no day is above 12; write them like 2024-05-31"
            )
            found.findings.problem(text, None, name)
        elif not first:
            found.findings.problem(
                "the time must be a number or a date like 2024-05-31 or 2024-05-31 12:30; write it so first", None, name
            )
        elif np.isnan(moments[found.keep]).any():
            found.findings.problem("the time of a row is missing; fill it in", None, name)
        elif first != ["year"] and name is not None:
            example = next(iter(found.columns[name].texts))
            found.findings.notes.append(
                f"column {name!r}: its dates are read with the {first[0]} first, as in {example!r}"
            )
        return moments


def is_time(column: Column) -> bool:
    """Return whether the texts of a column say when a row was made, as far as they were kept."""
    moments = Moments()
    moments.add(pa.array(list(column.texts), pa.string()))
    return len(moments.first) == 1
