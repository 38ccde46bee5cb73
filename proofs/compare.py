"""What `palmette compare` costs beside the same runs started by hand, and that a study that was killed ends in the same bytes.

Run by hand: ``python proofs/compare.py FOLDER``. Six methods with three seeds on digits are run three ways: each as a
``palmette run`` of its own, two at a time; as one ``palmette compare``; and as one that is killed (SIGKILL) in the middle and
continued with ``palmette resume``. Seconds and processor seconds of the first two are printed, and whether the files of all
runs are the same bytes, but for what tells of time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

METHODS = ("permfl", "pfedmt", "hierfavg", "groupperfl", "fedavg", "local")
SEEDS = (0, 1, 2)
SAME = ("config.toml", "identity.json", "metrics.parquet", "traffic.parquet", "devices.safetensors")
COMMAND = [sys.executable, "-m", "palmette"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*words: str) -> None:
    """Run a command quietly to its end."""
    subprocess.run([*COMMAND, *words, "-q"], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)


def timed(work: object) -> tuple[float, float]:
    """Return the seconds and the processor seconds that some work in other processes takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()  # type: ignore[operator]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_hand(folder: Path) -> None:
    """Start every run by itself, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda one: run("run", one[0], "--seed", str(one[1]), "--out", str(folder / f"{one[0]}-{one[1]}")),
                [(method, seed) for seed in SEEDS for method in METHODS],
            )
        )


def compare(folder: Path) -> None:
    """Run all of them as one study."""
    run("compare", *METHODS, "--seeds", str(len(SEEDS)), "--out", str(folder))


def killed(folder: Path) -> int:
    """Begin the study, kill it when some runs are done, continue it; return how many were done."""
    words = ["compare", *METHODS, "--seeds", str(len(SEEDS)), "--out", str(folder), "-q"]
    process = subprocess.Popen([*COMMAND, *words], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    while len(done := list(folder.glob("runs/*/manifest.json"))) < len(METHODS):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    run("resume", str(folder))
    return len(done)


def main(folder: Path) -> None:
    """Run all three and print what came out."""
    hand = timed(lambda: by_hand(folder / "hand"))
    study = timed(lambda: compare(folder / "study"))
    print(f"18 runs by hand, two at a time: {hand[0]:.1f} s, {hand[1]:.1f} s of processors")
    print(
        f"the same as one study:          {study[0]:.1f} s, {study[1]:.1f} s of processors; {study[0] / hand[0]:.2f} times"
    )
    done = killed(folder / "killed")
    names = [f"{method}-{seed}" for method in METHODS for seed in SEEDS]
    for other in (folder / "study/runs", folder / "killed/runs"):
        for name in names:
            for file in SAME:
                assert (folder / "hand" / name / file).read_bytes() == (other / name / file).read_bytes(), (
                    other,
                    name,
                    file,
                )
    assert (folder / "study/results.json").read_bytes() == (folder / "killed/results.json").read_bytes()
    print(f"killed with {done} of 18 runs done and continued: all files the same bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: compare.py FOLDER")
    main(Path(sys.argv[1]))
