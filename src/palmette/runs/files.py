"""Files of one folder, written so that a crash never leaves half a file and read only where they lie.

None of them is a symbolic link: who continues a run that somebody else sent neither reads nor writes outside its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palmette.errors import BadInput, PalmetteError, PalmetteWarning
from palmette.guards.parquet import read as read_parquet
from palmette.guards.texts import from_json
from palmette.guards.visible import visible
from palmette.runs import tensors as sheets
from palmette.runs.opening import digest, linked, no_link, strange, sync
from palmette.values import memory, one_line, shown, size

FORMAT = 2
"""Version of what a run's folder holds and how; another one is refused."""
LOG, MANIFEST = "log.txt", "manifest.json"
_MOST_JSON = 1 << 24  # bytes of a sealed file of JSON; one of a run has some thousand


class Damaged(BadInput):
    """A file is not as it was written.

    Attributes:
        name: Which file of the folder.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


class Unwritable(PalmetteError):  # noqa: N818 - reads as what it is
    """A file could not be written: no room, no permission, a broken disk. What was there before is still there."""


class Files:
    """The files of one folder.

    Attributes:
        path: The folder.
        written: The names of all files written through this object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: set[str] = set()
        self._checked: set[str] = set()
        self._unlogged = b""  # lines that the log had no room for

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name; a symbolic link is refused, and what is no file of bytes."""
        path = self.path / name
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(mode):
            raise linked(path) if stat.S_ISLNK(mode) else strange(path)
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Refuse to write where the folder is no longer the one it was; a folder that is not locked may be any."""

    @contextmanager
    def told(self, name: str) -> Iterator[None]:
        """Say which file could not be written, where the system refuses it."""
        self.check_place()
        try:
            yield
        except OSError as error:
            raise Unwritable(f"cannot write {self.path / name}: {error.strerror or error}") from None

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole or not at all."""
        with self.writing(name) as file:
            file.write(data)

    @contextmanager
    def writing(self, name: str, before: str | None = None) -> Iterator[IO[bytes]]:
        """Give a file to write to; it takes its place when it is complete.

        Args:
            name: The file.
            before: What the file of that name is called from then on, where it is to be kept.
        """
        target, part = self.path / name, self.path / f".{name}.part"
        with self.told(name):
            try:
                with open(part, "w+b", opener=no_link) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                if before is not None:
                    os.replace(target, self.path / before)
                os.replace(part, target)
                sync(self.path)
            except BaseException:
                with suppress(OSError):  # it may lie on the disk that is broken
                    part.unlink(missing_ok=True)
                raise
        self.written.add(name)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a table as parquet; equal tables give equal bytes."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write(name, sink.getvalue().to_pybytes())

    def write_tensors(
        self, name: str, like: Mapping[str, Tensor], chunks: Iterable[sheets.Chunk], about: Mapping[str, Any]
    ) -> None:
        """Write named tensors as safetensors, some lines at a time, with what is to be known about them as JSON.

        Args:
            name: The file.
            like: Shape and type of every tensor.
            chunks: Their lines.
            about: What is to be known about them.
        """
        with self.writing(name) as file:
            sheets.write(file, like, chunks, about)

    def write_json(self, name: str, value: Any) -> None:
        """Write a small readable file."""
        self.write(name, (json.dumps(value, indent=1) + "\n").encode())

    def write_sealed(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a small readable file with the folder's format and a checksum of its own."""
        content = {"format": FORMAT, **value}
        self.write_json(name, {"checksum": _checksum_of(content), **content})

    def log(self, line: str) -> None:
        """Append a line to the run's log; one that finds no room is kept for the next time, which is said once."""
        self.check_place()
        told = bool(self._unlogged)
        self._unlogged += f"{visible(line)}\n".encode()
        try:
            with open(self.path / LOG, "ab", buffering=0, opener=no_link) as file:
                self._unlogged = self._unlogged[file.write(self._unlogged) :]
            why = "there is no room for all of it"
        except OSError as error:
            why = error.strerror or str(error)
        if self._unlogged and not told:
            text = f"cannot write {self.path / LOG}: {why}; its lines are kept until they can be written"
            warnings.warn(text, PalmetteWarning, stacklevel=3)

    def warn(self, text: str) -> None:
        """Say something aloud and in the run's log."""
        self.log(f"warning: {text}")
        warnings.warn(text, PalmetteWarning, stacklevel=3)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, name: str, most: int | None = None) -> bytes:
        """Read a small file; where it has more than ``most`` bytes, or a quarter of the memory, it is refused."""
        most = memory() // 4 if most is None else most
        try:
            with open(self.path / name, "rb", opener=no_link) as file:
                if (bytes_ := os.fstat(file.fileno()).st_size) > most:
                    raise Damaged(
                        f"{self.path / name} is damaged: it takes {size(bytes_)}, and at most {size(most)} fit", name
                    )
                return file.read()
        except OSError as error:
            raise BadInput(f"cannot read {self.path / name}: {error.strerror}") from None

    def read_sealed(self, name: str) -> dict[str, Any]:
        """Read what `write_sealed` wrote; another format and a wrong checksum are refused."""
        wrong = f"{self.path / name} is damaged"
        try:
            content = dict(from_json(self.read(name, _MOST_JSON)))
            checksum, version = content.pop("checksum"), content["format"]
        except BadInput:
            raise
        except (ValueError, TypeError, KeyError):
            raise Damaged(f"{wrong}: restore it from a copy, or run again in another folder", name) from None
        if checksum == _checksum_of(content) and version != FORMAT:
            raise BadInput(
                f"the run in {self.path} has the folder format {shown(version)} and this Palmette reads {FORMAT}; use the "
                "version of Palmette that made it, or run it again"
            )
        if checksum != _checksum_of(content):
            raise Damaged(
                f"{wrong} (its checksum is wrong): restore it from a copy, or run again in another folder", name
            )
        return content

    def read_table(self, name: str, schema: pa.Schema | None = None) -> pa.Table:
        """Read a table; one without the columns of a schema is refused."""
        try:
            return read_parquet(self.read(name), schema)
        except pa.ArrowException as error:
            raise BadInput(f"cannot read {self.path / name}: {error}") from None

    def read_about(self, name: str) -> dict[str, Any]:
        """Return what is to be known about a file of tensors."""
        try:
            with safe_open(self.path / name, framework="pt") as file:
                return dict(from_json(file.metadata()["about"].encode()))
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise BadInput(f"cannot read {self.path / name}: {one_line(str(error))}") from None

    # -- checksums -----------------------------------------------------------------------------------

    @property
    def sealed(self) -> bool:
        """Whether there is a list of checksums."""
        return self.has(MANIFEST)

    def seal(self, others: Collection[str] = ()) -> None:
        """List the checksums of all files that were written through this object, and of others, as far as they are there."""
        names = sorted(name for name in self.written.union(others) if self.has(name))
        self.write_sealed(MANIFEST, {"files": {name: self._fact(name) for name in names}})

    def _fact(self, name: str) -> dict[str, Any]:
        with open(self.path / name, "rb", opener=no_link) as file:
            return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    @cached_property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Size and checksum of every file that is listed."""
        facts = self.read_sealed(MANIFEST).get("files")
        facts = facts if isinstance(facts, dict) else {"": {}}
        for name in facts:
            if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
                wrong = f"it lists {shown(name)}, which is not in the folder"
                raise Damaged(f"{self.path / MANIFEST} is damaged: {wrong}", MANIFEST)
        return dict(facts)

    def problem(self, name: str) -> str | None:
        """Return what is wrong with a file of a sealed folder: missing, damaged, not of this run; ``None`` if nothing is."""
        if not self.has(name):
            return "missing" if name in self.facts else None
        if name not in self.facts:
            return "not of this run"
        try:
            return None if self._fact(name) == self.facts[name] else "damaged"
        except OSError as error:
            return f"unreadable ({error.strerror})"

    def check(self, *names: str) -> None:
        """Refuse files of a sealed folder that are not as they were written; each is looked at once.

        The whole file is read: a second for a gigabyte. So models are checked when they are first asked for.
        """
        for name in names if self.sealed else ():
            if name not in self._checked and (problem := self.problem(name)):
                raise BadInput(
                    f"{self.path / name} is {problem}, by the checksums in {MANIFEST}; restore it from a copy or run it "
                    f"again ('palmette verify {self.path}' lists all that is wrong)"
                )
            self._checked.add(name)


def _checksum_of(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())
