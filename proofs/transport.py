"""Measure links between a parent and ten children, each a process of its own, and print a table.

Run by hand: ``python proofs/transport.py``; with a folder in which pip has put websockets and pyzmq (``pip install --target``)
these are measured too. An exchange is: the parent sends one message to all ten, and each answers with another of its size.
Every process is ended by its number, and ends by itself after ten minutes of CPU time.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHILDREN = 10
SIZES = {40_000: 60, 4_000_000: 20}
"""Bytes of a message, and exchanges that are measured."""
LIMIT = 16_000_000
LONGEST = 60.0  # seconds of one exchange
Figures = dict[int, tuple[float, float, float, float, float]]
"""By bytes of a message: median and slowest milliseconds; CPU milliseconds of the parent, of all; MB of an idle child."""


def ticks(pid: int) -> float:
    """Return the seconds of CPU time that a process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Return the megabytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(exchange: Callable[[bytes], None], pids: list[int]) -> Figures:
    """Run exchanges and return the figures of each size."""
    time.sleep(0.5)
    idle, found = statistics.median(map(memory, pids)), {}
    for size, times in SIZES.items():
        data = os.urandom(size)
        for _ in range(5):
            exchange(data)
        taken, own, others = [], time.process_time(), sum(map(ticks, pids))
        for _ in range(times):
            began = time.perf_counter()
            exchange(data)
            taken.append(1e3 * (time.perf_counter() - began))
        own = 1e3 * (time.process_time() - own) / times
        everybody = own + 1e3 * (sum(map(ticks, pids)) - others) / times
        found[size] = statistics.median(taken), max(taken), own, everybody, idle
    return found


def other(data: bytes, child: int) -> bytes:
    """Return a message of the same size that no other child sends."""
    return child.to_bytes(1, "little") + data[1:]


# -- Palmette's own --------------------------------------------------------------------------------------------------------


def identity_in(folder: Path, name: str) -> Any:
    """Return the identity in a folder; None for plain text, where there is none."""
    from palmette.deploy.tls import Identity

    if not (folder / "ca.pem").exists():
        return None
    return Identity(*((folder / part).read_bytes() for part in (f"{name}.pem", f"{name}.key", "ca.pem")))


def grpc_parent(folder: Path) -> Figures:
    """Be the parent, over Palmette's own links."""
    from palmette.deploy.below import Below
    from palmette.deploy.certificates import identity

    ids = {identity("bench", 0, str(number)): str(number) for number in range(CHILDREN)}
    nothing: Any = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda *_: None}
    below = Below("127.0.0.1:0", identity_in(folder, "parent"), ids, **nothing)

    def exchange(data: bytes) -> None:
        assert all(below.send(one, data) for one in ids)
        check(dict(below.mail.get(timeout=LONGEST) for _ in ids), data)

    with children("grpc", folder, below.start()) as pids:
        wait_until(lambda: len(below.connected()) == CHILDREN)
        try:
            return measured(exchange, pids)
        finally:
            below.close()


def grpc_child(folder: Path, port: int, number: int) -> None:
    """Be a child: answer every message with another."""
    from palmette.deploy.above import Above
    from palmette.deploy.certificates import identity

    own, parent = identity("bench", 0, str(number)), identity("bench", 1, "parent")
    names: Any = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda data: data, "own": own}
    above = Above(f"127.0.0.1:{port}", identity_in(folder, str(number)), parent, **names)
    above.start()
    while (mail := above.mail.get()) is not None:
        data = mail[1]
        above.send(other(data, number))


def kits(folder: Path) -> None:
    """Write certificates of all nodes into a folder."""
    from palmette.deploy.certificates import Authority, identity

    authority = Authority.create(folder, "bench")
    for tier, name in [(1, "parent"), *((0, str(number)) for number in range(CHILDREN))]:
        issued = authority.issue(identity("bench", tier, name), serves=tier > 0)
        (folder / f"{name}.pem").write_bytes(issued.certificate)
        (folder / f"{name}.key").write_bytes(issued.key)


# -- others ----------------------------------------------------------------------------------------------------------------


def context_in(folder: Path, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Return what Python's TLS needs to show a certificate and to demand one."""
    made = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    made.check_hostname, made.verify_mode = False, ssl.CERT_REQUIRED
    return made


def websockets_parent(folder: Path) -> Figures:
    """Be the parent, over websockets with mutual TLS and without compression."""
    from websockets.asyncio.server import serve

    connections: list[Any] = []
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def taken(connection: Any) -> None:
        connections.append(connection)
        await connection.wait_closed()

    async def begin() -> Any:
        trusted = context_in(folder, "parent", ssl.Purpose.CLIENT_AUTH)
        return await serve(taken, "127.0.0.1", 0, ssl=trusted, compression=None, max_size=LIMIT)

    async def all_of(data: bytes) -> list[bytes]:
        async def one(connection: Any) -> bytes:
            await connection.send(data)
            return bytes(await connection.recv())

        return await asyncio.gather(*map(one, connections))

    def exchange(data: bytes) -> None:
        check(dict(enumerate(asyncio.run_coroutine_threadsafe(all_of(data), loop).result(LONGEST))), data)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    with children("websockets", folder, server.sockets[0].getsockname()[1]) as pids:
        wait_until(lambda: len(connections) == CHILDREN)
        return measured(exchange, pids)


def websockets_child(folder: Path, port: int, number: int) -> None:
    """Be a child over websockets."""
    from websockets.asyncio.client import connect

    async def live() -> None:
        trusted = context_in(folder, str(number), ssl.Purpose.SERVER_AUTH)
        place = f"wss://127.0.0.1:{port}"
        async with connect(place, ssl=trusted, compression=None, max_size=LIMIT, proxy=None) as connection:
            async for data in connection:
                await connection.send(other(bytes(data), number))

    asyncio.run(live())


def zeromq_parent(folder: Path) -> Figures:
    """Be the parent, over ZeroMQ with CURVE (any client key: telling children apart would need a service for that)."""
    import zmq

    public, secret = zmq.curve_keypair()
    (folder / "curve").write_bytes(public)
    router = zmq.Context().socket(zmq.ROUTER)
    router.curve_server, router.curve_secretkey, router.curve_publickey = True, secret, public
    port = router.bind_to_random_port("tcp://127.0.0.1")
    names: list[bytes] = []

    def exchange(data: bytes) -> None:
        for name in names:
            router.send_multipart([name, data], copy=False)
        came = (router.recv_multipart(copy=False) for _ in names)
        check({bytes(name.bytes): bytes(reply.bytes) for name, reply in came}, data)

    with children("zeromq", folder, port) as pids:
        while len(names) < CHILDREN:
            assert router.poll(LONGEST * 1000), "the children did not connect"
            names.append(router.recv_multipart()[0])
        return measured(exchange, pids)


def zeromq_child(folder: Path, port: int, number: int) -> None:
    """Be a child over ZeroMQ."""
    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = (folder / "curve").read_bytes()
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"here")
    while True:
        dealer.send(other(dealer.recv(), number), copy=False)


# -- processes -------------------------------------------------------------------------------------------------------------


def wait_until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "the children did not connect"
        time.sleep(0.02)


def check(came: dict[Any, bytes | None], sent: bytes) -> None:
    """Make sure that every child answered, each with a message of its own."""
    assert len(came) == len({(reply or b"")[:1] for reply in came.values()}) == CHILDREN
    assert all(len(reply or b"") == len(sent) for reply in came.values())


@contextmanager
def children(how: str, folder: Path, port: int) -> Iterator[list[int]]:
    """Start all children and tell their numbers; in the end, end each by its number."""
    words = [sys.executable, __file__, "child", how, str(folder), str(port)]
    processes = [subprocess.Popen([*words, str(number)]) for number in range(CHILDREN)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


CHILD = {"grpc": grpc_child, "websockets": websockets_child, "zeromq": zeromq_child}


def main() -> None:
    """Measure, and print a table."""
    resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
    if sys.argv[1:2] == ["child"]:
        how, folder, port, number = sys.argv[2:]
        CHILD[how](Path(folder), int(port), int(number))
        return
    ways = {"gRPC, mutual TLS": grpc_parent}
    if len(sys.argv) > 1:
        os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), sys.argv[1]])
        sys.path.append(sys.argv[1])
        ways |= {"websockets, mutual TLS": websockets_parent, "ZeroMQ, CURVE without names": zeromq_parent}
    print("| | bytes | median ms | slowest ms | CPU ms of the parent | CPU ms of all 11 | MB of an idle child |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        shown("gRPC, plain text", grpc_parent(Path(folder)))
        kits(Path(folder))
        for name, parent in ways.items():
            shown(name, parent(Path(folder)))


def shown(name: str, figures: Figures) -> None:
    """Print the lines of one way."""
    for size, (median, most, own, everybody, idle) in figures.items():
        print(
            f"| {name} | {size:,} | {median:.0f} | {most:.0f} | {own:.0f} | {everybody:.0f} | {idle:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
