"""From cells to the inputs of a model: means and categories of the training rows, and what they make of any row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from palmette.errors import BadInput
from palmette.population import Encoding, Input
from palmette.tables import columns
from palmette.tables.columns import Floats
from palmette.values import shown

Features = NDArray[Any]
Strange = Counter[tuple[str, str]]  # how many cells of a column hold a category that is not known

_TOLD = 4  # categories in a sentence


class Statistics:
    """Gathers means, deviations and categories of the training rows, batch after batch.

    Args:
        kinds: What every column becomes: ``number``, ``comma``, ``category`` or ``token``.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._moments = {name: (0, 0.0, 0.0) for name, kind in kinds.items() if kind in ("number", "comma")}
        self._seen: dict[str, dict[str, None]] = {name: {} for name, kind in kinds.items() if kind == "category"}

    def add(self, cells: Mapping[str, Any], train: NDArray[np.bool_]) -> None:
        """Take in a batch; only its training rows count."""
        for name in self._moments:
            values = columns.numbers(cells[name], comma=self._kinds[name] == "comma")[train]
            values = values[~np.isnan(values)]
            if len(values):
                self._moments[name] = _joined(self._moments[name], values)
        for name, seen in self._seen.items():
            found = columns.names(cells[name]).filter(pa.array(train)).unique().drop_null()
            seen |= dict.fromkeys(found.to_pylist())

    def inputs(self, *, scale: bool) -> tuple[Input, ...]:
        """Return the inputs of the model, in the order of the columns."""
        made: list[Input] = []
        for name, kind in self._kinds.items():
            if kind == "category":
                made += [Input(name, equals=value) for value in _sorted(self._seen[name])]
            elif kind == "token":
                made.append(Input(name))
            elif not scale:
                made.append(Input(name, fill=self._moments[name][1]))
            else:
                count, mean, squares = self._moments[name]
                spread = float(np.sqrt(squares / count)) if count else 0.0
                # What is constant but for rounding stays as it is; dividing by dust would make noise of it.
                made.append(Input(name, mean, spread if spread > 1e-12 * max(1.0, abs(mean)) else 1.0))
        return tuple(made)


def _joined(known: tuple[int, float, float], values: Floats) -> tuple[int, float, float]:
    """Join a count, a mean and a sum of squared distances with those of more values."""
    count, mean, squares = known
    more, here = len(values), float(values.mean())
    apart = here - mean
    total = count + more
    inner = float(np.square(values - here).sum())
    return total, mean + apart * more / total, squares + inner + apart * apart * count * more / total


def _sorted(names: Mapping[str, None]) -> list[str]:
    try:
        return sorted(names, key=float)
    except ValueError:
        return sorted(names)


def encode(encoding: Encoding, cells: Mapping[str, Any], *, comma: bool = False) -> tuple[Features, Strange]:
    """Return the features of a batch, one line per row, and the cells with a category that is not known.

    A missing number becomes the mean of the training rows, a missing or unknown category no category.

    Args:
        encoding: How the columns become inputs.
        cells: The columns, from `columns.plain`.
        comma: Whether numbers may have decimal commas.
    """
    rows = len(next(iter(cells.values())))
    made: Features = np.zeros((rows, len(encoding.inputs)), dtype=np.int64 if encoding.tokens else np.float32)
    unknown: Strange = Counter()
    for name, (first, inputs) in _groups(encoding).items():
        if inputs[0].equals is None:
            one, values = inputs[0], numbers_of(cells[name], comma=comma)
            _refuse_texts(name, cells[name], values)
            values = np.where(np.isnan(values), one.subtract if one.fill is None else one.fill, values)
            with np.errstate(
                over="ignore"
            ):  # what is too large becomes infinite, and is found by those who know the row
                made[:, first] = (values - one.subtract) / one.divide
            continue
        names = columns.names(cells[name])
        found = pc.index_in(names, value_set=pa.array([one.equals for one in inputs], pa.string()))
        place = np.array(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        there = place >= 0
        for entry in pc.value_counts(names.filter(pa.array(~there)).drop_null()).to_pylist():
            unknown[name, entry["values"]] += entry["counts"]
        made[np.flatnonzero(there), first + place[there]] = 1
    return made, unknown


def strange_cells(found: Strange) -> str:
    """Name some of the categories that are not known, the most frequent first, each with its column."""
    some = [f"{shown(cell)} in column {name!r}" for (name, cell), _ in found.most_common(_TOLD)]
    return ", ".join(some) + (f" and {len(found) - _TOLD:,} more" if len(found) > _TOLD else "")


def _refuse_texts(name: str, array: Any, values: Floats) -> None:
    """Refuse a cell that is no number; only a missing one may become the mean. Those who know the row look before."""
    wrong = np.isnan(values) & array.is_valid().to_numpy(zero_copy_only=False)
    if wrong.any():
        raise BadInput(f"column {name!r}: {shown(str(array[int(wrong.argmax())]))} is not a number; correct it")


def numbers_of(array: Any, *, comma: bool) -> Floats:
    """Return a plain column as numbers, cell by cell with a point or, where there may be some, with a decimal comma."""
    return columns.numbers(array, comma=comma)


def _groups(encoding: Encoding) -> dict[str, tuple[int, list[Input]]]:
    """Return the inputs of every column with the place of the first."""
    groups: dict[str, tuple[int, list[Input]]] = {}
    for place, one in enumerate(encoding.inputs):
        groups.setdefault(one.column, (place, []))[1].append(one)
    return groups
