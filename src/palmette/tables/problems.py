"""What is found in a table: problems that must be solved, warnings to think about, and notes of what was understood."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palmette.errors import BadInput

_TOLD = 8  # problems that an error message names


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where.

    Attributes:
        text: What is wrong and what to do, as a sentence.
        row: The row, as in ``"row 12 (line 13 of the file)"``.
        column: The column.
        device: The device.
    """

    text: str
    row: str | None = None
    column: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        where = [self.row] if self.row else []
        where += [f"column {self.column!r}"] if self.column is not None else []
        where += [f"device {self.device!r}"] if self.device is not None else []
        return f"{', '.join(where)}: {self.text}" if where else self.text

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as data."""
        return {"text": self.text, "row": self.row, "column": self.column, "device": self.device}


@dataclass
class Findings:
    """All that was found in a table.

    Attributes:
        problems: What must be solved before anything can be trained.
        warnings: What may be wrong.
        notes: What was guessed, left out or changed.
    """

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, text: str, row: str | None = None, column: str | None = None, device: str | None = None) -> None:
        """Add a problem."""
        self.problems.append(Problem(text, row, column, device))

    def warn(self, text: str, row: str | None = None, column: str | None = None, device: str | None = None) -> None:
        """Add a warning."""
        self.warnings.append(Problem(text, row, column, device))

    def refuse(self, name: str) -> None:
        """Raise all problems as one error; nothing where there are none."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise BadInput(f"{name}: {self.problems[0]}")
        some = "; ".join(f"({number}) {one}" for number, one in enumerate(self.problems[:_TOLD], 1))
        rest = len(self.problems) - _TOLD
        more = f"; and {rest} more, which 'palmette data check' lists" if rest > 0 else ""
        raise BadInput(f"{name} has {len(self.problems)} problems: {some}{more}")
