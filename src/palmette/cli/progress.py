"""Running from the command line with somebody watching: a stop becomes an error that says how to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from palmette.cli.failures import Stopped
from palmette.runs import Interrupted, Observer, Result
from palmette.runs.folder import CHECKPOINT, CONFIG
from palmette.runs.progress import watching


def follow(label: str, folder: Path, work: Callable[[Observer | None], Result], *, quiet: bool = False) -> Result:
    """Do the work of a run with somebody watching; a stop becomes an error that says how to go on.

    Args:
        label: What to call the run.
        folder: Where it is kept.
        work: Runs with the observer it is given.
        quiet: Whether nobody watches.
    """
    try:
        with watching(label, shown=not quiet) as observer:
            return work(observer)
    except Interrupted as error:
        raise Stopped(f"{error}; go on with: palmette resume {folder}") from error
    except KeyboardInterrupt as error:
        if not (folder / CONFIG).exists():
            raise
        kept = "the last checkpoint is kept" if (folder / CHECKPOINT).exists() else "no round is kept"
        raise Stopped(f"stopped at once, {kept}; go on with: palmette resume {folder}") from error
