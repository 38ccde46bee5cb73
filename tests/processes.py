"""Programs that run in a process of their own, for tests that look at a process's memory.

Loading torch takes seconds, so it is loaded once, in a process of which all others are copies.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a process's memory from /proc")

_LOADED = ("torch", "palmette.runs", "palmette.engines.simulate", "palmette.engines.evaluation")


def told(program: str, *arguments: object) -> str:
    """Run a program to its end and return what it printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_LOADED))
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "output"
        output.touch()
        process = context.Process(target=_run, args=(program, [str(one) for one in arguments], output))
        process.start()
        process.join(timeout=120)
        process.kill()
        assert process.exitcode == 0, output.read_text()
        return output.read_text()


def _run(program: str, arguments: list[str], output: Path) -> None:
    sys.argv = ["-c", *arguments]
    with open(output, "w") as file, redirect_stdout(file):
        try:
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=file)
            raise
