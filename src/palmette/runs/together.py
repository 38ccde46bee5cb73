"""A run in several processes, as rank 0 sees it: it calls the others up, and lets them go.

torchrun starts the same command in every process. Rank 0 alone reads it: it makes the run, its folder and all that is printed.
The others (`palmette.runs.serving`) wait until they are given the run's config.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from palmette.engines.distributed import Distributed
from palmette.engines.peers import COMMAND, Lost, Peers, place
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.runs.config import RunConfig
from palmette.runs.fingerprint import Fingerprint
from palmette.runs.folder import Folder

_peers: list[Peers] = []  # those that this process leads


@contextmanager
def leading() -> Iterator[None]:
    """Let runs be computed by all processes that torchrun started, if there are several."""
    here = place()
    if here is None or here.rank != 0:
        yield
        return
    _peers.append(Peers(here))
    try:
        yield
    finally:
        release()
        _peers.clear()


def engine() -> Callable[..., Simulation]:
    """Return what makes the simulation of a run: for this process alone, or with others."""
    return partial(Distributed, peers=_peers[0]) if _peers else Simulation


def release() -> None:
    """Let the other processes go, whether they were called up or still wait."""
    for peers in _peers:
        if peers.joined and not peers.broken:
            with suppress(Lost):
                peers.meet(COMMAND, {"do": "leave"})
        elif not peers.joined:
            peers.dismiss()
        peers.leave()


def dismissed() -> None:
    """Let processes go that wait to be called up, where no run called them."""
    here = place()
    if here is not None and here.rank == 0:
        Peers(here).dismiss()


@contextmanager
def together(simulation: Simulation, config: RunConfig, folder: Folder, mine: Fingerprint) -> Iterator[None]:
    """Have the other processes take part in a run, where there are any.

    Args:
        simulation: The run's simulation in this process.
        config: The run's config.
        folder: Its folder.
        mine: What it is about, and where it runs.
    """
    if not isinstance(simulation, Distributed):
        yield
        return
    peers = simulation.peers
    try:
        _call_up(peers, simulation, config, folder, mine)
        yield
    except Lost as error:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # torchrun ends all when one is gone, and this one is to say why
        raise _stopped(error, folder) from None
    finally:
        if not peers.broken:
            try:
                simulation.command("end")
            except Lost:
                peers.broken = True


def _call_up(peers: Peers, simulation: Distributed, config: RunConfig, folder: Folder, mine: Fingerprint) -> None:
    """Give the other processes the run, and refuse those that would not compute the same."""
    peers.join()
    path = str(folder.path.absolute())
    simulation.command("run", config=config.to_toml(), path=path)
    answers = peers.meet(COMMAND)
    for rank, answer in enumerate(answers[1:], 1):
        if wrong := _unlike(simulation, mine, answer):
            raise BadInput(f"process {rank} of {peers.size} ({answer['host']}) cannot take part in this run: {wrong}")
    folder.log(f"{peers.size} processes: {', '.join(['this one', *(answer['host'] for answer in answers[1:])])}")


def _unlike(simulation: Simulation, mine: Fingerprint, answer: Mapping[str, Any]) -> str:
    """Return why a process cannot take part."""
    if "refused" in answer:
        return str(answer["refused"])
    theirs = Fingerprint(answer["parts"], answer["settings"], answer["environment"])
    if differ := mine.differences(theirs):
        return f"there the run is another; what differs: {'; '.join(differ)}"
    here = mine.environment
    if other := [
        f"{name} {value} (here {here.get(name)})"
        for name, value in theirs.environment.items()
        if here.get(name) != value
    ]:
        return f"it has {', '.join(other)}, and the last bits depend on it; give all machines the same"
    backend = simulation.learner.backend.name
    return "" if answer["backend"] == backend else f"it has no backend {backend}, only {answer['backend']}"


def _stopped(error: Lost, folder: Folder) -> Lost:
    """Say that a run ends because a process is gone, and how to go on."""
    told = (
        f"{error}; the run stops. Its last checkpoint is kept; go on, with any number of processes, with: palmette resume "
        f"{folder.path}"
    )
    folder.log(told)
    return Lost(told)
