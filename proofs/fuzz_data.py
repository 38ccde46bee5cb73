"""Files of samples as people and strangers have them: cut, scratched, in wrong encodings, far larger than they look."""

from __future__ import annotations

import csv
import gzip
import io
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import fuzz_memory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_commands import command
from fuzz_damage import EVIL, NASTY, as_json, as_parquet, scratched
from fuzz_folders import bases
from PIL import Image

import palmette as pm

CELLS = (
    *(
        "",
        "NA",
        "nan",
        "inf",
        "-1e400",
        "1e39",
        "1e25",
        "0x10",
        "1,5",
        "ja",
        " 3 ",
        "é",
        "日本",
        EVIL,
        "\x00",
        "a\nb",
        '"',
    ),
    "9" * 500,
)
HEADS = ("team", "device", "age", "sex", "label")
OPTIONS = (
    *(
        "missing=mean",
        "missing=drop",
        "categories=sex",
        "target=number",
        "tokens=age",
        "encoding=utf-16",
        "delimiter=;",
    ),
    *("time=age", "split=sex", "repeats=refuse"),
)
SAID = ("device=device", "team=team", "label=label")


# -- tables ----------------------------------------------------------------------------------------------------------------


def rows_of(luck: random.Random) -> list[list[Any]]:
    """Return the rows of a small table, some cells of which are odd."""
    rows = [
        [f"t{row % 4 // 2}", f"d{row % 4}", round(luck.gauss(0, 1), 3), luck.choice("fm"), luck.choice(("yes", "no"))]
        for row in range(luck.choice((3, 24, 40)))
    ]
    for _ in range(luck.choice((0, 0, 1, 1, 3, 20))):
        luck.choice(rows)[luck.randrange(5)] = luck.choice(CELLS)
    if luck.random() < 0.1:
        luck.choice(rows).append("one too many")
    return rows


def a_csv(luck: random.Random, place: Path) -> Path:
    """Write a CSV file in some encoding, packed or not, whole or damaged."""
    text, heads = io.StringIO(), [*HEADS]
    if luck.random() < 0.15:
        heads[luck.randrange(5)] = luck.choice(("", "age", EVIL, "1", "label\n2", "x" * 5000))
    writer = csv.writer(text, delimiter=luck.choice(",,,;\t|"), lineterminator=luck.choice(("\n", "\r\n", "\r")))
    writer.writerows([heads, *rows_of(luck)])
    encoding = luck.choice(("utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le", "utf-32", "cp037"))
    data = text.getvalue().encode(encoding, "replace")
    if luck.random() < 0.4:
        data = scratched(luck, data)
    if luck.random() < 0.1:
        at = luck.randrange(len(data) + 1)
        data = (
            data[:at] + luck.choice((b"\0", b"\0" * 5000, b"\xff\xfe", b"x" * (6 << 20), b",\n" * 10_000)) + data[at:]
        )
    packed = luck.random() < 0.25
    if packed:
        data = gzip.compress(data, 1)
        data = scratched(luck, data) if luck.random() < 0.4 else data
    path = place / f"table{luck.choice(('', EVIL.replace('/', '|')))}.csv{'.gz' if packed else ''}"
    path.write_bytes(data)
    return path


def a_bomb(luck: random.Random, place: Path) -> Path:
    """Write a small file that unpacks to gigabytes, or says that it does."""
    what = luck.randrange(4)
    path = place / ("table.csv.gz", "table.parquet", "table.parquet", "table.csv")[what]
    if what == 0:  # many members, each of 16 MiB
        head = gzip.compress(",".join(HEADS).encode() + b"\n")
        member = gzip.compress(luck.choice((b"0", b"\n", b"t0,d0,1,f,yes\n", b"\0")) * (1 << 20), 9)
        path.write_bytes(head + member * luck.choice((20, 400)))
    elif what == 1:
        many = 10**5
        columns = {"team": "t0", "device": "d0", "age": 1.5, "sex": "f", "label": "yes"}
        pq.write_table(pa.table({name: pa.repeat(pa.scalar(value), many) for name, value in columns.items()}), path)
    elif what == 2:
        long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40, np.int32)), pa.array(["x" * 10**7]))
        table = pa.table({"device": [f"d{row % 4}" for row in range(40)], "age": long, "label": ["a", "b"] * 20})
        pq.write_table(table, path, compression="zstd")
    else:
        path.write_bytes(",".join(HEADS).encode() + b"\n" + b"t0,d0,1,f,yes" + b"," * luck.choice((1 << 20, 1 << 23)))
    return path


def a_parquet(luck: random.Random, place: Path) -> Path:
    """Write a Parquet or Arrow file, whole, strange or damaged."""
    rows = [row[:5] for row in rows_of(luck)]
    columns = {name: [row[at] for row in rows] for at, name in enumerate(HEADS)}
    columns["age"] = [
        cell if isinstance(cell, float) else luck.choice((None, 1.0, float("nan"))) for cell in columns["age"]
    ]
    table, sink = pa.table(columns), io.BytesIO()
    if luck.random() < 0.2:
        path = place / "table.arrow"
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
    else:
        path = place / "table.parquet"
        pq.write_table(table, sink)
        data = as_parquet(luck, sink.getvalue()) if luck.random() < 0.5 else sink.getvalue()
    path.write_bytes(scratched(luck, data) if luck.random() < 0.5 else data)
    return path


# -- folders ---------------------------------------------------------------------------------------------------------------


def folders(luck: random.Random, place: Path) -> Path:
    """Write a folder for every device, with images, arrays or tables in it."""
    base, kind = place / "folders", luck.choice(("image", "image", "array", "array", "table"))
    for device in ("a", "b"):
        own = base / device
        own.mkdir(parents=True)
        if kind == "image":
            for number in range(3):
                (own / str(number % 2)).mkdir(exist_ok=True)
                image = Image.fromarray(np.full((4, 4), 40 * number, np.uint8))
                image.save(
                    own / str(number % 2) / f"{number}.{luck.choice(('png', 'png', 'jpg', 'gif', 'bmp', 'tif'))}"
                )
        elif kind == "array":
            arrays = {"x": np.ones((6, 3), np.float32), "y": np.arange(6) % 2}
            if luck.random() < 0.3:
                arrays[luck.choice("xy")] = luck.choice(
                    (np.ones(6), np.array(["a"] * 6), np.full((6, 3), np.nan), np.ones((6, 0)))
                )
            np.savez_compressed(own / "data.npz", **arrays)
        else:
            a_csv(luck, own)
    if luck.random() < 0.3:
        (base / "teams.csv").write_bytes(scratched(luck, b"device,team\na,north\nb,south\n"))
    files = sorted(file for file in base.rglob("*") if file.is_file())
    for _ in range(luck.choice((0, 1, 1, 2))):
        file = luck.choice(files)
        if luck.random() < 0.15:
            file.write_bytes(png(*luck.choice(((100_000, 100_000), (2**31 - 1, 1), (20_000, 9_000), (0, 0), (5, 4)))))
        elif luck.random() < 0.15 and kind == "array":
            np.savez_compressed(file, x=np.zeros((1 << 18, 300), np.uint8), y=np.zeros(1 << 18, np.uint8))
        else:
            file.write_bytes(scratched(luck, file.read_bytes()))
    return base


def png(width: int, height: int) -> bytes:
    """Return an image that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def packed(luck: random.Random, place: Path) -> Path:
    """Write a packed population, some of whose files say something else."""
    rng, path = np.random.default_rng(0), place / "packed"
    device = np.arange(24) % 4
    pm.Population.from_arrays(
        rng.normal(size=(24, 3)), np.arange(24) // 4 % 3, device=device, team=device // 2
    ).save(path)  # fmt: skip
    for _ in range(luck.choice((1, 1, 2))):
        file = luck.choice(sorted(path.iterdir()))
        data = file.read_bytes()
        if file.suffix == ".json" and luck.random() < 0.8:
            file.write_bytes(_json(luck, data))
        elif luck.random() < 0.5 and file.suffix == ".npy" and _is_sound(file):
            array = np.load(file)
            array.flat[luck.randrange(array.size)] = luck.choice((0, 1, -1, 2**31 - 1, 100))
            np.save(file, array)
        else:
            file.write_bytes(scratched(luck, data))
    return path


def _is_sound(file: Path) -> bool:
    try:
        return bool(np.load(file).size)
    except (ValueError, OSError, EOFError, SyntaxError, TypeError, TokenError):
        return False


def _json(luck: random.Random, data: bytes) -> bytes:
    try:
        return as_json(luck, data)
    except (ValueError, RecursionError):
        return scratched(luck, data)


def public(luck: random.Random, place: Path) -> Path:
    """Write the files of a public data set into a folder, damaged."""
    base = place / "public" / "mnist"
    base.mkdir(parents=True)
    images = struct.pack(">IIII", 0x803, 20, 28, 28) + bytes(20 * 784)
    labels = struct.pack(">II", 0x801, 20) + bytes(range(10)) * 2
    for name, data in (("images-idx3", images), ("labels-idx1", labels)):
        for part in ("train", "t10k"):
            made = scratched(luck, data) if luck.random() < 0.4 else data
            made = gzip.compress(made) * luck.choice((1, 1, 1, 3))
            (base / f"{part}-{name}-ubyte.gz").write_bytes(scratched(luck, made) if luck.random() < 0.3 else made)
    return place / "public"


# -- cases -----------------------------------------------------------------------------------------------------------------


def said(luck: random.Random) -> list[str]:
    """Return the options that say what columns are; now and then something strange."""
    words = [word for one in SAID for word in ("--set", one)]
    if luck.random() < 0.3:
        words += ["--set", luck.choice((*OPTIONS, f"features={luck.choice(NASTY)}"))]
    return words


SOURCES: tuple[tuple[int, Callable[[random.Random, Path], Path]], ...] = (
    *((8, a_csv), (4, a_parquet), (1, a_bomb), (5, folders), (3, packed), (2, public)),
)


def case(luck: random.Random, place: Path) -> str:
    """Write data and use them."""
    source = luck.choices([one for _, one in SOURCES], [weight for weight, _ in SOURCES])[0]
    path = source(luck, place)
    ways: list[tuple[Any, ...]] = [
        ("data", "check", path, *said(luck)),
        ("data", "pack", path, *said(luck), "--out", place / "p"),
        ("data", "info", path, *said(luck), "--out", place / "info.png", "--json"),
        ("predict", bases()["table"], "--data", path, "--json"),
        ("adapt", bases()["table"], "--data", path, "--json"),
    ]
    if source in (folders, packed):
        ways = [
            ("data", "info", path, "--out", place / "info.png", "--json"),
            ("run", "fedavg", "--data", path, *_short()),
        ]
    if source is public:
        ways = [("run", "fedavg", "--data", "mnist", "--set", f"data.folder={path}", "--tree", "2x2", *_short())]
    words = luck.choice(ways)
    fuzz_memory.begin()
    command(*words)
    return f"{' '.join(map(str, words[:2]))} of {source.__name__}"


def _short() -> list[str]:
    return ["--rounds", "1", "--set", "local_steps=1", "--quiet", "--out", "run"]
