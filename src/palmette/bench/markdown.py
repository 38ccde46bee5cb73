"""A benchmark as Markdown tables, for `docs/measured/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from palmette.bench.jobs import PARTS
from palmette.bench.run import Benchmark
from palmette.bench.show import speed
from palmette.values import size


def markdown(made: Benchmark) -> str:
    """Write speeds, ratios, promises, populations and the machine as Markdown."""
    names = list(dict.fromkeys(row["workload"] for row in made.rows))
    keys = list(dict.fromkeys((row["engine"], row["threads"]) for row in made.rows))
    found = {(row["workload"], row["engine"], row["threads"]): row for row in made.rows}
    speeds, ratios, times = [], [], []
    for engine, threads in keys:
        label = engine + (f", {threads} threads" if threads > 1 else "")
        mine = [found.get((name, engine, threads)) for name in names]
        speeds.append([label, *(_cell(row) for row in mine)])
        ratios.append([label, *(_number(row, "ratio_to_limit") for row in mine)])
        times.append([label, *(_number(row, "simulator_ratio") for row in mine)])
    parts = [
        "Device-steps per second (median, ± half the distance of the quartiles):",
        _table(["engine", *names], speeds),
        "Against `limit` (median of the ratios within repeats):",
        _table(["engine", *names], ratios),
        "How many times as fast the simulator is, on one thread:",
        _table(["engine", *names], times),
    ]
    if made.figures:
        parts += ["What is promised:", _table(["promise", "bound", "measured", ""], map(_promise, made.figures))]
    if made.scaling:
        heads = ["devices", "taking part", "device-steps per second", "time per step against 1,000 devices"]
        parts += ["Populations (PerMFL, mclr 60-10, one thread):", _table(heads, map(_population, made.scaling))]
    if made.jobs:
        heads = ["whole job", "rounds", "seconds", *PARTS, "peak memory"]
        text = "Whole jobs on one thread, from the start of the process to the results on disk, and the share of each part:"
        parts += [text, _table(heads, map(_job, made.jobs))]
    machine = ", ".join(f"{key} {value}" for key, value in made.machine.items() if value is not None)
    parts.append(f"Machine: {machine}; {made.clock} time.")
    return "\n\n".join([*parts, *made.notes]) + "\n"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---", *("---:" for _ in heads[1:])], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{speed(row['device_steps_per_second'])} ± {row['spread'] / 2:.0%}"


def _number(row: dict[str, Any] | None, key: str) -> str:
    return "" if row is None or row[key] is None else f"{row[key]:.3f}"


def _promise(figure: dict[str, Any]) -> list[str]:
    bound = f"{'at most' if figure['at_most'] else 'at least'} {figure['bound']:g}"
    return [figure["figure"], bound, f"{figure['measured']:.3g}", "met" if figure["met"] else "**not met**"]


def _population(row: dict[str, Any]) -> list[str]:
    ratio = row["time_ratio_to_1000"]
    numbers = [f"{row['devices']:,}", f"{row['participants']:,}", speed(row["device_steps_per_second"])]
    return [*numbers, "" if ratio is None else f"{ratio:.2f}"]


def _job(row: dict[str, Any]) -> list[str]:
    shares = [f"{row[part] / row['seconds']:.1%}" for part in PARTS]
    return [row["job"], str(row["rounds"]), f"{row['seconds']:.1f}", *shares, size(row["peak_bytes"])]
