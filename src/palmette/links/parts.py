"""The parts of a message's body as bytes: rows, sparse and encoded rows, numbers, texts; sizes are checked before reading."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palmette.errors import WireError
from palmette.links.codecs.payload import raw_bytes
from palmette.links.sparse import MASK, Sparse
from palmette.values import shown

_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
_TYPES = _FLOATS | {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_NUMBERS = {"int": "<q", "float": "<d", "bool": "<q"}  # 8 bytes each, as the ledger counts them
_DIMENSIONS = 8
WHOLE = 1 << 63
"""Whole numbers are below it."""


@dataclass(frozen=True)
class Coded:
    """One row that a codec has encoded.

    Attributes:
        blob: Its bytes.
        shape: Shape of the decoded row (one row, not a stack of one).
        dtype: Its floating-point type.
    """

    blob: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row(self) -> Tensor:
        """A row of this shape and type, for `Codec.decode`; it takes no memory."""
        return torch.zeros((), dtype=self.dtype).expand(self.shape)


@dataclass(frozen=True)
class Part:
    """What a message's header says of one part of the body.

    Attributes:
        name: Its name; empty for a body that is one part.
        kind: ``"rows"``, ``"sparse"``, ``"coded"``, ``"int"``, ``"float"``, ``"bool"`` or ``"text"``.
        type: Type of rows, by its name; else empty.
        shape: Shape of rows.
        length: How many bytes it takes in the message.
    """

    name: str
    kind: str
    type: str
    shape: tuple[int, ...]
    length: int

    @staticmethod
    def checked(told: Any) -> Part:
        """Return a part as a header tells of it, or refuse what cannot be one."""
        if not isinstance(told, list) or len(told) != 5:
            raise WireError(f"a part of a message is told as {shown(told)} and not by five things")
        name, kind, type_, shape, length = told
        if not (isinstance(name, str) and isinstance(kind, str) and isinstance(type_, str)) or not encodable(name):
            raise WireError(f"name, kind and type of a part must be texts, not {shown(told[:3])}")
        if not isinstance(shape, list) or len(shape) > _DIMENSIONS:
            raise WireError(
                f"the shape of {shown(name)} is {shown(shape)} and not a list of at most {_DIMENSIONS} numbers"
            )
        sizes = tuple(whole(size, 0, f"the shape of {shown(name)}") for size in shape)
        part = Part(name, kind, type_, sizes, whole(length, 0, f"the length of {shown(name)}"))
        part._check_kind()
        return part

    def _check_kind(self) -> None:
        """Refuse a kind that does not exist, or whose type, shape or length cannot be."""
        good = False
        if self.kind == "rows":
            good = self.type in _TYPES and self.length == math.prod(self.shape) * _TYPES[self.type].itemsize
        elif self.kind in ("sparse", "coded"):
            good = self.type in _FLOATS
        elif self.kind in _NUMBERS:
            good = (self.type, self.shape, self.length) == ("", (), 8)
        elif self.kind == "text":
            good = (self.type, self.shape) == ("", ())
        if not good:
            raise WireError(
                f"a message cannot hold {shown(self.name)} as {shown(self.kind)} of type {shown(self.type)} and shape "
                f"{shown(self.shape)} in {shown(self.length)} bytes"
            )

    @property
    def decoded(self) -> int:
        """How many bytes it takes when it is decoded; a size of 0 counts as 1, so that no other size can be beyond measure."""
        if self.kind not in ("rows", "sparse", "coded"):
            return self.length
        return math.prod(max(1, size) for size in self.shape) * _TYPES[self.type].itemsize

    def told(self) -> list[Any]:
        """Return what the header says."""
        return [self.name, self.kind, self.type, list(self.shape), self.length]


def write(name: str, value: Any) -> tuple[Part, bytes]:
    """Return a part of a body as bytes, with what the header says of it."""
    type_, shape = "", tuple[int, ...]()
    if isinstance(value, Tensor | Sparse | Coded):
        rows = value.rows if isinstance(value, Sparse) else value
        type_, shape = _NAMES.get(rows.dtype, str(rows.dtype)), tuple(rows.shape)
    if isinstance(value, Tensor):
        kind, blob = "rows", raw_bytes(value).tobytes()
    elif isinstance(value, Sparse):
        flat = value.rows.reshape(1, value.rows.numel())
        kind, blob = "sparse", MASK.encode(flat, [flat.shape[1]], {}).blobs()[0]
    elif isinstance(value, Coded):
        kind, blob = "coded", value.blob
    elif isinstance(value, str):
        kind, blob = "text", value.encode(errors="backslashreplace")  # what an error says may hold halves of letters
    elif isinstance(value, int) and abs(value) < WHOLE:
        kind = "bool" if isinstance(value, bool) else "int"
        blob = struct.pack("<q", value)
    elif isinstance(value, float):
        kind, blob = "float", struct.pack("<d", value)
    else:
        raise WireError(
            f"a message cannot hold {shown(name)} = {shown(value)}: give rows, or a number of at most 64 bits"
        )
    return Part.checked([name, kind, type_, list(shape), len(blob)]), blob


def read(part: Part, data: memoryview) -> Any:
    """Return the value of a part; its bytes are as many as the header says."""
    if part.kind == "text":
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the text {shown(part.name)} is not UTF-8") from error
    if part.kind in _NUMBERS:
        (number,) = struct.unpack(_NUMBERS[part.kind], data)
        if part.kind == "bool" and number not in (0, 1):
            raise WireError(f"{shown(part.name)} is {number}, which is neither false (0) nor true (1)")
        return bool(number) if part.kind == "bool" else number
    dtype = _TYPES[part.type]
    if part.kind == "coded":
        return Coded(bytes(data), part.shape, dtype)
    if part.kind == "sparse":
        row = torch.zeros((), dtype=dtype).expand(math.prod(part.shape))
        return Sparse(MASK.decode([bytes(data)], row, [len(row)], {})[0].reshape(part.shape))
    if not data:
        return torch.empty(part.shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)  # a copy: what was decoded may be written into
    if dtype == torch.bool and int(raw.max()) > 1:
        raise WireError(f"the flags {shown(part.name)} are not all 0 or 1")
    return raw.view(dtype).reshape(part.shape)


def whole(value: Any, least: int, what: str) -> int:
    """Return a whole number of a header, or refuse what is none or out of range."""
    if type(value) is not int or not least <= value < WHOLE:
        raise WireError(f"{what} must be a whole number from {least} to 2^63 - 1, not {shown(value)}")
    return value


def encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8; halves of letters cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
