"""The command ``palmette``, also as ``python -m palmette``.

Ctrl-C while modules are being loaded would end in a traceback, or be swallowed by the module that is just being loaded. So it
waits until that is done, a second at most, and then ends the command in a line like everywhere else.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager

TYPE_CHECKING = False
if (
    TYPE_CHECKING
):  # every module that need not be loaded before the first line of `main` makes the unguarded start shorter
    from collections.abc import Iterator
    from types import FrameType

_LOADER = "<frozen importlib._bootstrap>"
_STOPPED = 130  # the exit code of what Ctrl-C ended
_SOON = 0.02  # seconds until it is tried again


class _Interrupts:
    """Turns Ctrl-C into `KeyboardInterrupt`, but never while a module is being loaded."""

    def __init__(self) -> None:
        self._waiting = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Be called by the system at Ctrl-C, and again by the clock while it has to wait."""
        if number == signal.SIGINT and self._waiting:
            _leave()  # pressed twice: there is nothing yet to be kept
        self._waiting = _loading(frame)
        if not self._waiting:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, _SOON)


def _loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _LOADER:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Run the command line."""
    interrupts = _Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    signal.signal(signal.SIGALRM, interrupts)
    try:
        from palmette.guards.terminal import guard

        guard()  # for good: a bug's traceback is written when all else has ended
        with _other_processes():
            from palmette.cli.app import app

            app(prog_name="palmette")
    except KeyboardInterrupt:
        _leave()
    except SystemExit as leaving:
        if leaving.code == _STOPPED:  # why has been said
            _leave("")
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; what is left is to leave


@contextmanager
def _other_processes() -> Iterator[None]:
    """Let rank 0 alone run the command where torchrun started several processes; the others take part as it says."""
    rank = os.environ.get("RANK", "")
    if not rank.isdecimal() or "WORLD_SIZE" not in os.environ:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what goes wrong between processes is said in a sentence
    from palmette.engines.peers import place

    here = place()
    if here is not None and here.rank > 0:
        from palmette.runs.serving import serve

        sys.exit(serve())
    try:
        yield
    finally:
        from palmette.runs.together import dismissed

        dismissed()


def _leave(text: str = "palmette: stopped\n") -> None:
    """End the process here: after a Ctrl-C inside `exec`, Python would put its own exit code in place of ours."""
    sys.stderr.write(text)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_STOPPED)


if __name__ == "__main__":
    main()
