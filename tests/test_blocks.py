"""Every code block and every command of the README and the docs runs as it stands; slow ones by ``make prove-docs``."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import warnings
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from blocks import ROOT, blocks_of, forgotten, pages, run_page
from palmette.figures.make import Kind
from palmette.studies import conduct
from palmette.studies.study import Study
from real_tables import make_files

SLOW = bool(os.environ.get("PALMETTE_SLOW_DOCS"))
LANGUAGES = {"bash", "python", "toml", "json", "csv", "text"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, whose modules can be imported, and open no browser."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(conduct, "_jobs", lambda given: 1)  # another process would load torch once more
    monkeypatch.setattr(webbrowser, "open", lambda *_: True)
    with forgotten(tmp_path):
        yield


@pytest.mark.parametrize("page", pages())
def test_every_block_is_of_a_language_that_is_looked_at(page: str) -> None:
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


def has_its_own(page: str) -> bool:
    return page in ("README.md", "docs/how-to/own-data.md")


@pytest.mark.filterwarnings("default")  # a command prints them
@pytest.mark.parametrize("page", [page for page in pages() if not has_its_own(page)])
def test_the_blocks_of_a_page_run(page: str) -> None:
    run_page(page, slow=SLOW)


def test_the_page_of_figures_draws_one_of_each_kind() -> None:
    lines = [line for block in blocks_of("docs/how-to/figures.md", "bash") for line in block.body.splitlines()]
    drawn = {found[1] for line in lines if (found := re.search(r"palmette figure .*--kind (\w+)", line))}
    assert drawn == set(get_args(Kind))


@pytest.mark.filterwarnings("default")
def test_the_blocks_of_the_readme_run_and_give_the_numbers_it_tells() -> None:
    told = run_page("README.md", slow=True)
    assert "make demo" in [line for line, _ in told.commands]
    assert all(text.strip() for text in told.scripts)
    study = Study("runs/compared")
    runs = [result for _, _, result in study.results()]
    assert [run.config.algorithm for run in runs] == ["permfl", "fedavg", "local"]
    assert len({one["steps_per_device"] for one in study.summary()["methods"]}) == 1  # compared fairly
    expected = accuracies()
    assert set(expected) == {run.config.algorithm for run in runs}
    for run in runs:
        found = {kind: run.last(kind) for kind in run.kinds}
        assert found == pytest.approx(expected[run.config.algorithm], abs=0.02)
    permfl, fedavg, local = (run.last("PM") for run in runs)
    assert permfl > max(fedavg, local, runs[1].last("GM")) + 0.05  # there is a reason to personalize by team


def accuracies() -> dict[str, dict[str, float]]:
    """The accuracies the README tells people to expect, by run and kind of model."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([\d.-]+) \| ([\d.-]+) \| ([\d.-]+) \|$", text, re.MULTILINE)
    return {
        name: {kind: float(value) for kind, value in zip(("PM", "TM", "GM"), values, strict=True) if value != "-"}
        for name, *values in rows
    }


def test_the_library_example_of_the_readme_warns_of_nothing_and_has_at_most_25_lines() -> None:
    (block,) = blocks_of("README.md", "python")
    assert len([line for line in block.body.splitlines() if line.strip()]) <= 25
    words = [sys.executable, "-W", "error", "-c", block.body]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_page_from_file_to_a_personal_model_in_a_torch_script(data_folder: Path) -> None:
    if not (data_folder / "tabular").is_dir():
        pytest.skip("needs the public tables")
    make_files(data_folder, Path())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page shows files about which there is something to say
        told = run_page("docs/how-to/own-data.md", slow=True)
    seen = " ".join(told.of("palmette data check stars.csv").split())
    for words in (  # the ten ways in which this table is dirty
        "separated by semicolons",
        "not UTF-8",
        "decimal commas",
        "row 4 (line 5 of the file), column 'experience'",
        "row 8 (line 9 of the file), column 'experience', device",
        "'many' is not a number",
        "row 12 (line 13 of the file): the row has 8 cells, the header has 10",
        "column 'day': it holds dates",
        "column 'note': it has",
        "column 'state': it is the same in all rows",
        "stands twice",
    ):
        assert words in seen, words
    script, _, picture, _ = told.scripts
    with Path("predicted.csv").open() as file:
        expected = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert [float(word) for word in script.split()] == pytest.approx(expected, rel=1e-6)
    assert len(expected) > 10
    assert picture.strip() == "one"
