"""What a node keeps on its disk, so that it goes on after a crash as if there had been none.

Two files are written in turn, each with a number and a checksum: whichever was being written when the power went, the other is
whole. A state is on the disk before the reply that it belongs to leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.engines.machine import Machine
from palmette.engines.snapshot import Remembered, Snapshot
from palmette.errors import PalmetteError
from palmette.links.codecs.payload import raw_bytes
from palmette.links.ledger import ledger_of, table_of
from palmette.links.office import Counters
from palmette.links.record import Record

_HEAD = b"PLMTKEPT1"
_SUM = 16
_synced = getattr(os, "fdatasync", os.fsync)  # all but the time of the change, which nobody reads


class Disk:
    """Two files that take turns.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def write(self, data: bytes) -> None:
        """Put data on the disk; an `OSError` leaves what was there."""
        number = self._number + 1
        body = number.to_bytes(8, "little") + data
        path = self._path(number)
        fresh = not path.exists()
        if fresh:
            self._folder.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if not fresh else "w+b", buffering=0) as file:
            for part in (_HEAD + blake2b(body, digest_size=_SUM).digest(), body):
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
            file.truncate()
            _synced(file.fileno())
        if fresh:
            place = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(place)
            finally:
                os.close(place)
        self._number = number

    def read(self) -> bytes | None:
        """Return what was written last, or nothing."""
        found = [one for number in (1, 2) if (one := self._whole(self._path(number))) is not None]
        if not found:
            return None
        self._number, data = max(found, key=lambda one: one[0])
        return data

    def _path(self, number: int) -> Path:
        return self._folder / f"state-{number % 2}.bin"

    @staticmethod
    def _whole(path: Path) -> tuple[int, bytes] | None:
        """Return the number and the data of a file; nothing where it is not whole."""
        with suppress(OSError):
            data = path.read_bytes()
            start = len(_HEAD) + _SUM
            if data.startswith(_HEAD) and blake2b(data[start:], digest_size=_SUM).digest() == data[len(_HEAD) : start]:
                return int.from_bytes(data[start : start + 8], "little"), data[start + 8 :]
        return None


def packed(machine: Machine, told: dict[str, Any]) -> bytes:
    """Return all that a machine goes on from as bytes.

    Args:
        machine: The machine.
        told: What else is to be kept, as plain data.
    """
    tensors: dict[str, Tensor] = {"reply": torch.frombuffer(bytearray(machine.reply or b"\0"), dtype=torch.uint8)}
    tensors["ledger"], tensors["evaluated"] = (table_of(one) for one in (machine.ledger, machine.evaluated))
    snapshots: list[tuple[int | str, Snapshot]] = [*machine.kept.items(), ("now", machine.now)]
    for name, snapshot in snapshots:
        if name != -1:
            tensors |= {f"{name}/{key}": value for key, value in _tensors(snapshot).items()}
    where = next(number for number, kept in snapshots if kept is machine.now)
    about = {
        "version": machine.version,
        "done": machine.done,
        "now": where,
        "replied": len(machine.reply),
        "steps": machine.device_steps,
        "told": told,
    }
    if where != "now":
        tensors = {name: value for name, value in tensors.items() if not name.startswith("now/")}
    return _joined(tensors, about)


def _joined(tensors: Mapping[str, Tensor], about: dict[str, Any]) -> bytes:
    """Return tensors and plain data as bytes: the length of a header, the header as JSON, then the tensors' own bytes.

    A node writes this before every reply, of small tensors mostly, for which safetensors takes four times as long.
    """
    blobs = [raw_bytes(value.detach().cpu().contiguous()).tobytes() for value in tensors.values()]
    listed = [
        [name, str(value.dtype).removeprefix("torch."), list(value.shape), len(blob)]
        for (name, value), blob in zip(tensors.items(), blobs, strict=True)
    ]
    header = json.dumps({"about": about, "tensors": listed}).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *blobs])


def _parted(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and plain data that were joined."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    tensors = {}
    for name, kind, shape, length in header["tensors"]:
        raw = torch.frombuffer(bytearray(data[end : end + length] or b"\0"), dtype=torch.uint8)
        dtype = getattr(torch, kind)
        tensors[name] = raw.view(dtype).reshape(shape) if length else torch.empty(shape, dtype=dtype)
        end += length
    return tensors, header["about"]


def unpack(machine: Machine, data: bytes) -> dict[str, Any]:
    """Let a machine go on from bytes, and return what else was kept."""
    try:
        tensors, about = _parted(data)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise PalmetteError(f"the kept state of {machine.setup.name!r} cannot be read: {error}") from None
    numbers = {name.partition("/")[0] for name in tensors if "/" in name}
    snapshots = {
        name: _snapshot(
            machine, {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{name}/")}
        )
        for name in numbers
    }
    machine.kept |= {int(name): one for name, one in snapshots.items() if name != "now"}
    machine.now = snapshots["now"] if about["now"] == "now" else machine.kept[about["now"]]
    machine.version, machine.device_steps = about["version"], about["steps"]
    machine.done = None if about["done"] is None else (tuple(about["done"][0]), about["done"][1])
    machine.reply = tensors["reply"].numpy().tobytes()[: about["replied"]]
    machine.ledger, machine.evaluated = (ledger_of(tensors[name]) for name in ("ledger", "evaluated"))
    told: dict[str, Any] = about["told"]
    return told


def _tensors(one: Snapshot) -> dict[str, Tensor]:
    found = {f"rows/{name}": rows.contiguous() for name, rows in one.rows.items()}
    found |= {"mine": one.mine.table, "theirs": one.theirs.table, "record": one.record.table()}
    for end in ("above", "below"):
        for (key, child), rows in getattr(one, end).rows.items():
            found |= {json.dumps([end, key, child, name]): row.contiguous() for name, row in rows.items()}
    entered = [[child, version] for child, version in one.entered.items()]
    found["entered"] = torch.tensor(entered, dtype=torch.int64).reshape(-1, 2)
    found["round"] = torch.tensor([one.round])
    return found


def _snapshot(machine: Machine, tensors: Mapping[str, Tensor]) -> Snapshot:
    counters = []
    for name in ("mine", "theirs"):
        counter = Counters(tensors[name].shape[1])
        counter.table.copy_(tensors[name])
        counters.append(counter)
    ends: dict[str, dict[tuple[str, int], dict[str, Tensor]]] = {"above": {}, "below": {}}
    for name, row in tensors.items():
        if name.startswith("["):
            end, key, child, part = json.loads(name)
            ends[end].setdefault((key, child), {})[part] = row
    record = Record()
    record.restore(tensors["record"])
    place = machine.setup.initial.device
    return Snapshot(
        rows={name.removeprefix("rows/"): rows.to(place) for name, rows in tensors.items() if name.startswith("rows/")},
        mine=counters[0],
        theirs=counters[1],
        round=int(tensors["round"]),
        above=Remembered(ends["above"]),
        below=Remembered(ends["below"]),
        record=record,
        entered={int(child): int(version) for child, version in tensors["entered"].tolist()},
    )
