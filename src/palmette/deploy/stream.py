"""One connection, seen from either end: what goes out in turn, what comes in whole, and never more of it than agreed."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from palmette.deploy.frames import Assembler, Kind, cut
from palmette.deploy.tls import grpc

MOST = 4
"""Messages that may wait for a child or parent; `send` refuses more."""
SIDE = 16
"""Calls, answers and notes that may wait."""

# How gRPC says, here and there, that a connection is over; ``None`` is the orderly end.
_OVER = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, type(None))


class Raw(Protocol):
    """What gRPC gives either end."""

    def read(self) -> Awaitable[Any]: ...  # noqa: D102
    def write(self, message: bytes) -> Awaitable[None]: ...  # noqa: D102


class Stream:
    """One connection that is open; made in the loop's thread, used from any."""

    def __init__(
        self,
        raw: Raw,
        limit: int,
        kinds: frozenset[Kind],
        take: Callable[[Kind, int, bytes], None],
        full: Callable[[], bool],
    ) -> None:
        """Begin; nothing moves before `run`.

        Args:
            raw: gRPC's stream.
            limit: Bytes of the largest message.
            kinds: Which kinds the other end may send.
            take: Called in the loop's thread with every message.
            full: Whether the owner has too many messages that it did not read; while it has, nothing is taken from the stream,
                and the other end feels it.
        """
        self._raw, self._limit, self._take, self._full = raw, limit, take, full
        self._assembler = Assembler(limit, kinds)
        self._mail: deque[bytes] = deque()
        self._side: deque[tuple[Kind, int, bytes]] = deque()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._wake, self._ended = asyncio.Event(), self._loop.create_future()
        self._open = True
        self.left = False  # for a parent, which forgets a connection once

    def post(self, data: bytes) -> bool:
        """Queue a message, the bytes themselves and no copy; False if too much waits already."""
        with self._lock:
            waiting = sum(map(len, self._mail))
            if not self._open or len(self._mail) >= MOST or (self._mail and waiting + len(data) > 2 * self._limit):
                return False
            self._mail.append(data)
        self._loop.call_soon_threadsafe(self._wake.set)
        return True

    def aside(self, kind: Kind, number: int, data: bytes) -> bool:
        """Queue a call, an answer or a note, which go before all mail; False if too many wait already."""
        with self._lock:
            if not self._open or len(self._side) >= SIDE or len(data) > self._limit:
                return False
            self._side.append((kind, number, data))
        self._loop.call_soon_threadsafe(self._wake.set)
        return True

    async def written(self) -> None:
        """Wait until all that was queued is written, or the connection is over."""
        while self._open and (self._mail or self._side):
            await asyncio.sleep(0.005)

    def end(self, why: str) -> None:
        """End the connection; from the loop's thread."""
        self._open = False
        if not self._ended.done():
            self._ended.set_result(why)

    async def run(self) -> str:
        """Move messages until the connection ends, and return why we ended it; empty if the other end did.

        Raises:
            WireError: The other end sent what is no message.
        """
        moving = [self._loop.create_task(self._reading()), self._loop.create_task(self._writing())]
        try:
            await asyncio.wait([*moving, self._ended], return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return str(self._ended.result())
            for task in moving:
                if task.done() and not task.cancelled() and not isinstance(task.exception(), _OVER):
                    task.result()
            return ""
        finally:
            self._open = False
            with self._lock:
                self._mail.clear()
                self._side.clear()
            for task in moving:
                task.cancel()
            await asyncio.gather(*moving, return_exceptions=True)

    async def _reading(self) -> None:
        while (frame := await self._raw.read()) is not grpc.aio.EOF:
            if (message := self._assembler.add(frame)) is not None:
                self._take(*message)
                while self._full():
                    await asyncio.sleep(0.02)

    async def _writing(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._mail or self._side:
                await self._aside()
                if self._mail:
                    for frame in cut(Kind.MAIL, 0, self._mail[0]):
                        await self._raw.write(frame)
                        await self._aside()
                    with self._lock:
                        self._mail.popleft()

    async def _aside(self) -> None:
        while self._side:
            with self._lock:
                message = self._side.popleft()
            for frame in cut(*message):
                await self._raw.write(frame)
