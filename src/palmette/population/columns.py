"""Find out from a user's columns which device every sample belongs to, and which team every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.errors import BadInput, nearest
from palmette.population.packing import as_array, dense
from palmette.tree import Ints, Tree
from palmette.values import shown

Array = NDArray[Any]
_LISTED = 200  # names an error message may be compared with; finding the nearest of a million takes minutes


def resolve(samples: int, tree: Any, device: Any, team: Any) -> tuple[Tree, Ints]:
    """Return the tree and the device's number of every sample.

    Args:
        samples: How many samples there are.
        tree: A tree or what `Tree.parse` reads; ``None`` to make one from the columns.
        device: One number or name per sample.
        team: One number or name per sample, or a mapping from device to team; only without ``tree``.
    """
    if device is None:
        raise BadInput("say which device every sample belongs to: device= one number or name per sample")
    column = _column(device, samples, "device")
    if tree is not None:
        if team is not None:
            raise BadInput("the tree already says who is in which team; give tree= or team=, not both")
        return _on_tree(Tree.parse(tree), column)
    names, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    appearance = np.argsort(first)
    if team is not None:
        teams = _team_of_each(names, first, inverse, team)
        tree = Tree.from_table(names[appearance].tolist(), teams[appearance].tolist())
        number = {name: index for index, name in enumerate(tree.names(0))}
        return tree, np.array([number[name] for name in map(str, names.tolist())], dtype=np.int64)[inverse]
    if names.dtype.kind in "iu" and names[0] == 0 and names[-1] == len(names) - 1:
        return Tree.parse(len(names)), column.astype(np.int64)
    rank = np.empty(len(names), dtype=np.int64)
    rank[appearance] = np.arange(len(names))
    labels = tuple(map(str, names[appearance].tolist()))
    return Tree((np.zeros(len(names), dtype=np.int64),), (labels, None)), rank[inverse]


def join(parts: Sequence[Any], what: str) -> tuple[Array, Ints]:
    """Put one array per device behind one another and return them with their lengths."""
    arrays = [as_numpy(part, f"device {number}: {what}") for number, part in enumerate(parts)]
    if not arrays:
        raise BadInput(f"{what} is an empty list; give one array per device")
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "buif":
            raise BadInput(f"device {number}: {what} must be numbers, not {array.dtype}; encode names as numbers first")
        if array.ndim == 0:
            raise BadInput(f"{what} is a list, which means one array per device; for one row per sample give an array")
        if len(array) == 0:
            raise BadInput(f"device {number}: {what} holds no samples; give it some or take it out")
        if array.shape[1:] != arrays[0].shape[1:]:
            raise BadInput(
                f"device {number}: a sample of {what} has the shape {array.shape[1:]}, "
                f"that of device 0 {arrays[0].shape[1:]}; they must be equal"
            )
    return np.concatenate(arrays), np.array([len(array) for array in arrays], dtype=np.int64)


def per_array(column: Any, sizes: Ints, what: str) -> Array:
    """Repeat one entry per array for every sample of it."""
    entries = as_numpy(column, what)
    if entries.shape != sizes.shape:
        raise BadInput(f"{what} has the shape {entries.shape} for {len(sizes)} arrays; give one entry per array")
    return np.repeat(entries, sizes)


def numeric(values: Any, what: str, device: Any) -> Any:
    """Turn a column of mixed Python objects into numbers, or name the device of the first that is none.

    Objects that are all whole numbers, as in a table whose column may have gaps, stay whole numbers.
    """
    if isinstance(values, torch.Tensor):
        return values
    array = as_array(values, what)
    if array.dtype.kind in "buif" or array.ndim == 0:
        return array
    if array.dtype.kind == "O" and (made := _numbers(array)) is not None:
        return made
    for row, value in enumerate(array):
        if array.dtype.kind == "O" and _numbers(np.asarray(value, dtype=object)) is not None:
            continue
        owners = device if isinstance(device, np.ndarray | list | tuple) else []
        owner = f"device {str(owners[row])!r} (sample {row}): " if len(owners) > row else ""
        raise BadInput(f"{owner}{what} must be numbers, not {array.dtype}; encode names as numbers first")
    return array


def _numbers(array: Array) -> Array | None:
    """Return an array of Python objects as whole numbers or floats, or nothing where one of them is neither."""
    whole = all(isinstance(cell, Integral) and not isinstance(cell, bool) for cell in array.flat)
    try:
        return array.astype(np.int64 if whole else np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def as_numpy(values: Any, what: str) -> Array:
    """Return an array or tensor of any type as an array."""
    if not isinstance(values, torch.Tensor):
        return as_array(values, what)
    tensor = dense(values, what)
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # numpy has no such type
    return array


def _column(values: Any, samples: int, what: str) -> Array:
    """Return a column of names or whole numbers of the right length."""
    column = as_numpy(values, what)
    if column.ndim != 1 or len(column) != samples:
        raise BadInput(
            f"{what} has the shape {column.shape}, but there are {samples} samples; give one entry per sample"
        )
    if column.dtype.kind == "O":
        for row, cell in enumerate(column):
            if cell is None or (isinstance(cell, float) and cell != cell):
                raise BadInput(f"{what} of sample {row} is missing; every sample needs one")
            if isinstance(cell, bool) or not isinstance(cell, str | Integral):
                raise BadInput(f"{what} of sample {row} must be a whole number or a name, not {shown(cell)}")
        column = column.astype(str)
    if column.dtype.kind not in "iuUS":
        raise BadInput(f"{what} must be whole numbers or names, not {column.dtype}")
    try:
        return column.astype(str) if column.dtype.kind == "S" else column
    except UnicodeDecodeError:
        raise BadInput(f"{what} holds bytes that are not plain letters; decode them first") from None


def _on_tree(tree: Tree, column: Array) -> tuple[Tree, Ints]:
    """Match a column with the devices of a tree, by number or by name.

    Whole numbers are the devices' numbers, unless every name of the tree is itself a whole number: then they are names.
    """
    labels = tree.labels[0]
    if column.dtype.kind in "iu" and (labels is None or not all(label.isdecimal() for label in labels)):
        outside = (column < 0) | (column >= tree.devices)
        if outside.any():
            raise BadInput(
                f"the tree has the devices 0..{tree.devices - 1}, not {column[outside.argmax()]}; check device="
            )
        return tree, column.astype(np.int64)
    names, inverse = np.unique(column.astype(str), return_inverse=True)
    number = {name: index for index, name in enumerate(tree.names(0))}
    found = np.array([number.get(name, -1) for name in names.tolist()], dtype=np.int64)
    if (found < 0).any():
        stranger = str(names[(found < 0).argmax()])
        hint = nearest(stranger, number) if len(number) <= _LISTED else f"; its first is {next(iter(number))!r}"
        raise BadInput(f"the tree of {tree.devices} devices has no device {stranger!r}{hint}")
    return tree, found[inverse]


def _team_of_each(names: Array, first: Ints, inverse: Ints, team: Any) -> Array:
    """Return the team of every device and refuse a device that stands in two."""
    if isinstance(team, Mapping):
        by_name = {str(device): str(above) for device, above in team.items() if above is not None and above == above}
        listed = names.astype(str).tolist()
        missing = next((name for name in listed if name not in by_name), None)
        if missing is not None:
            raise BadInput(f"device {missing!r} has no team; add it to the mapping team=")
        return np.array([by_name[name] for name in listed])
    column = _column(team, len(inverse), "team")
    teams = column[first]
    stray = column != teams[inverse]
    if stray.any():
        row = int(stray.argmax())
        raise BadInput(
            f"device {str(names[inverse[row]])!r} is in the teams {str(teams[inverse[row]])!r} and "
            f"{str(column[row])!r}; a device has one team"
        )
    return teams
