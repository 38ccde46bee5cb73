"""A table as a population: read three times through Arrow, never held in memory as a whole."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette import values
from palmette.errors import BadInput, PalmetteWarning
from palmette.population import Encoding, Population
from palmette.population.packing import LARGEST, arrange
from palmette.population.recipe import Recipe
from palmette.population.saved import Packing
from palmette.population.unseen import keep_out
from palmette.tables import columns
from palmette.tables.encode import Statistics, Strange, encode, numbers_of, strange_cells
from palmette.tables.how import How, make_how
from palmette.tables.meaning import Understood
from palmette.tables.places import plant
from palmette.tables.source import Table, open_table
from palmette.tables.understand import understand
from palmette.tree import Ints, Tree
from palmette.values import Array

Names = str | Sequence[str] | None


def read_table(
    source: Any,
    *,
    device: str | None = None,
    label: str | None = None,
    team: Names = None,
    features: Names = None,
    drop: Names = None,
    categories: Names = None,
    tokens: Names = None,
    target: str = "auto",
    missing: str = "refuse",
    scale: str = "standard",
    test: float = 0.25,
    split: str | None = None,
    time: str | None = None,
    unseen: float = 0.0,
    repeats: str = "apart",
    encoding: str = "auto",
    delimiter: str = "auto",
    seed: int = 0,
    into: str | Path | None = None,
) -> Population:
    """Make a population from a table of your own: a CSV or Parquet file, a folder of them, a pandas or Arrow table.

    Args:
        source: The path, or the table.
        device: Column that names the device of a row.
        label: Column that is to be learned: names or numbers.
        team: Columns that name the teams, from the top down, as in ``region,hospital``; without any, devices have no teams.
        features: Columns to learn from; by default all that are left.
        drop: Columns to leave out.
        categories: Columns whose values are categories though they are numbers, or too many to be taken as such unasked.
            Columns of texts are categories anyway: each value becomes an input of 0 or 1.
        tokens: Columns of whole numbers that name words or other things; they are then all the features there are. Any other
            column of whole numbers is a number.
        target: What the label is: ``"class"``, ``"number"`` (regression), or ``"auto"``: texts and up to 20 different whole
            numbers are classes.
        missing: What to do with missing values: ``"refuse"``; ``"mean"``: a number becomes the mean of the training rows, a
            category no category; ``"drop"``: the row is left out.
        scale: Scaling of numbers: ``"standard"`` subtracts the mean of the training rows and divides by their standard
            deviation; ``"none"``.
        test: Test share: the part of each device's rows kept for testing.
        split: Column that says ``train`` or ``test`` of every row, in place of the test share.
        time: Column that says when a row was made, a number or a date: the last rows of each device are for testing.
        unseen: Part of the devices that is kept out of training, to see how models do on new devices.
        repeats: What a device's name at two places means: ``"apart"``, two devices, told apart by their path; or ``"refuse"``.
        encoding: Encoding of a CSV file, such as ``"latin-1"``; found out by default.
        delimiter: What separates the cells of a CSV file, such as ``";"`` or ``"tab"``; found out by default.
        seed: Seed of the split and of the devices kept out.
        into: A new folder to pack the population into, for tables larger than memory; `load_population` opens it again.
    """
    given = {name: value for name, value in locals().items() if name in How.__dataclass_fields__}
    seed = values.seed(seed)
    for name in ("encoding", "delimiter"):
        if not isinstance(given[name], str):
            raise BadInput(f"data.{name} = {values.shown(given[name])} must be a word")
    table = open_table(source, encoding=encoding, delimiter=delimiter)
    for problem in table.problems:
        raise BadInput(problem)
    how = make_how(given, table.columns)
    found = understand(table, how)
    found.findings.refuse(table.name)
    made, _ = pack(table, found, seed, into)
    found.findings.refuse(table.name)
    for note in (*found.findings.notes, *map(str, found.findings.warnings)):
        warnings.warn(
            f"{table.name}: {note}".replace(f"{table.name}: {table.name}", table.name), PalmetteWarning, stacklevel=2
        )
    return made


@dataclass
class Plan:
    """Where every row of a table goes.

    Attributes:
        tree: The tree.
        rows: The rows that are used.
        device: The device's number of each of them.
        place: The place of each of them in the population.
        train: Whether each of them trains.
        start: Where each device's samples begin.
        counts: How many of each device's samples train.
        unseen: Which devices are kept out.
    """

    tree: Tree
    rows: Ints
    device: Ints
    place: Ints
    train: NDArray[np.bool_]
    start: Tensor
    counts: Tensor
    unseen: Tensor | None


def pack(
    table: Table, found: Understood, seed: int, into: str | Path | None = None, known: Encoding | None = None
) -> tuple[Population, Plan]:
    """Make the population of a table that was understood; return it with where every row went.

    Args:
        table: The table.
        found: What it means; its findings are added to.
        seed: Seed of the split and of the devices kept out.
        into: A folder to pack it into; ``None`` for memory.
        known: How models that are there already read its columns; by default the table's own means and categories.
    """
    how = found.how
    plan = lay_out(found, seed)
    encoding = known or _encoding(table, found, plan)
    shape = (len(plan.rows), len(encoding.inputs))
    if not shape[1]:
        raise BadInput(f"{table.name}: the training rows have no value in any feature")
    packing = None if into is None else Packing(into)
    if packing is None:
        hint = "pack it into a folder: palmette data pack, or into= in Python"
        values.refuse_larger_than_memory(f"the {shape[0]:,} samples of {table.name}", 2 * 4 * shape[0] * shape[1], hint)
    try:
        dtype = np.int64 if encoding.tokens else np.float32
        x = np.empty(shape, dtype) if packing is None else packing.room("x", shape, dtype)
        y = _fill(table, found, encoding, plan, x)
        made = Population(
            plan.tree,
            torch.from_numpy(x),
            torch.from_numpy(y),
            plan.start,
            plan.counts,
            classes=None if found.classes is None else len(found.classes),
            source=table.name,
            encoding=encoding,
            unseen=plan.unseen,
        )
        if table.path is not None:
            told = {"name": str(table.path), **how.as_dict(), "fingerprint": table.fingerprint}
            made = made.made_by(Recipe(told, seed))
        return made if packing is None else packing.finish(made), plan
    except BaseException:
        if packing is not None:
            packing.drop()
        raise


def _encoding(table: Table, found: Understood, plan: Plan) -> Encoding:
    """Find out how the columns become inputs: means, deviations and categories of the training rows."""
    how, learnt = found.how, Statistics(found.kinds)
    for cells, _, trains in _used(table, list(found.kinds), plan):
        learnt.add(cells, trains)
    inputs = learnt.inputs(scale=how.scale == "standard")
    return Encoding(inputs, how.label, found.classes, how.device, how.team, how.missing, bool(how.tokens))


def lay_out(found: Understood, seed: int) -> Plan:
    """Decide where every row goes: its device, its place, and whether it trains."""
    how, rows = found.how, np.flatnonzero(found.keep)
    if not len(rows):
        raise BadInput("no row is left to be used; see what is missing with 'palmette data check'")
    present = np.flatnonzero(np.bincount(found.owner[rows], minlength=len(found.paths)))
    if len(present) < len(found.paths):
        gone = "/".join(found.paths[int(np.setdiff1d(np.arange(len(found.paths)), present)[0])])
        many = len(found.paths) - len(present)
        found.findings.warn(f"{many} devices have no row left and are left out, such as {gone!r}", device=gone)
    tree, number = plant([found.paths[at] for at in present], found.findings, refuse_repeats=how.repeats == "refuse")
    of_path = np.full(len(found.paths), -1, dtype=np.int64)
    of_path[present] = number
    device = of_path[found.owner[rows]]
    moment = None if found.moment is None else torch.from_numpy(found.moment[rows])
    test: float | Tensor = how.test if found.test is None else torch.from_numpy(found.test[rows])
    order, start, counts = arrange(tree, torch.from_numpy(device), test=test, seed=seed, moment=moment)
    place = np.empty(len(rows), dtype=np.int64)
    place[order.numpy()] = np.arange(len(rows))
    unseen = keep_out(tree, how.unseen, seed)
    train = place - start.numpy()[device] < counts.numpy()[device]
    if unseen is not None:
        train &= ~unseen.numpy()[device]
    return Plan(tree, rows, device, place, train, start, counts, unseen)


def _used(table: Table, names: list[str], plan: Plan) -> Iterator[tuple[dict[str, Any], slice, NDArray[np.bool_]]]:
    """Give the used rows of every batch: their cells, their range among all used rows, and which of them train."""
    for begin, batch in table.batches(names):
        low, high = np.searchsorted(plan.rows, [begin, begin + batch.num_rows])
        if low == high:
            continue
        cells = {name: columns.plain(batch.column(name)) for name in names}
        if high - low < batch.num_rows:
            chosen = pa.array(plan.rows[low:high] - begin)
            cells = {name: array.take(chosen) for name, array in cells.items()}
        yield cells, slice(int(low), int(high)), plan.train[low:high]


def _fill(table: Table, found: Understood, encoding: Encoding, plan: Plan, x: Array) -> Array:
    """Write the features into their places and return the labels in theirs."""
    regression = encoding.classes is None
    y: Array = np.empty(len(plan.rows), dtype=np.float32 if regression else np.int64)
    unknown: Strange = Counter()
    for cells, rows, _ in _used(table, [*found.kinds, encoding.label], plan):
        target = cells.pop(encoding.label)
        place = plan.place[rows]
        y[place] = numbers_of(target, comma=table.decimal_commas) if regression else class_numbers(encoding, target)
        made, strange = encode(encoding, cells, comma=table.decimal_commas)
        _refuse_large(made, table, encoding, plan, rows.start)
        x[place] = made
        unknown += strange
    if unknown:
        count = unknown.total()
        found.findings.notes.append(
            f"{count:,} {'cells hold' if count != 1 else 'cell holds'} a category that no training row has: "
            f"{strange_cells(unknown)}; left out"
        )
    return y


def _refuse_large(made: Array, table: Table, encoding: Encoding, plan: Plan, first: int) -> None:
    """Refuse a number that is beyond all others of its column, so that it has no place in a 32-bit number."""
    large = np.abs(made) > LARGEST
    if large.any():
        row, place = (int(one) for one in np.argwhere(large)[0])
        device, column = plan.tree.name(0, int(plan.device[first + row])), encoding.inputs[place].column
        raise BadInput(
            f"{table.name}: {table.where(int(plan.rows[first + row]))}, column {column!r}, device {device!r}: the number is "
            f"above {LARGEST:.0e} after scaling; correct it"
        )


def class_numbers(encoding: Encoding, target: Any) -> Array:
    """Return the class of every label; -1 where it is none of the known classes."""
    found = pc.index_in(columns.names(target), value_set=pa.array(encoding.classes, pa.string()))
    return np.array(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
