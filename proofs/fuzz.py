"""Throw random input of four kinds at Palmette; whatever is not an answer or a plain refusal is a fault.

Run by hand: ``make prove-fuzz``, or ``python proofs/fuzz.py CASES SEED``. The kinds are configs (settings, arrays and
arguments), folders (of runs and studies, as a stranger might send them), data (files of samples) and messages (of the wire).
Every case ends in one of these ways: it ran, it was refused in one line (`PalmetteError`, or a command's exit code 1 or 2), it
was badly said (several lines, raw control characters, warnings of libraries), it raised something else, it took too long, it
took too much memory, or it did what it must not (ran a stranger's code, wrote outside its folder). All but the first two are
faults; they are printed with their case and fail the proof. A case is a function of (seed, kind, number), so a fault can be
looked at again: ``python proofs/fuzz.py 1 SEED KIND NUMBER``.

Each kind runs in a process of its own, which may take 4 GiB of addresses beyond what it has when it begins, and which is told
that the machine has no more memory than that.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import fuzz_configs
import fuzz_data
import fuzz_folders
import fuzz_memory
import fuzz_messages
from fuzz_commands import BadlySaid, Refused
from pages import DOCS, table, write

from palmette.errors import PalmetteError

Case = Callable[[random.Random, Path], str]
KINDS: dict[str, Case] = {
    "configs": fuzz_configs.case,
    "folders": fuzz_folders.case,
    "data": fuzz_data.case,
    "messages": fuzz_messages.case,
}
SECONDS = 60.0  # for one case; one that runs takes a tenth of a second, on a busy machine some seconds
NOTED = 1 << 29  # bytes of memory that a case is mentioned for
GOOD = ("ran", "refused")
WHOLE = 10_000  # cases whose table is put into the docs
HEADS = ["kind", "cases", "ran", "refused", "faults", "most memory of a case", "peak of the process", "slowest", "all"]


class TooSlow(BaseException):
    """A case took longer than it may."""


def run_case(seed: int, number: int, kind: str, seconds: float = SECONDS) -> tuple[str, str]:
    """Run one case and return how it ended and what was said."""
    luck = random.Random(f"{seed} {kind} {number}")
    with (
        tempfile.TemporaryDirectory() as place,
        chdir(place),  # a wild out= may be a relative path
        warnings.catch_warnings(record=True) as heard,
        limited(seconds),
    ):
        warnings.simplefilter("always")
        try:
            told = KINDS[kind](luck, Path(place))
        except (PalmetteError, Refused) as error:
            text = str(error).replace(place, "")
            bad = "\n" in text.strip() or not text.strip() or len(text) > 3000
            return ("badly said" if bad else "refused"), f"{type(error).__name__}: {text[:3000]}"
        except BadlySaid as error:
            return "badly said", str(error).replace(place, "")
        except (Exception, TooSlow) as error:
            return _word(error), _where(error)
    # What libraries warn their programmers of tells a user nothing.
    foreign = [str(one.message) for one in heard if not issubclass(one.category, UserWarning)]
    return ("badly said", f"{told}: {foreign[0]}") if foreign else ("ran", told)


def _word(error: BaseException) -> str:
    if isinstance(error, TooSlow | MemoryError):
        return "too slow" if isinstance(error, TooSlow) else "too much memory"
    return "did harm" if isinstance(error, fuzz_folders.Harm) else "traceback"


def _where(error: BaseException) -> str:
    """Say what an error is and in which of our lines it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "palmette" in frame.filename][-3:] or frames[-3:]
    lines = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours)
    return f"{type(error).__name__}: {str(error)[:300]!r} at {lines}"


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the main thread when the time is over."""

    def over(signum: int, frame: Any) -> None:
        raise TooSlow(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- many cases ------------------------------------------------------------------------------------------------------------


def run_kind(kind: str, numbers: range, seed: int) -> dict[str, Any]:
    """Run cases of one kind in this process; print faults, and return how all ended."""
    fuzz_memory.hold_to_account()
    ends: Counter[str] = Counter()
    began, most, slowest = time.monotonic(), 0, 0.0
    for number in numbers:
        start = time.monotonic()
        fuzz_memory.begin()
        end, told = run_case(seed, number, kind)
        grown, took = fuzz_memory.grown(), time.monotonic() - start
        most, slowest = max(most, grown), max(slowest, took)
        if grown > NOTED or took > SECONDS / 4:  # no fault, but worth a look
            print(f"{kind} {number} took {took:.1f} s and {grown / 2**20:,.0f} MiB: {told[:200]}", flush=True)
        ends[end] += 1
        if end not in GOOD or len(numbers) == 1:
            print(f"{kind} {number}: {end}: {told if len(numbers) == 1 else told[:400]}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    seconds = time.monotonic() - began
    return {"ends": dict(ends), "seconds": seconds, "slowest": slowest, "grown": most, "peak": peak}


def main(cases: int = WHOLE, seed: int = 1) -> int:
    """Run the cases, each kind in a process of its own, and print a table of how they ended."""
    rows, faults = [], 0
    for place, kind in enumerate(KINDS):
        count = cases // len(KINDS) + (place < cases % len(KINDS))
        words = [sys.executable, __file__, "--kind", kind, str(count), str(seed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = {}
            for line in process.stdout:
                if line.startswith("{"):
                    told = json.loads(line)
                else:
                    print(line, end="", flush=True)
        if process.returncode:
            told.setdefault("ends", {})["crash"] = 1
            print(f"{kind}: the process ended with {process.returncode}", flush=True)
        ends = told["ends"]
        faults += sum(count for end, count in ends.items() if end not in GOOD)
        rows.append((kind, count, ends, told))
    print(f"\nseed {seed}", *(lines := table(HEADS, [_row(*row) for row in rows])), sep="\n")
    if cases >= WHOLE:
        write(
            DOCS / "how-to/reliability.md",
            "fuzzing",
            "fuzz",
            [*lines, "", f"Seed {seed}, {time.strftime('%Y-%m-%d')}."],
        )
    return 1 if faults else 0


def _row(kind: str, count: int, ends: dict[str, int], told: dict[str, Any]) -> list[str]:
    bad = sum(number for end, number in ends.items() if end not in GOOD)
    sizes = [f"{told.get(what, 0) / 2**20:,.0f} MiB" for what in ("grown", "peak")]
    times = [f"{told.get('slowest', 0):.1f} s", f"{told.get('seconds', 0):.0f} s"]
    return [kind, f"{count:,}", f"{ends.get('ran', 0):,}", f"{ends.get('refused', 0):,}", str(bad), *sizes, *times]


def single(words: list[str]) -> int:
    """Run the cases of one kind, and tell how they ended in a line of JSON."""
    kind, count, seed, first = words[0], int(words[1]), int(words[2]), int(words[3]) if len(words) > 3 else 0
    print(json.dumps(run_kind(kind, range(first, first + count), seed)))
    return 0


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--kind"]:
        sys.exit(single(given[1:]))
    if len(given) == 4:  # one case, to be looked at again
        sys.exit(single([given[2], given[0], given[1], given[3]]))
    sys.exit(main(*map(int, given)))
