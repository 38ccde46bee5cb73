"""The work of a run in its folder, from the lock to the result, with those who watch it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged
from palmette.runs import tracking
from palmette.runs.config import RunConfig
from palmette.runs.execution import Execution, Interrupted, Observer
from palmette.runs.folder import Folder
from palmette.runs.progress import watching
from palmette.runs.result import Result
from palmette.runs.together import together
from palmette.track.tracker import Trackers


def work(
    simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None, track: Trackers
) -> Result:
    """Run a simulation to its end, or from where its folder has it, and return the result."""
    folder.lock()
    if forgotten := [name for name in tracking.kept(folder.path) if name not in track.makers]:
        more = " ".join(f"--track {name}" for name in forgotten)
        folder.warn(
            f"the run in {folder.path} was tracked by {', '.join(forgotten)} and is not now; {more} goes on with it"
        )
    tracked = tracking.Tracked(track, config, folder, observer) if track.makers else None
    try:
        execution = Execution(simulation, config, folder, observer if tracked is None else tracked)
        if tracked is not None:
            tracked.history = lambda: execution.history
        with together(simulation, config, folder, execution.fingerprint):
            execution.run()
    except BaseException as error:
        if tracked is not None:
            tracked.end(_how(error), {})
        raise
    finally:
        for store in simulation.kept.values() if folder.in_place else ():
            store.remove()  # what is to be kept is in the checkpoint or in the models
        folder.unlock()
    result = Result(folder.path, trust=True)  # its code has just been run
    if tracked is not None:
        tracked.end("finished", tracking.summary_of(result.summary()))
    return result


def _how(error: BaseException) -> str:
    """Say in a word how a run ended that did not come to its end."""
    stopped = isinstance(error, Interrupted | KeyboardInterrupt)
    return "stopped" if stopped else "diverged" if isinstance(error, Diverged) else "failed"


@contextmanager
def eyes_of(label: str, observer: Observer | None, progress: bool | None) -> Iterator[Observer | None]:
    """Give the caller's observer, or one that shows progress."""
    if observer is not None:
        if progress:
            raise BadInput("give observer= or progress=True, not both")
        yield observer
        return
    with watching(label, shown=progress) as eyes:
        yield eyes
