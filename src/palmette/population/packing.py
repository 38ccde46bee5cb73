"""Turn samples and a device number per sample into the packed, split arrays of a population.

Everything here works on whole columns: a million devices of sixteen samples are two sorts and two gathers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.tree import Tree

_KEPT = (torch.uint8, torch.int64, torch.float32, torch.float64)
_SCAN = 1 << 24  # values looked at together, so that a check never holds a second copy of the data


class Packed(NamedTuple):
    """Samples in device order, training part first: the arrays of a `Population`."""

    x: Tensor
    y: Tensor
    start: Tensor
    train: Tensor
    classes: int | None


def pack(
    tree: Tree,
    x: Tensor,
    y: Tensor,
    device: Tensor,
    *,
    test: float | Tensor,
    seed: int,
    classes: int | None = None,
    limit: int | None = None,
) -> Packed:
    """Check the samples, split every device's own and sort them by device.

    A sample's place within its device is drawn from (seed, the device's address, its rank among the device's samples), so a
    device that knows only its own samples finds the same split, whoever else is in the tree.

    Args:
        tree: The tree whose devices the samples belong to.
        x: Features, one row per sample.
        y: Labels or targets, one row per sample.
        device: The device's number of every sample.
        test: The part of each device's samples kept for testing, or a flag per sample: the user's own split.
        seed: Seed of the split.
        classes: Number of classes; found from integer labels when not given.
        limit: Cut every device's training part to this many samples and leave its test part whole.
    """
    _check_lengths(x, y, device)
    classes = _check_values(tree, x, y, device, classes)
    total = torch.bincount(device, minlength=tree.devices)
    flags: Tensor | None = None
    if isinstance(test, Tensor):
        if test.shape != device.shape:
            raise BadInput(f"test has {len(test)} flags for {len(device)} samples; give one per sample or a fraction")
        flags = test
        train = torch.bincount(device[~test], minlength=tree.devices)
    else:
        if not 0 <= test < 1:
            raise BadInput(f"test = {test} is not a fraction in 0 <= test < 1")
        # The tiny addend keeps a product like 0.9 * 10 from being cut to 8.
        train = torch.floor((1 - test) * total.double() + 1e-9).long().clamp_min(1).minimum(total)
    _check_counts(tree, total, train, limit)
    order = _order(device, flags, seed, torch.from_numpy(tree.addresses[0]))
    if limit is not None:
        first = (total.cumsum(0) - total).repeat_interleave(total)
        rank = torch.arange(len(order)) - first
        order = order[(rank < limit) | (rank >= train.repeat_interleave(total))]
        total, train = total - train + limit, torch.full_like(train, limit)
    start = torch.zeros(tree.devices + 1, dtype=torch.int64)
    torch.cumsum(total, 0, out=start[1:])
    return Packed(x[order], y[order], start, train, classes)


def as_tensor(values: Any, what: str) -> Tensor:
    """View an array as a tensor of one of the kept types, without a copy where there need not be one."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "buif":
            raise BadInput(f"{what} must be numbers, not {array.dtype}; encode names as numbers first")
        if array.dtype.kind in "ui" and array.dtype.itemsize > 1:
            array = array.astype(np.int64, copy=False)
        elif array.dtype.kind == "f" and array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
        with warnings.catch_warnings():
            # Read-only arrays (memory maps) are welcome: `pack` only ever reads from them.
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    if tensor.dim() == 0 or len(tensor) == 0:
        raise BadInput(f"{what} holds no samples; it needs one row per sample")
    if tensor.dtype in _KEPT:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    if tensor.is_complex():
        raise BadInput(f"{what} must be real numbers, not {tensor.dtype}")
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def first_row(values: Tensor, bad: Callable[[Tensor], Tensor]) -> int | None:
    """Return the first row holding a value for which ``bad`` is true."""
    rows = max(1, _SCAN // max(1, values[0].numel()))
    for begin in range(0, len(values), rows):
        flags = bad(values[begin : begin + rows])
        if flags.any():
            return begin + int(flags.reshape(len(flags), -1).any(1).long().argmax())
    return None


def _order(device: Tensor, flags: Tensor | None, seed: int, addresses: Tensor) -> Tensor:
    """Return the samples' order: by device, then training before test where flagged, then by hash."""
    by_device = torch.argsort(device, stable=True)
    owner = device[by_device]
    total = torch.bincount(owner, minlength=len(addresses))
    rank = torch.arange(len(owner)) - (total.cumsum(0) - total)[owner]
    bits = address.mix(address.mix(address.key(seed, "split"), addresses)[owner], rank)
    group = owner if flags is None else owner * 2 + flags[by_device]
    # One sort of one integer: the group in the high half, 32 bits of the hash in the low one, whatever the number of
    # devices. The sort is stable, so two equal hashes still have a defined order.
    return by_device[torch.argsort((group << 32) | (bits & 0xFFFFFFFF), stable=True)]


def _check_lengths(x: Tensor, y: Tensor, device: Tensor) -> None:
    if not len(x) == len(y) == len(device):
        raise BadInput(f"x has {len(x)} samples, y has {len(y)} and device has {len(device)}; they must be equal")


def _check_values(tree: Tree, x: Tensor, y: Tensor, device: Tensor, classes: int | None) -> int | None:
    """Refuse values no model can learn from, by the device's name, and return the number of classes."""

    def refuse(row: int | None, text: str) -> None:
        if row is not None:
            raise BadInput(f"device {tree.name(0, int(device[row]))!r} (sample {row}): {text}")

    if x.is_floating_point():
        refuse(first_row(x, lambda part: ~torch.isfinite(part)), "a feature is NaN or infinite; clean x first")
    if y.is_floating_point():
        if classes is not None:
            raise BadInput(f"y holds {y.dtype} targets but classes = {classes}; give whole labels, or no classes")
        refuse(first_row(y, lambda part: ~torch.isfinite(part)), "a target is NaN or infinite; clean y first")
        return None
    if classes is not None and classes < 1:
        raise BadInput(f"classes = {classes} must be at least 1")
    refuse(first_row(y, lambda part: part < 0), "a label is negative; labels are 0, 1, ... classes - 1")
    found = int(y.max()) + 1
    if classes is not None and found > classes:
        known = classes
        row = first_row(y, lambda part: part >= known)
        refuse(row, f"a label is above {classes - 1} (the largest is {found - 1}); raise classes = {classes}")
    return found if classes is None else classes


def _check_counts(tree: Tree, total: Tensor, train: Tensor, limit: int | None) -> None:
    """Refuse devices that cannot train and warn of those that cannot be tested."""
    if bool((train == 0).any()):
        number = int((train == 0).long().argmax())
        why = "no samples" if total[number] == 0 else "no training samples"
        raise BadInput(f"device {tree.name(0, number)!r} has {why}; give it some or take it out of the tree")
    if limit is not None and bool((train < limit).any()):
        number = int((train < limit).long().argmax())
        raise BadInput(
            f"device {tree.name(0, number)!r} has {int(train[number])} training samples, fewer than "
            f"samples = {limit}; lower samples or use fewer devices"
        )
    untested = train == total
    if bool(untested.any()):
        name = tree.name(0, int(untested.long().argmax()))
        message = f"device {name!r} has no test samples ({int(untested.sum())} of {tree.devices} devices have none)"
        warnings.warn(message, UserWarning, stacklevel=4)
