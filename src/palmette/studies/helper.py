"""A process beside this one that runs trials: told by lines of JSON what to run, telling by lines of JSON how it goes.

``python -m palmette.studies.helper`` is that process. It ends at once when the other one is gone, which leaves its run like any
that was killed: to be continued.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from palmette.guards.terminal import guard
from palmette.runs import RunConfig
from palmette.studies.trials import Outcome, Populations, Told, Trial, run_trial

_PATIENCE = 10.0  # seconds that a process gets to end
_PAUSE = 0.1  # seconds between two rounds that are told
_DEAD = "its process was ended from outside ({}), perhaps for want of memory; try --jobs 1"


class Helper:
    """The process, seen from the one that started it."""

    def __init__(self) -> None:
        paths = [path for path in sys.path if path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "palmette.studies.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C in a terminal goes to the other process, which decides
        )
        self._stopped = self._ready = False

    def ready(self) -> bool:
        """Wait until the process has loaded what it needs; return whether it has."""
        assert self._process.stdout is not None
        if not self._ready:
            self._ready = bool(self._process.stdout.readline())
        return self._ready

    @property
    def alive(self) -> bool:
        """Whether the process is there to take another trial."""
        return self._process.poll() is None

    def abandon(self) -> None:
        """End the process at once where it is not ready yet: there is nothing left for it to do."""
        if not self._ready:
            self._process.kill()

    def run(
        self, trial: Trial, begin: Callable[[int], None], round_: Callable[[int, int, dict[str, float]], None]
    ) -> Outcome:
        """Have a trial run, and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        config = None if trial.config is None else trial.config.model_dump()
        task = {"arm": trial.arm, "seed": trial.seed, "out": str(trial.out), "config": config}
        task |= {"attempt": trial.attempt, "steps": trial.steps, "track": trial.track, "study": trial.study}
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except OSError:
            return self._dead(trial)
        for line in self._process.stdout:
            told = json.loads(line)
            if told["event"] == "end":
                return Outcome(trial, told["end"], told["message"], tuple(told["warnings"]))
            if told["event"] == "begin":
                begin(told["rounds"])
            else:
                round_(told["done"], told["rounds"], told["scores"])
        return self._dead(trial)

    def _dead(self, trial: Trial) -> Outcome:
        code = self._process.wait(_PATIENCE)
        return Outcome(trial, "stopped" if self._stopped else "failed", _DEAD.format(code))

    def stop(self) -> None:
        """Have it finish the round under way."""
        self._stopped = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End the process; a run under way is left as it is."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # it is gone
                self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def main() -> None:
    """Run the trials that come in, until nobody is there to send any."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a method of the user's own prints is not for the other process
    guard()
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())  # during the rounds of a run it hears for itself
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    populations = Populations()
    _tell(out, event="ready")
    while True:
        task = tasks.get()
        config = None if task["config"] is None else RunConfig.model_validate(task["config"])
        trial = Trial(
            task["arm"], task["seed"], Path(task["out"]), config, attempt=task["attempt"], steps=task["steps"],
            track=tuple(task["track"]), study=task["study"],
        )  # fmt: skip
        observer = Told(lambda rounds: _tell(out, event="begin", rounds=rounds), _Rounds(out), asked.set, asked.is_set)
        outcome = run_trial(trial, populations, observer, threads=1)
        _tell(out, event="end", end=outcome.end, message=outcome.message, warnings=outcome.warnings)


class _Rounds:
    """Tells of rounds, not more often than one can see."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._told = out, 0.0

    def __call__(self, done: int, rounds: int, scores: dict[str, float]) -> None:
        if scores or time.monotonic() - self._told > _PAUSE:
            self._told = time.monotonic()
            _tell(self._out, event="round", done=done, rounds=rounds, scores=scores)


def _listen(tasks: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(0)  # the other process is gone; a run under way stays as it is on disk


def _tell(out: IO[str], **event: Any) -> None:
    try:
        out.write(json.dumps(event) + "\n")
        out.flush()
    except OSError:
        os._exit(0)


if __name__ == "__main__":
    main()
