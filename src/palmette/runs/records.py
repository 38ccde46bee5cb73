"""Files of records, which a checkpoint is: first a record of everything, then one after the other of what changed since.

Each record has a checksum, which is written last. A process that is killed while it adds one leaves a record without it, which
does not count; those before it are as they were. Damage to a record that was complete is noticed by its checksum, and then the
records before it count.

    file     TITLE, records
    record   checksum (CRC-32 of the tensors and their length, 8 hexadecimal digits), length (8 bytes), tensors (safetensors)
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from torch import Tensor

from palmette.engines.store import Pieces
from palmette.errors import BadInput
from palmette.runs import tensors as sheets

TITLE = b"palmette checkpoint, version 2\n\n"
"""What such a file begins with; tensors begin at multiples of eight bytes."""
_CHECKSUM, _LENGTH = 8, 8
_HEAD = _CHECKSUM + _LENGTH
_BLOCK = 1 << 20  # bytes that are read at once


class Record(NamedTuple):
    """Some tensors, and what is to be known about them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    @property
    def round(self) -> int:
        """The rounds that were done."""
        return int(self.tensors["progress"][0])


@dataclass(frozen=True)
class Found:
    """The records of a file.

    Attributes:
        records: Those that are sound, up to the first that is not.
        problem: What is wrong with that one; nothing where all are sound.
        unfinished: Whether a record is left out because its process ended while it wrote it.
    """

    records: list[Record]
    problem: str = ""
    unfinished: bool = False


def add(file: IO[bytes], tensors: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> int:
    """Write a record at the file's position, which becomes the last one, and return where it ends."""
    start = file.tell()
    file.write(bytes(_HEAD))
    checksum = 0
    for data in sheets.stream(tensors, about):
        checksum = zlib.crc32(data, checksum)
        file.write(data)
    rest = bytes(-file.tell() % 8)
    file.write(rest)
    end = file.tell()
    file.truncate()  # of a record that was not finished more may be there
    length = (end - start - _HEAD).to_bytes(_LENGTH, "little")
    file.seek(start + _CHECKSUM)
    file.write(length)
    file.seek(start)
    file.write(_written(zlib.crc32(length, zlib.crc32(rest, checksum))))
    file.flush()
    return end


def read(file: IO[bytes]) -> Found:
    """Return the sound records of a file."""
    size, start = os.fstat(file.fileno()).st_size, len(TITLE)
    if file.read(start) != TITLE:
        return Found([], "it is no checkpoint of this version of Palmette")
    data, records = sheets.mapped(file), list[Record]()
    while start < size:
        file.seek(start)
        head = file.read(_HEAD)
        if b"\0" in head[:_CHECKSUM].ljust(_CHECKSUM, b"\0"):
            return Found(records, "" if records else "it holds nothing whole", unfinished=True)
        body, end = start + _HEAD, start + _HEAD + int.from_bytes(head[_CHECKSUM:], "little")
        where = f"in part {len(records) + 1} " if records else ""
        if end > size:
            return Found(records, f"{where}it is cut short")
        if head[:_CHECKSUM] != _written(zlib.crc32(head[_CHECKSUM:], _checksum(file, end))):
            return Found(records, f"{where}its checksum is wrong")
        try:
            records.append(Record(*sheets.read(data[body:end])))
        except BadInput as error:
            return Found(records, f"{where}{error}")
        start = end
    return Found(records, "" if records else "it holds nothing")


def _checksum(file: IO[bytes], end: int) -> int:
    """Return the checksum of a file from its position on."""
    found, left = 0, end - file.tell()
    while left and (data := file.read(min(_BLOCK, left))):
        found, left = zlib.crc32(data, found), left - len(data)
    return found


def _written(checksum: int) -> bytes:
    return f"{checksum:08x}".encode()
