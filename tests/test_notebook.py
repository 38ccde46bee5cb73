"""Results in a notebook: data frames, and tables whose text is nobody's markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import palmette as pm
from palmette.studies.study import Rows


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> pm.Study:
    place = tmp_path_factory.mktemp("notebook") / "<script>alert(1)</script>"
    settings = {"local_steps": 2}
    return pm.compare(
        ["permfl", "fedavg"], "digits", tree="2x3", seeds=2, rounds=2, settings=settings, jobs=1, out=place
    )


@pytest.fixture(scope="module")
def result(study: pm.Study) -> pm.Result:
    found = study.run("permfl", 0)
    assert found is not None
    return found


class Reader(HTMLParser):
    """Takes note of tags and of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.cells: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "tr":
            self.cells.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1].append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert set(reader.tags) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert not re.search(r"#[0-9a-fA-F]{3}|rgb|white|black", html)  # colours are the page's
    return reader


def test_the_history_of_a_run_is_a_data_frame(result: pm.Result) -> None:
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == result.metrics.column_names
    last = frame.query(
        "model == 'PM' and metric == 'accuracy' and tier == 2 and weight == 'samples' and when == 'after'"
    )
    last = last.query("on == 'all' and round == 2")
    assert last["value"].tolist() == [result.last("PM")]
    traffic = result.to_pandas("traffic")
    assert traffic["bytes_up"].sum() == np.sum(result.traffic["bytes_up"].to_numpy())
    with pytest.raises(pm.BadInput, match="a run has no table 'trafic'; did you mean 'traffic'"):
        result.to_pandas("trafic")


def test_the_runs_of_a_study_are_one_data_frame(study: pm.Study) -> None:
    frame = study.to_pandas()
    assert set(frame["method"]) == {"permfl", "fedavg", "local"}
    part = study.at(method="permfl", seed=1, round=-1, tier=0, metric="accuracy").to_pandas()
    assert set(part["method"]) == {"permfl"}


def test_without_pandas_a_sentence_says_what_to_install(result: pm.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        def to_pandas(self) -> None:
            raise ModuleNotFoundError("No module named 'pandas'")

    monkeypatch.setattr(result, "metrics", Table())
    for one in (result, Rows(Table())):
        with pytest.raises(pm.BadInput, match="a data frame needs pandas: pip install 'palmette"):
            one.to_pandas()  # type: ignore[attr-defined]


def test_a_notebook_shows_a_run_as_a_table(result: pm.Result) -> None:
    reader = read(result._repr_html_())
    assert reader.cells[0] == ["test accuracy", "last", "best", "in round", "worst tenth"]
    assert [row[0] for row in reader.cells[1:]] == ["PM", "TM", "GM"]
    assert reader.cells[1][1] == f"{result.last('PM'):.4g}"
    assert "&lt;script&gt;" in result._repr_html_()


def test_a_notebook_shows_a_study_as_its_tables(study: pm.Study) -> None:
    reader = read(study._repr_html_())
    assert reader.tags.count("table") == 3
    heads = [row for row in reader.cells if row[0] == "test accuracy in %"]
    assert heads == [["test accuracy in %", "PM", "TM", "GM", "worst tenth"]]
    assert any(row[0] == "permfl" and "±" in row[1] for row in reader.cells)


def test_names_are_no_markup_in_a_notebook(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype("float32")
    people = pm.Population.from_arrays(x, (x[:, 0] > 0).astype("int64"), device=np.repeat(["<b>", "&"], 20))
    result = pm.run("local", people, rounds=1, out=tmp_path / "<img src=x onerror=alert(1)>")
    read(result._repr_html_())


def test_a_run_that_is_not_finished_says_so_in_a_notebook(tmp_path: Path) -> None:
    class Stop:
        def begin(self, simulation: object, rounds: int) -> None: ...
        def exchange(self, tier: int) -> None: ...
        def stopping(self) -> None: ...

        def round(self, done: int, scores: object) -> None:
            raise KeyboardInterrupt

    people = pm.make_population("digits", tree="2x2")
    with pytest.raises(KeyboardInterrupt):
        pm.run("local", people, rounds=3, out=tmp_path / "r", observer=Stop())
    html = pm.Result(tmp_path / "r")._repr_html_()
    read(html)
    assert "not finished, round" in html
