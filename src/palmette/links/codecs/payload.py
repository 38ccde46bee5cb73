"""The bytes of one row: which entries are sent, scales, numbers; compressed where the codec says so."""

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
_RATIO = 1 << 15  # zstd cannot make more of a byte: a block of at most 128 KiB takes at least 4 bytes


@dataclass(frozen=True)
class Form:
    """How the bytes of a row are laid out.

    Attributes:
        width: Entries of a row.
        numbers: Type of a number as it is sent.
        scales: How many scales (float32) come before the numbers.
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

    @property
    def _head(self) -> int:
        """How many bytes say which entries are sent."""
        if self.kind == "top" and self._by_position:
            return 1 + places.position_bytes(self.width, self.count)
        return 0 if self.kind == "all" else places.mask_bytes(self.width) + (self.kind == "top")

    @property
    def _least(self) -> int:
        """How many bytes a row takes at least, before compression."""
        return self._head + 4 * self.scales + (0 if self.kind == "mask" else self.count * self.numbers.itemsize)

    @property
    def _most(self) -> int:
        """How many bytes a row takes at most, before compression."""
        return self._least + (self.width * self.numbers.itemsize if self.kind == "mask" else 0)

    def lengths(self, chosen: Tensor | None, rows: int) -> Tensor:
        """Return the bytes of each row before compression."""
        lengths = torch.full((rows,), self._least)
        if self.kind == "mask" and chosen is not None:
            lengths += chosen.sum(1).cpu() * self.numbers.itemsize
        return lengths

    def blobs(self, written: Written, chosen: Tensor | None) -> list[bytes]:
        """Return the bytes of each row.

        Args:
            written: The rows in their number format.
            chosen: Which entries are sent (bool); ``None`` for all.
        """
        codes = raw_bytes(written.codes).view(self._word).reshape(written.codes.shape)
        scales = None if written.scales is None else raw_bytes(written.scales).reshape(len(codes), 4 * self.scales)
        masks = None if chosen is None else chosen.cpu().numpy()
        blobs = []
        for row, code in enumerate(codes):
            where = b"" if masks is None else self._places(masks[row])
            scale = b"" if scales is None else scales[row].tobytes()
            blob = where + scale + (code if masks is None else code[masks[row]]).tobytes()
            blobs.append(_compressed(blob) if self.zstd else blob)
        return blobs

    @property
    def _word(self) -> str:
        """Numpy's type for the bytes of a number; it knows no bfloat16."""
        return f"u{self.numbers.itemsize}"

    def _places(self, chosen: NDArray[np.bool_]) -> bytes:
        if self.kind == "mask":
            return places.write_mask(chosen)
        if self._by_position:
            return _POSITIONS + places.write_positions(np.flatnonzero(chosen), self.width)
        return _MASK + places.write_mask(chosen)

    def read(self, blobs: Sequence[bytes]) -> Written:
        """Return the rows that the bytes hold, or refuse bytes that cannot be rows of this form."""
        raws = [np.frombuffer(self._opened(blob), np.uint8) for blob in blobs]
        found = [self._sent(raw[: self._head]) for raw in raws]
        start = self._head + 4 * self.scales
        for raw, (_, count) in zip(raws, found, strict=True):
            if len(raw) - start != count * self.numbers.itemsize:
                raise WireError(f"a payload names {count} entries, but {len(raw) - start} bytes of numbers follow")
        codes = np.zeros((len(raws), self.width), self._word)
        scales = np.zeros((len(raws), self.scales), np.float32)
        for raw, (where, _), scale, code in zip(raws, found, scales, codes, strict=True):
            scale[:] = np.frombuffer(raw[self._head : start].tobytes(), np.float32)
            code[where] = np.frombuffer(raw[start:].tobytes(), self._word)
        return Written(
            torch.from_numpy(codes.view(np.uint8)).flatten().view(self.numbers).reshape(codes.shape),
            torch.from_numpy(scales) if self.scales else None,
        )

    def _opened(self, blob: bytes) -> bytes:
        """Return the bytes of a row before compression, if they can be as many."""
        least, most = self._least, self._most
        if self.zstd:
            blob = _expanded(blob, least, most)
        if not least <= len(blob) <= most:
            wanted = f"{most}" if least == most else f"{least} to {most}"
            raise WireError(f"a payload for {self.width} numbers has {len(blob)} bytes and not {wanted}")
        return blob

    def _sent(self, data: places.Bytes) -> tuple[slice | NDArray[Any], int]:
        """Return which entries are sent, and how many."""
        if self.kind == "all":
            return slice(None), self.width
        if self.kind == "top":
            first, data = data[:1].tobytes(), data[1:]
            if first != (_POSITIONS if self._by_position else _MASK):
                raise WireError(f"a payload of the largest entries begins with {first!r}")
            if self._by_position:
                return places.read_positions(data, self.width, self.count), self.count
        mask = places.read_mask(data, self.width)
        return mask, int(np.count_nonzero(mask))


def raw_bytes(rows: Tensor) -> places.Bytes:
    """Return the bytes of rows in memory, in the order of all machines that torch supports: the lowest first."""
    raw: places.Bytes = rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw


@cache
def _zstd() -> Any:
    return pa.Codec("zstd")


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
    if blob[:1] != _PACKED or not least <= size <= min(most, _RATIO * len(blob)):
        raise WireError(f"a compressed payload begins with {blob[: 1 + _LENGTH]!r}, which cannot be")
    try:
        expanded: bytes = _zstd().decompress(blob[1 + _LENGTH :], decompressed_size=size, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WireError(f"a compressed payload cannot be read: {error}") from error
    return expanded
