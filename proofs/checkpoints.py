"""What checkpoints of a hundred thousand devices cost: their share of a run, the bytes written, and the rounds between them.

Run by hand: ``make prove-checkpoints``. Each run has a process of its own: 2 % of the devices take part in every exchange. It
is run as users have it; with a checkpoint after every round; and so again with everything in each of them, as if there were
no journal. Fails where checkpoints take more than 5 % of a run as users have it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import palmette.runs.journal
from palmette.runs import execute, make_config
from palmette.runs.keeping import Keeper

EXECUTION = import_module("palmette.runs.execute")  # the function of that name hides it
RUNS = {"fedavg": 200, "ditto": 200, "permfl": 60}
MODES = {"as users have it": "", "after every round": "every", "after every round, each of them whole": "whole"}
SHARE = 0.05


def written() -> int:
    """Return the bytes this process has written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def measure(method: str, rounds: int, mode: str) -> bool:
    """Run once and print what checkpoints took."""
    kept: list[tuple[int, float, int]] = []
    real = Keeper.save

    def noted(keeper: Keeper, memory: Any) -> None:
        start, before = time.perf_counter(), written()
        real(keeper, memory)
        kept.append((keeper.round or 0, time.perf_counter() - start, written() - before))

    Keeper.save = noted  # type: ignore[method-assign]
    if mode:
        EXECUTION._CHECKPOINT_SHARE = 1e9
    if mode == "whole":
        palmette.runs.journal._LITTLE = palmette.runs.journal._SHARE = 0
    config = {"algorithm": method, "settings": {"alpha": 0.05}, "rounds": rounds, "tree": "100x1000"}
    config |= {"data": {"name": "crowd", "samples": 16, "test_samples": 4}, "participation": {"devices": "2%"}}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        seconds = execute(make_config(config), Path(place) / "run").timings["seconds"]
        whole = time.perf_counter() - start
    later = [done for done, _, _ in kept if done >= rounds // 2]
    share, count = seconds["checkpoints"] / whole, len(kept)
    apart = (later[-1] - later[0]) / max(1, len(later) - 1)
    print(
        f"| {method}, {rounds} rounds | {next(name for name, word in MODES.items() if word == mode)} | {whole:.1f} s "
        f"| {1000 * seconds['rounds'] / rounds:.0f} ms | {seconds['checkpoints']:.2f} s | {share:.1%} | {count} "
        f"| {rounds / max(1, count - 1):.1f} ({apart:.1f} in the second half) | {1000 * seconds['checkpoints'] / count:.0f} ms "
        f"| {sum(size for _, _, size in kept) / count / 1e6:.1f} MB | {sum(size for _, _, size in kept) / 1e9:.2f} GB |",
        flush=True,
    )
    return bool(mode) or share <= SHARE


def main() -> int:
    """Measure all runs, each in a process of its own."""
    if len(sys.argv) > 1:
        return 0 if measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]) else 1
    head = (
        "run",
        "checkpoints",
        "whole run",
        "one round",
        "checkpoints",
        "share",
        "number",
        "rounds between",
        "one",
        "bytes of one",
    )
    print(f"| {' | '.join(head)} | all |\n|{'---|' * (len(head) + 1)}")
    parts = [
        [sys.executable, __file__, name, str(count), mode] for name, count in RUNS.items() for mode in MODES.values()
    ]
    return max(subprocess.run(part, check=False).returncode for part in parts)


if __name__ == "__main__":
    sys.exit(main())
