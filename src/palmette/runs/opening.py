"""How the files of a run are opened: no links, nothing that is no file, no table far larger than its file."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from palmette.errors import BadInput
from palmette.values import memory, size


def read_parquet(data: bytes) -> pa.Table:
    """Read a table from the bytes of a Parquet file, in this thread alone.

    `pyarrow.parquet.read_table` hands the bytes to threads of Arrow, which may let go of them only when Python has ended; the
    process then aborts. A file may say that it becomes far larger than it is, and that is asked before.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    about = file.metadata
    groups = (about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if (wanted := max(sum(groups), 8 * about.num_rows * about.num_columns)) > memory() / 4:
        raise BadInput(f"its {about.num_rows:,} rows would take at least {size(wanted)} of memory")
    return file.read(use_threads=False)


def no_link(path: str, flags: int) -> int:
    """Open a file as `open` does with ``opener=no_link``, but refuse a symbolic link, and what is no file of bytes."""
    try:
        # Without waiting, which a pipe would do for ever.
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise linked(Path(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise strange(Path(path))
    return opened


def linked(path: Path) -> BadInput:
    """Say that a file is a link."""
    return BadInput(
        f"{path} is a symbolic link; a run reads and writes only inside its own folder: put the file itself there"
    )


def strange(path: Path) -> BadInput:
    """Say that something is no file."""
    return BadInput(f"{path} is no ordinary file, but a folder, a pipe or a device; a run reads and writes only files")


def sync(folder: Path) -> None:
    """Make sure that the names in a folder are on disk, as `os.fsync` does for what is in a file."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def digest(data: bytes) -> str:
    """Return the checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()
