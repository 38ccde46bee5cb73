"""Cut and slow links, full disks and wrong clocks in a real federation, each replayed in the simulator from its record.

``python proofs/federation_faults.py [CASE ...]``: by hand as root, on Linux, with Debian's package faketime. Every case is a
federation of its own, 7 processes under mutual TLS on this machine. A link goes through a forwarder, which holds everything
back or lets through so many bytes in a second; a full disk is a tmpfs of two megabytes that is filled, one that cannot be
written to is bound by ``chattr +i``; a clock is another by libfaketime.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pages import DOCS, table, write
from small_disk import bind, fill, small_disk

from palmette.deploy.federation import Federation
from palmette.deploy.kit import NODE, STATE
from palmette.deploy.kits import Kits, make_kits
from palmette.deploy.launching import Place, Processes, free_ports
from palmette.deploy.parity import parity

TREE = {"oslo": ["camera-1", "camera-2"], "lima": ["camera-3", "camera-4"]}
SERVER, OSLO, CAMERA = (2, 0), (1, 0), (0, 0)
DEADLINE, LONGEST = 4.0, 300.0
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"


class Forwarder:
    """A link between two ports of this machine that can be held, cut and slowed down.

    Args:
        port: Where what comes is carried to.
        rate: Bytes in a second, in each direction; ``None`` for all at once.
    """

    def __init__(self, port: int, rate: int | None = None) -> None:
        self._target, self._rate = port, rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.held, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        """Carry bytes both ways until one end closes; what is held waits, as on a cable that is out."""
        far = None
        while far is None:
            if self._ended.wait(0.05):
                return
            if not self.held.is_set():
                try:
                    far = socket.create_connection(("127.0.0.1", self._target), 5)
                except OSError:
                    near.close()
                    return
        other = {near: far, far: near}
        with near, far, selectors.DefaultSelector() as ready:
            for one in other:
                ready.register(one, selectors.EVENT_READ)
            while not self._ended.is_set():
                if self.held.is_set():
                    time.sleep(0.05)
                    continue
                for key, _ in ready.select(0.1):
                    try:
                        data = key.fileobj.recv(1 << 14)  # type: ignore[union-attr]
                        if not data:
                            return
                        if self._rate is not None:
                            time.sleep(len(data) / self._rate)
                        other[key.fileobj].sendall(data)  # type: ignore[index]
                    except OSError:
                        return

    def close(self) -> None:
        """End all of it."""
        self._ended.set()
        self._listener.close()


@dataclass
class Trial:
    """A federation and what may befall it."""

    kits: Kits
    processes: Processes
    stack: ExitStack
    disks: dict[Place, Path] = field(default_factory=dict)
    links: dict[Place, Forwarder] = field(default_factory=dict)

    def rounds(self) -> int:
        """Return how many rounds are done."""
        return len(re.findall(r" round \d+ of ", self.processes.output(SERVER)))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so."""
        began = time.monotonic()
        while not true():
            self.processes.check()
            if time.monotonic() - began > LONGEST:
                raise SystemExit(f"it never came about: {self.processes.output(SERVER)[-2000:]}")
            time.sleep(0.1)

    def go_on(self, rounds: int) -> None:
        """Wait for some more rounds."""
        now = self.rounds()
        self.until(lambda: self.rounds() >= now + rounds)


@contextmanager
def trial(
    rounds: int = 250, *, links: dict[Place, int | None] | None = None, disks: tuple[Place, ...] = ()
) -> Iterator[Trial]:
    """Run a federation with some links through forwarders and some disks that are small."""
    run = {
        **{"algorithm": "permfl", "rounds": rounds, "tree": TREE, "data": {"name": "digits", "shift": "rotate"}},
        "settings": {"team_steps": 12, "local_steps": 50, "alpha": 0.02},
        "evaluate_every": 5,
    }
    names = ["server", *TREE]
    ports = free_ports(len(names))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    folder = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        kits = make_kits(
            Federation(name="faults", run=run, addresses=addresses, deadline=DEADLINE, patience=1.0), folder / "kits"
        )
        found = Trial(kits, Processes(kits.nodes), stack)
        for place, rate in (links or {}).items():
            told = json.loads((kits.nodes[place] / NODE).read_text())
            way = found.links[place] = Forwarder(int(told["parent"]["address"].partition(":")[2]), rate)
            told["parent"]["address"] = f"127.0.0.1:{way.port}"
            (kits.nodes[place] / NODE).write_text(json.dumps(told))
            stack.callback(way.close)
        for place in disks:
            found.disks[place] = stack.enter_context(small_disk(kits.nodes[place] / STATE))
        yield found


@dataclass(frozen=True)
class Case:
    """What came of one case."""

    word: str
    what: str
    seen: str
    missing: int
    rows: int
    wrong: int


def finish(one: Trial, word: str, what: str, seen: str) -> Case:
    """Let a training come to its end and replay it."""
    one.until(lambda: SERVER in one.processes.ended())
    time.sleep(1)
    one.processes.__exit__(None, None, None)
    found = parity(one.kits)
    for wrong in found.wrong[:5]:
        print("  differs:", wrong)
    return Case(word, what, seen, found.absences, found.states, len(found.wrong))


def cut(place: Place, seconds: float, word: str) -> Case:
    """Hold everything on one link for a while."""
    with trial(links={place: None}) as one, one.processes:
        one.go_on(3)
        one.links[place].held.set()
        began, before = time.monotonic(), one.rounds()
        time.sleep(seconds)
        during = one.rounds() - before
        one.links[place].held.clear()
        healed = time.monotonic()
        parent = one.kits.nodes[SERVER if place[0] == 1 else OSLO] / "node.log"
        count = parent.read_text().count("connected: ")
        one.until(lambda: parent.read_text().count("connected: ") > count or time.monotonic() - healed > 30)
        back = time.monotonic() - healed
        seen = f"{during} rounds without it; connected again {back:.1f} s after the link was there again"
        return finish(one, word, f"nothing passes for {healed - began:.0f} s", seen)


def slow() -> Case:
    """Let little pass on a device's link, always."""
    with trial(20, links={CAMERA: 20_000}) as one, one.processes:
        one.go_on(3)
        began, before = time.monotonic(), one.rounds()
        one.go_on(5)
        each = (time.monotonic() - began) / (one.rounds() - before)
        return finish(one, "a slow link of a device", "20 kB/s in each direction, always", f"{each:.1f} s for a round")


def full(place: Place, seconds: float, word: str) -> Case:
    """Fill a node's disk for a while."""
    with trial(disks=(place,)) as one, one.processes:
        one.go_on(3)
        fill(one.disks[place])
        seen = _spoilt(one, place, seconds, "No space")
        (one.disks[place] / "filler").unlink()
        return finish(one, word, f"no room at all for {seconds:.0f} s", seen)


def bound(place: Place, seconds: float, word: str) -> Case:
    """Take from a node the right to write to its disk, for a while."""
    with trial() as one, one.processes:
        one.go_on(3)
        bind(one.kits.nodes[place] / STATE, "+")
        try:
            seen = _spoilt(one, place, seconds, "not permitted")
        finally:
            bind(one.kits.nodes[place] / STATE, "-")
        return finish(one, word, f"nothing can be written for {seconds:.0f} s", seen)


def _spoilt(one: Trial, place: Place, seconds: float, words: str) -> str:
    """Wait while a disk is spoilt, and say what was seen."""
    before = one.rounds()
    time.sleep(seconds)
    during = one.rounds() - before
    log = (one.kits.nodes[place] / "node.log").read_text()
    told = next((line.partition("Z ")[2] or line for line in log.splitlines() if words in line), "")
    told = told.partition("+00:00 ")[2][:100] if told else "nothing: states are written over those before"
    return f"{during} rounds meanwhile; its log: {told}"


def clock() -> list[Case]:
    """Let nodes believe in other times."""
    found = []
    with trial() as one:
        one.processes.environment[CAMERA] = {
            "LD_PRELOAD": FAKETIME,
            "FAKETIME": "-10h",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        with one.processes:
            one.go_on(3)
            found.append(
                finish(
                    one,
                    "a clock that is slow",
                    "a device's clock is 10 hours behind",
                    "takes part from the first round",
                )
            )
    with trial() as one:
        one.processes.environment[CAMERA] = {
            "LD_PRELOAD": FAKETIME,
            "FAKETIME": "+3y",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        with one.processes:
            log = one.kits.nodes[CAMERA] / "node.log"
            one.until(lambda: log.exists() and "clock" in log.read_text())
            told = next(line for line in log.read_text().splitlines() if "clock" in line).partition("+00:00 ")[2]
            told = told.partition("+00:00 ")[2] or told
            one.processes.kill(CAMERA)
            del one.processes.environment[CAMERA]
            one.processes.start(CAMERA)
            found.append(
                finish(
                    one,
                    "a clock of another year",
                    "a device's clock is 3 years ahead, then right",
                    f"refuses: {told[:150]}",
                )
            )
    with trial() as one:
        jump = one.stack.enter_context(tempfile.TemporaryDirectory())
        file = Path(jump) / "time"
        file.write_text("+0")
        fake = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        one.processes.environment[OSLO] = {**fake, "FAKETIME_CACHE_DURATION": "1"}
        with one.processes:
            one.go_on(5)
            file.write_text("+5h")
            one.go_on(10)
            file.write_text("-5h")
            one.go_on(10)
            found.append(
                finish(
                    one,
                    "a clock that jumps",
                    "a team server's clock goes 5 hours ahead, then 10 back",
                    "nothing happens",
                )
            )
    return found


CASES: dict[str, Callable[[], Any]] = {
    "cut-device": lambda: cut(CAMERA, 30, "a cut link of a device"),
    "cut-team": lambda: cut(OSLO, 30, "a cut link of a team server"),
    "slow": slow,
    "disk-device": lambda: full(CAMERA, 8, "a full disk of a device"),
    "disk-team": lambda: full(OSLO, 8, "a full disk of a team server"),
    "disk-server": lambda: full(SERVER, 8, "a full disk of the server"),
    "bound-device": lambda: bound(CAMERA, 8, "a disk of a device that cannot be written to"),
    "bound-team": lambda: bound(OSLO, 8, "a disk of a team server that cannot be written to"),
    "bound-server": lambda: bound(SERVER, 8, "a disk of the server that cannot be written to"),
    "clock": clock,
}


def main() -> None:
    """Try all cases and write the table."""
    wanted = sys.argv[1:] or list(CASES)
    if "clock" in wanted and not os.path.exists(FAKETIME):
        raise SystemExit("needs libfaketime: apt-get install faketime")
    cases: list[Case] = []
    for name in wanted:
        made = CASES[name]()
        for case in made if isinstance(made, list) else [made]:
            cases.append(case)
            print(case, flush=True)
    rows = [(c.word, c.what, c.seen, str(c.missing), str(c.rows), f"{c.wrong}") for c in cases]
    heads = ("what", "how", "what was seen", "replies missing", "rows compared with the replay", "wrong")
    if wanted == list(CASES):
        write(DOCS / "how-to/deployment.md", "faults", "federation-faults", table(heads, rows))
    sys.exit(any(case.wrong for case in cases))


if __name__ == "__main__":
    main()
