"""Number formats: what the numbers of rows become when each is written with fewer bits.

Everything here is a function of one row at a time, so a row alone gives the same bits as in a stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
OWN = "own"
"""The format that leaves numbers as they are, in the row's own type."""

_MOST = 127  # the largest whole number of int8 whose negative is one too
_TINY = torch.finfo(torch.float32).tiny  # scales below it have few digits left, and may count as zero on some machines


@dataclass(frozen=True, eq=False)
class Written:
    """Rows in a number format.

    Attributes:
        codes: The numbers as they are sent, ``(n, width)``.
        scales: What the numbers of each tensor of the model are multiplied by, ``(n, tensors)`` in float32; only of int8.
    """

    codes: Tensor
    scales: Tensor | None = None


def dtype_of(numbers: str, row: torch.dtype) -> torch.dtype:
    """Return the type in which the numbers of rows of a type are sent."""
    return row if numbers == OWN else FORMATS[numbers]


def write(rows: Tensor, numbers: str, sizes: Sequence[int]) -> Written:
    """Write rows ``(n, width)`` in a format.

    Floating-point formats round to the nearest number they have, as torch does. What is larger than the format's largest
    number becomes infinite: cut to the largest number it would be wrong and nobody would see it.

    Args:
        rows: The rows.
        numbers: The name of the format.
        sizes: How many entries of a row each tensor of the model has, none of them 0; int8 has a scale for each.
    """
    if numbers != "int8":
        return Written(rows.to(dtype_of(numbers, rows.dtype)))
    if not sizes:
        return Written(rows.to(torch.int8), rows.new_zeros((len(rows), 0), dtype=torch.float32))
    largest = torch.stack([part.abs().amax(1) for part in rows.split(list(sizes), 1)], 1)
    scales = divisors = (largest / _MOST).to(torch.float32)
    if not _ordinary(scales):
        # A tensor with an entry that is not finite is sent as NaN throughout: the scale says so.
        scales = scales.where((scales * _MOST).isfinite(), math.nan).where(~(scales < _TINY), 0.0)
        divisors = scales.where(scales > 0, math.inf)
        rows = rows.where(rows.isfinite(), 0.0)  # their whole numbers are undefined
    codes = torch.empty_like(rows, dtype=torch.int8)
    split = zip(rows.split(list(sizes), 1), divisors.to(rows.dtype).unbind(1), codes.split(list(sizes), 1), strict=True)
    for part, divisor, into in split:
        into.copy_((part / divisor[:, None]).round_())  # at most 127: a scale is off by less than one part in 2^23
    return Written(codes, scales)


def _ordinary(scales: Tensor) -> bool:
    """Return whether all scales are neither too small to divide by nor too large to multiply with."""
    if not scales.numel():
        return True
    least, most = scales.aminmax()
    return bool(least >= _TINY) and bool(most * _MOST < math.inf)


def read(written: Written, dtype: torch.dtype, sizes: Sequence[int]) -> Tensor:
    """Return the rows that were written, in a floating-point type."""
    if written.scales is None:
        return written.codes.to(dtype)
    rows = written.codes.to(dtype)
    for part, scale in zip(rows.split(list(sizes), 1), written.scales.to(dtype).unbind(1), strict=True):
        part.mul_(scale[:, None])
    return rows
