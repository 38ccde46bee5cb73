"""How much memory a case takes, measured from where Palmette begins to work on it."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pyarrow as pa

import palmette.values

MOST = 4 << 30  # bytes that a process may take beyond what it has when it begins
_before = 0


def of(name: str) -> int:
    """Return a count of bytes that the system keeps about this process, such as ``VmHWM``, the most it has had in memory."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def begin() -> None:
    """Measure from here on the most that this process has in memory."""
    global _before
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    _before = of("VmRSS")


def grown() -> int:
    """Return the most that the process has had in memory since then, beyond what it had."""
    return of("VmHWM") - _before


def hold_to_account() -> None:
    """Limit the memory of this process, and let Palmette believe that the machine has no more."""
    most = of("VmSize") + MOST
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    palmette.values.memory = lambda: MOST
