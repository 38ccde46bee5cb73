"""Files of records, which a checkpoint is: first a record of everything, then one after the other of what changed since.

Each record has a checksum, which is written last. A process that is killed while it adds one leaves a record without it, which
does not count; those before it are as they were. Damage to a record that was complete is noticed by its checksum, and then the
records before it count.

    file     TITLE, records
    record   checksum of all that follows (CRC-32, 8 hexadecimal digits), length of the tensors (8 bytes), tensors (safetensors)
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
    sheets.write(file, tensors, sheets.whole(tensors), about)
    end = file.tell()
    file.write(bytes(-end % 8))
    end = file.tell()
    file.truncate()  # of a record that was not finished more may be there
    file.seek(start + _CHECKSUM)
    file.write((end - start - _HEAD).to_bytes(_LENGTH, "little"))
    right = _checksum(file, start + _CHECKSUM, end)
    file.seek(start)
    file.write(right)
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
        if head[:_CHECKSUM] != _checksum(file, start + _CHECKSUM, end):
            return Found(records, f"{where}its checksum is wrong")
        try:
            records.append(Record(*sheets.read(data[body:end])))
        except BadInput as error:
            return Found(records, f"{where}{error}")
        start = end
    return Found(records, "" if records else "it holds nothing")


def _checksum(file: IO[bytes], start: int, end: int) -> bytes:
    """Return the checksum of some bytes of a file: that which journals have, a fraction of the work of a digest."""
    file.seek(start)
    found = 0
    while start < end and (data := file.read(min(_BLOCK, end - start))):
        found = zlib.crc32(data, found)
        start += len(data)
    return f"{found:08x}".encode()
