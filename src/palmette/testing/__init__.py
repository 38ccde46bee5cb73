"""Tests for an algorithm of one's own: the contract that every algorithm of Palmette keeps, and small problems to try it on.

from palmette.testing import contract

print(contract(MyMethod()))
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from palmette.errors import BadInput, PalmetteError, nearest
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.testing.checks import CHECKS as CHECKS
from palmette.testing.checks import LOSSY as LOSSY
from palmette.testing.compared import ContractBroken as ContractBroken
from palmette.testing.problems import regression as regression
from palmette.testing.problems import simulate as simulate
from palmette.testing.problems import task_of as task_of


@dataclass(frozen=True)
class Report:
    """What the contract looked at.

    Attributes:
        method: The algorithm's name.
        checks: The checks that were made, each with its sentence.
        left_out: The checks that were left out.
        seconds: How long it took.
    """

    method: str
    checks: dict[str, str]
    left_out: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        lines = [f"{self.method} keeps the contract ({len(self.checks)} checks in {self.seconds:.1f} s):"]
        lines += [f"  {name}: {sentence}" for name, sentence in self.checks.items()]
        return "\n".join([*lines, *(f"  {name}: left out" for name in self.left_out)])


def contract(method: Algorithm, *, leave_out: Sequence[str] = ()) -> Report:
    """Run the contract of all algorithms on small problems; the first part that is broken raises `ContractBroken`.

    Args:
        method: The algorithm, with settings that make it quick: a few steps, a few rounds.
        leave_out: Names of `CHECKS` not to make: those of `LOSSY` for a method that needs everybody to answer.
    """
    check_method(method)
    for name in leave_out:
        if name not in CHECKS:
            raise BadInput(f"the contract has no check {name!r}{nearest(name, CHECKS)}")
    began = time.monotonic()
    made = {}
    for name, check in CHECKS.items():
        if name not in leave_out:
            try:
                check(method)
            except PalmetteError as error:
                raise ContractBroken(f"{type(method).__name__} breaks the contract ({name}): {error}") from error
            made[name] = (check.__doc__ or "").split("\n")[0]
    return Report(method.name, made, tuple(leave_out), time.monotonic() - began)
