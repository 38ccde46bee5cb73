"""Kill runs at random moments, resume them, and compare every lasting byte with a run that never stopped.

Run by hand: ``make prove-kills``. Prints one line per kill and fails at the first difference.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PALMETTE = Path(sys.executable).parent / "palmette"
LASTING = ("*.safetensors", "metrics.parquet", "traffic.parquet")
METHODS = ["permfl", "pfedmt", "hierfavg", "fedavg", "local"]
KILLS = 12
SEED = 20


def command(method: str, out: Path) -> list[str]:
    """Return the command of one run: long enough to be killed in the middle."""
    rounds = {"fedavg": "600", "local": "600"}.get(method, "60")
    options = [
        "--data",
        "digits",
        "--tree",
        "4x10",
        "--rounds",
        rounds,
        "--seed",
        str(SEED),
        "--out",
        str(out),
        "--quiet",
    ]
    return [str(PALMETTE), "run", method, *options, "--set", "participation.devices=0.6", "--set", "data.shift=rotate"]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that must not depend on what happened to a run."""
    return {path.name: path.read_bytes() for pattern in LASTING for path in folder.glob(pattern)}


def main() -> int:
    """Kill, resume, compare."""
    luck = random.Random(SEED)
    with tempfile.TemporaryDirectory() as place:
        whole: dict[str, tuple[dict[str, bytes], float]] = {}
        for method in METHODS:
            start = time.monotonic()
            subprocess.run(command(method, Path(place) / method), check=True, capture_output=True)
            whole[method] = contents(Path(place) / method), time.monotonic() - start
        for kill in range(KILLS):
            method = METHODS[kill % len(METHODS)]
            expected, seconds = whole[method]
            out = Path(place) / f"{method}-{kill}"
            number = luck.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            moment = luck.uniform(0.3, 0.95) * seconds
            process = subprocess.Popen(command(method, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(moment)
            process.send_signal(number)
            process.wait(timeout=120)
            kept = sorted(path.name for path in out.iterdir()) if out.exists() else []
            if not (out / "config.toml").exists():
                subprocess.run(command(method, out), check=True, capture_output=True)
            else:
                subprocess.run([str(PALMETTE), "resume", str(out), "--quiet"], check=True, capture_output=True)
            same = contents(out) == expected
            state = (
                "with a checkpoint"
                if "checkpoint.bin" in kept
                else "finished"
                if "metrics.parquet" in kept
                else "early"
            )
            word = "same" if same else "DIFFERENT"
            print(f"kill {kill + 1:2}: {method:9} {number.name:8} after {moment:4.1f} s ({state}): {word}")
            if not same:
                return 1
    print(f"{KILLS} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
