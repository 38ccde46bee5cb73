"""Commands on a terminal of their own, and what they write to it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading

import pytest

from palmette.__main__ import main


def on_a_terminal(*words: str, colour: bool = False, width: int = 100) -> tuple[int, str]:
    """Run a command whose output is a terminal; return its exit code and all that the terminal got."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    got: list[bytes] = []
    reader = threading.Thread(target=_listen, args=(master, got))
    reader.start()
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color" if colour else "dumb")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "CI"):
            patch.delenv(name, raising=False)
        with open(slave, "w", encoding="utf-8", closefd=True) as screen:
            patch.setattr(sys, "stdout", screen)
            patch.setattr(sys, "stderr", screen)
            patch.setattr(sys, "argv", ["palmette", *words])
            patch.setattr(
                "signal.signal", lambda *_: None
            )  # the command's own handlers are not for the process of the tests
            try:
                main()
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
    reader.join()
    os.close(master)
    return code, b"".join(got).decode("utf-8")


def _listen(master: int, got: list[bytes]) -> None:
    while True:
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # everybody has closed the other end
            return
        if not data:
            return
        got.append(data)
