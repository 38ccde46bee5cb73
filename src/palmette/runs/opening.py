"""How the files of a run are opened: no links, nothing that is no file, no table far larger than its file."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from palmette.errors import BadInput


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
