"""Predictions of a run's models for the rows of a table: every row by its own device's model, or all by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.errors import BadInput, nearest
from palmette.population import Encoding
from palmette.protocol import ModelKind
from palmette.runs.nodes import Chosen, Nodes
from palmette.runs.result import Result
from palmette.tables import columns
from palmette.tables.encode import Strange, encode, numbers_of, strange_cells
from palmette.tables.source import Table, open_table
from palmette.task import by_class

_TOLD = 5  # names in a sentence


@dataclass
class Predictions:
    """What models predict.

    Attributes:
        table: One line per row: ``row`` (1 is the first), ``device`` where the table names it, ``model`` (whose),
            ``prediction`` and, for classes, ``probability``, each class's own as ``p(NAME)``.
        notes: What was left out or chosen, in sentences.
    """

    table: pa.Table
    notes: list[str] = field(default_factory=list)


def predict(
    run: Result | str | Path,
    data: Any,
    *,
    node: str | None = None,
    kind: ModelKind | None = None,
    into: nn.Module | None = None,
    trust: bool = False,
) -> Predictions:
    """Predict the label of every row of a table.

    Columns are found by their name, in any order. Every row is predicted by its own device's model; a device that did not train
    has its team's, and where the team is not known the global one.

    Args:
        run: The run, or its folder.
        data: A CSV or Parquet file, a folder of them, or a pandas or Arrow table; it needs no label.
        node: Predict all rows with the model of this device or team.
        kind: Of which kind that is (``"PM"``, ``"TM"``, ``"GM"``), where nodes share a name.
        into: A module of the same layers, for a run whose model was a module of your own.
        trust: Whether code that the run names may be run, where ``run`` is a folder; see `palmette.load`.
    """
    result = run if isinstance(run, Result) else Result(Path(run), trust=trust)
    encoding = table_of(result)
    table, nodes, notes = open_table(data), Nodes(result), []
    refuse_columns(table, encoding)
    path = [name for name in (*encoding.team, encoding.device) if name in table.columns]
    whose = nodes.named(node, kind) if node is not None else None
    if whose is None and len(path) <= len(encoding.team):
        whose = nodes.everybody
        lacking = next(name for name in (*encoding.team, encoding.device) if name not in path)
        notes.append(
            f"the table has no column {lacking!r}, so no row says whose it is: all are predicted by the global model"
        )
    lines = _Lines(encoding, result, into, table)
    for begin, batch in table.batches([*encoding.columns, *path]):
        cells = {name: columns.plain(batch.column(name)) for name in batch.schema.names}
        keep = usable(cells, encoding, table, begin)
        paths = _paths(cells, path) if path else [()] * batch.num_rows
        lines.add(
            cells, keep, begin, [whose or nodes.at(one) for one in paths], [one[-1] if one else None for one in paths]
        )
    return Predictions(lines.table(), [*notes, *lines.notes(node is None and whose is None)])


def table_of(result: Result) -> Encoding:
    """Return how a run read its table, or say that there was none."""
    if not result.finished:
        raise BadInput(f"the run in {result.folder} is not finished; go on with 'palmette resume {result.folder}'")
    if result.encoding is None or not result.encoding.inputs:
        raise BadInput(
            f"the run in {result.folder} was not trained on a table of your own, so the columns of its samples are not known; "
            "take a model out with 'palmette export' and give it samples in torch"
        )
    return result.encoding


def refuse_columns(table: Table, encoding: Encoding) -> None:
    """Refuse a table that lacks a column of the model."""
    problems = table.problems + [
        f"{table.name} has no column {name!r}, which the model needs{nearest(name, table.columns)}"
        for name in encoding.columns
        if name not in table.columns
    ]
    if problems:
        raise BadInput("; ".join(problems))


def usable(cells: Mapping[str, Any], encoding: Encoding, table: Table, begin: int) -> NDArray[np.bool_]:
    """Return which rows have all that the model needs; what the rule of the run refuses is refused.

    Args:
        cells: The columns of a batch.
        encoding: How the model reads them.
        table: The table.
        begin: Rows before the batch.
    """
    keep = np.ones(len(next(iter(cells.values()))), dtype=bool)
    for one in encoding.inputs:
        array = cells[one.column]
        gone = array.is_null().to_numpy(zero_copy_only=False)
        if one.equals is None:
            values = numbers_of(array, comma=table.decimal_commas)
            wrong = (np.isnan(values) & ~gone) | np.isinf(values)
            if wrong.any():
                row = int(wrong.argmax())
                raise BadInput(
                    f"{table.name}, {table.where(begin + row)}, column {one.column!r}: {array[row]} is no number"
                )
        if gone.any() and encoding.missing == "refuse":
            where = table.where(begin + int(gone.argmax()))
            raise BadInput(
                f"{table.name}, {where}, column {one.column!r}: the value is missing, and the run was told to refuse that; "
                "fill it in, or train with data.missing=mean"
            )
        if encoding.missing == "drop":
            keep &= ~gone
    return keep


def _paths(cells: Mapping[str, Any], names: list[str]) -> list[tuple[str, ...]]:
    """Return the path of every row's device."""
    listed = [columns.names(cells[name]).to_pylist() for name in names]
    return [tuple("" if cell is None else cell for cell in row) for row in zip(*listed, strict=True)]


class _Lines:
    """Collects predictions, each by its own model."""

    def __init__(self, encoding: Encoding, result: Result, into: nn.Module | None, table: Table) -> None:
        self._encoding, self._result, self._into, self._table = encoding, result, into, table
        self._rows: list[int] = []
        self._devices: list[str | None] = []
        self._models: list[str] = []
        self._outputs: list[Tensor] = []
        self._used: Counter[Chosen] = Counter()
        self._dropped = 0
        self._unknown: Strange = Counter()

    def add(
        self,
        cells: Mapping[str, Any],
        keep: NDArray[np.bool_],
        begin: int,
        whose: list[Chosen],
        devices: list[str | None],
    ) -> None:
        """Predict the rows of a batch."""
        features, unknown = encode(self._encoding, cells, comma=self._table.decimal_commas)
        self._unknown += unknown
        self._dropped += int((~keep).sum())
        if not np.isfinite(features[keep]).all():
            row, place = (int(one) for one in np.argwhere(~np.isfinite(features))[0])
            column = self._encoding.inputs[place].column
            raise BadInput(
                f"{self._table.where(begin + row)}, column {column!r}: the number is far too large for the model; correct it"
            )
        places = np.flatnonzero(keep).tolist()
        groups: dict[Chosen, list[int]] = {}
        for place in places:
            groups.setdefault(whose[place], []).append(place)
        order, outputs = [], []
        for chosen, some in groups.items():
            self._used[chosen] += len(some)
            outputs.append(self._forward(chosen, torch.from_numpy(features[some])))
            order += some
        if outputs:
            self._outputs.append(torch.cat(outputs)[torch.tensor(order).argsort()])
        self._rows += [begin + place + 1 for place in places]
        self._devices += [devices[place] for place in places]
        self._models += [str(whose[place]) for place in places]

    def _forward(self, chosen: Chosen, x: Tensor) -> Tensor:
        features = x if x.dtype == torch.int64 else x.to(self._result.config.dtype())
        return self._result.predict(features, chosen.kind, chosen.node, into=self._into)

    def table(self) -> pa.Table:
        """Return one line per row."""
        classes = self._encoding.classes
        found: dict[str, Any] = {"row": pa.array(self._rows, pa.int64())}
        if any(device is not None for device in self._devices):
            found["device"] = self._devices
        found["model"] = pa.array(self._models, pa.string())
        outputs = torch.cat(self._outputs) if self._outputs else torch.zeros((0, len(classes or ()) or 1))
        if classes is None:
            found["prediction"] = outputs.reshape(len(outputs), -1)[:, 0].double().numpy()
            return pa.table(found)
        chances = by_class(outputs).double().softmax(1)
        best = chances[:, : len(classes)].argmax(1)
        found["prediction"] = pa.array([classes[number] for number in best.tolist()], pa.string())
        found["probability"] = chances.gather(1, best[:, None])[:, 0].numpy() if len(chances) else []
        for number, name in enumerate(classes):
            found[f"p({name})"] = chances[:, number].numpy()
        return pa.table(found)

    def notes(self, by_device: bool) -> list[str]:
        """Say what was chosen or left out."""
        told = []
        others: dict[ModelKind, set[str]] = {}
        for chosen, device in zip(self._models, self._devices, strict=True):
            if by_device and not chosen.startswith("PM ") and device is not None:
                others.setdefault(chosen.split(" ")[0], set()).add(device)
        for kind, devices in others.items():
            some = ", ".join(map(repr, sorted(devices)[:_TOLD])) + (" and others" if len(devices) > _TOLD else "")
            whose = "the global model" if kind == "GM" else f"their team's model ({kind})"
            told.append(f"devices that did not train: {len(devices)} ({some}); their rows are predicted by {whose}")
        if self._dropped:
            told.append(f"rows left without a prediction, because a value is missing: {self._dropped:,}")
        if self._unknown:
            told.append(
                f"cells with a category that no training row had, taken as no category: {self._unknown.total():,} "
                f"({strange_cells(self._unknown)})"
            )
        return told
