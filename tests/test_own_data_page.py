"""Every block of docs/how-to/own-data.md runs as it stands, on real data: from file to a personal model in a torch script."""

from __future__ import annotations

import csv
import os
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from palmette.datasets.files import data_folder
from real_tables import make_files
from tables import palmette
from test_readme import BLOCK, ROOT

PAGE = ROOT / "docs" / "how-to" / "own-data.md"
DATA = data_folder(str(Path(os.environ.get("PALMETTE_DATA", "../shared/data")).resolve()))

pytestmark = pytest.mark.skipif(not (DATA / "tabular").is_dir(), reason="needs the public tables")


def test_the_page_from_file_to_a_personal_model_in_a_torch_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_files(DATA.resolve(), tmp_path)
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page shows files about which there is something to say
        for kind, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "python":
                exec(compile(body, "page", "exec"), {})
                printed.append(capsys.readouterr().out)
                continue
            assert kind == "bash"
            for line in body.strip().splitlines():
                told = _command(line)
                if line.startswith("palmette data check stars.csv"):
                    _all_is_told(" ".join(told.stdout.split()))
    script, _, picture, _ = printed
    with Path("predicted.csv").open() as file:
        expected = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert [float(word) for word in script.split()] == pytest.approx(expected, rel=1e-6)
    assert len(expected) > 10
    assert picture.strip() == "one"


def _command(line: str) -> Any:
    words = shlex.split(line)
    assert words[0] == "palmette"
    quiet = ["--quiet"] if words[1] in ("run", "resume") else []
    done = palmette(*words[1:], *quiet)
    assert done.exit_code == (2 if "check stars.csv" in line else 0), (line, done.output)
    return done


def _all_is_told(told: str) -> None:
    """The ten ways in which the third table is dirty."""
    for words in (
        "separated by semicolons",
        "not UTF-8",
        "decimal commas",
        "row 4, column 'experience'",
        "row 8, column 'experience', device",
        "'many' is not a number",
        "row 12: the row has 8 cells, the header has 10",
        "column 'day': it holds dates",
        "column 'note': it has",
        "column 'state': it is the same in all rows",
        "stands twice",
    ):
        assert words in told, words
