"""A small part of ``make prove-kills``: six runs, really killed, end in the bytes of runs that were not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from processes import told

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import kills

kills.ROUNDS = 5
tally = kills.prove([(name, how) for name in ("permfl", "ditto") for how in (kills.MOMENT, kills.INSIDE, kills.INSIDE)])
print(tally.passed.total(), tally.failed.total())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies a process that has loaded torch")
def test_six_runs_that_are_killed_end_in_the_bytes_of_runs_that_are_not() -> None:
    here = Path(__file__).parent
    *lines, last = told(PROGRAM, here.parent / "proofs", here).splitlines()
    assert last == "6 0", "\n".join(lines)
    assert len(lines) == 6
    assert sum("inside a checkpoint" in line for line in lines) == 4
