"""Which entries of a row are sent, and how that is written: a bit for every entry, or the positions of those sent."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.errors import WireError

Bytes = NDArray[np.uint8]


def largest(rows: Tensor, count: int) -> Tensor:
    """Return which ``count`` entries of each row have the largest absolute values (bool); of equal ones the first.

    What is not a number counts as infinite, so that it is sent and seen.
    """
    if not rows.shape[1]:
        return torch.zeros_like(rows, dtype=torch.bool)
    weight = rows.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    least = weight.topk(count, 1, sorted=False).values.amin(1, keepdim=True)
    chosen = weight >= least
    if bool((chosen.sum(1) == count).all()):
        return chosen
    above, equal = weight > least, weight == least
    left = count - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= left))


def mask_bytes(width: int) -> int:
    """Return how many bytes a mask of one bit per entry takes."""
    return -(-width // 8)


def position_bytes(width: int, count: int) -> int:
    """Return how many bytes the positions of ``count`` entries take, each with as many bits as the last one needs."""
    return -(-count * _bits(width) // 8)


def write_mask(chosen: NDArray[np.bool_]) -> bytes:
    """Write which entries of a row are sent as one bit each."""
    return np.packbits(chosen).tobytes()


def read_mask(data: Bytes, width: int) -> NDArray[np.bool_]:
    """Return which entries a mask names, of as many bytes as `mask_bytes` says."""
    bits = np.unpackbits(data)
    if bits[width:].any():
        raise WireError("a mask has bits beyond the end of its row")
    return bits[:width].view(np.bool_)


def write_positions(positions: NDArray[np.intp], width: int) -> bytes:
    """Write positions in a row of a width, each with as many bits as the last one needs."""
    words = positions.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(words, axis=1)[:, 32 - _bits(width) :]).tobytes()


def read_positions(data: Bytes, width: int, count: int) -> NDArray[np.intp]:
    """Return the positions that were written into as many bytes as `position_bytes` says."""
    size = _bits(width)
    bits = np.unpackbits(data)
    if bits[count * size :].any():
        raise WireError("a list of positions has bits beyond its end")
    words = np.zeros((count, 32), np.uint8)
    words[:, 32 - size :] = bits[: count * size].reshape(count, size)
    positions = np.packbits(words, axis=1).view(">u4").reshape(-1).astype(np.intp)
    if len(positions) and (positions[-1] >= width or (np.diff(positions) <= 0).any()):
        raise WireError(f"positions in a row must ascend and be below its width of {width}")
    return positions


def _bits(width: int) -> int:
    return max(1, (width - 1).bit_length())
