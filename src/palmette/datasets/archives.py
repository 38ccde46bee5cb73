"""Read text out of compressed files without unpacking them; every fault names the file and what to do."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palmette.datasets.dataset import File
from palmette.datasets.files import data_folder
from palmette.errors import BadInput
from palmette.guards.packed import FAULTS, check_zip, gunzip, unzipped
from palmette.values import one_line

_BLOCK = 1 << 20
_FAULTS = (*FAULTS, tarfile.TarError)


def present(file: File, folder: str | Path | None) -> Path | None:
    """Return where a file lies in the folder of data sets; ``None`` where it is not there."""
    base = data_folder(folder)
    return next((path for place in file.places if (path := base / place / file.name).is_file()), None)


def read_text(path: Path) -> str:
    """Read a text file in UTF-8, gzipped where its name ends in ``.gz``."""
    try:
        data = path.read_bytes()
        return (gunzip(data) if path.suffix == ".gz" else data).decode("utf-8")
    except _FAULTS as fault:
        raise damaged(path, fault) from fault


def read_json_lines(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read a gzipped file with a JSON object on every line, each of which has all the keys."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise BadInput(f"{path}, line {number}, is not JSON ({one_line(str(fault))}); get the file again") from None
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise BadInput(f"{path}, line {number}, has no {missing[0]!r}; it is not the expected data set, replace it")
        found.append(row)
    if not found:
        raise BadInput(f"{path} is empty; get it again")
    return found


def read_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of every file in a gzipped tar archive."""
    try:
        with unzipped(path) as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield member.name, stream.read()
            while raw.read(_BLOCK):  # the checksum comes last, and tarfile stops before it
                pass
    except _FAULTS as fault:
        raise damaged(path, fault) from fault


def read_zip(path: Path, names: Sequence[str]) -> list[str]:
    """Read named text files in UTF-8 out of a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in names if name not in archive.namelist()]
            if missing:
                raise BadInput(f"{path} holds no file {missing[0]!r}; it is not the expected data set, replace it")
            check_zip(archive, names)
            return [archive.read(name).decode("utf-8") for name in names]
    except _FAULTS as fault:
        raise damaged(path, fault) from fault


def damaged(path: Path, fault: Exception) -> BadInput:
    """Return the refusal of a file that cannot be read."""
    return BadInput(f"{path} is damaged or not the expected kind of file ({one_line(str(fault))}); get it again")
