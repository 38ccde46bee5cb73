"""Folders of runs that a stranger made: reading one runs no code, writes nothing outside, and takes no more than it should."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch

import palmette as pm
from own_files import palmette
from palmette.errors import BadInput
from palmette.guards import parquet
from palmette.guards.texts import from_json, from_toml
from palmette.page.live import Watch
from palmette.runs import execute, make_config
from palmette.runs.files import Files, digest
from palmette.runs.folder import claimed
from palmette.runs.metrics import SCHEMA
from palmette.studies.study import Study

SMALL: dict[str, Any] = {
    "algorithm": "permfl",
    "tree": "2x2",
    "rounds": 2,
    "settings": {"local_steps": 1, "team_steps": 1},
}
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute(make_config(SMALL), tmp_path_factory.mktemp("original") / "run").folder


@pytest.fixture
def run(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(original, tmp_path / "run"))


def sealed(folder: Path, name: str = "", data: bytes = b"") -> Path:
    """Put a file into a folder, with checksums that are right."""
    if name:
        (folder / name).write_bytes(data)
    for kind in ("identity.json", "manifest.json"):
        told = json.loads((folder / kind).read_bytes())
        del told["checksum"], told["format"]
        if kind == "identity.json":
            told["config"] = digest((folder / "config.toml").read_bytes())
        else:
            for one in told["files"]:
                content = (folder / one).read_bytes()
                told["files"][one] = {"bytes": len(content), "sha256": digest(content)}
        Files(folder).write_sealed(kind, told)
    return folder


def with_config(folder: Path, **changes: Any) -> Path:
    """Change the config of a run, with checksums that are right."""
    values = tomllib.loads((folder / "config.toml").read_text())
    for key, value in changes.items():
        group, _, name = key.rpartition("__")
        (values.setdefault(group, {}) if group else values)[name] = value
    return sealed(folder, "config.toml", tomli_w.dumps(values).encode())


def with_metrics(folder: Path, change: Callable[[pa.Table], pa.Table], name: str = "metrics.parquet") -> Path:
    """Change a table of a run, with checksums that are right."""
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(folder / name)), sink)
    return sealed(folder, name, sink.getvalue())


def refused(*words: object, code: int = 2) -> str:
    """Run a command that has to be refused in one line, and return the line."""
    done = palmette(*map(str, words))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    assert done.stderr.count("\n") == 1, done.stderr
    return str(done.stderr)


def everything(folder: Path) -> None:
    """Ask a result for all it knows."""
    result = pm.load(folder)
    result.summary(), repr(result), result.links, result.reports, result.population, result.log
    for kind in result.kinds:
        result.tensors(kind), result.module(kind, result.names(kind)[0])


# -- code ------------------------------------------------------------------------------------------------------------------

EVIL = "from pathlib import Path\nPath('{mark}').touch()\ndef make(**options):\n    Path('{mark}').touch()\n"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there when code of the stranger was run."""
    (tmp_path / "evil.py").write_text(EVIL.format(mark=tmp_path / "executed"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "executed"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "evil.py:make"},
        {"model__name": "evil:make"},
        {
            "algorithm": "evil:make",
            "model__name": "evil.py:make",
            "data__name": "evil:make",
            "metrics": ["evil:make"],
            "given": {role: {"object": "evil:make", "hash": ""} for role in ("algorithm", "model")},
        },
        {"data__name": "evil:make", "metrics": ["evil:make"]},
    ],
)
def test_reading_a_run_loads_no_code(changes: dict[str, Any], run: Path, mark: Path, tmp_path: Path) -> None:
    with_config(run, **changes)
    shown = palmette("show", str(run))
    assert shown.exit_code in (0, 2)
    assert "Traceback" not in shown.output
    for words in (
        ("report", run, "--out", tmp_path / "page.html"),
        ("verify", run),
        ("figure", run, "--kind", "devices", "--out", tmp_path / "a.svg"),
        ("compare", run, "--no-local", "--jobs", "1", "--out", tmp_path / "study", "--quiet"),
        ("export", run, "--all", "--out", tmp_path / "models"),
        ("predict", run, "--data", tmp_path / "evil.py"),
        ("adapt", run, "--data", tmp_path / "evil.py"),
    ):
        assert "Traceback" not in palmette(*map(str, words)).output
    for read in (everything, lambda folder: Watch([folder]).news()):
        with suppress(BadInput):
            read(run)
    assert not mark.exists()


def test_a_config_that_names_code_as_no_run_does_is_refused(run: Path) -> None:
    line = refused("show", with_config(run, algorithm="mine.py:Mine"))
    assert "'mine.py:Mine' is none of Palmette's, and given.algorithm does not say where it is from" in line
    line = refused("show", with_config(run, algorithm="permfl", model__name="os:system"))
    assert "'os:system' is none of Palmette's" in line


def test_any_function_may_be_called_a_model_and_is_not_called(run: Path, tmp_path: Path) -> None:
    given = {"model": {"object": "os:system", "hash": ""}}
    with_config(run, model__name="os:system", model__command=f"touch {tmp_path / 'executed'}", given=given)
    with pytest.raises(
        BadInput, match=r"is code, os:system, which would have to be run. If you trust who made this run"
    ):
        pm.load(run).module("GM")
    assert not (tmp_path / "executed").exists()


def test_resume_says_which_code_it_runs(run: Path, mark: Path) -> None:
    with_config(run, model__name="evil:make", given={"model": {"object": "evil:make", "hash": ""}})
    told = palmette("resume", str(run), "--rounds", "3", "--quiet")
    assert told.stderr.startswith(f"palmette: the model of {run} is code, which is run: evil:make\n")


# -- paths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../outside", "/dev/zero", "..", "", "a\0b"])
def test_a_list_of_checksums_that_leads_out_of_the_folder_is_damaged(name: str, run: Path) -> None:
    Files(run).write_sealed("manifest.json", {"files": {name: {"bytes": 1, "sha256": "0"}}})
    assert "manifest.json: damaged" in palmette("verify", str(run)).stdout
    assert "which is not in the folder" in refused("show", run)


@pytest.mark.parametrize(
    "name", ["config.toml", "identity.json", "metrics.parquet", "timings.json", "devices.safetensors"]
)
def test_a_pipe_in_place_of_a_file_is_refused_and_waits_for_nobody(name: str, run: Path) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(BadInput):
        everything(run)


def test_nothing_is_written_through_links_in_a_run(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    (run / ".report.html.part").symlink_to(outside)
    (run / "models").mkdir()
    result = pm.load(run)
    for name in result.names("PM"):
        (run / "models" / f"{name}.safetensors").symlink_to(outside)
    assert palmette("report", str(run), "--no-theory").exit_code == 0
    written = result.save_models(run / "models")
    assert outside.read_text() == "as it was"
    assert not any(path.is_symlink() for path in (*written, run / "report.html"))


def test_kinds_of_models_name_no_other_file(run: Path) -> None:
    with pytest.raises(BadInput, match="there is no kind of models"):
        pm.load(run).tensors("TM/../../x")
    with_metrics(run, lambda table: replaced(table, "model", "TM/../../x"))
    assert "which a tree of 3 tiers lacks" in refused("show", run)


def test_a_config_names_no_other_folder(tmp_path: Path) -> None:
    with claimed(None, tmp_path / "runs", "../../elsewhere/x-digits") as folder:
        assert folder.parent == tmp_path / "runs"


def test_methods_of_a_study_stay_in_its_folder(tmp_path: Path) -> None:
    config = {"algorithm": "local", "rounds": 1}
    for name in ("../x", "/x", "a/b", "..", ""):
        told = {
            "kind": "compare",
            "seeds": [0],
            "common": {},
            "methods": [{"name": name, "role": "method", "config": config}],
        }
        (tmp_path / "study.toml").write_text(tomli_w.dumps(told))
        with pytest.raises(BadInput, match=r"study.toml: a method cannot be called"):
            Study(tmp_path)


# -- sizes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "told"),
    [("9999x9999", "far too small to list them"), ("99999x99999", "far too small"), ([10**7], "far too small")],
)
def test_a_tree_is_not_larger_than_the_table_that_lists_it(tree: Any, told: str, run: Path) -> None:
    assert told in refused("show", with_config(run, tree=tree))


def replaced(table: pa.Table, name: str, value: Any) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, table.field(at), pa.array([value] * table.num_rows, table.field(at).type))


def many_rows(table: pa.Table) -> pa.Table:
    return pa.table([pa.repeat(column[0], 10**6) for column in table.columns], schema=table.schema)


def long_names(table: pa.Table) -> pa.Table:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int32)), pa.array(["x" * 10**6]))
    plain = table.schema.field("node")
    return table.set_column(table.column_names.index("node"), plain.with_type(texts.type), texts)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (many_rows, "unpack to far more than"),
        (long_names, "node"),
        (lambda table: table.drop(["value"]), "it must have one column 'value'"),
        (lambda table: table.set_column(9, "value", pa.array(["x"] * table.num_rows)), "is of type string, not double"),
        (lambda table: replaced(table, "value", None), "its column 'value' has gaps"),
        (lambda table: replaced(table, "round", 99), "its column 'round' goes from 99 to 99, and may from 0 to 2"),
        (lambda table: replaced(table, "tier", -1), "its column 'tier' goes from -1"),
        (lambda table: replaced(table, "weight", "samples"), "are not whole"),
        (lambda table: replaced(table, "metric", "other"), "are not whole"),
    ],
)
def test_metrics_that_no_run_writes_are_refused(change: Callable[[pa.Table], pa.Table], told: str, run: Path) -> None:
    assert told in refused("show", with_metrics(run, change))


def test_metrics_that_are_no_numbers_are_shown_as_such(run: Path, tmp_path: Path) -> None:
    with_metrics(
        run, lambda table: replaced(table, "value", float("nan")).filter(pa.compute.not_equal(table["weight"], "nodes"))
    )
    assert palmette("show", str(run)).exit_code == 0
    assert palmette("report", str(run), "--out", str(tmp_path / "page.html"), "--no-theory").exit_code == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table.slice(0, 0), "it lists nobody"),
        (lambda table: replaced(table, "parent", 7), "its column 'parent'"),
        (lambda table: replaced(table, "tier", 0), "are no tree"),
        (lambda table: replaced(table, "train", -1), "its column 'train'"),
        (lambda table: table.replace_schema_metadata({"classes": "[" * 10**5}), "nested too deeply"),
        (lambda table: table.replace_schema_metadata({"classes": "{}"}), "valid list"),
    ],
)
def test_a_population_that_is_no_tree_is_refused(change: Callable[[pa.Table], pa.Table], told: str, run: Path) -> None:
    with_metrics(run, change, "population.parquet")
    with pytest.raises(BadInput, match=told):
        _ = pm.load(run).population


def test_pages_that_unpack_to_gigabytes_are_not_unpacked() -> None:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"a": pa.array([bytes(3 << 20)] * 1, pa.binary())}), sink, compression="zstd", use_dictionary=False
    )
    data = sink.getvalue()
    assert len(data) < 5000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "MOST_PAGE", 1 << 20)
        with pytest.raises(parquet.Unsound, match="one of its pages says that it unpacks to 3,14"):
            parquet.read(data)
    assert parquet.read(data).num_rows == 1


@pytest.mark.parametrize(
    "options", [{}, {"compression": "zstd"}, {"data_page_version": "2.0"}, {"use_dictionary": False}]
)
def test_sound_tables_are_read_as_they_are(options: dict[str, Any]) -> None:
    table = pa.table({"i": range(5000), "s": [f"x{i % 7}" for i in range(5000)], "l": [[i, 1] for i in range(5000)]})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"a": "b"}), sink, row_group_size=999, **options)
    read = parquet.read(sink.getvalue())
    assert read.equals(table)
    assert read.schema.metadata[b"a"] == b"b"
    assert parquet.read(sink.getvalue(), pa.schema([("s", pa.string())])).column_names == ["s"]


def test_a_text_that_stands_for_many_is_counted_before_it_is_written_out() -> None:
    names = pa.array(["x" * 10**6] + ["y"] * 9)
    places = pa.array(np.zeros(200_000, np.int64))
    sink = io.BytesIO()
    table = pa.table({"node": names}).take(pa.array(np.arange(10)))
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        for _ in range(20):
            writer.write_table(pa.table({"node": pa.array(["x" * 10**6] * 10)}))
    assert len(places) > len(sink.getvalue())
    with pytest.raises(parquet.Unsound, match=r"texts would take far more memory|unpack to far more"):
        parquet.read(sink.getvalue())


# -- small files and models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("timings.json", b"[" * 10**5, "nested too deeply"),
        ("timings.json", b"{}", "Field required"),
        (
            "timings.json",
            b'{"seconds": {"rounds": -1}, "device_steps": 1, "device_steps_per_second": 1.0}',
            "seconds.rounds",
        ),
        ("timings.json", b'{"seconds": [], "device_steps": 1, "device_steps_per_second": NaN}', "seconds"),
        ("config.toml", b"a." * 10**5 + b"a = 1", "a key of more than 128 parts"),
        ("config.toml", b"a = " + b"[" * 10**5, "nested too deeply"),
        ("config.toml", b"\xff", "utf-8"),
        ("log.txt", b"\xff\xfe", ""),
    ],
)
def test_small_files_that_no_run_writes_are_refused(name: str, data: bytes, told: str, run: Path) -> None:
    sealed(run, name, data)
    if told:
        assert told in refused("show", run)
    else:
        assert palmette("show", str(run)).exit_code == 0


def test_texts_have_limits() -> None:
    assert from_json(b'{"a": [1]}') == {"a": [1]}
    assert from_toml(b'"a.b" = 1\n[x.y]\nz = [0.1, 0.2]\n') == {"a.b": 1, "x": {"y": {"z": [0.1, 0.2]}}}
    with pytest.raises(ValueError, match="it has 9 bytes, and may have 8"):
        from_json(b"123456789", 8)
    for text in (b"a." * 128 + b"a = 1", b'"a\\"" . ' * 128 + b"a = 1", b"x = {" + b"'b'." * 128 + b"a = 1}"):
        with pytest.raises(ValueError, match="a key of more than 128 parts"):
            from_toml(text)


def with_header(folder: Path, change: Change, name: str = "devices.safetensors") -> Path:
    """Change the header of a file of tensors, with checksums that are right."""
    data = (folder / name).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return sealed(folder, name, len(text).to_bytes(8, "little") + text + data[8 + size :])


def about(**changes: Any) -> Change:
    def change(header: dict[str, Any]) -> None:
        told = json.loads(header["__metadata__"]["about"])
        for key, value in changes.items():
            (told["model"] if key in ("shape", "classes", "tied") else told)[key] = value
        header["__metadata__"]["about"] = json.dumps(told)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda header: header["1.weight"].update(shape=[2**40, 2**20]), "cannot read"),
        (lambda header: header["1.weight"].update(shape=[40, 64, 1]), "does not have a line for each of 4 nodes"),
        (lambda header: header.pop("__metadata__"), "cannot read"),
        (lambda header: header["__metadata__"].update(about="[" * 10**5), "nested too deeply"),
        (about(nodes=["a"]), "does not have a line for each of 1 nodes"),
        (about(nodes=[]), "it holds the models of nobody"),
        (about(nodes=[1, 2, 3, 4]), "valid string"),
        (
            about(shape=[10**3, 10**3]),
            r"has the parameter '1.weight' of shape \(10, 1000000\), and in the run's file it is",
        ),
        (about(shape=["x"]), "model.shape.0"),
        (about(classes=10**6), "of shape .1000000, 64."),
        (about(tied={"x": "y"}), "lacks the parameter 'y'"),
    ],
)
def test_models_that_no_run_writes_are_refused_before_anything_is_made(change: Change, told: str, run: Path) -> None:
    with_header(run, change)
    with pytest.raises(BadInput, match=told):
        pm.load(run).module("PM", "device-0" if "1 nodes" not in told else "a")


def test_a_named_model_beyond_all_memory_is_refused() -> None:
    with pytest.raises(BadInput, match=r"a model 'dnn' of 4e\+10 parameters would take .* of memory"):
        pm.make_task("dnn", (8,), 3, hidden=[20_000] * 101)
    assert torch.equal(pm.make_task("dnn", (8,), 3, seed=1).initial(), pm.make_task("dnn", (8,), 3, seed=1).initial())


def test_a_stranger_does_not_say_how_many_rows_there_are() -> None:
    sink = io.BytesIO()
    pq.write_table(SCHEMA.empty_table(), sink)
    assert parquet.read(sink.getvalue(), SCHEMA).num_rows == 0
    with pytest.raises(parquet.Unsound):
        parquet.read(sink.getvalue()[:-20], SCHEMA)
