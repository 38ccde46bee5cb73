"""What the server keeps of a training: scores round by round, and at the end a run's folder like any other."""

from __future__ import annotations

import json
import shutil
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from palmette.deploy.kit import RUN, STATE, Kit
from palmette.deploy.newcomers import Newcomer
from palmette.engines.evaluation import Scores
from palmette.engines.machine import Machine
from palmette.engines.setup import Setup
from palmette.protocol import ModelKind
from palmette.runs.absences import absences_table
from palmette.runs.files import Files
from palmette.runs.fingerprint import Fingerprint, introduce
from palmette.runs.folder import (
    ABSENCES,
    ADDED,
    ENCODING,
    EVALUATION,
    METRICS,
    OUTLINE,
    POPULATION,
    TIMINGS,
    TRAFFIC,
    Folder,
    model_file,
)
from palmette.runs.metrics import SCHEMA, Metrics, traffic_table
from palmette.runs.reading import make_config
from palmette.runs.roll import roll_of
from palmette.runs.tensors import Chunk
from palmette.tree import Tree
from palmette.tree.joining import joined

CONFIG, IDENTITY = "config.toml", "identity.json"
_HISTORY, _ENDED = "history.parquet", "ended.safetensors"


class History:
    """The scores of a training so far, on the disk after every evaluation.

    Args:
        kit: The server's kit.

    Attributes:
        metrics: The rows so far.
        seconds: How long the rounds took in all, as far as this process knows.
    """

    def __init__(self, kit: Kit) -> None:
        self._files = Files(kit.folder / STATE)
        self._last = kit.config.rounds
        self.metrics, self.seconds = Metrics(), 0.0
        if self._files.has(_HISTORY):
            table = self._files.read_table(_HISTORY, SCHEMA)
            self.metrics = Metrics({name: table[name].to_pylist() for name in table.column_names})

    def has(self, round_: int) -> bool:
        """Return whether the models were measured after a round."""
        return round_ in self.metrics.rows["round"]

    def record(self, found: dict[ModelKind, Scores], round_: int, tree: Tree) -> None:
        """Take what was measured after a round on the devices of a tree; what a server that crashed had measured goes."""
        rows = self.metrics.rows
        first = bisect_left(rows["round"], round_)
        if first < len(rows["round"]):
            self.metrics = Metrics({name: column[:first] for name, column in rows.items()})
        nobody = torch.zeros(tree.devices, dtype=torch.bool)
        self.metrics.record(
            found,
            tree,
            round_=round_,
            when="after",
            participants=nobody,
            unseen=nobody,
            kept_out=None,
            last=round_ == self._last,
        )

    def keep(self) -> None:
        """Put it all on the disk."""
        self._files.write_table(_HISTORY, self.metrics.table())

    def keep_the_end(self, ended: dict[str, Tensor]) -> None:
        """Put what all nodes told in the end on the disk: they are gone when it is asked for again."""
        whole = {name: value.contiguous() for name, value in ended.items()}
        self._files.write(_ENDED, safetensors.torch.save(whole))

    def told_in_the_end(self) -> dict[str, Tensor] | None:
        """Return what all nodes told in the end, if they have."""
        return safetensors.torch.load(self._files.read(_ENDED)) if self._files.has(_ENDED) else None


def write_run(
    kit: Kit, machine: Machine, history: History, ended: dict[str, Any], added: Sequence[Newcomer] = ()
) -> None:
    """Write the folder of a finished run into the server's kit.

    Args:
        kit: The server's kit.
        machine: Its machine.
        history: What was measured.
        ended: Who was absent when, what crossed the links, and how many samples each device has.
        added: Devices that were added while it ran.
    """
    setup = machine.setup
    path = kit.folder / RUN
    shutil.rmtree(path, ignore_errors=True)  # of a server that crashed while it wrote
    folder = Folder.create(path)
    about = json.loads((kit.folder / IDENTITY).read_text(encoding="utf-8"))
    mine = Fingerprint(**about)
    config, text = kit.config, (kit.folder / CONFIG).read_bytes()
    introduce(folder, mine, mine, _with_added(text, added) if added else text)
    folder.log(f"a federation on {setup.tree.devices} devices; no samples left them")
    for one in added:
        folder.log(f"{one.name} was added below {one.parent} before round {one.round + 1}")
    if added:
        folder.write_json(ADDED, [{"node": one.name, "parent": one.parent, "round": one.round + 1} for one in added])
    folder.write_table(POPULATION, roll_of(setup.tree, *ended["samples"].numpy()))
    model: dict[str, object] = {
        "name": config.model.name,
        "shape": list(kit.node.data.shape),
        "classes": kit.node.data.classes,
    }
    row = machine.state["model"]
    _write(folder, setup, row, {"nodes": [setup.name], "model": model})
    if outline := setup.algorithm.outline(setup.tree, config.rounds):
        folder.write_json(OUTLINE, outline)
    if kit.node.data.encoding is not None:
        folder.write_json(ENCODING, kit.node.data.encoding)
    folder.write_table(TRAFFIC, traffic_table(ended["traffic"].tolist()))
    folder.write_table(EVALUATION, traffic_table([list(row.values()) for row in machine.evaluated.rows()]))
    if len(ended["record"]):
        folder.write_table(ABSENCES, absences_table(ended["record"], setup.tree))
    seconds = max(history.seconds, 1e-9)
    steps = {"device_steps": machine.device_steps, "device_steps_per_second": round(machine.device_steps / seconds, 1)}
    folder.write_json(TIMINGS, {"seconds": {"rounds": history.seconds}, **steps, "adapt_steps": 0, "threads": 1})
    folder.write_table(METRICS, history.metrics.table())
    folder.close(keep_state=False)
    folder.unlock()


def _with_added(text: bytes, added: Sequence[Newcomer]) -> bytes:
    """Return the config of a run whose tree has the devices that were added."""
    config = make_config(tomllib.loads(text.decode()), kept=True)
    tree = config.make_tree()
    if config.method().flat:
        tree = tree.flat()  # a device that was added is in no team
    for one in added:
        tree = joined(tree, tree.find(1, one.parent), one.name)
    return config.model_copy(update={"tree": tree.spec()}).to_toml().encode()


def _write(folder: Folder, setup: Setup, rows: Tensor, about: dict[str, object]) -> None:
    """Write the global model as every run does."""
    parts = setup.layout.unflatten(rows)

    def chunks() -> Iterable[Chunk]:
        yield from ((name, 0, part) for name, part in parts.items())

    folder.write_tensors(model_file("GM"), parts, chunks(), about)
