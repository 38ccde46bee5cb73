"""What looks odd in a population made of a table: doubles, leaks, labels that nobody trains on, names that differ by a hair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from palmette.population import Population
from palmette.tables import columns
from palmette.tables.problems import Findings
from palmette.tables.read import Plan
from palmette.tables.source import Table
from palmette.tree import Ints

_LOOKED_AT = 2_000_000  # rows up to which doubles are looked for
_SAMPLE = 100_000  # rows that correlations are computed from
_LEAK = 0.999  # correlation with the label from which a feature is too good to be true
_HUGE = 0.5  # the part of all rows that one of several devices has
_TOLD = 5  # names in a sentence


def look_for_oddities(
    made: Population, plan: Plan, table: Table, findings: Findings, others: Sequence[str] = ()
) -> None:
    """Add a warning for everything that looks odd.

    Args:
        made: The population.
        plan: Where the rows of the table went.
        table: The table.
        findings: Is added to.
        others: Columns that are read and are no features, such as the time; rows that differ in them do not stand twice.
    """
    _labels(made, plan, findings)
    _sizes(made, findings)
    _names(made, findings)
    _doubles(made, plan, table, findings, others)
    _leaks(made, findings)


def _labels(made: Population, plan: Plan, findings: Findings) -> None:
    """Warn of classes that no training row has, and of devices that know one class only."""
    if made.classes is None or made.encoding is None or made.encoding.classes is None:
        return
    y, train = made.y.numpy()[plan.place], plan.train
    trained, tested = set(np.unique(y[train]).tolist()), set(np.unique(y[~train]).tolist())
    for number in sorted(tested - trained)[:_TOLD]:
        row = int(np.flatnonzero(y == number)[0])
        name, owner = made.encoding.classes[number], made.tree.name(0, int(plan.device[row]))
        findings.warn(
            f"the label {name!r} is in test rows only; no model can learn it", None, made.encoding.label, owner
        )
    pairs = np.unique(plan.device * made.classes + y)
    count = np.bincount(pairs // made.classes, minlength=made.devices)
    single = int((count == 1).sum())
    if single:
        first = made.tree.name(0, int((count == 1).argmax()))
        told = f"{single} of {made.devices} devices have one class only, such as {first!r}"
        findings.warn(told, None, made.encoding.label, first)


def _sizes(made: Population, findings: Findings) -> None:
    """Warn of one device that has most of all rows."""
    sizes = made.start.diff()
    most = int(sizes.argmax())
    if made.devices > 2 and int(sizes[most]) > _HUGE * len(made.x):
        share = 100 * int(sizes[most]) / len(made.x)
        findings.warn(f"it has {share:.0f} % of all rows", None, None, made.tree.name(0, most))


def _names(made: Population, findings: Findings) -> None:
    """Warn of names that are the same but for their case or leading zeros."""
    for tier in range(made.tree.top):
        alike: dict[str, list[str]] = defaultdict(list)
        for name in made.tree.names(tier):
            alike[name.casefold().lstrip("0") or "0"].append(name)
        for names in [names for names in alike.values() if len(names) > 1][:_TOLD]:
            what = "devices" if tier == 0 else "teams"
            findings.warn(f"the {what} {', '.join(map(repr, names[:_TOLD]))} have nearly the same name; are they one?")


def _doubles(made: Population, plan: Plan, table: Table, findings: Findings, others: Sequence[str]) -> None:
    """Warn of rows of one device that are equal in every feature, the label and the other columns that are read."""
    if len(made.x) > _LOOKED_AT:
        findings.notes.append(f"rows that stand twice were not looked for: there are more than {_LOOKED_AT:,} rows")
        return
    owner = torch.arange(made.devices).repeat_interleave(made.start.diff())
    parts = [
        made.x.reshape(len(made.x), -1).double(),
        made.y.reshape(len(made.y), -1).double(),
        owner[:, None].double(),
    ]
    rows = torch.cat(parts, 1).numpy()
    copies, original = _copies(rows)
    if len(copies) and others:
        copies, original = _copies(np.concatenate([rows, _numbered(table, others, plan)], 1))
    if not len(copies):
        return
    row_of = np.empty(len(plan.rows), dtype=np.int64)
    row_of[plan.place] = plan.rows
    one, other = sorted((int(row_of[copies[0]]), int(row_of[original[copies[0]]])))
    many = f"{len(copies):,} rows stand" if len(copies) > 1 else "1 row stands"
    text = f"{many} twice, such as {table.where(one)} and {table.where(other)}"
    findings.warn(text, table.where(other), None, made.tree.name(0, int(owner[copies[0]])))


def _copies(rows: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return which rows equal one before them, and for every row the first that equals it."""
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.shape[1] * 8))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    original = first[inverse.reshape(-1)]
    return np.flatnonzero(original != np.arange(len(keys))), original


def _numbered(table: Table, names: Sequence[str], plan: Plan) -> NDArray[np.float64]:
    """Return columns of the rows of a population, in their places there, with a number for each different cell."""
    batches = [batch for _, batch in table.batches(list(names))]
    found = np.empty((len(plan.rows), len(names)))
    for at, name in enumerate(names):
        cells = pa.chunked_array([columns.names(columns.plain(batch.column(name))) for batch in batches], pa.string())
        numbers = np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in cells.dictionary_encode().chunks])
        found[plan.place, at] = numbers[plan.rows]
    return found


def _leaks(made: Population, findings: Findings) -> None:
    """Warn of features that are the label in other words."""
    if made.encoding is None or made.encoding.tokens:
        return
    x, y = made.x[:_SAMPLE].double().numpy(), made.y[:_SAMPLE].numpy()
    for one, strength in zip(made.encoding.inputs, _strongest(x, y, made.classes), strict=True):
        if strength >= _LEAK:
            findings.warn(
                f"it tells the label nearly by itself (correlation {strength:.4f}); leave it out if it is not known beforehand",
                None,
                one.column,
            )


def _strongest(x: NDArray[np.float64], y: NDArray[np.float64], classes: int | None) -> NDArray[np.float64]:
    """Return the largest correlation of every feature with the target or with one of the first hundred classes."""
    targets = (
        y[:, None].astype(np.float64) if classes is None else (y[:, None] == np.arange(min(classes, 100))).astype(float)
    )
    if classes is None and targets.ndim > 2:
        return np.zeros(x.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = x - x.mean(0), targets - targets.mean(0)
        found = np.abs(a.T @ b) / np.sqrt(np.square(a).sum(0)[:, None] * np.square(b).sum(0))
    strongest: NDArray[np.float64] = np.nan_to_num(found, nan=0.0, posinf=0.0).max(1)
    return strongest
