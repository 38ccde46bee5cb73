"""A parent's end of the links to its children: a gRPC server that they dial."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from queue import SimpleQueue
from typing import Any

from palmette.deploy.doorman import Doorman
from palmette.deploy.events import Events, OnEvent
from palmette.deploy.frames import Kind, OversizedError
from palmette.deploy.loop import loop, wait_for
from palmette.deploy.stream import MOST, Stream
from palmette.deploy.tls import OPERATE, SERVES, TALK, WELCOME, Identity, check, grpc
from palmette.errors import BadInput, PalmetteError, WireError

_KINDS = frozenset({Kind.MAIL, Kind.ANSWER, Kind.NOTE})
_GRACE = 2.0  # seconds that the other end has to hear why it is disconnected
_LAST_WORD = 0.5  # the same where the parent stops
_log = logging.getLogger("palmette.deploy")


class _Mail(SimpleQueue[tuple[str, bytes | None]]):
    """Mail of all children that knows how many messages of each wait to be read."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Counter[str] = Counter()
        self._counting = threading.Lock()

    def put_from(self, child: str, data: bytes) -> None:
        with self._counting:
            self._waiting[child] += 1
        self.put((child, data))

    def get(self, block: bool = True, timeout: float | None = None) -> tuple[str, bytes | None]:
        mail = super().get(block, timeout)
        with self._counting:
            self._waiting[mail[0]] -= mail[1] is not None
        return mail

    def get_nowait(self) -> tuple[str, bytes | None]:
        return self.get(block=False)

    def waiting(self, child: str) -> int:
        return self._waiting[child]


class Below:
    """The end of a parent: children connect to it, and it sends them messages and takes theirs.

    The methods may be called from any thread; `on_event` is called in the loop's thread, `on_call` and `on_operate` in others.
    """

    def __init__(
        self,
        address: str,
        identity: Identity | None,
        children: Mapping[str, str],
        *,
        limit: int,
        on_event: OnEvent,
        on_call: Callable[[str, bytes], None],
        operator: str | None = None,
        on_operate: Callable[[bytes], bytes] | None = None,
        revoked: frozenset[int] = frozenset(),
    ) -> None:
        """Describe the end; `start` opens it.

        Args:
            address: ``host:port`` to listen on; port 0 takes a free one.
            identity: Certificate, key and authority; ``None`` for plain text, which is refused beyond this machine, and in
                which everybody is who they say.
            children: Names by id; only these may connect.
            limit: Bytes of the largest message.
            on_event: Is told of kind (connected, lost, refused, oversized, malformed, revoked), id and details. Those that fail
                within TLS (no certificate, another authority's) have no id: gRPC does not tell who they were.
            on_call: Is told what a child says with `Above.tell`: its id and the message.
            operator: The id that may call `operate`.
            on_operate: Answers the operator; a `PalmetteError` goes back as it is.
            revoked: Serial numbers of certificates that are refused.
        """
        check(address, identity)
        self._mail = _Mail()
        self.mail: SimpleQueue[tuple[str, bytes | None]] = self._mail
        self._notes: Counter[str] = Counter()  # of each child, that wait to be handled
        self._address, self._identity, self._limit = address, identity, limit
        self._on_call, self._on_operate = on_call, on_operate
        self._events = Events(on_event)
        self._doorman = Doorman(children, operator, revoked, self._events)
        self._streams: dict[str, Stream] = {}
        self._serials: dict[str, int] = {}  # of the certificates of who is connected
        self._calls: dict[tuple[str, int], Future[bytes | None]] = {}
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(2, "palmette-below")
        self._server: Any = None

    def start(self) -> int:
        """Open the port and return its number.

        Raises:
            BadInput: The port is taken, the address is none of this machine, or the identity does not fit together.
        """
        return wait_for(self._start(), 30)

    def send(self, child: str, data: bytes) -> bool:
        """Queue a message to a child, without a copy of it; never waits.

        Returns:
            False if the child is not connected, or is so slow that 4 messages or twice the limit in bytes wait for it already.
        """
        if len(data) > self._limit:
            raise BadInput(f"a message of {len(data)} bytes is larger than the limit of {self._limit}")
        stream = self._streams.get(child)
        return stream is not None and stream.post(data)

    def connected(self) -> frozenset[str]:
        """Return the ids of the children that are connected now."""
        return frozenset(list(self._streams))

    def admit(self, child: str, name: str) -> None:
        """Let one more child connect from now on."""
        self._doorman.children = {**self._doorman.children, child: name}

    def expel(self, child: str, serials: frozenset[int]) -> None:
        """Close the connection to a child at once, and refuse it from now on.

        Args:
            child: Its id; `admit` may let it in again, with a new certificate.
            serials: Serial numbers of its certificates, which are refused whoever shows them.
        """
        self._doorman.revoked |= serials
        self._doorman.children = {known: name for known, name in self._doorman.children.items() if known != child}
        if (stream := self._streams.pop(child, None)) is not None:
            loop().call_soon_threadsafe(stream.end, "the certificate is revoked")
            self._events.always("revoked", child, "its connection was closed")

    def call(self, child: str, data: bytes, timeout: float) -> bytes | None:
        """Ask a child's end something that it answers at once, also while its owner computes.

        Not to be called by `on_event`, whose thread must bring the answer.

        Args:
            child: Its id.
            data: The question.
            timeout: Seconds.

        Returns:
            The answer; ``None`` if the child is not connected or does not answer in time.
        """
        stream, key, answer = self._streams.get(child), (child, next(self._numbers)), Future[bytes | None]()
        self._calls[key] = answer
        try:
            return answer.result(timeout) if stream is not None and stream.aside(Kind.CALL, key[1], data) else None
        except NoAnswer:
            return None
        finally:
            self._calls.pop(key, None)

    def close(self) -> None:
        """Close the port and all connections; the mail ends with ``("", None)``."""
        wait_for(self._stop(), 30)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.mail.put(("", None))

    async def _start(self) -> int:
        server = grpc.aio.server(options=SERVES)
        server.add_generic_rpc_handlers((_Handlers(self._talk, self._operate),))
        try:
            if self._identity is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, self._doorman.credentials(self._identity))
            await server.start()
        except (RuntimeError, ValueError) as error:
            why = str(error).partition("; set GRPC_VERBOSITY")[0].rstrip(".")
            raise BadInput(
                f"{self._address} cannot be opened ({why}): is the port taken, or the key another's?"
            ) from None
        self._server = server
        return int(port)

    async def _stop(self) -> None:
        for stream in list(self._streams.values()):
            stream.end("the parent stopped")
        if self._server is not None:
            await self._server.stop(_LAST_WORD)
            self._server = None

    # -- a child's connection ------------------------------------------------------------------------------------------

    async def _talk(self, _: Any, context: Any) -> None:
        who, serial = self._doorman.who(context, self._identity is None)
        why = self._doorman.refusal(who, serial, operates=False)
        if not why and who in self._streams and self._serials[who] != serial:
            why = "this node is connected already, with another certificate"
        if why:
            await self._refuse(context, who, why)
        stream = Stream(
            context, self._limit, _KINDS, lambda *message: self._take(who, *message), lambda: self._full(who)
        )
        if (old := self._streams.get(who)) is not None:
            self._leave(who, old, "the same certificate connected anew")
            old.end("the same certificate connected anew: does this node run twice?")
        self._streams[who], self._serials[who] = stream, serial
        # Another thread may have expelled it in this very moment.
        if why := self._doorman.refusal(who, serial, operates=False):
            stream.end(why)
        self._events.forget(who)
        self._events.always("connected", who, "")
        why, code = "", grpc.StatusCode.ABORTED
        try:
            await context.send_initial_metadata((WELCOME,))
            why = await stream.run()
        except WireError as error:
            why, code = str(error), grpc.StatusCode.INVALID_ARGUMENT
            self._events.sometimes("oversized" if isinstance(error, OversizedError) else "malformed", who, why)
        finally:
            self._leave(who, stream, why)
        if why:
            await asyncio.wait_for(context.abort(code, why), _GRACE)

    def _leave(self, who: str, stream: Stream, why: str) -> None:
        """Forget a connection; those who wait for something on it hear so."""
        if stream.left:
            return
        stream.left = True
        if self._streams.get(who) is stream:
            self._streams.pop(who, None)
        for (child, _), answer in list(self._calls.items()):
            if child == who and not answer.done():
                answer.set_result(None)
        self.mail.put((who, None))
        self._events.always("lost", who, why)

    def _take(self, who: str, kind: Kind, number: int, data: bytes) -> None:
        if kind is Kind.MAIL:
            self._mail.put_from(who, data)
        elif kind is Kind.NOTE:
            self._notes[who] += 1
            loop().run_in_executor(self._pool, self._noted, who, data)
        elif (answer := self._calls.get((who, number))) is not None and not answer.done():
            answer.set_result(data)

    def _full(self, who: str) -> bool:
        return self._mail.waiting(who) >= MOST or self._notes[who] >= MOST

    def _noted(self, who: str, data: bytes) -> None:
        try:
            self._on_call(who, data)
        except Exception:  # whatever the owner does wrong, the links live on
            _log.exception("what %s told could not be handled", who)
        finally:
            loop().call_soon_threadsafe(self._notes.subtract, (who,))

    async def _refuse(self, context: Any, who: str, why: str) -> None:
        self._events.sometimes("refused", who[:64], f"{why} ({context.peer().rpartition(':')[0]})")
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)

    # -- the operator --------------------------------------------------------------------------------------------------

    async def _operate(self, data: bytes, context: Any) -> bytes:
        who, serial = self._doorman.who(context, self._identity is None)
        if why := self._doorman.refusal(who, serial, operates=True):
            await self._refuse(context, who, why)
        assert self._on_operate is not None
        try:
            return await loop().run_in_executor(self._pool, self._on_operate, data)
        except PalmetteError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Leads the two calls there are to their handlers."""

    def __init__(self, talk: Any, operate: Any) -> None:
        self._methods = {
            TALK: grpc.stream_stream_rpc_method_handler(talk),
            OPERATE: grpc.unary_unary_rpc_method_handler(operate),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)
