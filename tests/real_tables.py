"""Real data as a stranger would bring them: three tables, one of them dirty in ten ways, and a folder of pictures.

The tables are made from the public ones in the data folder (``tabular``), the pictures from the digits of scikit-learn.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from palmette.datasets.digits import digits


def rows_of(data: Path, name: str) -> list[dict[str, str]]:
    """Read one of the public tables."""
    with gzip.open(data / "tabular" / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def make_files(data: Path, place: Path) -> None:
    """Write all of them into a folder."""
    schools(data, place)
    vaccines(data, place)
    stars(data, place)
    pictures(place)


def schools(data: Path, place: Path) -> None:
    """Pupils of schools in two sectors, as CSV; and some new pupils without a result."""
    rows = rows_of(data, "mlmRev_Hsb82")
    known = sorted({row["school"] for row in rows})[:12]
    rows = [row for row in rows if row["school"] in known]
    columns = ["sector", "school", "minrty", "sx", "ses", "mAch"]
    for name, some, kept in (("schools.csv", rows, columns), ("new-pupils.csv", rows[::25], columns[:-1])):
        with (place / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, kept, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(some)


def vaccines(data: Path, place: Path) -> None:
    """Children of communities in town and country, as Parquet; and one more community."""
    rows = rows_of(data, "mlmRev_guImmun")
    last = rows[-1]["comm"]
    some = {*list(dict.fromkeys(row["comm"] for row in rows))[:16], last}
    rows = [row for row in rows if row["comm"] in some]
    for name, some in (
        ("vaccines.parquet", [row for row in rows if row["comm"] != last]),
        ("new-community.parquet", [row for row in rows if row["comm"] == last]),
    ):
        pq.write_table(pa.table({column: [row[column] for row in some] for column in rows[0]}), place / name)


def stars(data: Path, place: Path) -> None:
    """Pupils of the STAR experiment as a spreadsheet gives them, dirty in ten ways."""
    rows = [row for row in rows_of(data, "mlmRev_star") if row["math"] != "NA" and row["math"]]
    known = sorted({row["sch"] for row in rows}, key=int)[:8]
    rows = [row for row in rows if row["sch"] in known][:600]
    lines = []
    for number, row in enumerate(rows):
        score = row["math"].replace(".", ",")  # 1: decimal commas
        note = f"élève {number}"  # 2: free text; 3: letters of latin-1
        state = "Tennessee"  # 4: the same everywhere
        lines.append(
            [number, row["schtype"], row["sch"], row["sx"], row["yrs"], row["exp"], score, "1985-09-01", state, note]
        )
    lines[3][5] = ""  # 5: a missing value
    lines[7][5] = "many"  # 6: a text among numbers
    lines[11] = lines[11][:-2]  # 7: a row with too few cells
    lines[13] = list(lines[12])  # 8: a row that stands twice
    heads = ["id", "type", "school", "sex", "years", "experience", "math", "day", "state", "note"]
    with (place / "stars.csv").open("w", newline="", encoding="latin-1") as file:  # 9: the dates; 10: semicolons
        writer = csv.writer(file, delimiter=";")
        writer.writerow(heads)
        writer.writerows(lines)


def pictures(place: Path) -> None:
    """Six cameras in two halls, each with pictures of zeros and ones."""
    pool = digits()
    names: dict[int, str] = {0: "zero", 1: "one"}
    chosen = [number for number in range(len(pool.y)) if int(pool.y[number]) in names][:180]
    for count, number in enumerate(chosen):
        folder = place / "pictures" / f"camera{count % 6}" / names[int(pool.y[number])]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.asarray(pool.x[number, 0]) * 15).astype(np.uint8)).save(folder / f"{count}.png")
    lines = [["device", "hall"], *([f"camera{number}", f"hall{number // 3}"] for number in range(6))]
    (place / "pictures" / "teams.csv").write_text("".join(",".join(line) + "\n" for line in lines))
