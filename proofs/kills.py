"""Kill runs of every algorithm, resume them, and compare every lasting byte with a run that never stopped.

Run by hand: ``make prove-kills``. Half of the kills come at random moments; the other half inside a checkpoint: in the middle
of a write, before a rename or a sync, at a random one of all such operations of the run. Some runs are killed again while they
are resumed. All are real: SIGKILL, which no program can catch. One process loads Palmette and never computes; every run is a
copy of it. Prints one line per kill, and writes a table by
algorithm into docs/how-to/reliability.md; ends with 1 where a byte differs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import sklearn.datasets  # noqa: F401 - loaded once, before there are copies
from pages import DOCS, table, write

import palmette.runs.journal
from broken_disks import Disk, kill
from palmette.algorithms import ALGORITHMS, kind_of
from palmette.errors import PalmetteError
from palmette.runs import execute, execution, make_config, resume
from palmette.runs.folder import CHECKPOINT, CONFIG, PREVIOUS, STATE, Folder
from test_contract import SMALL

LASTING = ("*.safetensors", "*.parquet", "outline.json")
MOMENT, INSIDE = "at a random moment", "inside a checkpoint"
EARLY, LATER, TWICE = "before a state was kept", "after it", "killed again when resumed"
EACH = (MOMENT, INSIDE, MOMENT, INSIDE)  # the kills of one algorithm
AGAIN = 0.25  # the share of resumed runs that are killed once more
SEED = 20
ROUNDS = 10


def config_of(method: str) -> dict[str, Any]:
    """Return a small run: twelve devices in three teams, some left out of each round, codecs that remember, lost replies."""
    model = {"name": "dnn", "hidden": 16} if kind_of(method).parts else {"name": "mclr"}
    config = {
        "algorithm": method,
        "settings": SMALL[method],
        "model": model,
        "rounds": ROUNDS,
        "tree": "3x4",
        "seed": SEED,
    }
    links = {"all": {"codec": "delta+int8", "lost": 0.1}}
    more = {"participation": {"devices": 0.6}, "links": links, "clock": {"preset": "edge"}}
    return config | more | {"evaluate_every": 2, "engine": {"check_steps": False}}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that must not depend on what happened to a run."""
    return {path.name: path.read_bytes() for pattern in LASTING for path in folder.glob(pattern)}


def start(work: Callable[[], object], place: Path) -> int:
    """Do some work in a copy of this process, and return its number."""
    if number := os.fork():
        return number
    try:
        with open(place / "output.txt", "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        warnings.simplefilter("ignore")
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(number: int) -> int:
    """Wait for a process; 0 where it came to its end, the signal as a negative number where one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def go_on(method: str, out: Path) -> None:
    """Resume a run, or start it again where nothing was kept."""
    if (out / CONFIG).exists() and not Folder(out).unbegun:
        resume(out)
    else:
        execute(make_config(config_of(method)), out)


def often() -> None:
    """Keep the state after every round, now as a whole, now what changed."""
    execution._CHECKPOINT_SHARE = 1e9
    palmette.runs.journal._LITTLE = 0


@dataclass
class Whole:
    """A run that was never stopped: its bytes, its seconds, and its operations on checkpoints."""

    bytes: dict[str, bytes]
    seconds: float
    operations: list[str]


def whole(method: str, place: Path) -> Whole:
    """Run to the end, once as users do and once with a checkpoint after every round."""
    out, counted = place / f"{method}-whole", place / f"{method}-operations"

    def counting() -> None:
        often()
        with Disk(lambda count, what: False, only="checkpoint").in_place() as disk:
            execute(make_config(config_of(method)), place / f"{method}-counted")
        counted.write_text("\n".join(disk.operations))

    began = time.monotonic()
    for work in (lambda: execute(make_config(config_of(method)), out), counting):
        if ended(start(work, place)):
            raise PalmetteError((place / "output.txt").read_text())
    found = Whole(contents(out), (time.monotonic() - began) / 2, counted.read_text().splitlines())
    if contents(place / f"{method}-counted") != found.bytes:
        raise PalmetteError(f"{method} depends on how often its state is kept")
    return found


@dataclass
class Tally:
    """What became of the kills."""

    passed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    found: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, method: str, *facts: str, same: bool) -> None:
        """Count one kill."""
        (self.passed if same else self.failed)[method] += 1
        self.found.setdefault(method, Counter()).update(facts)


def kill_one(method: str, how: str, expected: Whole, out: Path, luck: random.Random) -> tuple[str, str]:
    """Kill one run and return where it was hit and what was kept then; one that was faster than its kill is run again."""
    while True:
        if how == MOMENT:
            moment = luck.uniform(0.2, 1.0) * expected.seconds
            number = start(lambda: execute(make_config(config_of(method)), out), out.parent)
            where = f"after {moment:4.2f} s"
            time.sleep(moment)
            os.kill(number, signal.SIGKILL)
        else:
            chosen = luck.randrange(len(expected.operations))
            where = f"in operation {chosen + 1} of {len(expected.operations)}, {expected.operations[chosen]}"
            number = start(partial(_killed_inside, method, chosen, out), out.parent)
        code = ended(number)
        if code == -signal.SIGKILL:
            kept = any((out / name).exists() for name in (CHECKPOINT, PREVIOUS, STATE))
            return where, LATER if kept else EARLY
        if code:
            raise PalmetteError((out.parent / "output.txt").read_text())
        shutil.rmtree(out)


def _killed_inside(method: str, chosen: int, out: Path) -> None:
    often()
    with Disk(lambda count, what: count == chosen, kill, only="checkpoint").in_place():
        execute(make_config(config_of(method)), out)


def prove(plan: list[tuple[str, str]]) -> Tally:
    """Kill the runs of a plan of algorithms and ways to be killed."""
    luck, tally, known = random.Random(SEED), Tally(), dict[str, Whole]()
    for count, (method, how) in enumerate(plan, 1):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            if method not in known:
                known[method] = whole(method, place)
            where, state = kill_one(method, how, known[method], place / "run", luck)
            more = ""
            if luck.random() < AGAIN:
                number = start(lambda: go_on(method, place / "run"), place)  # noqa: B023 - ended in this turn
                time.sleep(luck.uniform(0.2, 1.0) * known[method].seconds)
                os.kill(number, signal.SIGKILL)
                more = TWICE if ended(number) else ""
            code = ended(start(lambda: go_on(method, place / "run"), place))  # noqa: B023
            same = code == 0 and contents(place / "run") == known[method].bytes
            tally.add(method, how, state, more, same=same)
            word = "same" if same else "DIFFERENT" if code == 0 else f"FAILED\n{(place / 'output.txt').read_text()}"
            print(f"kill {count:3}: {method:11} {how} ({where}; {state}{', ' * bool(more)}{more}): {word}", flush=True)
    return tally


def by_algorithm(tally: Tally) -> list[str]:
    """Write the kills by algorithm."""
    columns = (MOMENT, INSIDE, EARLY, LATER, TWICE)

    def row(name: str, found: Counter[str], passed: int, failed: int) -> list[str]:
        return [name, *(str(found[column]) for column in columns), f"{passed} of {passed + failed}"]

    rows = [row(f"`{name}`", found, tally.passed[name], tally.failed[name]) for name, found in tally.found.items()]
    total = sum(tally.found.values(), Counter[str]())
    rows.append(row("all", total, tally.passed.total(), tally.failed.total()))
    return table(["algorithm", *columns, "resumed to the same bytes"], rows)


def main() -> int:
    """Kill runs of all algorithms, or of those that are named."""
    tally = prove([(method, how) for how in EACH for method in sys.argv[1:] or ALGORITHMS])
    print("\n".join(lines := by_algorithm(tally)))
    print(f"{tally.passed.total()} passed, {tally.failed.total()} failed")
    if not sys.argv[1:]:
        write(DOCS / "how-to/reliability.md", "kills", "kills", lines)
    return min(1, tally.failed.total())


if __name__ == "__main__":
    sys.exit(main())
