"""A disk of two megabytes, for root on Linux, and how to fill it."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 1 << 20


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Give a disk of two megabytes."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> None:
    """Write a file until there is no room at all."""
    with open(place / "filler", "wb", buffering=0) as file:
        for size in (MEGABYTE, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def bind(folder: Path, sign: str) -> None:
    """Take the right to write to a folder and its files, or give it back."""
    subprocess.run(["chattr", "-R", f"{sign}i", str(folder)], check=True)
