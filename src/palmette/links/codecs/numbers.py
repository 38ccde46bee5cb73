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
    parts = rows.split(list(sizes), 1) if sizes else ()
    largest = [part.abs().amax(1) for part in parts]
    scales = torch.stack(largest, 1) if largest else rows.new_zeros((len(rows), 0))
    scales = (scales / _MOST).to(torch.float32)
    # A tensor with an entry that is not finite is sent as NaN throughout: the scale says so.
    finite = (scales * _MOST).isfinite()
    scales = scales.where(finite, math.nan).where(~(scales < _TINY), 0.0)
    if not bool(finite.all()):
        rows = rows.where(rows.isfinite(), 0.0)  # its whole number is undefined
        parts = rows.split(list(sizes), 1)
    divisors = scales.where(scales > 0, math.inf).to(rows.dtype)
    codes = torch.empty_like(rows, dtype=torch.int8)
    for part, divisor, into in zip(parts, divisors.unbind(1), codes.split(list(sizes), 1), strict=True):
        into.copy_((part / divisor[:, None]).round_())  # at most 127: a scale is off by less than one part in 2^23
    return Written(codes, scales)


def read(written: Written, dtype: torch.dtype, sizes: Sequence[int]) -> Tensor:
    """Return the rows that were written, in a floating-point type."""
    if written.scales is None:
        return written.codes.to(dtype)
    rows = written.codes.to(dtype)
    for part, scale in zip(rows.split(list(sizes), 1), written.scales.to(dtype).unbind(1), strict=True):
        part.mul_(scale[:, None])
    return rows
