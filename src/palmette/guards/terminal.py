"""The one way to standard output and standard error: whatever is written there passes `palmette.guards.visible`.

`guard` puts the check before both streams, also for what does not come from here: warnings, tracebacks, what libraries print.
So nobody has to think of it. `palmette.guards.screen` is the same for what rich draws.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from palmette.guards.visible import visible


class Guarded(io.TextIOBase):
    """A stream that shows what would act on a terminal; rich's consoles write to the stream below it.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream below, by the name under which rich looks for it."""
        return self.unguarded

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self.unguarded.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream does with letters that its encoding lacks."""
        return self.unguarded.errors

    def write(self, text: str) -> int:
        """Write a text."""
        self.unguarded.write(visible(text, lines=True))
        return len(text)

    def flush(self) -> None:
        """Write what is waiting."""
        self.unguarded.flush()

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self.unguarded.isatty()

    def fileno(self) -> int:
        """Return the number that the system knows it by."""
        return self.unguarded.fileno()

    def writable(self) -> bool:
        """Tell that one can write to it."""
        return True

    def close(self) -> None:
        """Leave the stream open: it is not ours."""


def guard() -> None:
    """Put the check before standard output and standard error for as long as the process lives."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


@contextmanager
def guarded() -> Iterator[None]:
    """Put the check before standard output and standard error for a while."""
    before = sys.stdout, sys.stderr
    guard()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _guarded(stream: Any) -> Any:
    if stream is None or isinstance(stream, Guarded):
        return stream
    if isinstance(stream, io.TextIOWrapper):
        # A letter that the terminal's encoding lacks is no reason to fail.
        stream.reconfigure(errors="backslashreplace")
    return Guarded(stream)


def tell(text: str) -> None:
    """Write lines to standard output."""
    _write(sys.stdout, f"{visible(text, lines=True)}\n")


def say(text: str) -> None:
    """Write one line to standard error, with who says it."""
    _write(sys.stderr, f"palmette: {visible(' '.join(text.split()))}\n")


def hand_over(data: str) -> None:
    """Write data to standard output: exact and in UTF-8 where a file or a program takes them, visible on a terminal."""
    stream: Any = sys.stdout
    if stream.isatty():
        _write(stream, visible(data, lines=True))
        return
    stream.flush()
    stream.buffer.write(data.encode("utf-8", "backslashreplace"))  # half a character has no bytes
    stream.buffer.flush()


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
