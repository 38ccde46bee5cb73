"""What a run under way keeps on disk: checkpoints, and its history so far for those who look at it before its end.

Neither ends the run where it cannot be written, because a disk is full for instance: that is said, and tried again.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.runs.checkpoint import Memory
from palmette.runs.files import Unwritable
from palmette.runs.folder import PROGRESS, Folder
from palmette.runs.history import History
from palmette.runs.journal import Journal
from palmette.runs.records import Record
from palmette.runs.wording import many

_SILENCE = 60.0  # seconds between two warnings of the same trouble


class Keeper:
    """Keeps the state and the history of a run.

    Args:
        simulation: What runs.
        history: What was measured so far.
        folder: Where to.

    Attributes:
        round: The round after which the state was last kept; ``None`` before it was.
        failing: Whether the last checkpoint could not be written.
    """

    def __init__(self, simulation: Simulation, history: History, folder: Folder) -> None:
        self._simulation, self._history, self._folder = simulation, history, folder
        self._journal = Journal(folder)
        self.round: int | None = None
        self.failing = False
        self._when = math.nan  # it was kept
        self._rows = 0  # rows of the history that were kept with it
        self._said: dict[str, float] = {}  # when a trouble was last told of, by what cannot be written

    def load(
        self,
        at_most: int | None = None,
        unfit: Callable[[Record, int | None], str | None] = lambda record, before: None,
    ) -> list[Record] | None:
        """Return the newest state that is kept and sound; see `Journal.load`."""
        kept = self._journal.load(at_most, unfit)
        if kept is not None:
            self.round, self._when = kept[-1].round, time.monotonic()
        return kept

    def save(self, memory: Memory, *, last: bool = False) -> None:
        """Keep the state as it is: what changed since it was last kept or, where that is much, everything.

        Args:
            memory: What to remember besides.
            last: Whether to wait until it is on the disk, because the run stops here.
        """
        done, journal = self._simulation.round, self._journal
        tensors = self._simulation.state(self.round or 0)
        if not journal.extendable(tensors):
            metrics = _packed(self._history.table())
            journal.save({**self._simulation.state(), "metrics": metrics}, memory.model_dump())
        elif done != self.round:
            journal.extend({**tensors, "metrics": _packed(self._history.table(self._rows))}, memory.model_dump())
        if last:
            journal.sync()
        self.round, self._rows, self._when = done, len(self._history.rows["round"]), time.monotonic()

    def try_to_save(self, memory: Memory, *, last: bool = False) -> None:
        """Keep the state as it is, if that can be; else say so, and that it is tried again; see `save`."""
        try:
            self.save(memory, last=last)
        except Unwritable as error:
            self.failing = True
            kept = "no state is kept yet"
            if self.round is not None:
                kept = f"what is kept is the state after round {self.round}, {_ago(time.monotonic() - self._when)}"
            then = "" if last else ". The run goes on, and tries again after the next round"
            self._say("checkpoint", f"{error}; {kept}{then}")
        else:
            self.failing = False
            self._recovered("checkpoint", f"checkpoints can be written again, the first after round {self.round}")

    def publish(self, ended: str = "") -> None:
        """Put the history so far on disk, if that can be, for those who look at a run before its end.

        Args:
            ended: What went wrong, where something did.
        """
        simulation = self._simulation
        so_far = {
            "round": simulation.round,
            "traffic": [list(row.values()) for row in simulation.ledger.rows()],
            "device_steps": simulation.device_steps,
            "ended": ended,
        }
        try:
            table = self._history.table().replace_schema_metadata({"so far": json.dumps(so_far)})
            self._folder.write_table(PROGRESS, table)
        except Unwritable as error:
            self._say("history", f"{error}; others see the run as it was before. It goes on, and tries again later")
        else:
            self._recovered("history", f"{PROGRESS} can be written again")

    def _say(self, what: str, text: str) -> None:
        if time.monotonic() - self._said.get(what, -math.inf) >= _SILENCE:
            self._said[what] = time.monotonic()
            self._folder.warn(text)

    def _recovered(self, what: str, text: str) -> None:
        if self._said.pop(what, None) is not None:
            self._folder.warn(text)


def _packed(table: pa.Table) -> Tensor:
    """Return a table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)  # twice as fast, and no larger
    return torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)


def _ago(seconds: float) -> str:
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{many(int(seconds / size), unit)} ago"
    return f"{many(int(seconds), 'second')} ago"
