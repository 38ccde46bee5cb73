"""A thousand children of one parent: the memory of their streams, the time to connect, and what an exchange takes.

``python proofs/federation_streams.py [CHILDREN]``: children share four processes, each with a certificate and a stream of
its own, on loopback. Every process is ended by its number. The calculation for large federations rests on these figures.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pages import DOCS, table, write
from transport import LIMIT, identity_in, memory, ticks

PROCESSES = 4
SIZES = {100: 10, 40_000: 10, 400_000: 3}
"""Bytes of a message, and exchanges that are measured."""
LONGEST = 300.0


def certificates(folder: Path, count: int) -> None:
    """Write certificates of a parent and its children into a folder."""
    from palmette.deploy.certificates import Authority, identity

    authority = Authority.create(folder, "bench")
    for tier, name in [(1, "parent"), *((0, str(number)) for number in range(count))]:
        issued = authority.issue(identity("bench", tier, name), serves=tier > 0)
        (folder / f"{name}.pem").write_bytes(issued.certificate)
        (folder / f"{name}.key").write_bytes(issued.key)


def live(folder: Path, port: int, first: int, count: int) -> None:
    """Be many children: answer every message with itself."""
    from palmette.deploy.above import Above
    from palmette.deploy.certificates import identity

    nothing: Any = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda data: data}
    parent = identity("bench", 1, "parent")
    ends = [
        Above(f"127.0.0.1:{port}", identity_in(folder, str(number)), parent, **nothing)
        for number in range(first, first + count)
    ]
    for end in ends:
        end.start()
    while True:
        for end in ends:
            if not end.mail.empty() and (mail := end.mail.get()) is not None:
                end.send(mail[1])
        time.sleep(0.002)


def main() -> None:
    """Measure and print."""
    from palmette.deploy.below import Below
    from palmette.deploy.certificates import identity

    count = int((sys.argv[1:2] or ["1000"])[0])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8 * count + 1024), most))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        certificates(folder, count)
        ids = {identity("bench", 0, str(number)): str(number) for number in range(count)}
        nothing: Any = {"limit": LIMIT, "on_event": lambda *_: None, "on_call": lambda *_: None}
        below = Below("127.0.0.1:0", identity_in(folder, "parent"), ids, **nothing)
        port, me = below.start(), os.getpid()
        before, began, cpu = memory(me), time.monotonic(), time.process_time()
        each = count // PROCESSES
        words = [sys.executable, __file__, "live", str(folder), str(port)]
        children = [subprocess.Popen([*words, str(first), str(each)]) for first in range(0, each * PROCESSES, each)]
        try:
            while len(below.connected()) < each * PROCESSES:
                if time.monotonic() - began > LONGEST:
                    raise SystemExit(f"only {len(below.connected())} children are connected")
                time.sleep(0.05)
            connected, joining = time.monotonic() - began, time.process_time() - cpu
            time.sleep(2)
            idle, rows = memory(me), []
            for size, times in SIZES.items():
                data = os.urandom(size)
                taken, own, others = [], time.process_time(), sum(ticks(child.pid) for child in children)
                for _ in range(times):
                    start = time.perf_counter()
                    assert all(below.send(one, data) for one in below.connected())
                    for _ in range(each * PROCESSES):
                        assert below.mail.get(timeout=LONGEST)[1] == data
                    taken.append(time.perf_counter() - start)
                own = 1e6 * (time.process_time() - own) / times / count
                others = 1e6 * (sum(ticks(child.pid) for child in children) - others) / times / count
                rows.append((size, min(taken), own, others, memory(me)))
        finally:
            for child in children:
                child.kill()
                child.wait()
            below.close()
    lines = [
        f"One parent with {count:,} children under mutual TLS, which shared {PROCESSES} processes: all were connected after "
        f"{connected:.0f} s (the parent spent {1e3 * joining / count:.1f} ms of processor time on each), and an idle one takes "
        f"{1e3 * (idle - before) / count:.0f} kB of the parent's memory. An exchange, a message to each and one back:",
        "",
        *table(
            (
                "bytes of a message",
                "fastest exchange",
                "processor time of the parent for a child",
                "of a child",
                "memory of the parent",
            ),
            [
                (f"{size:,}", f"{best:.2f} s", f"{own:.0f} µs", f"{other:.0f} µs", f"{mega:.0f} MB")
                for size, best, own, other, mega in rows
            ],
        ),
        "",
        f"(load of the machine {os.getloadavg()[0]:.1f})",
    ]
    print("\n".join(lines))
    if len(sys.argv) == 1:
        write(DOCS / "how-to/deployment.md", "streams", "federation-streams", lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["live"]:
        live(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        main()
