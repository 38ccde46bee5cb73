"""Measure the links between a parent and ten children, each a process of its own, under mutual TLS and in plain text.

Run by hand: ``python proofs/transport.py``; ``... others FOLDER`` compares with websockets and ZeroMQ, which pip has put into a
folder. An exchange is: the parent sends one message to all ten, each answers with another of that size. Every process is ended
by its number.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHILDREN = 10
SIZES = {40_000: 60, 4_000_000: 20}
"""Bytes of a message, and exchanges that are measured."""
LIMIT = 16_000_000
LONGEST = 120.0  # seconds of one measurement


def ticks(pid: int) -> float:
    """Return the seconds of CPU time that a process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Return the megabytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(exchange: Callable[[bytes], None], pids: list[int]) -> dict[int, tuple[float, float, float, float]]:
    """Run exchanges, and return for each size: median and largest milliseconds, own CPU and all CPU per exchange."""
    found = {}
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
        found[size] = statistics.median(taken), max(taken), own, everybody
    return found


def other(data: bytes, child: int) -> bytes:
    """Return a message of the same size that no other child sends."""
    return child.to_bytes(1, "little") + data[1:]


# -- Palmette's own --------------------------------------------------------------------------------------------------------


def identity_in(folder: Path, name: str) -> object:
    """Return the identity in a folder, or None for plain text."""
    from palmette.deploy.tls import Identity

    if not (folder / "ca.pem").exists():
        return None
    return Identity(*((folder / part).read_bytes() for part in (f"{name}.pem", f"{name}.key", "ca.pem")))


def serve(folder: Path) -> dict[int, tuple[float, float, float, float]]:
    """Be the parent."""
    from palmette.deploy.below import Below
    from palmette.deploy.certificates import identity

    ids = {identity("bench", 0, str(child)): str(child) for child in range(CHILDREN)}
    names = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda *_: None}
    below = Below("127.0.0.1:0", identity_in(folder, "parent"), ids, **names)  # type: ignore[arg-type]
    port = below.start()
    processes = started("child", folder, port)
    try:
        deadline = time.monotonic() + 60
        while len(below.connected()) < CHILDREN:
            assert time.monotonic() < deadline, "the children did not connect"
            time.sleep(0.05)

        def exchange(data: bytes) -> None:
            for child in ids:
                assert below.send(child, data)
            came = dict(below.mail.get(timeout=LONGEST) for _ in ids)
            assert all(reply is not None and len(reply) == len(data) for reply in came.values())
            assert set(came) == set(ids)

        time.sleep(1)
        pids = [process.pid for process in processes]
        print(f"    idle child: {statistics.median(map(memory, pids)):.0f} MB", file=sys.stderr)
        return measured(exchange, pids)
    finally:
        ended(processes)
        below.close()


def child(folder: Path, port: int, number: int) -> None:
    """Be a child: answer every message with another."""
    from palmette.deploy.above import Above
    from palmette.deploy.certificates import identity

    own, parent = identity("bench", 0, str(number)), identity("bench", 1, "parent")
    names = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda data: data, "own": own}
    above = Above(f"127.0.0.1:{port}", identity_in(folder, str(number)), parent, **names)  # type: ignore[arg-type]
    above.start()
    while (data := above.mail.get()) is not None:
        above.send(other(data, number))


def kits(folder: Path) -> None:
    """Write certificates of all nodes into a folder."""
    from palmette.deploy.certificates import Authority, identity

    authority = Authority.create(folder, "bench")
    for tier, name in [(1, "parent"), *((0, str(child)) for child in range(CHILDREN))]:
        issued = authority.issue(identity("bench", tier, name), serves=tier > 0)
        (folder / f"{name}.pem").write_bytes(issued.certificate)
        (folder / f"{name}.key").write_bytes(issued.key)


# -- processes -------------------------------------------------------------------------------------------------------------


def started(role: str, folder: Path, port: int) -> list[subprocess.Popen[bytes]]:
    """Start all children; each ends with this process, or after a while."""
    words = [sys.executable, __file__, role, str(folder), str(port)]
    return [subprocess.Popen([*words, str(number)], stdin=subprocess.PIPE) for number in range(CHILDREN)]


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes, each by its number."""
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


def row(name: str, found: dict[int, tuple[float, float, float, float]]) -> str:
    """Return one line of the table."""
    cells = [f"{median:.0f} ({most:.0f}) | {own:.0f} | {total:.0f}" for median, most, own, total in found.values()]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print a table."""
    if len(sys.argv) > 4 and sys.argv[1] == "child":
        resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
        return child(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    for size in SIZES:
        print(f"{size}: median (largest) ms, CPU ms of the parent, of all 11 processes")
    with tempfile.TemporaryDirectory() as folder:
        if "plain" in sys.argv:
            print(row("plain text", serve(Path(folder))), flush=True)
        kits(Path(folder))
        print(row("mutual TLS", serve(Path(folder))))
    return None


if __name__ == "__main__":
    main()
