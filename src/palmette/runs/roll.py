"""Who takes part in a run: a line for every node, with its parent, its samples and its labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from palmette.population import Population
from palmette.population.description import five
from palmette.tree import Tree

SCHEMA = pa.schema(
    [
        ("tier", pa.int8()),  # 0 is the devices, the last tier the server
        ("node", pa.string()),  # its name
        ("parent", pa.int32()),  # the number of its parent among the nodes of the tier above; -1 of the server
        ("train", pa.int64()),  # training samples of it, or of all devices below
        ("test", pa.int64()),
        ("unseen", pa.bool_()),  # whether the device is kept out of training
        ("labels", pa.list_(pa.int32())),  # of a device, its training samples of each class
        ("target", pa.list_(pa.float64())),  # of a device in a regression: least, quartiles and largest of its targets
    ]
)
_COUNTS = 1 << 24  # numbers of all devices together that are kept; of larger populations, labels are left out
_SAMPLES = 1 << 22  # that are looked at together


def roll(population: Population) -> pa.Table:
    """Return a line for every node, from the devices up; the names of the classes, where there are some, in the metadata.

    Labels are left out of text, which has one for each token, and of very large populations.
    """
    tree = population.tree
    columns = _lines(tree, population.train.numpy(), population.tests.numpy())
    if population.unseen is not None:
        columns["unseen"][: tree.devices] = population.unseen.tolist()
    width = 5 if population.classes is None else population.classes
    if population.y.dim() == 1 and width * population.devices <= _COUNTS:
        if population.classes is None:
            columns["target"][: tree.devices] = _targets(population)
        else:
            columns["labels"][: tree.devices] = _labels(population).tolist()
    encoding = population.encoding
    named = encoding.classes if encoding is not None and encoding.words is None else None
    about = {"classes": json.dumps(list(named))} if named is not None else {}
    return pa.table(columns, schema=SCHEMA).replace_schema_metadata(about)


def roll_of(tree: Tree, train: NDArray[np.int64], test: NDArray[np.int64]) -> pa.Table:
    """Return a line for every node of a tree whose samples are on many machines: their numbers are known, their labels not."""
    return pa.table(_lines(tree, train, test), schema=SCHEMA)


def _lines(tree: Tree, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Return the columns, without labels, of devices that all train."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for tier in range(tree.tiers):
        above, size = tree.ancestors(tier), tree.size(tier)
        columns["tier"] += [tier] * size
        columns["node"] += tree.names(tier)
        columns["parent"] += tree.parents[tier].tolist() if tier < tree.top else [-1]
        for name, values in (("train", train), ("test", test)):
            columns[name] += np.bincount(above, values, size).astype(np.int64).tolist()
        columns["unseen"] += [False] * size
        columns["labels"] += [None] * size
        columns["target"] += [None] * size
    return columns


def _labels(population: Population) -> NDArray[np.int64]:
    """Count the training samples of each class on every device, some devices at a time."""
    classes = int(population.classes or 0)
    start, train = population.start.numpy(), population.train.numpy()
    counts = np.zeros((population.devices, classes), np.int64)
    first = 0
    while first < population.devices:
        last = int(np.searchsorted(start, start[first] + _SAMPLES, side="right")) - 1
        last = min(max(last, first + 1), population.devices)
        size = np.diff(start[first : last + 1])
        device = np.repeat(np.arange(last - first), size)
        trains = np.arange(len(device)) - np.repeat(start[first:last] - start[first], size) < train[first:last][device]
        labels = population.y[start[first] : start[last]].numpy()
        found = np.bincount((device * classes + labels)[trains], minlength=(last - first) * classes)
        counts[first:last] = found.reshape(last - first, classes)
        first = last
    return counts


def _targets(population: Population) -> list[list[float]]:
    """Return least, quartiles and largest of the training targets of every device."""
    start, train = population.start.tolist(), population.train.tolist()
    return [five(population.y[begin : begin + count].numpy()) for begin, count in zip(start, train, strict=False)]
