"""The processes of one run, which torchrun started, and what they send each other through torch.distributed.

Messages go through gloo, as tensors on the CPU. The processes work in step: each meets the others in the same order, and a
meeting of two kinds at once, which can only be a mistake, ends the run. Nobody unpickles anything.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from palmette.errors import PalmetteError

COMMAND, EXCHANGE = 1, 2
"""What processes meet for: what rank 0 wants done, and what came out of an exchange."""
TIMEOUT = timedelta(minutes=30)
"""How long a process waits for another before it gives up."""
_JOIN, _PAUSE = 300.0, 0.02  # seconds that all have to be there in, and between two looks
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NUMBERS = ("rank", "size", "local_rank", "local_size")
_INLINE = 1000  # bytes of a message that travel with its head
# Keys that processes leave for each other when they cannot meet.
_CALL, _CAME, _FAILED, _FELL = "palmette/call", "palmette/came", "palmette/failed", "palmette/fell"
_ALIKE = 20.0  # seconds within which what fails in all processes has failed in all


class Lost(PalmetteError):  # noqa: N818 - reads as what it is
    """Another process of this run is gone, or does not answer any more."""


class Place(NamedTuple):
    """Where a process stands among all of the run.

    Attributes:
        rank: Its number; rank 0 leads.
        size: How many there are.
        local_rank: Its number on its machine.
        local_size: How many there are on its machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def place() -> Place | None:
    """Return this process's place, as torchrun tells it; ``None`` for a process that is alone."""
    told = [os.environ.get(name, "") for name in (*_NEEDED[:2], "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    rank, size, *local = (int(text) if text.isdecimal() else None for text in told)
    if rank is None or size is None or size < 2 or not all(os.environ.get(name) for name in _NEEDED):
        return None
    return Place(rank, size, local[0] or 0, local[1] or 1)


class Peers:
    """This process and the others of its run.

    Args:
        here: The place of this process.
    """

    def __init__(self, here: Place) -> None:
        self.rank, self.size, self.here = here.rank, here.size, here
        self.joined = self.broken = False
        """Whether all have met; whether they can no longer talk."""
        self._store: Any = None
        self._met = 0
        self._sending: list[Any] = []

    # -- coming and going ----------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Meet all others, as rank 0; they wait for it."""
        if self.joined:
            return
        self._store = self._rendezvous()
        self._store.set(_CALL, "join")
        self._missing()
        self._connect()

    def wait_for_call(self) -> bool:
        """Wait until rank 0 wants to be joined and join it; return whether it does, and has not ended without."""
        self._store = self._rendezvous()
        self._store.set(f"{_CAME}/{self.rank}", "1")
        if self._told(_CALL, TIMEOUT.total_seconds()) != "join":
            return False
        self._connect()
        return True

    def dismiss(self) -> None:
        """Let those go who still wait to be called, as rank 0."""
        with _quiet():
            store = self._rendezvous() if self._store is None else self._store
            store.set(_CALL, "leave")

    def leave(self) -> None:
        """Talk no more; a process that ends without would often be aborted, as threads of gloo's outlive Python."""
        if dist.is_initialized():
            with _quiet():
                dist.destroy_process_group()
        self.joined, self.broken = False, True

    def _rendezvous(self) -> Any:
        with self._guarded():
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN)))
            return store

    def _connect(self) -> None:
        with self._guarded():
            dist.init_process_group("gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)
        self.joined = True

    def _missing(self) -> None:
        """Wait for all to be there, and say who is not."""
        for rank in range(1, self.size):
            if not self._told(f"{_CAME}/{rank}", _JOIN):
                raise Lost(
                    f"process {rank} of {self.size} has not come within {_JOIN:.0f} s; start all processes with the same "
                    "command, as torchrun does"
                )

    def _told(self, key: str, seconds: float) -> str:
        """Wait for what another process leaves under a key; nothing if it leaves nothing."""
        end = time.monotonic() + seconds
        while True:
            with self._guarded():
                if self._store.check([key]):
                    return str(self._store.get(key).decode())
            if time.monotonic() > end:
                return ""
            time.sleep(_PAUSE)

    # -- failing -------------------------------------------------------------------------------------------------------

    def fail(self, text: str) -> None:
        """Leave word of why this process ends."""
        with _quiet():
            self._store.set(f"{_FAILED}/{self.rank}", text)

    def failed(self, rank: int) -> str:
        """Return why another process ended, if it left word of it."""
        with _quiet():
            return self._told(f"{_FAILED}/{rank}", 0.0)
        return ""

    def all_fail(self) -> bool:
        """Return whether a failure of this process is one of all: programs of inner nodes fail in all of them alike."""
        with _quiet():
            self._store.set(f"{_FELL}/{self._met}/{self.rank}", "1")
            others = [rank for rank in range(self.size) if rank != self.rank]
            return all(self._told(f"{_FELL}/{self._met}/{rank}", _ALIKE) for rank in others)
        return False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn what torch says of a connection that is gone into a sentence."""
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            self.broken = True
            known = {rank: text for rank in range(self.size) if rank != self.rank and (text := self.failed(rank))}
            if known:
                why = "; ".join(f"process {rank} of {self.size} ended: {text}" for rank, text in known.items())
                raise Lost(why) from None
            other = f"process {1 - self.rank}" if self.size == 2 else "a process"
            raise Lost(f"{other} of the {self.size} of this run is gone ({_first_line(error)})") from None

    # -- talking -------------------------------------------------------------------------------------------------------

    def meet(self, what: int, told: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Tell all others something, and return what each of all tells; a process that comes for something else is refused.

        Args:
            what: What for: `COMMAND` or `EXCHANGE`.
            told: What this process has to tell, as JSON has it.
        """
        text = json.dumps(told or {}).encode()
        self._met += 1
        head = torch.zeros(24 + _INLINE, dtype=torch.uint8)
        head[:24] = torch.tensor([what, self._met, len(text)]).view(torch.uint8)
        if len(text) <= _INLINE:
            head[24 : 24 + len(text)] = _as_bytes(text)
        heads = self._all(head)
        numbers = [one[:24].view(torch.int64).tolist() for one in heads]
        if any(number[:2] != [what, self._met] for number in numbers):
            self.broken = True
            raise Lost("the processes of this run are out of step, which is a mistake of Palmette's; please report it")
        long = max(number[2] for number in numbers)
        if long > _INLINE:
            body = torch.zeros(long, dtype=torch.uint8)
            body[: len(text)] = _as_bytes(text)
            texts = self._all(body)
        else:
            texts = [one[24:] for one in heads]
        return [
            json.loads(bytes(one[: number[2]].numpy())) if number[2] else {}
            for one, number in zip(texts, numbers, strict=True)
        ]

    def _all(self, mine: Tensor) -> list[Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._guarded():
            dist.all_gather(found, mine)
        return found

    def share(self, rows: Tensor, source: int) -> None:
        """Fill rows with those that one process has, in all others."""
        if not rows.numel():
            return
        travel = rows.cpu().contiguous()
        with self._guarded():
            dist.broadcast(_plain(travel), source)
        if self.rank != source and travel.data_ptr() != rows.data_ptr():
            rows.copy_(travel)

    def give(self, to: int, rows: Mapping[str, Tensor]) -> None:
        """Send rows by name to one process, without waiting for it; see `sent`."""
        rows = {name: value for name, value in rows.items() if value.numel()}
        head = _as_bytes(json.dumps({name: looks(value) for name, value in rows.items()}).encode())
        parts = {name: value.cpu().contiguous() for name, value in rows.items()}
        with self._guarded():
            for one in (torch.tensor([len(head)]), head, *map(_plain, parts.values())):
                self._sending.append((dist.isend(one, to), one))

    def take(self, source: int, device: torch.device) -> dict[str, Tensor]:
        """Receive what one process gives; what was not on a CPU there comes to a device."""
        length = torch.zeros(1, dtype=torch.int64)
        with self._guarded():
            dist.recv(length, source)
            head = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(head, source)
            found = {}
            for name, look in json.loads(bytes(head.numpy())).items():
                rows = like(look, torch.device("cpu"))
                dist.recv(_plain(rows), source)
                found[name] = rows.to(_where(look, device))
            return found

    def sent(self) -> None:
        """Wait until all that was given has been taken."""
        with self._guarded():
            for work, _ in self._sending:
                work.wait()
        self._sending.clear()


def looks(rows: Tensor, count: int | None = None) -> list[Any]:
    """Describe rows, or so many like them, to another process: type, kind of device, shape."""
    shape = [rows.shape[0] if count is None else count, *rows.shape[1:]]
    return [str(rows.dtype).removeprefix("torch."), rows.device.type, shape]


def like(look: list[Any], device: torch.device) -> Tensor:
    """Return room for rows that another process described, on a device if they are not on a CPU there."""
    return torch.empty(look[2], dtype=getattr(torch, look[0]), device=_where(look, device))


def _where(look: list[Any], device: torch.device) -> torch.device:
    return torch.device("cpu") if look[1] == "cpu" else device


def _plain(rows: Tensor) -> Tensor:
    """Return rows as bytes, which gloo sends whatever they stand for."""
    return rows.reshape(-1).view(torch.uint8)


def _as_bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _first_line(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0].split(". This is")[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", first)[:200] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing that goes wrong between processes matter any more."""
    with suppress(PalmetteError, RuntimeError, ValueError, OSError):
        yield
