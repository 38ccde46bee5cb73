"""Turn samples and a device number per sample into the packed, split arrays of a population.

Everything here works on whole columns: a million devices of sixteen samples are two sorts and two gathers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, PalmetteWarning
from palmette.tree import Tree
from palmette.values import Array, fraction, whole

if TYPE_CHECKING:
    from palmette.population.population import Population

_KEPT = (torch.uint8, torch.int64, torch.float32, torch.float64)
_SCAN = 1 << 24  # values looked at together, so that a check never holds a second copy of the data
_PIECE = 1 << 20  # samples that are addressed at once
LARGEST = 1e15  # of a feature or target: the squares of larger ones, added up, leave the range of 32-bit numbers
_LISTED = 100  # different whole numbers that may be classes written as floats; more are measurements
_CLASSES = 2**31  # more than any data set has; a model has one output for each


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
    classes = _check_values(tree, x, y, device, None if classes is None else whole("classes", classes, 1, _CLASSES))
    order, start, train = arrange(tree, device, test=test, seed=seed, limit=limit)
    return Packed(x[order], y[order], start, train, classes)


def arrange(
    tree: Tree,
    device: Tensor,
    *,
    test: float | Tensor,
    seed: int,
    limit: int | None = None,
    moment: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split every device's samples and return their order, where each device's begin, and how many of them train.

    Args:
        tree: The tree whose devices the samples belong to.
        device: The device's number of every sample.
        test: The part of each device's samples kept for testing, or a flag per sample.
        seed: Seed of the split.
        limit: Cut every device's training part to this many samples.
        moment: The time of every sample: a device's samples are put in the order of time and its last ones are for testing.
    """
    total = torch.bincount(device, minlength=tree.devices)
    flags: Tensor | None = None
    if isinstance(test, Tensor):
        if test.shape != device.shape:
            raise BadInput(f"test has {len(test)} flags for {len(device)} samples; give one per sample or a fraction")
        flags = test
        train = torch.bincount(device[~test], minlength=tree.devices)
    else:
        test = fraction("test", test)
        # The tiny addend keeps a product like 0.9 * 10 from being cut to 8.
        train = torch.floor((1 - test) * total.double() + 1e-9).long().clamp_min(1).minimum(total)
    _check_counts(tree, total, train, limit)
    if moment is not None:
        early = torch.argsort(moment, stable=True)
        order = early[torch.argsort(device[early], stable=True)]
    else:
        order = _order(device, flags, seed, torch.from_numpy(tree.addresses[0]))
    if limit is not None:
        first = (total.cumsum(0) - total).repeat_interleave(total)
        rank = torch.arange(len(order)) - first
        order = order[(rank < limit) | (rank >= train.repeat_interleave(total))]
        total, train = total - train + limit, torch.full_like(train, limit)
    start = torch.zeros(tree.devices + 1, dtype=torch.int64)
    torch.cumsum(total, 0, out=start[1:])
    return order, start, train


def as_tensor(values: Any, what: str) -> Tensor:
    """View an array as a tensor of one of the kept types, without a copy where there need not be one."""
    if isinstance(values, Tensor):
        tensor = dense(values, what)
    else:
        array = as_array(values, what)
        if array.dtype.kind not in "buif":
            raise BadInput(f"{what} must be numbers, not {array.dtype}; encode names as numbers first")
        if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
            raise BadInput(f"{what} holds {int(array.max())}, which is above the largest whole number, 2**63 - 1")
        if array.dtype.kind in "ui" and array.dtype.itemsize > 1:
            array = array.astype(np.int64, copy=False)
        elif array.dtype.kind == "f" and array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
        if any(stride < 0 for stride in array.strides):  # as of x[::-1], which torch has no view of
            array = array.copy()
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


def dense(values: Tensor, what: str) -> Tensor:
    """Return a tensor's values on the CPU, apart from any gradient."""
    if values.layout != torch.strided or values.device.type == "meta":
        raise BadInput(f"{what} must be a dense tensor with values, not a {values.layout} one on {values.device}")
    return values.detach().cpu()


def as_array(values: Any, what: str) -> Array:
    """View anything as an array, or say what is wrong with it."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"{what} cannot be made an array: {why}") from None


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
    total = torch.bincount(device, minlength=len(addresses))
    first, own = total.cumsum(0) - total, address.mix(address.key(seed, "split"), addresses)
    # One sort of one integer: the group in the high half, 32 bits of the hash in the low one, whatever the number of
    # devices. The sort is stable, so two equal hashes still have a defined order. Made piece by piece, as its parts would
    # take many times the memory of the result.
    keys = torch.empty_like(by_device)
    for begin in range(0, len(device), _PIECE):
        some = by_device[begin : begin + _PIECE]
        owner = device[some]
        rank = torch.arange(begin, begin + len(some)) - first[owner]
        group = owner if flags is None else owner * 2 + flags[some]
        keys[begin : begin + _PIECE] = (group << 32) | (address.mix(own[owner], rank) & 0xFFFFFFFF)
    return by_device[torch.argsort(keys, stable=True)]


def _check_lengths(x: Tensor, y: Tensor, device: Tensor) -> None:
    if not len(x) == len(y) == len(device):
        raise BadInput(f"x has {len(x)} samples, y has {len(y)} and device has {len(device)}; they must be equal")


def _check_values(tree: Tree, x: Tensor, y: Tensor, device: Tensor, classes: int | None) -> int | None:
    """Refuse values no model can learn from, by the device's name, and return the number of classes."""

    def refuse(row: int | None, text: str) -> None:
        if row is not None:
            raise BadInput(f"device {tree.name(0, int(device[row]))!r} (sample {row}): {text}")

    def refuse_feature(row: int | None) -> None:
        if row is not None:
            name, where = tree.name(0, int(device[row])), _feature(~torch.isfinite(x[row]))
            raise BadInput(f"device {name!r} (sample {row}, {where}): a feature is NaN or infinite; clean x first")

    if not x[0].numel() or not y[0].numel():
        empty, what = (x, "x") if not x[0].numel() else (y, "y")
        raise BadInput(f"a sample of {what} has the shape {tuple(empty.shape[1:])}, which holds no number at all")
    if x.is_floating_point():
        refuse_feature(first_row(x, lambda part: ~torch.isfinite(part)))
    if y.is_floating_point():
        if classes is not None:
            raise BadInput(f"y holds {y.dtype} targets but classes = {classes}; give whole labels, or no classes")
        refuse(first_row(y, lambda part: ~torch.isfinite(part)), "a target is NaN or infinite; clean y first")
        refuse(first_row(y, lambda part: part.abs() > LARGEST), f"a target is above {LARGEST:.0e}; scale y first")
        return None
    refuse(first_row(y, lambda part: part < 0), "a label is negative; labels are 0, 1, ... classes - 1")
    found = int(y.max()) + 1
    refuse(first_row(y, lambda part: part >= _CLASSES), f"the label {found - 1} is too large; number classes from 0")
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
        warnings.warn(message, PalmetteWarning, stacklevel=5)


def _feature(bad: Tensor) -> str:
    """Say which of a sample's features is meant: the first of which something is true."""
    place = [int(one) for one in bad.nonzero()[0]]
    return f"feature {place[0] if len(place) == 1 else tuple(place)}"


def refuse_unusable(population: Population) -> None:
    """Refuse packed samples that nobody can learn from, by the name of the device; they may have come in by other ways."""
    tree, x, y, start, classes = (
        population.tree, population.x, population.y, population.start, population.classes
    )  # fmt: skip

    def whose(row: int) -> str:
        device = int(torch.searchsorted(start, row, right=True)) - 1
        return f"device {tree.name(0, device)!r} (its sample {row - int(start[device])}"

    if classes is not None:
        row = first_row(y, lambda part: (part < 0) | (part >= classes))
        if row is not None:
            raise BadInput(f"{whose(row)}): a label is outside 0 to {classes - 1}")
    for values, what in ((x, "feature"), (y, "target")):
        row = first_row(values, lambda part: ~torch.isfinite(part)) if values.is_floating_point() else None
        if row is not None:
            where = f", {_feature(~torch.isfinite(x[row]))}" if what == "feature" else ""
            raise BadInput(
                f"{whose(row)}{where}): a {what} is NaN or infinite, and every model that meets it would become so; clean the "
                "data, or take the device out"
            )
    refuse_large(tree, x, start, population.affine)


def refuse_large(tree: Tree, x: Tensor, start: Tensor, affine: tuple[float, float] | None) -> None:
    """Refuse features, after their scale and shift, whose squares leave the range of 32-bit numbers."""
    if not x.is_floating_point():
        return
    scale, shift = affine or (1.0, 0.0)
    row = first_row(x, lambda part: (part * scale + shift).abs() > LARGEST)
    if row is not None:
        name = tree.name(0, int(torch.searchsorted(start, row, right=True)) - 1)
        raise BadInput(f"device {name!r}: a feature is above {LARGEST:.0e}; scale x first, for instance to -1..1")


def understood(y: Tensor, classes: int | None, given: bool) -> str | None:
    """Say what was made of labels that can be read in two ways; nothing where there is only one.

    Args:
        y: The labels or targets.
        classes: Number of classes; ``None`` for regression.
        given: Whether the user gave it.
    """
    if classes is None:
        if first_row(y, lambda part: (part < 0) | (part != part.floor())) is not None:
            return None
        values = y.unique()
        if len(values) > _LISTED:
            return None
        some = ", ".join(f"{value:.1f}" for value in values[:3].tolist()) + (", ..." if len(values) > 3 else "")
        return (
            f"y holds whole numbers as floats ({some}): taken as a regression target; give whole numbers "
            "(y.astype(int)) for classes"
        )
    values = y.unique()
    if given or len(values) == classes:
        return None
    some = ", ".join(map(str, values[:5].tolist())) + (", ..." if len(values) > 5 else "")
    return (
        f"{len(values)} of {classes} classes occur (labels {some}): taken as labels 0 to {classes - 1}, with one output of "
        f"the model for each; give classes={classes} if this is meant, or number the classes 0 to {len(values) - 1}"
    )
