"""What the nodes of a tier keep between messages: named rows, written only where a node took part.

Rows lie in memory or, for populations that outgrow it, in a file that is mapped into memory. In both, a row takes room only
when it is written: memory is handed out page by page, and the file is full of holes. Room on the disk is asked for before
rows are written for the first time, because a write through the map to a full disk would kill the process. The file is working
space and no record: what a run keeps is in its checkpoint.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palmette.errors import PalmetteError, ProtocolError
from palmette.protocol import State

Numbers = npt.NDArray[np.int64]

# Bytes of rows that are copied together: little beside the store, and still in the processor's cache when they are used.
_BLOCK = 1 << 20
_SPARE = 1 << 30  # bytes left free on a disk for checkpoints, and for everybody else


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tensor that is never whole in memory: its lines come some at a time, as often as they are asked for.

    Attributes:
        shape: Shape of the whole.
        dtype: Type of its numbers.
        make: Makes the pieces, in order.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Iterator[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return self.make()


@dataclass(frozen=True, eq=False)
class Before:
    """What a store held of some nodes before they were written to.

    Attributes:
        ids: Their numbers.
        last: The rounds in which they last took part.
        rows: Rows by name of those that ever took part.
    """

    ids: Tensor
    last: Tensor
    rows: dict[str, Tensor]


class Kept(Mapping[str, Tensor]):
    """What some nodes keep: copies of their rows by name, each made when it is first looked at."""

    def __init__(self, store: Store, ids: Tensor) -> None:
        self._store, self._ids, self._rows = store, ids, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._rows:
            self._rows[name] = self._store.rows_of(name, self._ids)
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.initial)

    def __len__(self) -> int:
        return len(self._store.initial)


class Store:
    """The state of all nodes of one tier.

    Room is taken for the rows of nodes that took part; the others still have the initial row.

    Args:
        size: Number of nodes.
        initial: Initial row ``(width,)`` of every name.
        folder: Where the files of a store on disk lie; ``None`` keeps the rows in memory.
        prefix: How the files' names begin.
    """

    def __init__(
        self, size: int, initial: Mapping[str, Tensor], folder: Path | None = None, *, prefix: str = "store"
    ) -> None:
        self.initial = dict(initial)
        self.size, self.folder, self._prefix = size, folder, prefix
        self._opened: dict[str, int] = {}  # the files of a store on disk
        self._watching: list[tuple[list[Before], Tensor]] = []  # notes of what was, and which nodes are noted already
        self.last = torch.full((size,), -1, dtype=torch.int64)
        """The round in which each node last took part; -1 for never."""

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """The rows of all nodes by name; zero where a node never took part.

        They are made when they are first asked for, which must not be by two threads at once; see `prepare`.
        """
        if self.folder is not None and self.nbytes:
            self._check_room(self.folder)
        return {name: self._make(name, row) for name, row in self.initial.items()}

    @property
    def nbytes(self) -> int:
        """The bytes that all rows take together when every node has taken part."""
        return rows_bytes(self.size, self.initial)

    @property
    def files(self) -> list[Path]:
        """The files of a store on disk."""
        return [] if self.folder is None else [self._file(self.folder, name) for name in self.initial]

    def prepare(self) -> None:
        """Make the rows, if they are not there yet: to be called before several threads ask for them."""
        len(self.rows)

    def read(self, ids: Tensor) -> Kept:
        """Return the rows of some nodes, as copies that are made when they are looked at."""
        return Kept(self, ids)

    def rows_of(self, name: str, ids: Tensor) -> Tensor:
        """Return one kind of rows of some nodes, as a copy."""
        row, rows = self.initial[name], self.rows[name]
        seen = self.last.numpy()[ids.numpy()] >= 0  # numpy's small calls cost a fraction of torch's
        if seen.all():
            return rows.index_select(0, ids.to(rows.device)).to(row.device)
        # A row that was never written is not looked at: that would fetch a page of zeros for it.
        part = row.expand(len(ids), *row.shape).clone()
        if seen.any():
            known = torch.from_numpy(seen)
            part[known.to(row.device)] = rows.index_select(0, ids[known].to(rows.device)).to(row.device)
        return part

    def write(self, ids: Tensor, state: State, round_: int) -> None:
        """Keep new rows of some nodes; ``ids`` ascend."""
        if state.keys() != self.initial.keys():
            raise ProtocolError(
                f"a program returned the state {sorted(state)}, but the method keeps declares {sorted(self.initial)}"
            )
        # Chunks of devices are mostly neighbours, and a slice is copied several times faster than scattered rows.
        numbers = ids.numpy()
        low, high = int(numbers[0]), int(numbers[-1]) + 1
        together = high - low == len(numbers)
        for notes, noted in self._watching:
            self._note(ids, notes, noted)
        self._take_room(numbers)
        for name, given in state.items():
            rows = self.rows[name]
            if together:
                rows[low:high] = given
            else:
                rows.index_copy_(0, ids.to(rows.device), given.to(rows.device))
        self.last.numpy()[slice(low, high) if together else numbers] = round_

    # -- going back ----------------------------------------------------------------------------------------------------

    def watch(self, notes: list[Before]) -> None:
        """Note from now on what nodes keep before they are written to for the first time."""
        self._watching.append((notes, torch.zeros(self.size, dtype=torch.bool)))

    def unwatch(self, notes: list[Before]) -> None:
        """Note no more."""
        self._watching = [one for one in self._watching if one[0] is not notes]

    def _note(self, ids: Tensor, notes: list[Before], noted: Tensor) -> None:
        fresh = ids[~noted[ids]]
        noted[fresh] = True
        last = self.last[fresh]
        seen = fresh[last >= 0]
        notes.append(
            Before(fresh, last, {name: self.rows_of(name, seen) for name in self.initial} if len(seen) else {})
        )

    def put_back(self, notes: list[Before], which: Tensor) -> None:
        """Put back what was noted of some nodes (bool, one for each node of the store)."""
        for one in notes:
            mine, seen = which[one.ids], one.last >= 0
            self._forget(one.ids[mine & ~seen])
            ids = one.ids[mine & seen]
            self.last[ids] = one.last[mine & seen]
            for name, rows in one.rows.items():
                held, kept = self.rows[name], mine[seen]
                held.index_copy_(0, ids.to(held.device), rows[kept.to(rows.device)].to(held.device))

    def forget(self, which: Tensor | None = None) -> None:
        """Let all nodes, or some (bool), be as if they had never taken part."""
        seen = self.last >= 0
        self._forget((seen if which is None else which & seen).nonzero().squeeze(1))

    def _forget(self, ids: Tensor) -> None:
        for rows in self.rows.values() if len(ids) else ():
            rows.index_fill_(0, ids.to(rows.device), 0)
        self.last[ids] = -1

    # -- as a whole ----------------------------------------------------------------------------------------------------

    def changed(self, since: int = 0) -> Tensor:
        """Return the nodes whose rows were written in round ``since`` or later, in order; by default all that ever were.

        A checkpoint keeps what changed since the one before by it: whatever else a row is written by, `write` must tell.
        """
        return torch.from_numpy(np.flatnonzero(self.last.numpy() >= max(0, since)))

    def written(self, name: str, ids: Tensor) -> Pieces:
        """Return one kind of rows of some nodes that took part, some at a time."""
        shape = (len(ids), *self.initial[name].shape)
        return Pieces(shape, self.initial[name].dtype, lambda: self._written(name, ids))

    def restore(self, ids: Tensor, last: Tensor, written: Mapping[str, Tensor | Pieces]) -> None:
        """Take over rows of another store; nodes that are not among them keep what they have.

        Args:
            ids: Which nodes, ascending; see `changed`.
            last: The round in which each of them last took part.
            written: Their rows by name; see `written`.
        """
        if not len(ids):
            return
        self._take_room(ids.numpy())
        self.last[ids] = last
        for name, given in written.items():
            rows, done = self.rows[name], 0
            for part in given.split(self._block(name)) if isinstance(given, Tensor) else given:
                some = ids[done : done + len(part)]
                rows.index_copy_(0, some.to(rows.device), part.to(rows.device))
                done += len(part)

    def _written(self, name: str, ids: Tensor) -> Iterator[Tensor]:
        rows = self.rows[name]
        for some in ids.split(self._block(name)):
            if rows.device.type == "cpu":  # torch would have several threads copy, which wait for those of the learner
                yield torch.from_numpy(rows.numpy().take(some.numpy(), axis=0))
            else:
                yield rows.index_select(0, some.to(rows.device))

    def remove(self) -> None:
        """Remove the files; the rows can still be read as long as this store lives."""
        for file in self.files:
            file.unlink(missing_ok=True)

    def _block(self, name: str) -> int:
        return max(1, _BLOCK // max(1, self.initial[name].nbytes))

    # -- room ----------------------------------------------------------------------------------------------------------

    def _file(self, folder: Path, name: str) -> Path:
        return folder / f"{self._prefix}-{name}.bin"

    def _make(self, name: str, row: Tensor) -> Tensor:
        shape = (self.size, *row.shape)
        if self.folder is None and row.device.type != "cpu":
            return row.new_zeros(shape)
        kind = row.cpu().numpy().dtype
        if not math.prod(shape):
            return torch.zeros(shape, dtype=row.dtype)  # there are no empty maps
        if self.folder is None:
            return torch.from_numpy(np.frombuffer(_pages(math.prod(shape) * kind.itemsize), dtype=kind).reshape(shape))
        file = self._file(self.folder, name)
        try:
            # A new file, never one that a link points to.
            opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            weakref.finalize(self, os.close, opened)
            os.ftruncate(opened, math.prod(shape) * kind.itemsize)
            self._opened[name] = opened
            return torch.from_numpy(np.frombuffer(mmap.mmap(opened, 0), dtype=kind).reshape(shape))
        except OSError as error:
            raise PalmetteError(
                f"cannot make the file {file} for what devices keep: {error.strerror}; set engine.store = 'memory'"
            ) from None

    def _take_room(self, numbers: Numbers) -> None:
        """Have the disk set room aside for rows that were never written; ``numbers`` ascend."""
        if self.folder is None or sys.platform == "darwin":  # which has no such call
            return
        fresh = numbers[self.last.numpy()[numbers] < 0]
        if not len(fresh):
            return
        self.prepare()
        try:
            for name, opened in self._opened.items():
                width = self.initial[name].nbytes
                # Rows of others are left alone, except where blocks are so small that a page is several of them.
                unit = mmap.PAGESIZE if os.fstatvfs(opened).f_bsize < mmap.PAGESIZE else 1
                for begin, end in _ranges(fresh, width, unit, self.size * width):
                    os.posix_fallocate(opened, begin, end - begin)
        except OSError as error:
            raise PalmetteError(
                f"no room for more devices' models in {self.folder}: {error.strerror}; the run's last checkpoint is kept: "
                "free some space and resume it, or set engine.store = 'memory' in its config.toml and resume it"
            ) from None

    def _check_room(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.remove()  # what a killed run left behind; a process that still maps it keeps its own
            free = shutil.disk_usage(folder).free - _SPARE
        except OSError as error:
            raise PalmetteError(
                f"cannot keep the devices' models in {folder}: {error.strerror}; set engine.store = 'memory'"
            ) from None
        if self.nbytes > free:
            raise PalmetteError(
                f"the devices' models may grow to {self.nbytes / 2**30:.1f} GiB and {folder} has room for "
                f"{max(0, free) / 2**30:.1f} GiB; free some space, choose another folder, or set engine.store = 'memory'"
            )


def _ranges(numbers: Numbers, width: int, unit: int, size: int) -> list[tuple[int, int]]:
    """Return the bytes of some rows of a file as few ranges, each a multiple of the unit."""
    begin = numbers * width // unit * unit
    end = np.minimum(-(-(numbers + 1) * width // unit) * unit, size)
    apart = np.flatnonzero(begin[1:] > end[:-1])
    first, last = np.append(0, apart + 1), np.append(apart, len(numbers) - 1)
    return list(zip(begin[first].tolist(), end[last].tolist(), strict=True))


def _pages(size: int) -> mmap.mmap:
    """Return memory that is handed out page by page when it is written; torch would write all of it at once."""
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise PalmetteError(
            f"there is not enough memory for the devices' models ({size / 2**30:.1f} GiB); set engine.store = 'disk'"
        ) from None
    if sys.platform == "linux":
        # A huge page would be taken whole for one device's row, and so the whole store for one device in a thousand.
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


def rows_bytes(size: int, initial: Mapping[str, Tensor]) -> int:
    """Return the bytes that a store of ``size`` nodes takes when every node has taken part."""
    return size * sum(row.nbytes for row in initial.values())
