"""Small tables as people have them, for tests of what is made of a user's own data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from palmette.cli.app import app

COLUMNS = ("region", "hospital", "ward", "age", "sex", "stay", "readmitted")
WHO = ("data.device=ward", "data.team=region,hospital", "data.label=readmitted")
KNOWN: dict[str, Any] = {"device": "ward", "team": ["region", "hospital"], "label": "readmitted"}


def visits(each: int = 12, seed: int = 0) -> list[list[Any]]:
    """Rows of eight wards in four hospitals in two regions; wards have names of their own."""
    random, rows = np.random.default_rng(seed), []
    for place in range(8):
        region, hospital, ward = ("north", "south")[place // 4], f"h{place // 2}", f"w{place}"
        taste = random.normal()
        for _ in range(each):
            age, stay, sex = (
                int(random.integers(20, 90)),
                round(float(random.exponential(3)), 2),
                "fm"[random.integers(2)],
            )
            again = (age - 55) / 20 + taste * stay / 3 + (sex == "f") + random.normal() / 2 > 0.5
            rows.append([region, hospital, ward, age, sex, stay, "yes" if again else "no"])
    return rows


def write(
    path: Path | str, rows: Iterable[Sequence[Any]], columns: Sequence[str] = COLUMNS, delimiter: str = ","
) -> Path:
    """Write a CSV file."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return Path(path)


def palmette(*words: str) -> Any:
    """Run a command."""
    return CliRunner().invoke(app, list(words))


def settings(*values: str) -> list[str]:
    """Return the options that set some values."""
    return [word for value in values for word in ("--set", value)]
