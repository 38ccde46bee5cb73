"""Pack a table of 2 GB and train on it, and measure the memory: it must stay within 1 GiB beyond the packed file.

``make prove-large-table`` writes a Parquet file of 2 GB (and, with ``csv`` as a second argument, a CSV file of the same size),
packs it with ``palmette data pack`` and runs one round of FedAvg on it, each in a process of its own whose memory is watched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

SIZE = 2 * 10**9
COLUMNS, DEVICES, TEAMS = 30, 1000, 20
ROWS = 200_000  # written at once
GIB = 1 << 30


def write(path: Path, kind: str) -> int:
    """Write a table of the wanted size, its rows in no order, and return its rows."""
    random, rows = np.random.default_rng(0), 0
    weights = random.normal(size=(DEVICES, COLUMNS))
    names = [f"f{number}" for number in range(COLUMNS)]
    writer = None
    while not path.exists() or path.stat().st_size < SIZE:
        device = random.integers(DEVICES, size=ROWS)
        x = random.normal(size=(ROWS, COLUMNS)) * 3 + 5
        y = np.where(((x - 5) * weights[device]).sum(1) > 0, "yes", "no")
        if kind == "csv":
            x = x.round(9)
        columns = {name: x[:, place] for place, name in enumerate(names)}
        batch = pa.table({"team": device % TEAMS, "device": device, **columns, "label": y})
        if writer is None:
            writer = (
                pv.CSVWriter(path, batch.schema)
                if kind == "csv"
                else pq.ParquetWriter(path, batch.schema, compression="none", use_dictionary=False)
            )
        writer.write_table(batch)
        rows += ROWS
    assert writer is not None
    writer.close()
    return rows


def watched(*words: object) -> dict[str, float]:
    """Run palmette and return its seconds, its largest memory and how much of that is not mapped from files."""
    begin, peak, own = time.monotonic(), 0, 0
    process = subprocess.Popen([sys.executable, "-m", "palmette", *map(str, words)], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in status.splitlines() if line.endswith("kB")}
        peak, own = max(peak, sizes.get("VmHWM", 0)), max(own, sizes.get("RssAnon", 0))
        time.sleep(0.02)
    if process.wait() != 0:
        raise SystemExit(f"palmette {' '.join(map(str, words))} failed")
    return {"seconds": round(time.monotonic() - begin, 1), "peak_bytes": peak, "own_bytes": own}


def main(folder: Path, kind: str) -> None:
    """Write, pack, train, and say whether the memory stayed within its limit."""
    table, packed = folder / f"large.{kind}", folder / "large.packed"
    rows = write(table, kind)
    told: dict[str, object] = {"kind": kind, "table_bytes": table.stat().st_size, "rows": rows}
    say = ["--set", "device=device", "--set", "team=team", "--set", "label=label"]
    told["pack"] = pack = watched("data", "pack", table, "--out", packed, *say)
    told["packed_bytes"] = size = sum(file.stat().st_size for file in packed.iterdir())
    told["run"] = run = watched(
        *("run", "fedavg", "--data", packed, "--rounds", 1, "--out", folder / "run", "--quiet"),
        *("--set", "participation.devices=0.1", "--set", "tune_steps=1"),
    )
    told["within"] = all(one["peak_bytes"] <= size + GIB and one["own_bytes"] <= GIB for one in (pack, run))
    print(json.dumps(told))
    if not told["within"]:
        raise SystemExit("the memory went beyond 1 GiB and the packed file")


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        main(place, sys.argv[2] if len(sys.argv) > 2 else "parquet")
    finally:
        shutil.rmtree(place)
