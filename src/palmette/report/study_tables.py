"""A study on a terminal: its tables, and under each what one must know to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.guards.screen import Text
from palmette.report import words
from palmette.report.sheets import Sheet, sheets
from palmette.runs.wording import model_style

_KINDS = ("PM", "TM", "GM")
_TRIES = 40  # tries that are listed one by one


def study_report(summary: Mapping[str, Any], folder: str, *, width: int = 80) -> RenderableType:
    """Show a study: its tables, its notes and where it lies.

    Args:
        summary: What it comes to.
        folder: Where it lies.
        width: Columns of the terminal.
    """
    parts: list[RenderableType] = []
    if summary.get("points"):
        from palmette.report.sweep_tables import grid_report  # here, as it needs matplotlib's colours

        parts.append(grid_report(summary))
    for sheet in sheets(summary):
        parts += [Padding(sheet_table(sheet), (1, 0, 0, 0)), Text(sheet.note, style="dim")]
    if tried := summary.get("tries"):
        parts.append(Padding(tries_table(tried, summary), (1, 0, 0, 0)))
    if summary["notes"]:
        parts.append(Padding(Text("\n".join(summary["notes"])), (1, 0, 0, 0)))
    for lost in summary["failed"]:
        parts.append(Padding(Text(f"{lost['run']} {lost['end']}: {lost['message']}", style="red"), (1, 0, 0, 0)))
    if not summary["finished"]:
        parts.append(Padding(Text(f"Not all runs are there yet; go on with: palmette resume {folder}"), (1, 0, 0, 0)))
    parts.append(Padding(_facts(folder, summary), (1, 0, 0, 0)))
    return Group(*parts)


def sheet_table(sheet: Sheet) -> Table:
    """Show a sheet; the best of a column is bold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(Text(sheet.title), no_wrap=True, vertical="bottom")
    for name in sheet.columns:
        style = f"bold {model_style(name)}" if name in _KINDS or name.startswith("TM") else "bold"
        table.add_column(Text(name), justify="right", header_style=style, no_wrap=True, vertical="bottom")
    for place, row in enumerate(sheet.rows):
        cells = [
            Text(cell, style="bold green" if (place, column) in sheet.best else "")
            for column, cell in enumerate(row[1:])
        ]
        table.add_row(Text(row[0]), *cells)
    return table


def tries_table(tried: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> Table:
    """Show which settings were tried and how good they were on validation samples; the chosen ones are marked."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("tried", no_wrap=True)
    table.add_column("seed", justify="right")
    table.add_column("settings", overflow="fold")
    table.add_column(Text(f"{summary['by']} validation\n{summary['metric']}"), justify="right", no_wrap=True)
    for one in list(tried)[:_TRIES]:
        settings = ", ".join(f"{key}={_value(value)}" for key, value in one.get("settings", {}).items())
        score = one.get("score")
        told = "diverged" if score is None else words.share(score) + (" *" if one["chosen"] else "  ")
        table.add_row(
            Text(one["method"]), str(one["seed"]), Text(settings), told, style="bold" if one.get("chosen") else ""
        )
    if len(tried) > _TRIES:
        table.add_row(f"and {len(tried) - _TRIES} more", "", "see results.json", "")
    return table


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _facts(folder: str, summary: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _lines(folder, summary):
        table.add_row(name, Text(value))
    return table


def _lines(folder: str, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "folder", folder
    yield "runs", f"{folder}/runs/METHOD-SEED"
    first = next((one for one in summary["methods"] if one["seeds"]), None)
    if first is not None:
        yield "again", f"palmette show {folder}"
        yield "page", f"palmette report {folder} --open"
