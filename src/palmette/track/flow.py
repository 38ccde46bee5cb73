"""Runs in MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where, else it is the file ``mlflow.db`` here."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from palmette.track.tracker import Place, Start

_ODD = re.compile(r"[^\w\-. /:]")  # letters that MLflow refuses in a name
_STATES = {"finished": "FINISHED", "stopped": "KILLED"}
_FILE = "sqlite:///"
_AT_ONCE = 100  # params of one request


class Flow:
    """Writes numbers into a store of MLflow."""

    def begin(self, start: Start) -> Place:
        """Begin a run in the experiment, or go on with the one of the same id."""
        if "MLFLOW_LOGGING_LEVEL" not in os.environ:
            logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it tells of every table that it makes
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"{_FILE}{Path('mlflow.db').absolute()}"
        with _alone(store):
            self._client = client = MlflowClient(store)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "palmette"
            known = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if known is None else known.experiment_id
        if start.key is None:
            self._run = client.create_run(experiment, run_name=start.name).info.run_id
        else:
            self._run = start.key
            client.update_run(self._run, status="RUNNING")
        there = client.get_run(self._run).data.params  # a param cannot change
        new = [Param(_name(key), str(value)) for key, value in start.settings.items() if _name(key) not in there]
        for first in range(0, len(new), _AT_ONCE):
            client.log_batch(self._run, params=new[first : first + _AT_ONCE])
        tags = {
            "palmette.folder": str(start.folder),
            "palmette.study": start.group,
            "palmette.config": start.config[:5000],
        }
        client.log_batch(self._run, tags=[RunTag(key, value) for key, value in tags.items()])
        where = f"mlflow ui --backend-store-uri {shlex.quote(store)}" if store.startswith(_FILE) else store
        return Place(self._run, f"{where}, run {self._run}")

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run, [Metric(_name(key), value, now, round_) for key, value in numbers.items()])

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        """Say what the run came to."""
        self.log(round_, {f"summary/{name}": value for name, value in numbers.items()})
        self._client.set_terminated(self._run, status=_STATES.get(how, "FAILED"))


@contextmanager
def _alone(store: str) -> Iterator[None]:
    """Keep other processes from a file that is made now: the runs of a study begin together, and two would make its tables."""
    if not store.startswith(_FILE):
        yield
        return
    folder = os.open(Path(store.removeprefix(_FILE)).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _name(text: str) -> str:
    return _ODD.sub("_", text)
