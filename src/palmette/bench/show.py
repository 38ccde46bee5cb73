"""A benchmark for people: tables for a terminal of 80 columns, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.bench.jobs import PARTS
from palmette.bench.run import Benchmark
from palmette.guards.screen import Text
from palmette.report import style
from palmette.report.picture import save
from palmette.values import size

_LIMITS = ("core", "sgemm", "limit", "limit-chunked")
_COLOURS = dict.fromkeys(_LIMITS, style.FAINT) | {"fused": style.BLUE, "native": style.BLUE, "simulator": style.SKY}
_PALMETTE, _OTHERS = style.GREEN, style.VERMILION
_OTHER_ENGINES = ("plain", "plain-loader", "pfl", "jax", "fedjax")


def report(made: Benchmark) -> RenderableType:
    """Show a run: speeds, populations, promises, machine."""
    names = dict.fromkeys(row["workload"] for row in made.rows)
    parts: list[RenderableType] = [
        speeds(name, [row for row in made.rows if row["workload"] == name]) for name in names
    ]
    if made.scaling:
        parts.append(populations(made.scaling))
    if made.jobs:
        parts.append(shares(made.jobs))
    if made.figures:
        parts.append(promises(made.figures))
    parts.append(_facts(made))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def speeds(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Show every engine's speed on one workload and how the simulator, on one thread, compares."""
    table = _table(name, "threads", "steps/s", "+/-", "of limit", "faster", "notes")
    for row in rows:
        notes = [f"{row['speed_up']:.2f}x one thread"] if row["speed_up"] is not None else []
        notes += [f"overhead {row['overhead']:.1%}"] if row["overhead"] is not None else []
        table.add_row(
            Text(row["engine"], style="bold" if row["engine"] == "simulator" else ""),
            str(row["threads"]),
            speed(row["device_steps_per_second"]),
            f"{row['spread'] / 2:.0%}",
            "" if row["ratio_to_limit"] is None else f"{row['ratio_to_limit']:.3f}",
            _times(row),
            ", ".join(notes),
        )
    return table


def populations(rows: Sequence[dict[str, Any]]) -> Table:
    """Show the speed over growing populations."""
    table = _table("simulator, mclr 60-10", "taking part", "steps/s", "+/-", "time per step")
    for row in rows:
        ratio = row["time_ratio_to_1000"]
        table.add_row(
            f"{row['devices']:,} devices",
            f"{row['participants']:,}",
            speed(row["device_steps_per_second"]),
            f"{row['spread'] / 2:.0%}",
            "" if ratio is None else f"{ratio:.2f}x of 1,000's",
        )
    return table


def shares(rows: Sequence[dict[str, Any]]) -> Table:
    """Show what whole jobs take, from the start of the process to the results on disk, and the share of each part."""
    table = _table("whole job", *(row["job"] for row in rows))
    table.add_row("seconds", *(f"{row['seconds']:.1f}" for row in rows))
    for part in PARTS:
        table.add_row(f"  {part}", *(f"{row[part] / row['seconds']:.1%}" for row in rows))
    table.add_row("peak memory", *(size(row["peak_bytes"]) for row in rows))
    return table


def promises(found: Sequence[dict[str, Any]]) -> Table:
    """Show what is promised beside what was measured."""
    table = _table("promise", "bound", "measured", "")
    for figure in found:
        verdict = Text("met", "green") if figure["met"] else Text("not met", "bold red")
        bound = f"{'at most' if figure['at_most'] else 'at least'} {figure['bound']:g}"
        table.add_row(figure["figure"], bound, f"{figure['measured']:.3g}", verdict)
    return table


def _facts(made: Benchmark) -> Text:
    facts = made.machine
    lines = [
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']} at the start; torch {facts['torch']}",
        f"{made.clock} time; medians over repeats, ratios within a repeat; +/- half the distance of the quartiles",
        "faster: how many times as fast as the engine the simulator is, on one thread",
        *made.notes,
    ]
    return Text("\n".join(lines), style="dim")


def _table(first: str, *names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column(first)
    for name in names:
        table.add_column(name, justify="left" if name in ("notes", "") else "right", no_wrap=True)
    return table


def speed(value: float) -> str:
    """Write a speed, with a decimal where it is small and in millions where it is large."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _times(row: dict[str, Any]) -> str:
    """Write how many times as fast as an engine the simulator is; a limit has no such number."""
    ratio = row["simulator_ratio"]
    if ratio is None or row["engine"] in (*_LIMITS, "simulator"):
        return ""
    return f"{ratio:.3g}x"


def plot(made: Benchmark, path: Path) -> Path:
    """Draw one panel per workload, one bar per engine, on a logarithmic axis.

    Args:
        made: What to draw.
        path: Where to write the PNG.
    """
    names = list(dict.fromkeys(row["workload"] for row in made.rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    bars = max(sum(row["workload"] == name for row in made.rows) for name in names)
    figure = Figure(figsize=(4.6 * columns, (0.34 * bars + 1.1) * lines), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _bars(axes, name, [row for row in made.rows if row["workload"] == name])
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("device-steps per second (logarithmic; line: quartiles)", fontsize=10)
    return save(figure, path)


def _bars(axes: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    labels = [row["engine"] + (f", {row['threads']} threads" if row["threads"] > 1 else "") for row in rows]
    values = [row["device_steps_per_second"] for row in rows]
    colours = [_COLOURS.get(row["engine"], _OTHERS if row["engine"] in _OTHER_ENGINES else _PALMETTE) for row in rows]
    places = range(len(rows))
    axes.barh(places, values, color=colours, height=0.72)
    axes.hlines(places, [row["low"] for row in rows], [row["high"] for row in rows], color=style.INK, linewidth=1.6)
    axes.set_xscale("log")
    floor = 10 ** (len(str(int(max(1, min(values))))) - 1) / 2
    axes.set_xlim(floor, max(values) * 6)
    for place, row in zip(places, rows, strict=True):
        axes.text(row["high"] * 1.15, place, speed(row["device_steps_per_second"]), va="center", fontsize=8.5)
    axes.set_yticks(places, labels, fontsize=9)
    axes.invert_yaxis()
    axes.set_title(name, fontsize=11, fontweight="bold")
    axes.grid(axis="x", alpha=0.25)
    style.bare(axes)
