"""A run's folder: what lies in it, written so that a crash never leaves half a file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import safe_open
from torch import Tensor

from palmette.engines.store import Pieces
from palmette.errors import BadInput, PalmetteError
from palmette.protocol import ModelKind
from palmette.runs import tensors as sheets

CONFIG, METRICS, TRAFFIC, TIMINGS, LOG = "config.toml", "metrics.parquet", "traffic.parquet", "timings.json", "log.txt"
CHECKPOINT, PREVIOUS, LOCK = "checkpoint.bin", "checkpoint.previous.bin", "lock"
OUTLINE = "outline.json"
FROZEN = "frozen.safetensors"  # parameters that no node learns, the same for all
STATE, PROGRESS = "state.bin", "progress.parquet"  # of a finished run, to extend it; of one under way, to look at
_MODELS = {"GM": "global", "TM": "teams", "PM": "devices"}
_CHECKSUM = 64  # bytes at the head of a checkpoint
# What a run writes besides its config and its lock.
_WRITTEN = re.compile(
    rf"({'|'.join(map(re.escape, (METRICS, TRAFFIC, TIMINGS, LOG, OUTLINE, CHECKPOINT, PREVIOUS, STATE, PROGRESS)))}"
    r"|(global|teams|devices|tier\d+|frozen)\.safetensors|store-\d+-.*\.bin|\..*\.part)"
)


class Folder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @staticmethod
    def create(path: Path) -> Folder:
        """Make a new run's folder; one that exists must be empty."""
        try:
            there = path.exists()
        except OSError as error:
            raise BadInput(f"cannot use {path} as a folder: {error.strerror}") from None
        if there and not path.is_dir():
            raise BadInput(f"{path} is a file, not a folder for a run; choose another --out")
        if path.exists() and any(path.iterdir()):
            if (path / CONFIG).exists():
                raise BadInput(
                    f"{path} holds a run already; continue it with 'palmette resume {path}', replace it with "
                    "exist = 'overwrite', or choose another --out"
                )
            raise BadInput(f"{path} exists and is not a run; choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot make the folder {path}: {error.strerror}") from None
        return Folder(path)

    @staticmethod
    def open(path: Path) -> Folder:
        """Open the folder of a run that exists."""
        if not (path / CONFIG).is_file():
            raise BadInput(f"{path} is not the folder of a run: it has no {CONFIG}")
        return Folder(path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / METRICS).exists() and not (self.path / CHECKPOINT).exists()

    @property
    def busy(self) -> bool:
        """Whether a process is working on the folder."""
        try:
            with open(self.path / LOCK) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # nobody ever worked here
        return False

    def clear(self) -> None:
        """Remove what the run wrote and nothing else; its config stays until that of the next run takes its place.

        Links are removed themselves, never what they point to.
        """
        # The table first: a run without it is not finished, whatever else there still is when this is cut short.
        for path in sorted(self.path.iterdir(), key=lambda path: path.name != METRICS):
            if _WRITTEN.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
                path.unlink()

    def reopen(self) -> None:
        """Make a finished run one that is under way again, at its last round."""
        if (self.path / STATE).exists():
            os.replace(self.path / STATE, self.path / CHECKPOINT)

    def lock(self) -> None:
        """Keep other processes off this folder until this one ends; the system frees it even after kill -9."""
        if self._lock is not None:
            return
        self._lock = open(self.path / LOCK, "a+")  # noqa: SIM115 - held as long as the run
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise BadInput(f"another process is working on {self.path}") from None

    def unlock(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()  # the file stays: who waits for it must find the same one
            self._lock = None

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole or not at all."""
        with self._writing(name) as file:
            file.write(data)

    @contextmanager
    def _writing(self, name: str) -> Iterator[IO[bytes]]:
        """Give a file to write to; it takes its place when it is complete."""
        target, part = self.path / name, self.path / f".{name}.part"
        try:
            with open(part, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise PalmetteError(f"cannot write {target}: {error.strerror}; the last good state is kept") from None
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a table as parquet; equal tables give equal bytes."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write(name, sink.getvalue().to_pybytes())

    def read_table(self, name: str) -> pa.Table:
        """Read a table."""
        try:
            return pq.read_table(self.path / name)
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"cannot read {self.path / name}: {error}") from None

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
        with self._writing(name) as file:
            sheets.write(file, like, chunks, about)

    def read_about(self, name: str) -> dict[str, Any]:
        """Return what is to be known about a file of tensors."""
        with safe_open(self.path / name, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["about"])
        return about

    def write_json(self, name: str, value: Any) -> None:
        """Write a small readable file."""
        self.write(name, (json.dumps(value, indent=1) + "\n").encode())

    def log(self, line: str) -> None:
        """Append a line to the run's log."""
        try:
            with open(self.path / LOG, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise PalmetteError(f"cannot write {self.path / LOG}: {error.strerror}") from None

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_checkpoint(self, tensors: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> None:
        """Keep the state between two rounds, with its checksum, and the one before it."""
        current = self.path / CHECKPOINT
        if current.exists():
            os.replace(current, self.path / PREVIOUS)
        with self._writing(CHECKPOINT) as file:
            file.write(bytes(_CHECKSUM))
            sheets.write(file, tensors, sheets.whole(tensors), about)
            digest = _checksum(file)
            file.seek(0)
            file.write(digest)

    def load_checkpoint(self, at_most: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest checkpoint whose checksum is right, or ``None`` when there is none.

        Args:
            at_most: Pass over those of later rounds.
        """
        for name in (CHECKPOINT, PREVIOUS, STATE):
            path = self.path / name
            if not path.exists():
                continue
            with open(path, "rb") as file:
                sound = file.read(_CHECKSUM) == _checksum(file)
            if sound:
                kept = sheets.read(path, skip=_CHECKSUM)
                if at_most is None or int(kept[0]["progress"][0]) <= at_most:
                    return kept
                continue
            self.log(f"{name} is damaged (its checksum is wrong) and was passed over")
        return None

    def close(self, *, keep_state: bool) -> None:
        """Make the run a finished one: its last checkpoint becomes the state to extend it from, or goes like the others."""
        for path in (self.path / PREVIOUS, self.path / PROGRESS, *self.path.glob(".*.part")):
            path.unlink(missing_ok=True)
        if keep_state:
            os.replace(self.path / CHECKPOINT, self.path / STATE)
        else:
            (self.path / CHECKPOINT).unlink(missing_ok=True)


def model_file(kind: ModelKind) -> str:
    """Return the file of a kind of models: ``devices``, ``teams``, ``tier2`` ..., ``global.safetensors``."""
    return f"{_MODELS.get(kind) or f'tier{kind[2:]}'}.safetensors"


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of runs that lie in a folder, or one folder deeper."""
    return sorted(path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{CONFIG}"))


@contextmanager
def claimed(out: Path | None, base: Path, stem: str, *, first: int = 1) -> Iterator[Path]:
    """Give the folder ``out``, or a new one: ``stem-1``, ``stem-2`` ...; ``first=0`` begins with the bare stem.

    A new one is made at once, so that two processes never get the same, and taken away again if nothing came of it.
    """
    if out is not None:
        yield out
        return
    fresh = not base.exists()
    base.mkdir(parents=True, exist_ok=True)
    number = first
    while True:
        path = base / (f"{stem}-{number}" if number else stem)
        try:
            path.mkdir()
            break
        except FileExistsError:
            number = max(number + 1, 2)
    try:
        yield path
    finally:
        if not any(path.iterdir()):
            path.rmdir()
            if fresh and not any(base.iterdir()):
                base.rmdir()


def _checksum(file: IO[bytes]) -> bytes:
    """Return the checksum of all that follows the place kept for it."""
    file.seek(_CHECKSUM)
    digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_CHECKSUM // 2))  # type: ignore[arg-type]
    return digest.hexdigest().encode()
