"""Programs that run in a process of their own, for tests that look at a process's memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a process's memory from /proc")


def told(program: str, *arguments: object) -> str:
    """Run a program to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
