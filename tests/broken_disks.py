"""A disk that breaks at a chosen operation: what is written, renamed, synced or removed goes through it while it is in place.

The files of a run are opened without a buffer, so that what lies on the disk is what the operations before have made of it.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_MODULES = ("files", "folder", "journal")  # of palmette.runs: those that open files to write


class Killed(BaseException):
    """Stands for the end of a process."""


def kill() -> None:
    """End this process at once, as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die() -> None:
    """End as a process does; `Disk` lets nothing through any more."""
    raise Killed


def full() -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """Counts the operations on files of a run, and breaks at some of them.

    Args:
        breaks: Which operations break, by their number from 0 and what they are, such as ``write checkpoint.bin``.
        how: What then happens, after half of what was to be written: `kill`, `die` or `full`.
        only: What the operations that are counted have in their names.

    Attributes:
        operations: All operations that were counted.
    """

    def __init__(self, breaks: Callable[[int, str], bool], how: Callable[[], None] = full, only: str = "") -> None:
        self._breaks, self._how, self._only = breaks, how, only
        self.operations: list[str] = []
        self._names: dict[int, str] = {}
        self._dead = False

    @contextmanager
    def in_place(self) -> Iterator[Disk]:
        """Have all files of runs go through this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for module in _MODULES:
                patch.setattr(import_module(f"palmette.runs.{module}"), "open", self._open, raising=False)
            for name in ("fsync", "replace", "truncate", "unlink"):
                patch.setattr(os, name, self._through(name, getattr(os, name)))
            yield self

    def breaks(self, what: str) -> bool:
        """Count an operation, and return whether it breaks."""
        if self._dead:
            raise Killed
        if self._only not in what:
            return False
        self.operations.append(what)
        found = self._breaks(len(self.operations) - 1, what)
        self._dead = found and self._how is die
        return found

    def broken(self) -> None:
        """Do what a broken operation does."""
        self._how()

    def _open(self, path: Any, mode: str = "r", **given: Any) -> Any:
        if "b" not in mode or mode == "rb":
            return open(path, mode, **given)
        if self.breaks(f"open {Path(path).name}"):
            self.broken()
        file = open(path, mode, **{**given, "buffering": 0})  # noqa: SIM115 - the wrapper is the context
        self._names[file.fileno()] = Path(path).name
        return _File(file, self, Path(path).name)

    def _through(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **more: Any) -> Any:
            target = self._names.get(given[0], "folder") if isinstance(given[0], int) else Path(given[0]).name
            if self.breaks(f"{name} {target}"):
                self.broken()
            return real(*given, **more)

        return operation


class _File:
    """A file whose writes may break in the middle."""

    def __init__(self, file: Any, disk: Disk, name: str) -> None:
        self._file, self._disk, self._name = file, disk, name

    def write(self, data: Any) -> int:
        data = memoryview(data).cast("B") if len(memoryview(data)) else memoryview(b"")
        if self._disk.breaks(f"write {self._name}"):
            self._file.write(data[: len(data) // 2])
            self._disk.broken()
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        return written

    def truncate(self) -> None:
        if self._disk.breaks(f"truncate {self._name}"):
            self._disk.broken()
        self._file.truncate()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *given: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
