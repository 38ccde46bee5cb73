"""Find and read the files of public data sets; every fault names the file and what to do."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from palmette import values
from palmette.datasets.dataset import File
from palmette.errors import BadInput
from palmette.guards.packed import FAULTS, check_zip, gunzip
from palmette.values import Array, one_line

_IDX_TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype("u1"),
    0x0C: np.dtype(">i4"),
}  # the idx format's codes of the types in public data sets


def data_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of data sets: the argument, else ``PALMETTE_DATA``, else the user's cache."""
    if folder is not None:
        return values.path("folder", folder).expanduser()
    if named := os.environ.get("PALMETTE_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "palmette"


def present(file: File, folder: str | Path | None) -> list[Path]:
    """Return where a file is, within the data folder: one path, or those of the files that serve instead, or none."""
    base = data_folder(folder)
    for place in file.places:
        if "*" in file.name and (found := sorted((base / place).glob(file.name))):
            return found
        if (base / place / file.name).is_file():
            return [base / place / file.name]
    for group in file.instead:
        each = [present(one, folder) for one in group]
        if all(each):
            return [path for paths in each for path in paths]
    return []


def find(name: str, file: File, folder: str | Path | None) -> Path:
    """Return the first of a file's places, within the data folder, that holds it or what serves instead."""
    if found := present(file, folder):
        return found[0]
    paths = [data_folder(folder) / place / file.name for place in file.places]
    wanted = " or ".join([file.name, *map(_some, file.instead)])
    get = (
        f"get it with: palmette data get {name}; or "
        if file.url
        else f"for how to get it see: palmette list datasets {name}; "
    )
    raise BadInput(
        f"{name} needs the file {wanted}, looked for at {' and '.join(map(str, paths))}; {get}put the file of the public "
        "data set there, or name another folder of data sets with data.folder or the environment variable PALMETTE_DATA"
    )


def _some(group: Sequence[File]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 4 else ""
    return " and ".join(file.name for file in group[: 1 if more else 4]) + more


def read_npz(path: Path, names: Sequence[str]) -> list[Array]:
    """Read named arrays of one ``.npz`` file."""
    try:
        # Opened here because numpy forgets to close a file that it cannot read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            check_zip(file.zip)
            missing = [name for name in names if name not in file.files]
            if missing:
                raise BadInput(f"{path} has no array {missing[0]!r}; it is not the expected data set, replace it")
            return [file[name] for name in names]
    except BadInput:
        raise
    except (*FAULTS, TypeError, AttributeError, KeyError, MemoryError, SyntaxError, TokenError) as fault:
        raise BadInput(f"{path} is damaged or not an npz file ({one_line(str(fault))}); get it again") from fault


def idx(name: str, places: Sequence[str], sha256: str = "", url: str = "", size: int = 0, md5: str = "") -> File:
    """Return the row of a gzipped idx file, which may also lie there unpacked."""
    plain = File(name.removesuffix(".gz"), tuple(places))
    return File(name, tuple(places), sha256, url, size, md5, instead=((plain,),))


def read_idx(path: Path) -> Array:
    """Read one idx file of bytes or 32-bit whole numbers, gzipped where its name ends in ``.gz``."""
    try:
        data = path.read_bytes()
        data = gunzip(data) if path.suffix == ".gz" else data
    except FAULTS as fault:
        raise BadInput(f"{path} is damaged or not a gzip file ({fault}); get it again") from fault
    return parse_idx(data, str(path))


def parse_idx(data: bytes, where: str) -> Array:
    """Return the array that the bytes of an idx file hold.

    Args:
        data: The bytes.
        where: What to call the file in errors.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise BadInput(
            f"{where} is not an idx file of bytes or whole numbers (it begins with {data[:4].hex() or 'nothing'}); get it again"
        )
    kind, axes = _IDX_TYPES[data[2]], data[3]
    header = 4 + 4 * axes
    if axes == 0 or len(data) < header:
        raise BadInput(f"{where} ends within its header; get it again")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    size = math.prod(shape) * kind.itemsize
    if len(data) - header != size:
        raise BadInput(f"{where} holds {len(data) - header} bytes, its header says {size}; get it again")
    return np.frombuffer(data, dtype=kind, offset=header).reshape(shape)


def read_csv(path: Path, columns: Sequence[str], rows: int) -> dict[str, list[str]]:
    """Read columns of a CSV file with a header, plain or gzipped, as text.

    Args:
        path: The file.
        columns: The columns that are wanted; others may be there.
        rows: Number of rows under the header that the public file has.
    """
    try:
        data = path.read_bytes()
        text = (gunzip(data) if path.suffix == ".gz" else data).decode("utf-8")
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(lines, [])
        table = [line for line in lines if line]
    except (*FAULTS, csv.Error) as fault:
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
