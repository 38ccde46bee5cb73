"""What checkpoints of a hundred thousand devices cost: their share of a run, the bytes written, and the rounds between them.

Run by hand: ``make prove-checkpoints``. Each run has a process of its own: 2 % of the devices take part in every exchange. It
is run as users have it; with a checkpoint after every round; and so again with everything in each of them, as if there were
no journal. Writes docs/how-to/reliability.md, and fails where checkpoints take more than 5 % of
a run as users have it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from pages import DOCS, table, write

import palmette.runs.journal
from palmette.runs import execute, execution, make_config
from palmette.runs.keeping import Keeper

RUNS = {"fedavg": 200, "ditto": 200, "permfl": 60}
MODES = {"": "as users have it", "every": "after every round", "whole": "after every round, each of them whole"}
SHARE = 0.05


def written() -> int:
    """Return the bytes this process has written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def measure(method: str, rounds: int, mode: str) -> bool:
    """Run once and print what checkpoints took."""
    kept: list[tuple[int, float, int]] = []  # the round, the processor time and the bytes of each checkpoint
    real = Keeper.save

    def noted(keeper: Keeper, *given: Any, **more: Any) -> None:
        start, before = time.process_time(), written()
        real(keeper, *given, **more)
        kept.append((keeper.round or 0, time.process_time() - start, written() - before))

    Keeper.save = noted  # type: ignore[method-assign]
    if mode:
        execution._CHECKPOINT_SHARE = 1e9
    if mode == "whole":
        palmette.runs.journal._LITTLE = palmette.runs.journal._SHARE = 0
    config = {"algorithm": method, "settings": {"alpha": 0.05}, "rounds": rounds, "tree": "100x1000"}
    config |= {"data": {"name": "crowd", "samples": 16, "test_samples": 4}, "participation": {"devices": "2%"}}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        start, used = time.perf_counter(), time.process_time()
        seconds = execute(make_config(config), Path(place) / "run").timings["seconds"]
        whole, busy = time.perf_counter() - start, time.process_time() - used
    after, times, sizes = zip(*kept, strict=True)
    later, count, share = [done for done in after if done >= rounds // 2], len(kept), seconds["checkpoints"] / whole
    told = {
        "run": f"{method}, {rounds} rounds",
        "checkpoints": MODES[mode],
        "whole run": f"{whole:.1f} s",
        "one round": f"{1000 * seconds['rounds'] / rounds:.0f} ms",
        "all checkpoints": f"{seconds['checkpoints']:.2f} s",
        "share of the time": f"{share:.1%}",
        "of processor time": f"{sum(times) / busy:.1%}",
        "how many": f"{count}",
        "rounds between, in the second half": f"{(later[-1] - later[0]) / max(1, len(later) - 1):.1f}",
        "one checkpoint": f"{1000 * seconds['checkpoints'] / count:.0f} ms, {sum(sizes) / count / 1e6:.1f} MB",
        "bytes in all": f"{sum(sizes) / 1e9:.2f} GB",
    }
    print(json.dumps(told))
    return bool(mode) or share <= SHARE


def main() -> int:
    """Measure all runs, each in a process of its own."""
    if len(sys.argv) > 1:
        return 0 if measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]) else 1
    rows, failed = [], 0
    for method, rounds in RUNS.items():
        for mode in MODES:
            words = [sys.executable, __file__, method, str(rounds), mode]
            done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
            failed += done.returncode
            print(done.stdout, end="", flush=True)
            rows.append(json.loads(done.stdout))
    write(
        DOCS / "how-to/reliability.md",
        "checkpoints",
        "checkpoints",
        table([*rows[0]], [[*row.values()] for row in rows]),
    )
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
