"""What a table means, once it was looked through."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from palmette.tables.how import How
from palmette.tables.places import Path
from palmette.tables.problems import Findings
from palmette.tables.source import Table
from palmette.tables.survey import Column

Flags = NDArray[np.bool_]


@dataclass
class Understood:
    """What a table means.

    Attributes:
        how: How it was to be read.
        findings: What is wrong with it, and what was guessed.
        columns: What every column holds.
        kinds: What every feature becomes: ``number``, ``comma`` (a number), ``category`` or ``token``.
        classes: The names of the classes; ``None`` for regression.
        keep: Which rows are used.
        owner: The number in ``paths`` of every row's device.
        paths: The path of every device, from the top team down.
        test: Which rows are for testing, where a column says so.
        moment: The time of every row, where a column says so.
    """

    how: How
    findings: Findings
    columns: dict[str, Column]
    kinds: dict[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    keep: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    owner: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    paths: list[Path] = field(default_factory=list)
    test: Flags | None = None
    moment: NDArray[np.float64] | None = None

    def device_of(self, row: int) -> str | None:
        """Return the path of a row's device; ``None`` where it has a gap."""
        number = int(self.owner[row])
        return "/".join(self.paths[number]) if number >= 0 else None

    def each(self, table: Table, column: Column, what: str, count: int, text: str) -> None:
        """Tell of the first rows with a problem, and how many more there are.

        Args:
            table: The table.
            column: The column.
            what: Which of the rows in `Column.first`.
            count: How many cells have the problem.
            text: What to say; ``{cell}`` stands for the cell.
        """
        for row, cell in column.first[what]:
            told = text.format(cell=repr(cell))
            self.findings.problem(told, table.where(row), column.name, self.device_of(row))
        if count > len(column.first[what]):
            self.findings.problem(f"{count - len(column.first[what]):,} more rows have this problem", None, column.name)
