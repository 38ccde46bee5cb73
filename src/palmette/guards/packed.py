"""Compressed files of others, unpacked only as far as their size makes sense.

A megabyte of zeros takes a kilobyte when it is packed, so a small file may hold more than any memory. Text, tables and images
shrink to a third or a tenth. What grows more than fiftyfold, and beyond a quarter of a gigabyte, is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO

_LEAST, _TIMES = 1 << 28, 50
_BLOCK = 1 << 20


class Bomb(ValueError):  # noqa: N818 - reads as what it is
    """A file that unpacks to far more than its size."""

    def __init__(self, packed: int) -> None:
        super().__init__(
            f"it unpacks to more than {room(packed):,} bytes, of {packed:,}; if that is right, unpack it yourself first"
        )


def room(packed: int) -> int:
    """Return how many bytes some packed ones may become."""
    return max(_LEAST, _TIMES * packed)


def gunzip(data: bytes) -> bytes:
    """Unpack gzip's bytes."""
    with Unzipped(io.BytesIO(data), len(data)) as stream:
        return stream.read()


class Unzipped(gzip.GzipFile):
    """A gzipped file that is read as far as its size makes sense.

    Args:
        file: The packed file.
        packed: How many bytes it has.
    """

    def __init__(self, file: IO[bytes], packed: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._file, self._packed = file, packed

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes, or all that are left."""
        if size is not None and size >= 0:
            return self._counted(super().read(size))
        parts = []
        while part := self._counted(super().read(_BLOCK)):
            parts.append(part)
        return b"".join(parts)

    def read1(self, size: int = -1) -> bytes:
        """Read what is at hand."""
        return self._counted(super().read1(min(size, _BLOCK) if size >= 0 else _BLOCK))

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line."""
        return self._counted(super().readline(room(self._packed) if size is None or size < 0 else size))

    def _counted(self, data: bytes) -> bytes:
        if self.tell() > room(self._packed):
            raise Bomb(self._packed)
        return data

    def close(self) -> None:
        """Close the packed file, too."""
        super().close()
        self._file.close()


def unzipped(path: str | os.PathLike[str]) -> Unzipped:
    """Open a gzipped file."""
    file = open(path, "rb")  # noqa: SIM115 - closed with what it is given to
    return Unzipped(file, os.fstat(file.fileno()).st_size)


def check_zip(archive: zipfile.ZipFile, names: Iterable[str] | None = None) -> None:
    """Refuse an archive whose files would become too large; no more is read of one than it says."""
    entries = archive.infolist() if names is None else [archive.getinfo(name) for name in names]
    packed, whole = sum(one.compress_size for one in entries), sum(one.file_size for one in entries)
    if whole > room(packed):
        raise Bomb(packed)


FAULTS = (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What reading a damaged archive may raise."""
