"""Run on real disks that fill up, lose their permissions or stay full, and compare with a run on a good one.

Run by hand as root, on Linux: ``make prove-disks``. A disk is a tmpfs of two megabytes, which is filled with a file after the
third round; permissions are taken from a folder and all in it by ``chattr +i``, which binds root, too. Prints what runs
said, and writes docs/how-to/reliability.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kills import config_of, contents, go_on, start
from kills import ended as ended_with
from pages import DOCS, table, write
from small_disk import bind, fill, small_disk

from palmette.engines.simulate import Simulation
from palmette.runs import execute, execution, make_config, verify

METHOD = "permfl"
DIFFERENT = "DIFFERENT"
MEGABYTE = 1 << 20
SPOILT, MENDED = 3, 7  # the rounds after which a disk breaks, and is good again


class At:
    """An observer that does something after some rounds."""

    def __init__(self, work: dict[int, Callable[[], object]]) -> None:
        self._work = work

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Do nothing."""

    def exchange(self, tier: int) -> None:
        """Do nothing."""

    def round(self, done: int, scores: Any) -> None:
        """Do what is to be done now."""
        self._work.get(done, lambda: None)()

    def stopping(self) -> None:
        """Do nothing."""


def spoilt(out: Path, work: dict[int, Callable[[], object]], place: Path) -> tuple[int, list[str]]:
    """Run with something done after some rounds; return how it ended and what it said."""

    def run() -> None:
        warnings.simplefilter("always")
        execution._CHECKPOINT_SHARE = 1e9
        execute(make_config(config_of(METHOD)), out, observer=At(work))

    (place / "output.txt").unlink(missing_ok=True)
    code = ended_with(start(run, place))
    told = [line.partition("Warning: ")[2] or line for line in (place / "output.txt").read_text().splitlines()]
    return code, [line for line in told if ("cannot" in line or "again" in line) and not line.startswith(" ")]


def told(title: str, code: int, lines: list[str], *, same: bool) -> list[str]:
    """Print how a case ended, and return it as a row."""
    end, result = "came to its end" if code == 0 else "ended with an error", "same bytes" if same else DIFFERENT
    print(f"{title}: the run {end}; {result}")
    for line in lines:
        print(f"    {line}")
    return [title, end, str(len(lines)), result]


def main() -> int:
    """Try every kind of trouble."""
    if os.geteuid():
        print("make prove-disks mounts a small disk and needs root")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if ended_with(start(lambda: execute(make_config(config_of(METHOD)), place / "whole"), place)):
            print((place / "output.txt").read_text())
            return 1
        expected, rows = contents(place / "whole"), []
        with small_disk(place / "disk") as disk:
            work = {SPOILT: lambda: fill(disk), MENDED: (disk / "filler").unlink}
            code, lines = spoilt(disk / "run", work, place)
            same = code == 0 and contents(disk / "run") == expected and verify(disk / "run").sound
            rows.append(told("a disk that is full from round 3 to 7", code, lines, same=same))
        with small_disk(place / "disk2") as disk:
            code, lines = spoilt(disk / "run", {SPOILT: lambda: fill(disk)}, place)
            (disk / "filler").unlink()
            again = ended_with(start(lambda: go_on(METHOD, disk / "run"), place))
            same = code == 1 and again == 0 and contents(disk / "run") == expected and verify(disk / "run").sound
            rows.append(told("a disk that stays full to the end, then the run is resumed", code, lines, same=same))
        out = place / "run"
        work = {SPOILT: lambda: bind(out, "+"), MENDED: lambda: bind(out, "-")}
        code, lines = spoilt(out, work, place)
        same = code == 0 and contents(out) == expected and verify(out).sound
        rows.append(told("a folder that may not be written from round 3 to 7", code, lines, same=same))
    write(DOCS / "how-to/reliability.md", "disks", "disks", table(["", "the run", "lines it said", "its files"], rows))
    failed = sum(row[-1] == DIFFERENT for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
