"""Find and read the files of public data sets; every fault names the file and what to do."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from palmette import values
from palmette.datasets.dataset import File
from palmette.errors import BadInput
from palmette.values import Array

_IDX_BYTES = 0x08  # the idx format's code for unsigned bytes, the only type the public data sets use


def data_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of data sets: the argument, else ``PALMETTE_DATA``, else the user's cache."""
    if folder is not None:
        return values.path("folder", folder).expanduser()
    if named := os.environ.get("PALMETTE_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "palmette"


def find(name: str, file: File, folder: str | Path | None) -> Path:
    """Return the first of a file's places, within the data folder, that holds it."""
    return find_any(name, [file], folder)


def find_any(name: str, names: Sequence[File], folder: str | Path | None) -> Path:
    """Return the first of the places of a file that may have several names."""
    base = data_folder(folder)
    paths = [base / place / file.name for file in names for place in file.places]
    for path in paths:
        if path.is_file():
            return path
    wanted = " or ".join(file.name for file in names)
    raise BadInput(
        f"{name} needs the file {wanted}, looked for at {' and '.join(map(str, paths))}; put the file of the public data "
        "set there, or name another folder with folder= or the environment variable PALMETTE_DATA"
    )


def read_npz(path: Path, names: Sequence[str]) -> list[Array]:
    """Read named arrays of one ``.npz`` file."""
    try:
        # Opened here because numpy forgets to close a file that it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise BadInput(f"{path} has no array {missing[0]!r}; it is not the expected data set, replace it")
            return [file[name] for name in names]
    except BadInput:
        raise
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as fault:
        raise BadInput(f"{path} is damaged or not an npz file ({fault}); get it again") from fault


def read_idx(path: Path) -> Array:
    """Read one gzipped idx file of bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as fault:
        raise BadInput(f"{path} is damaged or not a gzip file ({fault}); get it again") from fault
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _IDX_BYTES:
        raise BadInput(
            f"{path} is not an idx file of bytes (it begins with {data[:4].hex() or 'nothing'}); get it again"
        )
    axes = data[3]
    header = 4 + 4 * axes
    if axes == 0 or len(data) < header:
        raise BadInput(f"{path} ends within its header; get it again")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    if len(data) - header != math.prod(shape):
        raise BadInput(f"{path} holds {len(data) - header} bytes, its header says {math.prod(shape)}; get it again")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def read_csv(path: Path, columns: Sequence[str], rows: int) -> dict[str, list[str]]:
    """Read columns of a CSV file with a header, plain or gzipped, as text.

    Args:
        path: The file.
        columns: The columns that are wanted; others may be there.
        rows: Number of rows under the header that the public file has.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(lines, [])
        table = [line for line in lines if line]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as fault:
        kind = "gzipped CSV" if path.suffix == ".gz" else "CSV"
        raise BadInput(f"{path} is damaged or not a {kind} file ({fault}); get it again") from fault
    missing = [name for name in columns if name not in header]
    if missing:
        raise BadInput(f"{path} has no column {missing[0]!r}; it is not the expected table, replace it")
    if (short := next((i for i, line in enumerate(table) if len(line) != len(header)), None)) is not None:
        raise BadInput(f"{path}: row {short + 1} has {len(table[short])} cells, the header {len(header)}; get it again")
    if len(table) != rows:
        raise BadInput(f"{path} has {len(table):,} rows, and the public table has {rows:,}; get it again")
    place = {name: header.index(name) for name in columns}
    return {name: [line[at] for line in table] for name, at in place.items()}
