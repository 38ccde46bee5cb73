"""Columns that say which rows are for testing: by a word, or by time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.tables import columns
from palmette.tables.meaning import Flags, Understood
from palmette.tables.source import Table
from palmette.tables.survey import SHOWN
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
    """Collects a column that says when a row was made."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.float64]] = []
        self._bad = False

    def add(self, array: Any) -> None:
        """Take in the next cells."""
        values = columns.numbers(array)
        if (
            columns.family(array.type) == "text"
            and np.isnan(values[array.is_valid().to_numpy(zero_copy_only=False)]).any()
        ):
            dates = columns.moments(array)
            self._bad |= dates is None
            values = values if dates is None else dates
        self._parts.append(values)

    def all(self, found: Understood) -> NDArray[np.float64]:
        """Return the time of every row; what is no time is told."""
        moments = np.concatenate(self._parts)
        if self._bad:
            found.findings.problem(
                "the time must be a number or a date like 2024-05-31 or 2024-05-31 12:30; write it so first",
                None,
                found.how.time,
            )
        elif np.isnan(moments[found.keep]).any():
            found.findings.problem("the time of a row is missing; fill it in", None, found.how.time)
        return moments
