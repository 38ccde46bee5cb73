"""The checkpoints of a run: its whole state, and after it what changed since, in one file; and the file before that one.

So a checkpoint is small where few of many devices took part since the last one. When the changes have grown as large as the
whole, a new file with everything takes the place of the old one, which is kept beside it until the next.

The end of the process costs nothing that was kept. The end of the machine may cost the changes of the last seconds: they are
on their way to the disk, which is waited for now and then, and when the run stops. What never got there has no right checksum.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from palmette.engines.store import Pieces
from palmette.runs import records
from palmette.runs import tensors as sheets
from palmette.runs.files import FORMAT
from palmette.runs.folder import CHECKPOINT, PREVIOUS, STATE, Folder
from palmette.runs.opening import no_link

_SHARE = 1.0  # of the bytes of a whole state that changes may grow to
_LITTLE = 1 << 22  # bytes of changes that are always little
_SYNC = 5.0  # seconds after which the disk is waited for: it may take longer than all else
_MOST = 256  # records of changes in a file: each takes some milliseconds to go on from


class Journal:
    """The checkpoints in the folder of a run.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._newest = ""  # the file of the state that was read or written last
        self._whole = self._end = 0  # where in the checkpoint the record of everything and the last record end
        self._changes = 0  # the records between them
        self._synced = 0.0  # when the disk was last waited for ...
        self._under_way = False  # ... and whether there is something to wait for

    def save(self, tensors: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> None:
        """Keep the whole state between two rounds; the file of the state that was kept before stays beside it."""
        # A checkpoint that could not be read takes nobody's place.
        before = PREVIOUS if self._newest == CHECKPOINT and self._folder.has(CHECKPOINT) else None
        self._end = 0  # where this fails, it may be before the new file took its place or after it
        with self._folder.writing(CHECKPOINT, before) as file:
            self._check_room(sheets.size(tensors))
            file.write(records.TITLE)
            end = records.add(file, tensors, {"format": FORMAT, **about})
        self._newest, self._whole, self._end, self._changes = CHECKPOINT, end, end, 0
        self._synced, self._under_way = time.monotonic(), False

    def extendable(self, tensors: Mapping[str, Tensor | Pieces]) -> bool:
        """Return whether there is a checkpoint that this object wrote, and what changed since is little beside it."""
        most = max(_LITTLE, _SHARE * self._whole)
        if not self._end or self._changes >= _MOST or self._end - self._whole + sheets.size(tensors) > most:
            return False
        try:
            return (self._folder.path / CHECKPOINT).stat().st_size >= self._end
        except OSError:
            return False

    def extend(self, tensors: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> None:
        """Keep what changed of the state since it was last kept, in the same file; see `extendable`."""
        with self._folder.told(CHECKPOINT):
            self._check_room(sheets.size(tensors))
            with open(self._folder.path / CHECKPOINT, "r+b", opener=no_link) as file:
                file.seek(self._end)
                try:
                    end = records.add(file, tensors, {"format": FORMAT, **about})
                except OSError:
                    with suppress(OSError):  # half a record does not count, but takes room
                        os.ftruncate(file.fileno(), self._end)
                    raise
        self._end, self._changes, self._under_way = end, self._changes + 1, True
        if time.monotonic() - self._synced >= _SYNC:
            self.sync()

    def sync(self) -> None:
        """Wait until all that is kept is on the disk, where it is not yet."""
        if not self._under_way:
            return
        end, self._end = self._end, 0  # where this fails, nobody knows what is on the disk: a whole state comes next
        with self._folder.told(CHECKPOINT), open(self._folder.path / CHECKPOINT, "r+b", opener=no_link) as file:
            os.fsync(file.fileno())
        self._end, self._synced, self._under_way = end, time.monotonic(), False

    def _check_room(self, size: int) -> None:
        """Refuse to begin what the disk has no room for."""
        if size > shutil.disk_usage(self._folder.path).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def load(
        self,
        at_most: int | None = None,
        unfit: Callable[[records.Record, int | None], str | None] = lambda record, before: None,
    ) -> list[records.Record] | None:
        """Return the newest state that is sound, or ``None`` when there is none; what is damaged is passed over aloud.

        The state is that of the first record, changed by each of those that follow it.

        Args:
            at_most: Pass over states of later rounds.
            unfit: Returns why a record cannot be used, where it cannot, given the round of the one before it.
        """
        for name in (CHECKPOINT, STATE, PREVIOUS):
            if not self._folder.has(name):
                continue
            found, kept, reason = self.read(name), list[records.Record](), ""
            for record in found.records:
                if reason := unfit(record, kept[-1].round if kept else None) or "":
                    break
                if at_most is not None and record.round > at_most:
                    break
                kept.append(record)
            self._tell(name, reason or found.problem, kept, unfinished=found.unfinished)
            if kept and not (self._folder.finished and (reason or found.problem)):
                # What is kept from now on is kept anew; the state of a finished run becomes its checkpoint again.
                self._newest, self._end = CHECKPOINT if name == STATE else name, 0
                return kept
        return None

    def _tell(self, name: str, reason: str, kept: list[records.Record], *, unfinished: bool) -> None:
        """Say what of a file of checkpoints is passed over; that of a finished run is nobody's loss."""
        if self._folder.finished:
            return
        if reason and kept:
            self._folder.warn(
                f"the end of {self._folder.path / name} is damaged or not of this run ({reason}) and was passed over: the run "
                f"goes on after round {kept[-1].round}"
            )
        elif reason:
            self._folder.warn(
                f"{self._folder.path / name} is damaged or not of this run ({reason}) and was passed over"
            )
        elif unfinished:
            self._folder.log(f"the run was ended while it wrote {name}: what it was writing is left out")

    def read(self, name: str) -> records.Found:
        """Return the records of a file of checkpoints that can be read and, where one cannot, why not."""
        try:
            with open(self._folder.path / name, "rb", opener=no_link) as file:
                found = records.read(file)
        except OSError as error:
            return records.Found([], str(error))
        for number, record in enumerate(found.records):
            if (version := record.about.pop("format", None)) != FORMAT:
                return records.Found(found.records[:number], f"its format is {version!r}, not {FORMAT}")
        return found
