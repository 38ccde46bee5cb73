"""A federation on one machine: its nodes as processes of their own, for the demo, for trials and for proofs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from palmette.errors import PalmetteError

Place = tuple[int, int]
_OUTPUT = "output.txt"
_LONGEST = 10.0  # seconds that a process has to end when it is told to


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Processes:
    """The nodes of a federation as processes, to be used in a ``with`` statement, which ends them all.

    Args:
        kits: The kit of each node, by tier and number.

    Attributes:
        data: Where devices have samples of their own.
        environment: Further variables of a node's environment.
    """

    def __init__(self, kits: Mapping[Place, Path]) -> None:
        self.kits = dict(kits)
        self.data: dict[Place, Path] = {}
        self.environment: dict[Place, dict[str, str]] = {}
        self.running: dict[Place, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for place in self.kits:
            self.start(place)
        return self

    def start(self, place: Place) -> None:
        """Start a node that does not run."""
        with (self.kits[place] / _OUTPUT).open("ab") as output:
            self.running[place] = subprocess.Popen(
                [sys.executable, "-m", "palmette", "serve", "--kit", str(self.kits[place]), *self._own(place)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment.get(place, {})},
            )

    def _own(self, place: Place) -> list[str]:
        return ["--data", str(self.data[place])] if place in self.data else []

    def kill(self, place: Place) -> None:
        """Kill a node at once, as a power cut would."""
        self.running[place].kill()
        self.running[place].wait()

    def freeze(self, place: Place) -> None:
        """Stop a node where it is, as a machine that hangs would."""
        self.running[place].send_signal(signal.SIGSTOP)

    def thaw(self, place: Place) -> None:
        """Let a node that was stopped go on."""
        self.running[place].send_signal(signal.SIGCONT)

    def ended(self) -> dict[Place, int]:
        """Return the exit codes of those that have ended."""
        return {place: code for place, one in self.running.items() if (code := one.poll()) is not None}

    def check(self) -> None:
        """Raise an error where a node failed."""
        for place, code in self.ended().items():
            if code:
                raise PalmetteError(f"the node in {self.kits[place]} failed: {self.output(place).strip()[-500:]}")

    def output(self, place: Place) -> str:
        """Return what a node has said."""
        return (self.kits[place] / _OUTPUT).read_text(encoding="utf-8", errors="replace")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self.running.values():
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.terminate()
        for one in self.running.values():
            try:
                one.wait(_LONGEST)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
