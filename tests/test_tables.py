"""Tables of a user's own become populations: every rule of reading, and the command line from file to resumed run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import palmette as pm
from palmette.errors import BadInput
from tables import COLUMNS, KNOWN, WHO, palmette, settings, visits, write

FAST = settings("team_steps=1", "local_steps=2")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(**columns: Any) -> pa.Table:
    """A small table of two devices, with some columns of one's own."""
    base = {"d": ["a"] * 8 + ["b"] * 8, "y": ["no", "yes"] * 8, "v": [float(number) for number in range(16)]}
    return pa.table({**base, **columns})


def read(source: Any, **how: Any) -> pm.Population:
    return pm.read_table(source, **{"device": "d", "label": "y", **how})


def refused(source: Any, **how: Any) -> str:
    with pytest.raises(BadInput) as told:
        read(source, **how)
    assert "\n" not in str(told.value)
    return str(told.value)


# -- who has what -------------------------------------------------------------------------------------------------------------


def test_a_table_becomes_a_population_with_its_own_names_at_every_tier() -> None:
    made = pm.read_table(write("visits.csv", visits()), **KNOWN)
    assert (made.tree.names(2), made.tree.names(1)) == (["north", "south"], ["h0", "h1", "h2", "h3"])
    assert made.tree.names(0) == [f"w{number}" for number in range(8)]
    assert made.encoding is not None
    assert made.encoding.classes == ("no", "yes")
    assert [one.column for one in made.encoding.inputs] == ["age", "sex", "sex", "stay"]
    assert (made.shape, made.classes, len(made.x)) == ((4,), 2, 96)


def test_csv_parquet_a_folder_and_tables_in_memory_give_the_same_population() -> None:
    rows = visits()
    write("visits.csv", rows)
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    pq.write_table(pa.table(columns), "visits.parquet")
    Path("parts").mkdir()
    write("parts/a.csv", rows[:30])
    write("parts/b.csv", [row[::-1] for row in rows[30:]], COLUMNS[::-1])  # its columns in another order
    first = pm.read_table("visits.csv", **KNOWN)
    for other in ("visits.parquet", "parts", pa.table(columns), columns):
        made = pm.read_table(other, **KNOWN)
        assert torch.equal(made.x, first.x)
        assert torch.equal(made.y, first.y)
        assert made.tree.spec() == first.tree.spec()


def test_a_name_at_two_places_is_two_devices_and_said_or_refused() -> None:
    rows = table(t=["p"] * 4 + ["q"] * 4 + ["p"] * 8)
    with pytest.warns(UserWarning, match="'a'.*2 places.*'p/a' and 'q/a'"):
        made = read(rows, team="t")
    assert sorted(made.tree.names(0)) == ["b", "p/a", "q/a"]
    assert "device 'a': it is in 2 teams ('p', 'q')" in refused(rows, team="t", repeats="refuse")


def test_numbers_as_ids_are_the_same_devices_as_texts() -> None:
    whole, floats = table(d=[7] * 8 + [8] * 8), table(d=[7.0] * 8 + [8.0] * 8)
    assert (
        read(whole).tree.names(0) == read(floats).tree.names(0) == read(table(d=["7"] * 8 + [" 8 "] * 8)).tree.names(0)
    )


def test_deep_paths_of_many_names_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"t{tier}": [f"{tier}-{row % (tier + 2)}" for row in range(60)] for tier in range(4)}
    rows = pa.table({**names, "d": [f"d{row}" for row in range(60)], "y": ["u", "v"] * 30, "v": np.arange(60) / 7})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every device has one row, and names repeat
        plain = read(rows, team=list(names))
        monkeypatch.setattr("palmette.tables.places._MOST", 50)
        again = read(rows, team=list(names))
    assert plain.tree.spec() == again.tree.spec()
    assert plain.devices == 60


def test_without_teams_devices_are_the_servers() -> None:
    assert read(table()).tree.tiers == 2


# -- what cells become --------------------------------------------------------------------------------------------------------


def test_scaling_looks_at_training_rows_only_and_leaves_out_unseen_devices() -> None:
    made = read(table(), unseen=0.5)
    assert made.unseen is not None
    assert made.encoding is not None
    seen = int((~made.unseen).nonzero()[0])
    start, count = int(made.start[seen]), int(made.train[seen])
    one = made.encoding.inputs[0]
    trained = made.x[start : start + count, 0] * one.divide + one.subtract
    assert one.subtract == pytest.approx(float(trained.mean()))
    assert one.divide == pytest.approx(float(trained.std(correction=0)))
    assert float(made.x[start : start + count].mean()) == pytest.approx(0, abs=1e-6)


def test_texts_become_one_input_for_each_category_of_the_training_rows() -> None:
    colours = ["red"] * 7 + ["blue"] * 8 + ["rare"]
    split = ["train"] * 6 + ["test"] * 2 + ["train"] * 6 + ["test"] * 2
    with pytest.warns(UserWarning, match="1 cell holds a category that no training row has"):
        made = read(table(c=colours, s=split), features="c", split="s")
    assert made.encoding is not None
    assert [one.equals for one in made.encoding.inputs] == ["blue", "red"]
    assert sorted(made.x.sum(1).tolist()) == [0.0] + [1.0] * 15


def test_whole_numbers_are_numbers_unless_they_are_said_to_be_categories_or_tokens() -> None:
    codes = [1, 2] * 8
    assert read(table(c=codes), features="c").shape == (1,)
    assert read(table(c=codes), features="c", categories="c").shape == (2,)
    tokens = read(table(c=codes, e=codes), tokens=["c", "e"])
    assert (tokens.x.dtype, tokens.shape, sorted(tokens.x.unique().tolist())) == (torch.int64, (2,), [1, 2])


def test_missing_values_are_refused_replaced_or_dropped_as_asked() -> None:
    holes = table(v=[None, *map(float, range(15))], c=["x", "z"] * 7 + ["x", None])
    told = refused(holes)
    assert "row 1, column 'v', device 'a'" in told
    assert "row 16, column 'c', device 'b'" in told
    with pytest.warns(UserWarning, match="1 missing value "):
        mean = read(holes, missing="mean")
    assert int((mean.x[:, 0] == 0).sum()) == 1
    with pytest.warns(UserWarning, match="2 of 16 rows left out"):
        assert len(read(holes, missing="drop").x) == 14
    with pytest.warns(UserWarning, match="1 missing value "):
        plain = read(holes, missing="mean", scale="none")
    assert plain.encoding is not None
    assert plain.encoding.inputs[0].fill == pytest.approx(float(plain.x[:, 0][: int(plain.train[0])].mean()), abs=8)


def test_dates_are_refused_with_a_hint_and_split_by_time_when_asked() -> None:
    days = [f"2024-01-{day:02}" for day in range(16, 0, -1)]
    assert "column 'when': it holds dates" in refused(table(when=days))
    made = read(table(when=days), time="when", scale="none")
    for device in range(2):
        mine = made.x[int(made.start[device]) : int(made.start[device + 1]), 0].tolist()
        assert mine == sorted(mine, reverse=True)  # v grows while the days go back
    assert "must be a number or a date" in refused(table(when=["yesterday"] * 16), time="when")


@pytest.mark.parametrize(
    ("label", "how", "classes", "said"),
    [
        ([0, 1] * 8, {}, ("0", "1"), "taken as classes"),
        ([10, 9] * 8, {"target": "class"}, ("9", "10"), None),
        (list(range(100, 124)), {}, None, "regression"),
        ([0.5, 1.5] * 8, {}, None, None),
        ([3, 4] * 8, {"target": "number"}, None, None),
        ([True, False] * 8, {"target": "class"}, ("false", "true"), None),
    ],
)
def test_what_a_label_is(label: list[Any], how: dict[str, Any], classes: Any, said: str | None) -> None:
    many = len(label)
    rows = pa.table({"d": ["a", "b"] * (many // 2), "y": label, "v": np.arange(many) / 3})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = read(rows, **how)
    assert made.encoding is not None
    assert (made.encoding.classes, made.y.is_floating_point()) == (classes, classes is None)
    assert [said in str(one.message) for one in told] == ([True] if said else [])


def test_a_column_says_which_rows_are_for_testing() -> None:
    words = ["Train"] * 6 + ["TEST"] * 2
    made = read(table(s=words * 2), split="s")
    assert (made.train.tolist(), made.tests.tolist()) == ([6, 6], [2, 2])
    assert "row 1, column 's', device 'a': it says 'validation'" in refused(
        table(s=["validation", *(words * 2)[1:]]), split="s"
    )
    assert "device 'a' has no training samples" in refused(table(s=["test"] * 8 + words), split="s")


# -- files as people have them ------------------------------------------------------------------------------------------------


def test_other_encodings_delimiters_and_decimal_commas_are_read_and_said() -> None:
    text = "d;y;größe\n" + "".join(f"{'é' if row < 8 else 'b'};{('ja', 'nö')[row % 2]};{row},5\n" for row in range(16))
    same = []
    for encoding, said in (("utf-8", 2), ("utf-8-sig", 2), ("latin-1", 3), ("utf-16", 3)):
        Path("file.csv").write_bytes(text.encode(encoding))
        with pytest.warns(UserWarning, match=r"file\.csv:") as told:
            made = read("file.csv")
        assert len(told) == said, [str(one.message) for one in told]
        assert made.tree.names(0) == ["é", "b"]
        assert made.encoding is not None
        assert made.encoding.classes == ("ja", "nö")
        same.append(made.x)
    assert all(torch.equal(one, same[0]) for one in same)


def test_a_comma_in_a_number_is_refused_where_it_may_mean_thousands() -> None:
    rows = [[f"d{row % 2}", "xy"[row // 2 % 2], f"1,{row:03}"] for row in range(16)]
    assert "column 'v': its numbers have commas" in refused(write("t.csv", rows, ("d", "y", "v")))
    with pytest.warns(UserWarning, match="semicolons|decimal commas"):
        made = read(write("t.csv", rows, ("d", "y", "v"), delimiter=";"), scale="none")
    assert float(made.x.max()) == pytest.approx(1.015)


def test_white_space_around_names_of_columns_is_left_out_and_said() -> None:
    rows = [["a", "xy"[row % 2], row] for row in range(8)]
    with pytest.warns(UserWarning, match="white space around names of columns left out, as in ' y '"):
        assert read(write("t.csv", rows, ("d", " y ", " v"))).classes == 2


def test_quoted_cells_may_hold_commas_and_new_lines() -> None:
    rows = [["a, the first" if row < 8 else "b\nsecond", "yn"[row % 2], row] for row in range(16)]
    assert read(write("t.csv", rows, ("d", "y", "v"))).tree.names(0) == ["a, the first", "b\nsecond"]


# -- from the shell -----------------------------------------------------------------------------------------------------------


def test_a_run_on_a_file_resumes_from_the_shell_to_the_same_bytes_and_refuses_changed_data() -> None:
    write("visits.csv", visits())
    own = ["--data", "visits.csv", *settings(*WHO), *FAST]
    for rounds, out in (("2", "one"), ("3", "whole")):
        done = palmette("run", "permfl", *own, "--rounds", rounds, "--out", out, "--quiet")
        assert done.exit_code == 0, done.stderr
    assert "visits.csv, tree 2x2x2" in done.stdout
    done = palmette("resume", "one", "--rounds", "3", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert Path("one/devices.safetensors").read_bytes() == Path("whole/devices.safetensors").read_bytes()
    again = palmette("run", "--config", "one/config.toml", "--out", "again", "--quiet")
    assert (again.exit_code, again.stderr) == (0, "")
    write("visits.csv", [*visits(), ["north", "h0", "w0", "old", "", "", ""]])  # changed, and full of problems
    for words in (["resume", "one", "--rounds", "4"], ["run", "--config", "one/config.toml", "--out", "other"]):
        done = palmette(*words, "--quiet")
        assert done.exit_code == 2
        assert "is not what it was" in done.stderr


def test_the_folder_of_a_run_is_named_after_the_file() -> None:
    write("my visits.csv", visits(each=4))
    done = palmette("run", "fedavg", "--data", "my visits.csv", *settings(*WHO), "--rounds", "1", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert Path("runs/fedavg-my-visits-1").is_dir()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tree", "2x3", *settings(*WHO)], ["leave --tree out", "data.team"]),
        (settings("data.device=ward"), ["say which column is to be learned: data.label", "age"]),
        (settings("data.device=wrad", *WHO[1:]), ["data.device: there is no column 'wrad'; did you mean 'ward'?"]),
        (settings(*WHO, "data.partition=iid"), ["data.partition"]),
        (settings(*WHO, "data.mising=mean"), ["'data.mising'", "'data.missing'"]),
        (settings(*WHO, "data.missing=zero"), ["data.missing = 'zero' is unknown", "refuse or mean or drop"]),
        (settings(*WHO, "data.test=2"), ["data.test = 2 is not a fraction"]),
        (settings("data.device=ward", "data.label=ward"), ["'ward' is both data.device and data.label"]),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(words: list[str], told: list[str]) -> None:
    write("visits.csv", visits(each=4))
    done = palmette("run", "permfl", "--data", "visits.csv", *words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for words_ in told:
        assert words_ in done.stderr


def test_unseen_devices_are_never_asked_and_measured_apart() -> None:
    made = pm.read_table(write("visits.csv", visits()), **KNOWN, unseen=0.25)
    assert made.unseen is not None
    assert int(made.unseen.sum()) == 2
    task = pm.make_task("mclr", made.shape, made.classes)
    for share in ("all", 0.5):
        links = {0: pm.Link(pm.Participation.parse(share))}
        simulation = pm.Simulation(pm.PerMFL(team_steps=3), made, task, rounds=4, links=links)
        for _ in range(4):
            simulation.step()
        assert (simulation.stores[0].last[made.unseen] == -1).all()
        if share == "all":
            assert (simulation.stores[0].last[~made.unseen] == 3).all()
    assert int(simulation.samples[-1]) == int(made.train[~made.unseen].sum())
    result = pm.run("permfl", made, rounds=2, settings={"team_steps": 1}, out="one")
    assert set(result.curve("PM", on="unseen")) == {1, 2}
    assert "unseen" in palmette("show", "one").stdout


# -- packed -------------------------------------------------------------------------------------------------------------------


def test_a_packed_population_is_the_same_and_runs_and_resumes_from_the_shell() -> None:
    write("visits.csv", visits())
    done = palmette("data", "pack", "visits.csv", *settings(*WHO, "unseen=0.25"), "--out", "visits.packed")
    assert done.exit_code == 0, done.stderr
    assert "palmette run permfl --data visits.packed" in done.stdout
    packed, plain = pm.load_population("visits.packed"), pm.read_table("visits.csv", **KNOWN, unseen=0.25)
    for name in ("x", "y", "start", "train", "unseen"):
        assert torch.equal(getattr(packed, name), getattr(plain, name))
    assert (packed.encoding, packed.tree.spec(), packed.classes) == (plain.encoding, plain.tree.spec(), plain.classes)
    run = palmette("run", "permfl", "--data", "visits.packed", *FAST, "--rounds", "1", "--out", "one", "--quiet")
    assert run.exit_code == 0, run.stderr
    assert palmette("resume", "one", "--rounds", "2", "--quiet").exit_code == 0
    told = palmette("run", "permfl", "--data", "visits.packed", *settings("data.device=ward")).stderr
    assert "is packed already, so data.device cannot be chosen" in told
    packed.x[0] += 1  # copies its page: what is on disk stays
    assert torch.equal(pm.load_population("visits.packed").x, plain.x)


def test_any_population_can_be_saved_and_what_is_damaged_is_refused() -> None:
    made = pm.make_population("digits", tree="2x3")
    made.save("digits.packed")
    again = pm.load_population("digits.packed")
    assert torch.equal(made.features(torch.arange(5)), again.features(torch.arange(5)))
    assert (again.tree.spec(), again.affine, again.source) == ("2x3", made.affine, "digits")
    with pytest.raises(BadInput, match="is there already"):
        made.save("digits.packed")
    Path("digits.packed/y.npy").write_bytes(b"no")
    with pytest.raises(BadInput, match="is damaged"):
        pm.load_population("digits.packed")
    with pytest.raises(BadInput, match="is not the folder of a population"):
        pm.load_population("elsewhere")
    assert not list(Path().glob(".*"))


def test_a_table_that_cannot_be_packed_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    write("visits.csv", visits(each=40))
    monkeypatch.setattr("palmette.values.memory", lambda: 4500)
    with pytest.raises(BadInput, match="palmette data pack"):
        pm.read_table("visits.csv", **KNOWN)
    monkeypatch.setattr("palmette.tables.read.encode", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pm.read_table("visits.csv", **KNOWN, into="packed")
    assert sorted(path.name for path in Path().iterdir()) == ["visits.csv"]


def test_named_data_sets_keep_devices_out_too_and_their_runs_run_again() -> None:
    made = pm.make_population("digits", tree="2x4", unseen=0.25)
    assert made.unseen is not None
    assert int(made.unseen.sum()) == 2
    words = ["--tree", "2x4", *settings("data.unseen=0.25"), *FAST, "--rounds", "1", "--quiet", "--json"]
    done = palmette("run", "permfl", *words, "--out", "one")
    assert done.exit_code == 0, done.stderr
    assert set(json.loads(done.stdout)["unseen"]) == {"PM", "TM", "GM"}
    again = palmette("run", "--config", "one/config.toml", "--out", "again", "--quiet")
    assert (again.exit_code, again.stderr) == (0, "")
    assert Path("one/devices.safetensors").read_bytes() == Path("again/devices.safetensors").read_bytes()
    with pytest.raises(BadInput, match="every team of the tree 2x1 has only one device"):
        pm.make_population("digits", tree="2x1", unseen=0.5)
