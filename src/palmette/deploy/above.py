"""A child's end of the link to its parent: it dials, stays connected, and dials again whenever it is not."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from palmette.deploy.events import Events, OnEvent
from palmette.deploy.frames import Kind, OversizedError
from palmette.deploy.loop import wait_for
from palmette.deploy.stream import MOST, SIDE, Stream
from palmette.deploy.tls import NOBODY, OWN, TALK, WELCOME, Identity, check, dialled, grpc, in_words
from palmette.errors import BadInput, WireError

_KINDS = frozenset({Kind.MAIL, Kind.CALL})
_SHORTEST, _LONGEST, _GROWTH = 0.2, 3.0, 1.6  # seconds between attempts
_STEADY = 5.0  # seconds after which a connection was a good one, and the pauses begin anew
_PATIENCE = 10.0  # seconds for a parent to say yes or no
_LAST_WORD = 5.0  # seconds for the last message to reach it
_log = logging.getLogger("palmette.deploy")


class Above:
    """The end of a child: it takes its parent's messages and sends replies.

    The methods may be called from any thread; `on_event` is called in the loop's thread, `on_call` in another.
    """

    def __init__(
        self,
        address: str,
        identity: Identity | None,
        parent: str,
        *,
        limit: int,
        on_event: OnEvent,
        on_call: Callable[[bytes], bytes],
        own: str = "",
    ) -> None:
        """Describe the end; `start` opens it.

        Args:
            address: The parent's ``host:port``.
            identity: Certificate, key and authority; ``None`` for plain text, which is refused beyond this machine.
            parent: The id that the parent's certificate must have.
            limit: Bytes of the largest message.
            on_event: Is told of kind (connected, lost, refused, oversized, malformed), the parent's id and details. Why a
                parent refused us is known if it knows our certificate; if not, it only hangs up within TLS.
            on_call: Answers the parent's calls, one at a time, while the owner computes. An owner that leaves 4 messages unread
                stops everything that comes, calls too.
            own: The own id in plain text; a certificate has it already.
        """
        check(address, identity)
        self.mail: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        self._address, self._identity, self._parent, self._own = address, identity, parent, own
        self._limit, self._on_call = limit, on_call
        self._events = Events(on_event)
        self._stream: Stream | None = None
        self._call: Any = None  # of the stream
        self._dialling: asyncio.Task[None] | None = None
        self._closing = False
        self._pool = ThreadPoolExecutor(1, "palmette-above")
        self._asked: set[int] = set()  # calls that wait for their answer

    def start(self) -> None:
        """Dial, and from now on whenever the connection is lost, until closed."""
        self._dialling = wait_for(self._begin(), 30)

    def send(self, data: bytes) -> bool:
        """Queue a message to the parent, without a copy of it; never waits.

        Returns:
            False if not connected, or if 4 messages or twice the limit in bytes wait already.
        """
        if len(data) > self._limit:
            raise BadInput(f"a message of {len(data)} bytes is larger than the limit of {self._limit}")
        stream = self._stream
        return stream is not None and stream.post(data)

    def tell(self, data: bytes) -> bool:
        """Queue a note for the parent's `on_call`, before all mail; False if not connected or too many wait."""
        stream = self._stream
        return stream is not None and stream.aside(Kind.NOTE, 0, data)

    @property
    def connected(self) -> bool:
        """Whether the parent has taken us."""
        return self._stream is not None

    def close(self) -> None:
        """End the connection and dial no more; the mail ends with ``None``."""
        wait_for(self._stop(), 30)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.mail.put(None)

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._dial())

    async def _stop(self) -> None:
        self._closing = True
        if self._stream is not None:
            await self._take_leave(self._stream)
        while self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()  # again where it came just as something else ended, which swallows it
            await asyncio.wait([self._dialling], timeout=0.2)

    async def _take_leave(self, stream: Stream) -> None:
        """Let what was said reach the parent, which then hangs up; one that does not is not waited for."""
        with suppress(TimeoutError, asyncio.InvalidStateError, grpc.RpcError, grpc.aio.BaseError):
            async with asyncio.timeout(_LAST_WORD):
                await stream.written()
                await self._call.done_writing()
                await self._call.code()

    async def _dial(self) -> None:
        pause = _SHORTEST
        while not self._closing:
            began = time.monotonic()
            try:
                await self._connection()
            except Exception as error:  # whatever it is, the next attempt may do better
                _log.exception("a connection to %s failed", self._address)
                self._events.sometimes("refused", self._parent, f"{type(error).__name__}: {error}")
            if time.monotonic() - began > _STEADY:
                pause = _SHORTEST
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # so that not all children come back at once
            pause = min(pause * _GROWTH, _LONGEST)

    async def _connection(self) -> None:
        """Dial once, and stay until the connection ends, however it does."""
        trusted, options = dialled(self._address, self._parent, self._identity)
        made = (self._address,) if trusted is None else (self._address, trusted)
        channel = (grpc.aio.insecure_channel if trusted is None else grpc.aio.secure_channel)(*made, options=options)
        async with channel:
            call = channel.stream_stream(TALK)(metadata=((OWN, self._own),) if self._own else None)
            try:
                if await asyncio.wait_for(_welcome(call), _PATIENCE):
                    await self._stay(call)
                else:
                    code = await asyncio.wait_for(call.code(), _PATIENCE)
                    self._refused(code, await call.details())
            except grpc.RpcError as error:
                self._refused(error.code(), error.details())
            except TimeoutError:
                self._refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"{self._address} neither took nor refused us")
            finally:
                call.cancel()

    async def _stay(self, call: Any) -> None:
        """Be connected until it ends."""
        stream = Stream(call, self._limit, _KINDS, lambda *message: self._take(stream, *message), self._full)
        self._stream, self._call = stream, call
        self._events.forget(self._parent)
        self._events.always("connected", self._parent, "")
        why = ""
        try:
            await stream.run()
            why = await call.details() or ""
        except WireError as error:
            why = str(error)
            self._events.sometimes("oversized" if isinstance(error, OversizedError) else "malformed", self._parent, why)
        finally:
            self._stream = None
            self._events.always("lost", self._parent, why)

    def _refused(self, code: Any, details: str | None) -> None:
        words = in_words(self._address, self._identity, code, details or "")
        # It has not been started yet, or is being started again: that is no fault.
        away = words == NOBODY.format(at=self._address)
        kind, words = ("not there yet", f"{words}; tried again for ever") if away else ("refused", words)
        self._events.sometimes(kind, self._parent, words)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _take(self, stream: Stream, kind: Kind, number: int, data: bytes) -> None:
        if kind is Kind.MAIL:
            self.mail.put((time.monotonic(), data))
        elif len(self._asked) < SIDE:  # more than anybody asks at once
            self._asked.add(number)
            self._pool.submit(self._answer, stream, number, data)

    def _full(self) -> bool:
        return self.mail.qsize() >= MOST

    def _answer(self, stream: Stream, number: int, data: bytes) -> None:
        try:
            stream.aside(Kind.ANSWER, number, self._on_call(data))
        except Exception:  # whatever the owner does wrong, the link lives on; the parent hears nothing
            _log.exception("a call of the parent could not be answered")
        finally:
            self._asked.discard(number)


async def _welcome(call: Any) -> bool:
    """Wait for a parent's word, and return whether it takes us."""
    await call.wait_for_connection()
    return WELCOME in tuple(await call.initial_metadata())
