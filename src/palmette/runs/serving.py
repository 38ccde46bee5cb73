"""A process that torchrun started besides rank 0: it takes part in the runs that rank 0 makes, and writes nothing."""

from __future__ import annotations

import os
import platform
import signal
import sys
import tomllib
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from palmette.engines.distributed import Distributed
from palmette.engines.peers import COMMAND, Lost, Peers, place
from palmette.errors import PalmetteError
from palmette.runs.config import RunConfig
from palmette.runs.fingerprint import fingerprint
from palmette.runs.reading import make_config
from palmette.runs.resuming import prepared_again

GONE = 1  # the exit code of a process that cannot go on


def serve() -> int:
    """Take part in whatever rank 0 runs, until it lets this process go; return the exit code."""
    here = place()
    assert here is not None
    peers = Peers(here)
    warnings.simplefilter("ignore")  # rank 0 says it
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        if not peers.wait_for_call():
            return 0
        # From here on rank 0 decides when it ends: a Ctrl-C reaches it, too, and it ends the round with this process.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        while (told := peers.meet(COMMAND)[0])["do"] != "leave":
            if told["do"] == "run":
                _take_part(peers, told)
        return 0
    except Lost:
        return GONE  # rank 0 is gone, or says so itself
    except Exception as error:
        text = str(error) if isinstance(error, PalmetteError) else "".join(traceback.format_exception(error))
        peers.fail(f"{text or type(error).__name__}")
        return GONE
    finally:
        peers.leave()


def _take_part(peers: Peers, told: Mapping[str, Any]) -> None:
    """Make the simulation of a run, tell rank 0 what it is, and do as rank 0 says."""
    answer: dict[str, Any] = {"host": platform.node() or "unknown"}
    simulation = None
    try:
        config = make_config(tomllib.loads(told["config"]), kept=True)
        simulation = _made(peers, config, Path(told["path"]))
        answer |= asdict(fingerprint(simulation, config)) | {"backend": simulation.learner.backend.name}
    except Exception as error:
        bug = not isinstance(error, PalmetteError | OSError | MemoryError)
        answer["refused"] = f"{type(error).__name__}: {error}" if bug else str(error)
    peers.meet(COMMAND, answer)
    if simulation is None:
        return  # rank 0 ends the run
    try:
        simulation.follow()
    finally:
        for store in simulation.kept.values():
            store.remove()


def _made(peers: Peers, config: RunConfig, path: Path) -> Distributed:
    simulation = prepared_again(config, None, None, None, None, path, partial(Distributed, peers=peers))
    assert isinstance(simulation, Distributed)
    return simulation
