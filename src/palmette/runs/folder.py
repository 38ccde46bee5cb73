"""A run's folder: what lies in it, who may work on it, where it is, and the checksums of a finished run."""

from __future__ import annotations

import fcntl
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from palmette.errors import BadInput, PalmetteError
from palmette.protocol import ModelKind
from palmette.runs.absences import ABSENCES as ABSENCES
from palmette.runs.absences import ADDED as ADDED
from palmette.runs.files import LOG as LOG
from palmette.runs.files import MANIFEST as MANIFEST
from palmette.runs.files import Files, Unwritable
from palmette.runs.opening import digest, no_link, sync

CONFIG, METRICS, TRAFFIC, TIMINGS = "config.toml", "metrics.parquet", "traffic.parquet", "timings.json"
CHECKPOINT, PREVIOUS, LOCK = "checkpoint.bin", "checkpoint.previous.bin", "lock"
OUTLINE, IDENTITY = "outline.json", "identity.json"
ENCODING = "encoding.json"  # how a table's columns became the inputs of the models
FROZEN = "frozen.safetensors"  # parameters and buffers that no node changes, the same for all
ROWS = "devices-rows.safetensors"  # what devices predict from, where that is more than a model
EVALUATION = "evaluation.parquet"  # what crossed the links to measure the models
POPULATION = "population.parquet"  # every node with its samples and labels, see `palmette.runs.roll`
REPORT = "report.html"  # the page, which anybody may write again
TRACKED = "trackers.json"  # which trackers know the run, see `palmette.runs.tracking`
STATE, PROGRESS = "state.bin", "progress.parquet"  # of a finished run, to extend it; of one under way, to look at
_MODELS = {"GM": "global", "TM": "teams", "PM": "devices"}
_BEGINNING = b'algorithm = "'  # of every config a run writes
_NAMES = (
    METRICS, TRAFFIC, ABSENCES, EVALUATION, TIMINGS, LOG, OUTLINE, ENCODING, IDENTITY, POPULATION, MANIFEST, CHECKPOINT,
    PREVIOUS, STATE, PROGRESS, REPORT, TRACKED, ADDED, ROWS,
)  # fmt: skip
# What a run writes besides its config and its lock.
_WRITTEN = re.compile(
    rf"({'|'.join(map(re.escape, _NAMES))}"
    r"|(global|teams|devices|tier\d+|frozen)\.safetensors|store-\d+-.*\.bin|\..*\.part)"
)


class Misplaced(PalmetteError):  # noqa: N818 - reads as what it is
    """The folder of a run was moved, removed or taken by another process while the run was under way."""


class Folder(Files):
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock: IO[str] | None = None
        self._place: int | None = None  # the folder itself, wherever it is moved to

    @staticmethod
    def create(path: Path) -> Folder:
        """Make a new run's folder and lock it; one that exists must be empty or hold a run that never began."""
        folder = Folder(path)
        try:
            if path.exists() and not path.is_dir():
                raise BadInput(f"{path} is a file, not a folder for a run; choose another --out")
            folder._refuse_used()
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot use {path} as a folder: {error.strerror}") from None
        folder.lock()
        try:
            folder._refuse_used()  # once more: another process may have been faster
            for name in (IDENTITY, CONFIG, POPULATION, *folder.working_files):
                (path / name).unlink(missing_ok=True)
            sync(path.parent)
        except BaseException:
            folder.unlock()
            raise
        return folder

    @staticmethod
    def open(path: Path) -> Folder:
        """Open the folder of a run that exists; one of another format is refused."""
        folder = Folder(path)
        if not path.is_dir() or not (folder.has(CONFIG) or folder.has(IDENTITY)):
            why = f"there is no {CONFIG} in it" if path.is_dir() else "there is no such folder"
            raise BadInput(f"{path} is not the folder of a run: {why}")
        if folder.unbegun:
            raise BadInput(
                f"the run in {path} was ended before anything was saved; start it again with "
                f"'palmette run ... --out {path}'"
            )
        if not folder.has(IDENTITY):
            raise BadInput(
                f"the run in {path} was made by an older Palmette, whose folders have no format version and no "
                f"checksums; this one does not read them: run it again with 'palmette run --config {path / CONFIG}'"
            )
        folder.read_sealed(IDENTITY)
        return folder

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: its list of checksums is the last thing it writes."""
        return self.sealed

    @property
    def busy(self) -> bool:
        """Whether a process is working on the folder."""
        try:
            with open(self.path / LOCK, opener=no_link) as file:
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
        # The checksums first: a run without them is not finished, whatever else there still is when this is cut short.
        for path in sorted(self.path.iterdir(), key=lambda path: path.name != MANIFEST):
            if _WRITTEN.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
                path.unlink()

    @property
    def unbegun(self) -> bool:
        """Whether nothing of worth is in here: only what a run leaves that is killed before its config is written."""
        names = {path.name for path in self.path.iterdir()}
        if names - {LOCK, LOG, CONFIG, IDENTITY, POPULATION, *self.working_files}:
            return False
        if LOCK not in names:  # not a run's, or copied: only what is certainly the beginning of a config
            return names == {CONFIG} and _cut_short(self.read(CONFIG))
        if not {CONFIG, IDENTITY} <= names:
            return True
        try:
            return bool(self.read_sealed(IDENTITY)["config"] != digest(self.read(CONFIG)))
        except (BadInput, KeyError):
            return True

    @property
    def working_files(self) -> list[str]:
        """Half-written files and rows on disk, which a killed run leaves behind."""
        return [path.name for pattern in (".*.part", "store-*.bin") for path in self.path.glob(pattern)]

    def _refuse_used(self) -> None:
        if not self.path.exists() or not any(self.path.iterdir()) or self.unbegun:
            return
        if self.has(CONFIG):
            raise BadInput(
                f"{self.path} holds a run already; continue it with 'palmette resume {self.path}', replace it with "
                "exist = 'overwrite' (--exist overwrite), or choose another --out"
            )
        raise BadInput(f"{self.path} exists and is not a run; choose another --out")

    def lock(self) -> None:
        """Keep other processes off this folder until this one ends; the system frees it even after kill -9."""
        if self._lock is not None:
            return
        try:
            self._lock = open(self.path / LOCK, "a+", opener=no_link)  # noqa: SIM115 - held as long as the run
            self._place = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise BadInput(f"another process is working on {self.path}") from None
        except OSError as error:
            self.unlock()
            raise BadInput(
                f"cannot work in {self.path}: {error.strerror}; make it writable or choose another"
            ) from None

    def unlock(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()  # the file stays: who waits for it must find the same one
            self._lock = None
        if self._place is not None:
            os.close(self._place)
            self._place = None

    def check_place(self) -> None:
        """Stop a run whose folder was moved, removed or taken by another process: what lies at its path is not its own."""
        if self._lock is None or self._place is None:
            return
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._place)):
                raise Misplaced(_whereabouts(self.path, self._place))
            if not os.path.samestat(os.stat(self.path / LOCK), os.fstat(self._lock.fileno())):
                raise Misplaced(
                    f"{self.path / LOCK} is not the one that this run made: it was removed, and another process is working "
                    "on the folder; this run stops and leaves it to the other"
                )
        except (FileNotFoundError, NotADirectoryError):
            if not self.path.is_dir():
                raise Misplaced(_whereabouts(self.path, self._place)) from None
        except OSError:
            return  # it cannot be asked now; what cannot be written is told by those who write

    @property
    def in_place(self) -> bool:
        """Whether the folder is still where it was when it was locked."""
        try:
            self.check_place()
        except Misplaced:
            return False
        return True

    # -- the end of a run, and a new beginning -------------------------------------------------------------------------

    def close(self, *, keep_state: bool) -> None:
        """Make the run a finished one; its last checkpoint becomes the state to extend it from, unless that is not kept."""
        self.log("finished")
        if self._unlogged:
            raise Unwritable(f"cannot write {self.path / LOG}: there is no room for all of it")
        with self.told(STATE):
            if self.has(CHECKPOINT):
                os.replace(self.path / CHECKPOINT, self.path / STATE)
            for name in (PREVIOUS, PROGRESS, *self.working_files):
                (self.path / name).unlink(missing_ok=True)
            sync(self.path)
        self.seal({CONFIG, IDENTITY, LOG, POPULATION, *([STATE] if keep_state else [])})
        if not keep_state:  # until now it was what a killed run would have gone on from
            (self.path / STATE).unlink(missing_ok=True)

    def reopen(self) -> None:
        """Make a finished run one that is under way again, at its last round."""
        if self.has(STATE):
            with self.told(CHECKPOINT):
                (self.path / MANIFEST).unlink(missing_ok=True)
                (self.path / REPORT).unlink(missing_ok=True)  # it would tell of fewer rounds than there are
                os.replace(self.path / STATE, self.path / CHECKPOINT)
                sync(self.path)


def _whereabouts(path: Path, place: int) -> str:
    """Say where the folder of a run is now, which is no longer at its path."""
    now = ""
    with suppress(OSError):
        now = os.readlink(f"/proc/self/fd/{place}")  # Linux tells
    if not now or now.endswith(" (deleted)"):
        gone = "removed" if now else "moved or removed"
        return f"the folder {path} was {gone} while the run in it was under way: the run stops, nothing more is written"
    return (
        f"the folder {path} was moved to {now} while the run in it was under way: the run stops, nothing more is written; go "
        f"on from its last checkpoint with: palmette resume {now}"
    )


def model_file(kind: ModelKind) -> str:
    """Return the file of a kind of models: ``devices``, ``teams``, ``tier2`` ..., ``global.safetensors``."""
    if not re.fullmatch(r"PM|GM|TM[0-9]*", kind):
        raise BadInput(f"there is no kind of models {kind!r}; write PM, TM or GM")
    return f"{_MODELS.get(kind) or f'tier{kind[2:]}'}.safetensors"


def is_own(name: str) -> bool:
    """Return whether a file of this name is one that a run writes."""
    return name in (CONFIG, LOCK) or bool(_WRITTEN.fullmatch(name))


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
    stem = re.sub(r"[/\0]+", "-", stem).lstrip(".") or "run"  # it may come from a config: never another folder
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


def _cut_short(text: bytes) -> bool:
    """Return whether this is the beginning of a config that a run was writing."""
    try:
        complete = bool(tomllib.loads(text.decode()))
    except ValueError:
        complete = False
    return not complete and _BEGINNING.startswith(text[: len(_BEGINNING)])
