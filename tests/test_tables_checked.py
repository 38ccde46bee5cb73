"""``palmette data check``: all problems together, each with its place; fifty malformed files and no traceback."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tables import COLUMNS, WHO, palmette, settings, visits, write

HOW = settings(*WHO)
HEAD = ",".join(COLUMNS) + "\n"
ROWS = "".join(",".join(map(str, row)) + "\n" for row in visits(each=4))
GOOD = HEAD + ROWS


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(file: str, *more: str, code: int = 2) -> dict[str, Any]:
    done = palmette("data", "check", file, *HOW, *more, "--json")
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["sound"] == (code == 0)
    return found


def texts(found: dict[str, Any], what: str = "problems") -> str:
    return " | ".join(f"{one['row']} {one['column']} {one['device']}: {one['text']}" for one in found[what])


def dirty() -> list[list[Any]]:
    """Rows that are wrong in ten ways."""
    rows = visits()
    for row in rows:
        row += ["same", 0.1, len(row), "2024-01-01", f"note {id(row)}", row[-1]]
    rows[0][3] = "unknown"  # 1: a text among numbers
    rows[1][5] = ""  # 2: a missing number
    rows[2][2] = ""  # 3: a row of nobody
    rows[3][6] = ""  # 4: a missing label
    rows[4][5] = "inf"  # 5: no finite number
    rows[5] = rows[5][:-1]  # 6: a cell too few
    rows[20][0] = "south"  # 7: a device in two teams
    rows[21] = list(rows[22])  # 8: a row that stands twice
    return rows  # 9: dates; 10: free texts; and a constant column, an identifier and a copy of the label


def test_a_table_dirty_in_ten_ways_has_every_problem_told_with_its_place() -> None:
    rows = dirty()
    for number, row in enumerate(rows):
        row[9] = number
        row[11] = f"note {number}"
    rows[21][9:12] = rows[22][9:12]
    write("dirty.csv", rows, (*COLUMNS, "same", "also", "id", "seen", "note", "copy"))
    found = check("dirty.csv")
    told, warned = texts(found), texts(found, "warnings")
    assert "row 1 (line 2 of the file) age north/h0/w0: 'unknown' is not a number" in told
    assert "row 2 (line 3 of the file) stay north/h0/w0: the value is missing" in told
    assert "row 3 (line 4 of the file) ward None: the value is missing" in told
    assert "row 4 (line 5 of the file) readmitted north/h0/w0: the value is missing" in told
    assert "row 5 (line 6 of the file) stay north/h0/w0: the number is infinite" in told
    assert "row 6 (line 7 of the file) None None: the row has 12 cells, the header has 13" in told
    assert "None seen None: it holds dates" in told
    assert "None note None: it has 9" in told
    assert "'w1' stands in 2 places" in warned
    assert "None same None: it is the same in all rows" in warned
    assert "None copy None: it tells the label nearly by itself" in warned
    assert "1 row stands twice" in warned
    done = palmette("data", "check", "dirty.csv", *HOW)
    assert (done.exit_code, done.stderr) == (2, "")
    assert "It cannot be used before the problems are solved." in done.stdout
    refused = palmette("run", "permfl", "--data", "dirty.csv", *HOW)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        "dirty.csv has 8 problems: (1) row 6 (line 7 of the file): the row has 12 cells"
        in refused.stderr.splitlines()[-1]
    )


def test_what_is_odd_but_can_be_used_is_a_warning_and_exit_code_0() -> None:
    rows = [
        [number, f"d{number % 3 if number < 90 else 0}", number / 7, 1, "yes" if number % 2 else "no"]
        for number in range(97)
    ]
    rows += [[97, "D1", 0.5, 1, "yes"], [98, "D1", 0.25, 1, "no"], [99, "D1", 0.75, 1, "yes"]]
    rows += [[100 + number, "e", number / 3, 1, "no"] for number in range(200)]
    write("odd.csv", rows, ("id", "ward", "v", "c", "readmitted"))
    done = palmette("data", "check", "odd.csv", *settings("device=ward", "label=readmitted"), "--json")
    assert done.exit_code == 0, done.output
    told = texts(json.loads(done.stdout), "warnings")
    for words in (
        "id None: it grows from row to row",
        "c None: it is the same",
        "'d1', 'D1' have nearly the same name",
    ):
        assert words in told
    assert "None e: it has 67 % of all rows" in told
    assert "1 of 5 devices have one class only, such as 'e'" in told


def test_a_label_in_test_rows_only_is_told() -> None:
    rows = [["a", number, ("train", "test")[number > 5], "xyz"[number % 2 + (number > 6)]] for number in range(9)]
    write("t.csv", rows, ("d", "v", "s", "y"))
    done = palmette("data", "check", "t.csv", *settings("device=d", "label=y", "split=s"), "--json")
    assert done.exit_code == 0, done.output
    assert "None y a: the label 'z' is in test rows only" in texts(json.loads(done.stdout), "warnings")


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("xl/workbook.xml", "<x/>")


def _parquet(cut: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        pq.write_table(pa.table({"ward": [1, 2]}), path)
        path.write_bytes(path.read_bytes()[:cut])

    return make


def _column(name: str, values: Any) -> Callable[[Path], None]:
    rows = visits(each=4)
    columns = {one: [row[place] for row in rows] for place, one in enumerate(COLUMNS)}
    return lambda path: pq.write_table(pa.table({**columns, name: values}), path)


def _edit(row: int, place: int, cell: str) -> str:
    rows = [line.split(",") for line in ROWS.splitlines()]
    rows[row][place] = cell
    return HEAD + "".join(",".join(line) + "\n" for line in rows)


N = len(ROWS.splitlines())
MALFORMED: list[tuple[str, str | bytes | Callable[[Path], None], str]] = [
    ("empty.csv", "", "is empty"),
    ("blank.csv", "\n\n\n", ""),
    ("header.csv", HEAD, "no rows"),
    ("headless.csv", ROWS, ""),
    ("numbers.csv", "1,2,3\n4,5,6\n", "begins with numbers"),
    ("twice.csv", GOOD.replace("age", "stay", 1), "two columns named 'stay'"),
    ("one.csv", "ward\nw1\nw2\n", "no column"),
    ("short.csv", GOOD + "north,h0\n", "has 2 cells"),
    ("long.csv", GOOD + "a,b,c,d,e,f,g,h\n", "has 8 cells"),
    ("quote.csv", HEAD + '"north,h0,w0\n' + ROWS, ""),
    ("nul.csv", b"\x00\x01\x02\x03" * 50, "not a text file"),
    ("random.csv", bytes(np.random.default_rng(0).integers(1, 256, 4000, dtype=np.uint8)), ""),
    ("book.xlsx", _zip, "Excel"),
    ("old.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "old Excel"),
    ("excel.csv", _zip, "Excel"),
    ("page.csv", "<html><body>no</body></html>\n", "HTML"),
    ("data.json", '{"ward": [1, 2]}\n', "JSON"),
    ("data.npy", b"\x93NUMPY\x01\x00" + bytes(100), "numpy"),
    ("data.db", b"SQLite format 3\x00" + bytes(100), "SQLite"),
    ("data.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
    ("doc.pdf", b"%PDF-1.7\n" + bytes(100), "PDF"),
    ("z.csv.bz2", b"BZh9" + bytes(50), "bzip2"),
    ("z.csv.xz", b"\xfd7zXZ\x00" + bytes(50), "xz"),
    ("z.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(50), "zstd"),
    ("cut.csv.gz", gzip.compress(GOOD.encode())[:-20], "cannot be read"),
    ("bad.csv.gz", b"\x1f\x8b" + bytes(40), "cannot be read"),
    ("cut.parquet", _parquet(60), "cannot be read"),
    ("fake.parquet", GOOD, "not a Parquet file"),
    ("tiny.parquet", b"PAR1", "cannot be read"),
    ("lists.parquet", _column("age", [[1, 2]] * N), "holds list"),
    ("structs.parquet", _column("age", [{"a": 1}] * N), "holds struct"),
    ("bytes.parquet", _column("age", [b"\xff\xfe"] * N), "holds binary"),
    ("times.parquet", _column("age", pa.array([0] * N, pa.timestamp("s"))), "holds dates"),
    ("nulls.parquet", _column("age", pa.nulls(N)), "all its cells are empty"),
    ("nan.parquet", _column("age", [float("nan")] * N), "all its cells are empty"),
    ("inf.parquet", _column("age", [float("inf")] * N), "infinite"),
    ("listid.parquet", _column("ward", [[1]] * N), ""),
    ("label.parquet", _column("readmitted", [[1]] * N), "the label holds list"),
    (
        "datelabel.csv",
        GOOD.replace(",yes\n", ",2024-01-01\n").replace(",no\n", ",2024-01-02\n"),
        "the label holds dates",
    ),
    ("oneclass.csv", GOOD.replace(",yes\n", ",no\n"), "nothing to learn"),
    ("nolabel.csv", GOOD.replace(",yes\n", ",\n").replace(",no\n", ",\n"), "the label is empty"),
    ("hole.csv", _edit(3, 3, ""), "row 4 (line 5 of the file) age north/h0/w0: the value is missing"),
    ("word.csv", _edit(9, 3, "old"), "row 10 (line 11 of the file) age north/h1/w2: 'old' is not a number"),
    ("nobody.csv", _edit(1, 2, ""), "row 2 (line 3 of the file) ward None: the value is missing"),
    ("noteam.csv", _edit(1, 0, "NA"), "row 2 (line 3 of the file) region None: the value is missing"),
    ("huge.csv", _edit(2, 5, "1e999"), "infinite"),
    ("names.csv", "".join(f"{line},{n}x\n" for n, line in enumerate(GOOD.splitlines())), "looks like a name"),
    ("folder", lambda path: path.mkdir(), "holds no table"),
    ("missing.csv", lambda path: None, "no file or folder"),
    ("surrogate.csv", GOOD.encode() + b"north,h0,\xed\xa0\x80,1,f,1,no\n", ""),
    ("mixed.csv", HEAD.replace(",", ";") + ROWS, ""),
    ("spaces.csv", GOOD.replace("age", "  "), ""),
]


@pytest.mark.filterwarnings("ignore:.*no test samples", "ignore:surrogate", "ignore:spaces", "ignore:nobody")
@pytest.mark.parametrize(("name", "content", "told"), MALFORMED, ids=[case[0] for case in MALFORMED])
def test_a_malformed_file_is_told_in_sentences(name: str, content: Any, told: str) -> None:
    if callable(content):
        content(Path(name))
    else:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    done = palmette("data", "check", name, *HOW, "--json")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == (0 if name in ("surrogate.csv", "spaces.csv") else 2), done.output
    assert told in texts(json.loads(done.stdout))
    run = palmette("run", "fedavg", "--data", name, *HOW, "--rounds", "1", "--set", "tune_steps=1", "--quiet")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    assert run.exit_code == done.exit_code, run.output
    assert "Traceback" not in run.output


def test_there_are_fifty_malformed_files() -> None:
    assert len({case[0] for case in MALFORMED}) >= 50
