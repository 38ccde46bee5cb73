"""Who was absent from a run when, as a table with names; and a run that repeats it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from palmette.errors import BadInput
from palmette.links.record import REASONS, Absences, replay
from palmette.runs.files import Files
from palmette.tree import Tree

ABSENCES = "absences.parquet"
ADDED = "added.json"  # devices that were added to a federation while it trained
SCHEMA = pa.schema(
    [
        ("round", pa.int32()),  # from 1
        ("tier", pa.int8()),  # of the absent node
        ("node", pa.string()),  # its name
        ("exchange", pa.int32()),  # its parent's exchange within the round, from 1
        ("reason", pa.string()),  # no answer | away | lost | late | corrupt | not finite
    ]
)


def absences_table(record: Tensor, tree: Tree) -> pa.Table:
    """Return a record of absences as a table with names.

    Args:
        record: The record; see `palmette.links.record`.
        tree: The tree that the algorithm ran on.
    """
    rounds, asking, exchange, child, reason = record.T.tolist() if len(record) else ([], [], [], [], [])
    names = [tree.name(tier - 1, number) for tier, number in zip(asking, child, strict=True)]
    columns = [
        *([one + 1 for one in rounds], [tier - 1 for tier in asking], names),
        *([one + 1 for one in exchange], [REASONS[one] for one in reason]),
    ]
    return pa.table(columns, schema=SCHEMA)


def read_absences(path: Path, tree: Tree, *, grown: bool = False) -> Absences:
    """Return who is absent in a run that repeats another.

    Args:
        path: The folder of the other run, or its table of absences.
        tree: The tree that the algorithm runs on.
        grown: Whether it is known that devices were added while that run trained.
    """
    folder, name = (path, ABSENCES) if path.is_dir() else (path.parent, path.name)
    files = Files(folder)
    if files.has(ADDED) and not grown:
        raise BadInput(
            f"replay = {str(path)!r}: devices were added to that training while it ran ({ADDED}), and a replay has the same "
            "devices from its beginning; it cannot repeat that training"
        )
    if not files.has(name):
        told = (
            f"that run lost nobody, or is not finished: it has no {name}" if path.is_dir() else "there is no such file"
        )
        raise BadInput(f"replay = {str(path)!r}: {told}; name the folder of a run that lost replies")
    try:
        table = files.read_table(name, SCHEMA)
    except BadInput as error:
        raise BadInput(f"replay = {str(path)!r}: {error}; it needs the columns {', '.join(SCHEMA.names)}") from None
    if any(column.null_count for column in table.columns):
        raise BadInput(f"replay = {str(path)!r}: {name} is no table of absences, because it has gaps")
    least = {column: pc.min(table[column]).as_py() for column in ("round", "exchange")} if len(table) else {}
    if any(value < 1 for value in least.values()):
        raise BadInput(f"replay = {str(path)!r}: rounds and exchanges in {name} count from 1")
    rows = []
    for one in table.to_pylist():
        if not 0 <= one["tier"] < tree.top:
            raise BadInput(f"replay = {str(path)!r}: {name} has tier {one['tier']}, and this tree is {tree}")
        try:
            number = tree.find(one["tier"], one["node"])
        except BadInput as error:
            raise BadInput(f"replay = {str(path)!r} is of other nodes: {error}") from None
        rows.append([one["round"] - 1, one["tier"] + 1, one["exchange"] - 1, number, 1])
    return replay(torch.tensor(rows, dtype=torch.int64).reshape(-1, 5))
