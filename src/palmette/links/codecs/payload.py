"""The bytes of one row: scales, which entries are sent, their numbers; compressed where the codec says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.errors import WireError
from palmette.links.codecs import places
from palmette.links.codecs.numbers import Written

_POSITIONS, _MASK = b"\0", b"\1"  # first byte of a payload with the largest entries: how their places are written
_STORED, _PACKED = b"\0", b"\1"  # first byte of what zstd was asked to compress: whether it did
_LENGTH = 8  # bytes of the length that was compressed


@dataclass(frozen=True)
class Form:
    """How the bytes of a row are laid out.

    Attributes:
        width: Entries of a row.
        numbers: Type of a number as it is sent.
        scales: How many scales (float32) come first.
        kind: Whether all entries are sent, those that are not zero, or a number of the largest.
        count: How many entries are sent, where that is given by the width.
        zstd: Whether the bytes are compressed.
    """

    width: int
    numbers: torch.dtype
    scales: int
    kind: Literal["all", "mask", "top"]
    count: int
    zstd: bool

    @property
    def _by_position(self) -> bool:
        return places.position_bytes(self.width, self.count) < places.mask_bytes(self.width)

    def _head(self) -> int:
        """Return the bytes before the numbers."""
        head = 4 * self.scales
        if self.kind == "all":
            return head
        if self.kind == "top" and self._by_position:
            return head + 1 + places.position_bytes(self.width, self.count)
        return head + places.mask_bytes(self.width) + (self.kind == "top")

    def lengths(self, chosen: Tensor | None, rows: int) -> Tensor:
        """Return the bytes of each row before compression."""
        if self.kind == "mask":
            assert chosen is not None
            count = chosen.sum(1).cpu()
        else:
            count = torch.full((rows,), self.count)
        return self._head() + count * self.numbers.itemsize

    def blobs(self, written: Written, chosen: Tensor | None) -> list[bytes]:
        """Return the bytes of each row.

        Args:
            written: The rows in their number format.
            chosen: Which entries are sent (bool); ``None`` for all.
        """
        codes = _raw(written.codes).reshape(len(written.codes), self.width, self.numbers.itemsize)
        scales = None if written.scales is None else _raw(written.scales).reshape(len(codes), 4 * self.scales)
        masks = None if chosen is None else chosen.cpu().numpy()
        blobs = []
        for row, code in enumerate(codes):
            head = b"" if scales is None else scales[row].tobytes()
            if masks is None:
                blob = head + self._numbers(code)
            else:
                blob = head + self._places(masks[row]) + self._numbers(code[masks[row]])
            blobs.append(_compressed(blob) if self.zstd else blob)
        return blobs

    def _numbers(self, code: places.Bytes) -> bytes:
        return (code.T if self.zstd else code).tobytes()

    def _places(self, chosen: places.Bytes) -> bytes:
        if self.kind == "mask":
            return places.write_mask(chosen)
        if self._by_position:
            return _POSITIONS + places.write_positions(np.flatnonzero(chosen), self.width)
        return _MASK + places.write_mask(chosen)

    def read(self, blobs: Sequence[bytes]) -> Written:
        """Return the rows that the bytes hold, or refuse bytes that cannot be rows of this form."""
        raws = [np.frombuffer(self._opened(blob), np.uint8) for blob in blobs]
        size, head = self.numbers.itemsize, 4 * self.scales
        codes = np.zeros((len(raws), self.width, size), np.uint8)
        scales = np.zeros((len(raws), head), np.uint8)
        for row, raw in enumerate(raws):
            scales[row] = raw[:head]
            where, numbers = self._split(raw[head:])
            codes[row, where] = numbers.reshape(size, -1).T if self.zstd else numbers.reshape(-1, size)
        return Written(
            torch.from_numpy(codes).flatten().view(self.numbers).reshape(len(raws), self.width),
            torch.from_numpy(scales).view(torch.float32) if head else None,
        )

    def _opened(self, blob: bytes) -> bytes:
        """Return the bytes of a row before compression, if they can be as many."""
        most = self._head() + (self.width if self.kind == "mask" else self.count) * self.numbers.itemsize
        least = self._head() if self.kind == "mask" else most
        if self.zstd:
            blob = _expanded(blob, least, most)
        if not least <= len(blob) <= most:
            wanted = f"{most}" if least == most else f"{least} to {most}"
            raise WireError(f"a payload for {self.width} numbers has {len(blob)} bytes and not {wanted}")
        return blob

    def _split(self, data: places.Bytes) -> tuple[slice | NDArray[np.intp], places.Bytes]:
        """Return which entries are sent, and the bytes of their numbers."""
        if self.kind == "all":
            return slice(None), data
        if self.kind == "top":
            first, data = data[:1].tobytes(), data[1:]
            if first != (_POSITIONS if self._by_position else _MASK):
                raise WireError(f"a payload of the largest entries begins with {first!r}")
        end = places.mask_bytes(self.width)
        if self.kind == "top" and self._by_position:
            end = places.position_bytes(self.width, self.count)
            where = places.read_positions(data[:end], self.width, self.count)
        else:
            where = places.read_mask(data[:end], self.width)
        if len(data) - end != len(where) * self.numbers.itemsize:
            raise WireError(f"a mask names {len(where)} entries, but {len(data) - end} bytes of numbers follow")
        return where, data[end:]


def _raw(rows: Tensor) -> places.Bytes:
    """Return the bytes of rows in memory, in the order of all machines that torch supports: the lowest first."""
    raw: places.Bytes = rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw


@cache
def _zstd() -> Any:
    return pa.Codec("zstd", compression_level=3)


def _compressed(blob: bytes) -> bytes:
    """Compress bytes, or store them where that would not make them fewer."""
    packed: bytes = _zstd().compress(blob, asbytes=True)
    if len(packed) + _LENGTH < len(blob):
        return _PACKED + len(blob).to_bytes(_LENGTH, "little") + packed
    return _STORED + blob


def _expanded(blob: bytes, least: int, most: int) -> bytes:
    """Undo `_compressed`; the length is checked before there is memory for it."""
    if blob[:1] == _STORED:
        return blob[1:]
    size = int.from_bytes(blob[1 : 1 + _LENGTH], "little")
    if blob[:1] != _PACKED or not least <= size <= most:
        raise WireError(f"a compressed payload begins with {blob[: 1 + _LENGTH]!r}, which cannot be")
    try:
        expanded: bytes = _zstd().decompress(blob[1 + _LENGTH :], decompressed_size=size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WireError(f"a compressed payload cannot be read: {error}") from error
    return expanded
