"""Tables as a German spreadsheet writes them: semicolons, decimal commas, dates like 31.01.2025, cells with a dash."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palmette as pm
from palmette.errors import BadInput
from palmette.tables.again import read_again
from palmette.tables.delimited import NOTHING
from tables import palmette, settings, write

COLUMNS = ("house", "warm", "sky", "kWh")
WHO = settings("device=house", "label=kWh")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.PalmetteWarning)
        yield


def comma(number: float) -> str:
    return f"{number:.2f}".replace(".", ",")


def houses(each: int = 30, seed: int = 0) -> list[list[Any]]:
    """Rows of four houses: a temperature, the sky and what was used."""
    random = np.random.default_rng(seed)
    return [
        [f"h{row % 4}", comma(random.normal(10, 5)), ("grey", "blue")[row % 2], comma(random.normal(30, 9))]
        for row in range(4 * each)
    ]


def german(rows: list[list[Any]], name: str = "h.csv", columns: tuple[str, ...] = COLUMNS) -> Path:
    path = write(name, rows, columns, delimiter=";")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def check(path: Path, *more: str, code: int = 0) -> dict[str, Any]:
    done = palmette("data", "check", str(path), *WHO, *settings(*more), "--json")
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def told(found: dict[str, Any], what: str = "problems") -> str:
    return " | ".join(f"{one['row']} {one['column']}: {one['text']}" for one in found[what])


# -- models that are there already --------------------------------------------------------------------------------------------


def known() -> Any:
    return pm.read_table(german(houses(), "known.csv"), device="house", label="kWh").encoding


@pytest.mark.parametrize("column", [1, 3])
@pytest.mark.parametrize("delimiter", [";", ","])
def test_a_text_among_the_numbers_of_a_known_table_is_refused_with_its_place(column: int, delimiter: str) -> None:
    rows = houses()
    rows[3][column] = "wet"
    if delimiter == ",":
        rows = [[str(cell).replace(",", ".") for cell in row] for row in rows]
    path = write("new.csv", rows, COLUMNS, delimiter=delimiter)
    with pytest.raises(
        BadInput, match=rf"new\.csv: row 4 \(line 5 of the file\), column '{COLUMNS[column]}', .*'wet' is not a number"
    ):
        read_again(path, known())


@pytest.mark.parametrize("column", [1, 3])
def test_a_column_of_texts_is_no_column_of_numbers_of_a_known_table(column: int) -> None:
    rows = [[*row[:column], "wet", *row[column + 1 :]] for row in houses()]
    with pytest.raises(
        BadInput, match=rf"row 1 \(line 2 of the file\), column '{COLUMNS[column]}', .*'wet' is not a number"
    ):
        read_again(german(rows), known())


def test_a_comma_that_may_mean_thousands_is_no_label_of_a_known_table() -> None:
    with pytest.raises(BadInput, match="column 'kWh': its numbers have commas"):
        read_again(write("new.csv", [[h, w.replace(",", "."), s, k] for h, w, s, k in houses()], COLUMNS), known())


def test_points_and_commas_of_a_known_table_are_read_cell_by_cell() -> None:
    rows = houses()
    found, _ = read_again(german(rows), known())
    rows[5][1] = rows[5][1].replace(",", ".")
    again, _ = read_again(german(rows), known())
    assert (found.x == again.x).all()


def test_predict_names_the_cell_that_is_no_number() -> None:
    pm.run("fedavg", pm.read_table(german(houses()), device="house", label="kWh"), rounds=1, out="run", progress=False)
    rows = houses()
    rows[3][1] = "wet"
    with pytest.raises(BadInput, match=r"row 4 \(line 5 of the file\), column 'warm': wet is no number"):
        pm.predict("run", german(rows))
    with pytest.raises(BadInput, match=r"row 4 \(line 5 of the file\), column 'warm', .*'wet' is not a number"):
        pm.adapt("run", german(rows))


# -- data check ---------------------------------------------------------------------------------------------------------------


def test_the_range_of_a_label_with_decimal_commas_is_told() -> None:
    rows = houses()
    rows[0][3], rows[1][3] = "-7,5", "80,25"
    assert check(german(rows))["understood"]["target"] == {"low": -7.5, "high": 80.25}
    rows = [[*row[:3], "1,5"] for row in rows]
    assert "the label is 1.5 in all rows" in told(check(german(rows), code=2))


@pytest.mark.parametrize("column", [1, 3])
def test_a_dash_among_numbers_with_decimal_commas_is_named_with_its_row(column: int) -> None:
    rows = houses()
    rows[7][column] = "-"
    found = told(check(german(rows), code=2))
    assert f"row 8 (line 9 of the file) {COLUMNS[column]}: " in found
    assert "'-' is not a number, as the others are" in found
    assert "looks like a name" not in found


def test_rows_that_differ_in_a_column_that_is_no_feature_do_not_stand_twice() -> None:
    rows = [[*row, f"{1 + place % 28:02}.{1 + place // 28:02}.2025"] for place, row in enumerate(houses())]
    rows[8][:4] = rows[4][:4]
    path = german(rows, columns=(*COLUMNS, "day"))
    assert "twice" not in told(check(path, code=2), "warnings")
    assert "twice" not in told(check(path, "time=day"), "warnings")
    assert "1 row stands twice" in told(check(path, "drop=day"), "warnings")
    rows[8] = rows[4]
    assert "1 row stands twice" in told(check(german(rows, columns=(*COLUMNS, "day")), "time=day"), "warnings")


# -- dates --------------------------------------------------------------------------------------------------------------------


def dated(form: str, days: int = 28) -> Path:
    rows = houses()
    for place, row in enumerate(rows):
        day, month = 1 + (7 * place) % days, 1 + place % 12
        row.append(form.format(day=day, month=month))
    return german(rows, columns=(*COLUMNS, "day"))


@pytest.mark.parametrize(
    ("form", "first"),
    [
        ("{day:02}.{month:02}.2025", "day"),
        ("{day}/{month}/2025 07:{day:02}", "day"),
        ("{month:02}/{day:02}/2025", "month"),
        ("2025-{month:02}-{day:02}", None),
    ],
)
def test_the_latest_rows_are_for_testing_whatever_comes_first_in_a_date(form: str, first: str | None) -> None:
    path = dated(form)
    assert "split by it (time=)" in told(check(path, code=2))
    notes = " ".join(check(path, "time=day")["notes"])
    assert (f"its dates are read with the {first} first, as in" in notes) == (first is not None)
    made = pm.read_table(path, device="house", label="kWh", time="day")
    same = pm.read_table(dated("2025-{month:02}-{day:02}"), device="house", label="kWh", time="day")
    assert (made.x == same.x).all()


@pytest.mark.parametrize(
    ("form", "days", "said"),
    [
        ("{day:02}.{month:02}.2025", 12, "the day or the month may come first in its dates, and no day is above 12"),
        ("{day:02}.{month:02}.25", 28, "the time must be a number or a date like 2024-05-31"),
    ],
)
def test_dates_that_cannot_be_read_are_refused_and_not_advised(form: str, days: int, said: str) -> None:
    path = dated(form, days)
    assert said in told(check(path, "time=day", code=2))
    advised = told(check(path, code=2))
    assert "it holds dates" in advised
    assert "time=" not in advised


def test_a_day_that_there_is_not_is_no_date() -> None:
    rows = [[*row, ("27.02.2025", "30.02.2025")[place == 9]] for place, row in enumerate(houses())]
    path = german(rows, columns=(*COLUMNS, "day"))
    assert "the time must be a number or a date" in told(check(path, "time=day", code=2))


# -- places -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("h;v;y\na;1;p\na;x;q\n", "row 2 (line 3 of the file)"),
        ('h;v;y\na;1;"p\nq"\na;x;q\n', "row 2"),
        ("h;v;y\n\na;1;p\na;x;q\n", "row 2"),
    ],
)
def test_the_line_of_a_row_is_told_where_it_can_be_known(text: str, place: str) -> None:
    text = text.replace("a;x;q\n", "a;x;q\n" + "a;2;q\n" * 9)
    for encoding in ("utf-8", "utf-16"):
        Path("t.csv").write_bytes(text.encode(encoding))
        found = pm.check_table("t.csv", device="h", label="y")
        assert [one.row for one in found.findings.problems] == [place]


# -- what is said -------------------------------------------------------------------------------------------------------------


def test_categories_that_no_training_row_has_are_named_with_their_column() -> None:
    rows = houses()
    for place in range(6):
        rows[place][2] = "hail" if place else "fog"
    _, notes = read_again(german(rows), known())
    assert (
        "6 cells hold a category that no training row has: 'hail' in column 'sky', 'fog' in column 'sky'; left out"
        in notes
    )


def test_whole_numbers_that_are_all_different_may_be_an_identifier() -> None:
    numbers = np.random.default_rng(0).permutation(120) + 1000
    rows = [[*row, number, number // 2] for row, number in zip(houses(), numbers.tolist(), strict=True)]
    notes = check(german(rows, columns=(*COLUMNS, "patient", "age")))["notes"]
    assert [note for note in notes if "identifier" in note] == [
        "column 'patient': its whole numbers are all different, and it is taken as an amount; if it is an identifier, such as "
        "the number of a patient, leave it out (drop=)"
    ]


def test_a_column_in_other_capitals_is_meant() -> None:
    with pytest.raises(BadInput, match="there is no column 'Kwh'; did you mean 'kWh'"):
        pm.read_table(german(houses()), device="house", label="Kwh")


def test_settings_are_named_as_they_were_typed() -> None:
    rows = houses()
    rows[0][1] = ""
    path = german(rows)
    assert "or say missing=mean or drop" in told(check(path, code=2))
    long = palmette("data", "check", str(path), *settings("data.device=house", "data.label=kWh"))
    assert "or say data.missing=mean or drop" in " ".join(long.stdout.split())


@pytest.mark.parametrize("setting", ["alpha=0,1", "data.test=0,1", "engine.held_out=0,1"])
def test_a_decimal_comma_in_a_setting_is_answered_with_the_point(setting: str) -> None:
    words = settings("data.device=house", "data.label=kWh", setting)
    done = palmette("run", "permfl", "--data", str(german(houses())), *words)
    assert done.exit_code == 2
    assert "'0,1'" in done.stderr
    assert "decimals are written with a point: 0.1" in " ".join(done.stderr.split())


def test_the_page_names_all_words_that_mean_a_missing_value() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "own-data.md").read_text(encoding="utf-8")
    said = page.partition("or says ")[2].partition(". A dash is not")[0]
    assert {"", *re.findall("`([^`]+)`", said)} == set(NOTHING)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the program leaves its file open
@pytest.mark.parametrize("model", ["linear", "mclr"])
def test_the_program_of_the_page_reads_a_german_file_and_a_model_without_bias(model: str, capsys: Any) -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "own-data.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0].replace('delimiter=","', 'delimiter=";"')
    made = pm.read_table(german(houses(), "new-pupils.csv"), device="house", label="kWh")
    run = pm.run("fedavg", made, model=model, rounds=1, out="run", progress=False)
    pm.export(run, "models/1224.safetensors", node="h0")
    exec(program, {})
    printed = [float(word) for word in capsys.readouterr().out.split()]
    assert printed == pytest.approx(
        pm.predict(run, "new-pupils.csv", node="h0").table["prediction"].to_pylist(), abs=1e-4
    )
