"""Rows that are mostly zero, as they cross a link: one bit per entry and the values of those that are not zero.

A program wraps what it sends in `Sparse`; the receiver computes with plain rows, in which every entry at or under the
tolerance is zero. The encoding is exact: what is decoded is, bit for bit, what was wrapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.links.codecs import Codec

MASK = Codec(mask=True)
"""The codec that sends sparse rows."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """Rows to be sent as a bit mask and values.

    Attributes:
        rows: The rows as the receiver will see them: entries with ``|v| <= tolerance`` are zero.
        tolerance: What counts as zero.
    """

    rows: Tensor
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", prune(self.rows, self.tolerance))

    def sizes(self) -> Tensor:
        """Return the bytes each row takes: a mask of one bit per entry, then the values that are not zero."""
        return MASK.encode(self.rows, [math.prod(self.rows.shape[1:])], {}).lengths


def prune(rows: Tensor, tolerance: float) -> Tensor:
    """Return rows with every entry of at most ``tolerance`` in absolute value set to zero; what is not a number stays."""
    return torch.where(rows.abs() <= tolerance, torch.zeros((), dtype=rows.dtype, device=rows.device), rows)


def plain(body: Any) -> Any:
    """Return a message or reply as its receiver sees it: plain rows in place of sparse ones."""
    if isinstance(body, Sparse):
        return body.rows
    if isinstance(body, Mapping):
        return {name: plain(value) for name, value in body.items()}
    return body


def density(rows: Tensor, tolerance: float) -> Tensor:
    """Return the share of entries of each row that are above ``tolerance`` in absolute value (float64, on CPU)."""
    flat = rows.flatten(1)
    return (flat.abs() > tolerance).sum(1).to("cpu", torch.float64) / flat.shape[1]


def published_bytes(rows: Tensor, tolerance: float) -> Tensor:
    """Return what each row costs by the formula of sFedHP's Remark 1, in bytes.

    It counts 64 bits for every entry that is not zero, one bit for every zero, and one bit of location for every entry: the
    zeros are counted twice, and values have twice our width.
    """
    width = rows.flatten(1).shape[1]
    filled = density(rows, tolerance) * width
    return (64 * filled + (width - filled) + width) / 8
