"""Files of samples that are damaged, far larger than they look, or hold what nobody can learn from."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import palmette as pm
from palmette.datasets import archives
from palmette.datasets.files import read_idx, read_npz
from palmette.datasets.pickled import read_pickle
from palmette.errors import BadInput
from palmette.guards import packed, parquet
from palmette.population.packing import refuse_unusable
from tables import palmette, settings, write

HEADS = ("team", "device", "age", "label")
WHO = settings("device=device", "team=team", "label=label")
KNOWN: dict[str, Any] = {"device": "device", "team": "team", "label": "label"}
ROWS = [[f"t{i % 4 // 2}", f"d{i % 4}", i / 7, "yn"[i % 2]] for i in range(40)]


def refused(path: Path, told: str, **more: Any) -> None:
    """Read a table that has to be refused in one line, soon."""
    began = time.monotonic()
    with pytest.raises(BadInput, match=told) as caught:
        pm.read_table(path, **{**KNOWN, **more})
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 20
    done = palmette("data", "check", str(path), *WHO)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


# -- bombs -----------------------------------------------------------------------------------------------------------------


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_LEAST", 1 << 25)
    member = gzip.compress(b"\n" * (1 << 24), 9)
    data = gzip.compress(b"team,device,age,label\n") + member * 100  # 1.6 GB in 1.6 MB
    (tmp_path / "a.csv.gz").write_bytes(data)
    refused(tmp_path / "a.csv.gz", r"unpacks to more than .* bytes, of .*; if that is right, unpack it yourself first")


def test_zeros_unpack_to_as_much_as_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed.gunzip(gzip.compress(b"abc")) == b"abc"
    zeros = gzip.compress(bytes(3 << 20))
    assert len(packed.gunzip(zeros)) == 3 << 20
    monkeypatch.setattr(packed, "_LEAST", 1 << 20)
    for read in (
        lambda file: file.read(),
        lambda file: [file.read(1 << 19) for _ in range(9)],
        lambda file: [file.read1() for _ in range(9)],
        lambda file: [file.readline() for _ in range(9)],
    ):
        with packed.Unzipped(io.BytesIO(zeros), len(zeros)) as file, pytest.raises(packed.Bomb):
            read(file)


def test_archives_of_data_sets_unpack_to_as_much_as_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_LEAST", 1 << 20)
    zeros = bytes(4 << 20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(zeros))
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(4 << 20, np.uint8))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", zeros)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive_:
        info = tarfile.TarInfo("a")
        info.size = len(zeros)
        archive_.addfile(info, io.BytesIO(zeros))
    for read in (
        lambda: read_idx(tmp_path / "a.gz"),
        lambda: archives.read_text(tmp_path / "a.gz"),
        lambda: read_npz(tmp_path / "a.npz", ["x"]),
        lambda: archives.read_zip(tmp_path / "a.zip", ["a"]),
        lambda: list(archives.read_tar(tmp_path / "a.tgz")),
    ):
        with pytest.raises(BadInput, match="unpacks to more than"):
            read()


def test_rows_that_a_table_only_claims_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = dict(zip(HEADS, zip(*ROWS, strict=True), strict=True))
    pq.write_table(pa.table({name: list(cells) for name, cells in columns.items()}), tmp_path / "a.parquet")
    assert pm.read_table(tmp_path / "a.parquet", **KNOWN).devices == 4
    monkeypatch.setattr(parquet, "_FEW", 0)
    monkeypatch.setattr(parquet, "_EACH", 0)
    refused(tmp_path / "a.parquet", "it says that it has 40 rows, in")
    monkeypatch.undo()
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40, np.int32)), pa.array(["x" * 10**6]))
    pq.write_table(
        pa.table({"device": columns["device"], "age": long, "label": columns["label"]}), tmp_path / "b.parquet"
    )
    monkeypatch.setattr(parquet, "MOST_BATCH", 1 << 20)
    with pytest.raises(BadInput, match="40 of its rows would take more than 1,048,576 bytes"):
        pm.read_table(tmp_path / "b.parquet", device="device", label="label")


def image(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"x")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (image(100_000, 100_000), "exceeds limit|more than .* in all"),
        (image(12_000, 12_000), "it has 12,000 x 12,000 pixels, more than"),
        (image(2, 2), "is no image or is damaged"),
        (b"", "is no image or is damaged"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "is no image or is damaged"),  # Pillow would start another program for it
    ],
)
@pytest.mark.filterwarnings("ignore:.*decompression bomb")
def test_an_image_that_is_none_or_too_large_is_refused(data: bytes, told: str, tmp_path: Path) -> None:
    for device in "ab":
        (tmp_path / "f" / device / "0").mkdir(parents=True)
        (tmp_path / "f" / device / "0" / "a.png").write_bytes(data)
    with pytest.raises(BadInput, match=told):
        pm.read_folders(tmp_path / "f")


def test_arrays_that_claim_more_than_there_is_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3)))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        data = archive.read("x.npy").replace(b"(4, 3)", b"(2**40,")
    for shape in (b"(9999999999, 300)", b"(4, 'x')", b"(4, 3", b""):
        with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
            archive.writestr("x.npy", data.replace(b"(2**40,", shape))
        with pytest.raises(BadInput, match="is damaged or not an npz file"):
            read_npz(tmp_path / "b.npz", ["x"])


def test_a_pickle_makes_no_array_of_a_size_it_only_names() -> None:
    huge = b"cnumpy\nndarray\n((I10000000000\ntR."
    for data in (huge, b"cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(BadInput, match="damaged or holds more than data"):
            read_pickle(data, "file")
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(read_pickle(pickle.dumps({"data": array}), "file")[b"data"], array)


# -- damage ----------------------------------------------------------------------------------------------------------------


def test_files_that_end_too_soon_or_are_no_text_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(write(tmp_path / "a.csv", ROWS, HEADS).read_bytes())
    for name, data, told in (
        ("cut.csv.gz", whole[:-20], "cannot be read"),
        ("no.csv.gz", b"\x1f\x8b" + bytes(50), "cannot be read"),
        ("zero.csv", b"a,b\0,c\n1,2,3\n", "is not a text file"),
        ("long.csv", b"team,device,age,label\nt0,d0,1," + b"y" * (9 << 20), "cannot be read"),
        ("wide.csv", b"team,device,age,label\n" + b"t0,d0,1,y" + b"," * (9 << 20), "cannot be read"),
    ):
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, told)


def test_an_encoding_that_is_not_the_files_is_told_and_no_library_speaks(tmp_path: Path) -> None:
    rows = [[*row[:3], "nö" if row[3] == "n" else "jä"] for row in ROWS]
    data = write(tmp_path / "a.csv", rows, HEADS).read_text().encode("latin-1") + b"\xe4,one cell\n"
    (tmp_path / "a.csv").write_bytes(data)
    refused(tmp_path / "a.csv", r"a.csv is not UTF-8, as encoding = 'utf-8' says; write cp1252", encoding="utf-8")
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + data)  # says that it is
    done = palmette("data", "check", str(tmp_path / "b.csv"), *WHO)
    assert "b.csv begins as UTF-8 does, and is not UTF-8 (byte 0x" in done.output
    assert "Traceback" not in done.output


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "is no ordinary file, but a pipe or a device")


def test_a_damaged_arrow_file_is_looked_through_before_it_is_used(tmp_path: Path) -> None:
    table = pa.table({name: list(cells) for name, cells in zip(HEADS, zip(*ROWS, strict=True), strict=True)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert pm.read_table(tmp_path / "a.arrow", **KNOWN).devices == 4
    data = bytearray((tmp_path / "a.arrow").read_bytes())
    places = struct.pack("<4i", 0, 2, 4, 6)  # where texts of two letters begin
    at = data.index(places)
    data[at + 4 : at + 8] = struct.pack("<i", 10**6)
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(BadInput, match="cannot be read to its end"):
        pm.read_table(tmp_path / "a.arrow", **KNOWN)


# -- what nobody can learn from --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["1e39", "-1e25"])
def test_a_number_beyond_all_others_is_pinned_to_its_cell(cell: str, tmp_path: Path) -> None:
    for number in range(len(ROWS)):  # whether the row trains or tests
        rows = [[*row[:2], cell, row[3]] if at == number else row for at, row in enumerate(ROWS)]
        write(tmp_path / "a.csv", rows, HEADS)
        try:
            pm.read_table(tmp_path / "a.csv", **KNOWN)
        except BadInput as error:
            place = f"row {number + 1} (line {number + 2} of the file), column 'age', device 'd{number % 4}'"
            assert place in str(error)  # noqa: PT017
            assert "the number is above 1e+15 after scaling" in str(error)  # noqa: PT017
            return
    pytest.fail("no row was tested")


def people() -> pm.Population:
    device = np.arange(24) % 4
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    return pm.Population.from_arrays(x, np.arange(24) // 4 % 3, device=device, team=device // 2)


def test_a_nan_that_came_in_by_another_way_is_pinned_to_its_device(tmp_path: Path) -> None:
    people().save(tmp_path / "packed")
    x = np.load(tmp_path / "packed" / "x.npy")
    x[8, 1] = np.nan
    np.save(tmp_path / "packed" / "x.npy", x)
    made = pm.load_population(tmp_path / "packed")
    told = r"device '1' \(its sample 2, feature 1\): a feature is NaN or infinite, and every model that meets it would"
    with pytest.raises(BadInput, match=told):
        pm.run("fedavg", made, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    done = palmette(
        "run", "fedavg", "--data", str(tmp_path / "packed"), "--rounds", "1", "--out", str(tmp_path / "run")
    )
    assert done.exit_code == 2
    assert "device '1'" in done.stderr


def test_a_label_outside_the_classes_is_pinned_to_its_device() -> None:
    made = people()
    made.y[20] = 3
    with pytest.raises(BadInput, match=r"device '3' \(its sample 2\): a label is outside 0 to 2"):
        refuse_unusable(made)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": "x"}, "labels"),
        ({"labels": [None]}, "labels"),
        ({"classes": [3]}, "classes"),
        ({"affine": [1, "x"]}, "affine"),
        ({"encoding": {"inputs": ["x"]}}, "inputs"),
        ({"encoding": {"inputs": [{"column": "a", "divide": 0}]}}, "scaled by what is no number, or by 0"),
    ],
)
def test_a_packed_population_that_says_something_else_is_damaged(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    import json

    people().save(tmp_path / "packed")
    about = tmp_path / "packed" / "population.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | change))
    with pytest.raises(BadInput, match=f"is damaged .*{told}"):
        pm.load_population(tmp_path / "packed")


@pytest.mark.parametrize("name", ["start", "train", "x", "parents-0"])
def test_a_damaged_array_of_a_packed_population_is_refused(name: str, tmp_path: Path) -> None:
    people().save(tmp_path / "packed")
    file = tmp_path / "packed" / f"{name}.npy"
    data = file.read_bytes()
    for broken in (b"", data[:20], data[:-9], data.replace(b"fortran", b"fort'an"), data.replace(b"(", b"[", 1)):
        file.write_bytes(broken)
        with pytest.raises(BadInput, match="is damaged"):
            pm.load_population(tmp_path / "packed")
    np.save(file, np.zeros((2, 2), np.float16))
    with pytest.raises(BadInput):
        pm.load_population(tmp_path / "packed")
