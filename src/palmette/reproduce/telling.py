"""An experiment's result in words: the text of cells and contrasts, as terminal, Markdown and page show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palmette.reproduce.claims import OPEN
from palmette.reproduce.numbers import NOT_ASKED, NOT_RUN

SIZES = {"quick": "small size", "whole": "published size"}
READ = (
    "A claim holds, or does not hold, where the whole 95 % interval of its contrast lies on one side of what it asks for; "
    "otherwise it cannot be decided. Contrasts are paired over seeds and devices and weighted by test samples as the cells "
    "are; the interval is a bootstrap over seeds, teams and devices."
)


def number(value: float | None, unit: str) -> str:
    """Write a number of a table."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "bytes":
        return f"{value:,.0f}"
    if unit == "%":
        return f"{value:.2f}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def ours(cell: Mapping[str, Any], unit: str) -> str:
    """Write our number of a cell with its spread, or why there is none."""
    if cell["ours"] is None:
        return str(cell["verdict"]).partition(":")[0] or "–"
    spread = "" if cell["spread"] is None else f" ± {number(cell['spread'], unit)}"
    return number(cell["ours"], unit) + spread


def theirs(cell: Mapping[str, Any], unit: str) -> str:
    """Write the paper's number of a cell and how ours compares; nothing where it printed none."""
    if cell["paper"] is None:
        return ""
    compared = f", {cell['verdict']}" if cell["ours"] is not None else ""
    return f"paper {number(cell['paper'], unit)}{compared}"


def asked(result: Mapping[str, Any]) -> tuple[list[Any], list[Any], str]:
    """Return the tables and the claims of which something was asked for, and a sentence about the others."""
    tables = [
        one
        for one in result["tables"]
        if not _of_others(cell["verdict"] for row in one["rows"] for cell in row["cells"])
    ]
    claims = [one for one in result["claims"] if not _of_others(part["why"] for part in one["parts"])]
    counts = {"table": len(result["tables"]) - len(tables), "claim": len(result["claims"]) - len(claims)}
    others = " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count)
    return tables, claims, f"Not shown: {others} about studies that were not asked for." if others else ""


def _of_others(reasons: Iterable[str]) -> bool:
    """Return whether nothing of a table or a claim was asked for."""
    told = list(reasons)
    return bool(told) and all(one.endswith(NOT_ASKED) for one in told)


def verdict(claim: Mapping[str, Any]) -> str:
    """Write a verdict with what it is not about: the paper's size or data, and parts that were not run."""
    parts = claim["parts"]
    absent = sum(part["why"].startswith(NOT_RUN) for part in parts)
    told = [*claim["apart"], *([f"{absent} of {len(parts)} parts not run"] if 0 < absent < len(parts) else [])]
    return f"{claim['verdict']} ({', '.join(told)})" if told and claim["verdict"] != OPEN else claim["verdict"]


def contrast(part: Mapping[str, Any], claim: Mapping[str, Any]) -> str:
    """Write one comparison of a claim with its interval."""
    if part["mean"] is None:
        return f"{part['about']}: {part['verdict']} ({part['why']})"
    unit = part["unit"]
    sign = "+" if claim["test"] not in ("share", "between") else ""
    ends = "" if part["low"] is None else f" [{part['low']:{sign}.3g}, {part['high']:{sign}.3g}]"
    why = f" ({part['why']})" if part["why"] else ""
    return f"{part['about']}: {part['mean']:{sign}.3g}{ends}{' ' + unit if unit else ''}: {part['verdict']}{why}"


def cuts(studies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of every study what the small size changed, what stood in for its data, or why it was not run."""
    told = []
    for study in studies:
        if study.get("left_out"):
            told.append(f"{study['title']}: not run. {study['left_out']}")
            continue
        if study["cuts"]:
            told.append(f"{study['title']}: cut to {'; '.join(study['cuts'])}.")
        if study["stands_in"]:
            told.append(f"{study['title']}: {study['stands_in']}")
    return told


def duration(seconds: float) -> str:
    """Write how long an experiment took."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
