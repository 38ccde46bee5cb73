"""What a node tells of itself: lines in its log, and a table of what it knows now."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from palmette.guards.visible import visible

_LARGEST = 8 << 20  # bytes of a log before it is put aside
_RECENT = 20


class Journal:
    """The log of a node; it never fails because a disk does.

    Args:
        folder: Where ``node.log`` goes.
        aloud: Is told every line, too.
    """

    def __init__(self, folder: Path, aloud: Callable[[str], None] | None = None) -> None:
        self._path, self._aloud, self._lock = folder / "node.log", aloud, threading.Lock()
        self.recent: deque[str] = deque(maxlen=_RECENT)
        self.counts: dict[str, int] = {}

    def line(self, text: str) -> None:
        """Write a line."""
        told = f"{datetime.now(UTC).isoformat(timespec='seconds')} {visible(text)}"
        with self._lock:
            self.recent.append(told)
            try:
                if self._path.exists() and self._path.stat().st_size > _LARGEST:
                    os.replace(self._path, self._path.with_suffix(".log.1"))
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(told + "\n")
            except OSError:
                pass  # a full disk must not end a node: what was told is still in `recent`
            if self._aloud is not None:
                self._aloud(told)

    def event(self, kind: str, who: str, detail: str) -> None:
        """Count an event of the links, and write a line of it."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.line(f"{kind}: {who}{f': {detail}' if detail else ''}")

    def told(self) -> dict[str, Any]:
        """Return what a status shows of it."""
        return {"events": dict(self.counts), "recent": list(self.recent)[-5:]}
