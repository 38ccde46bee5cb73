"""Files of tensors in the safetensors format, written and read piece by piece.

The library writes what lies in memory as a whole; a million devices' models should not. The bytes are those the library
would write.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palmette.engines.store import Pieces
from palmette.errors import BadInput

# In the order in which the library lays tensors out, so that each begins at a multiple of its numbers' size.
_KINDS = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {kind: place for place, kind in enumerate(_KINDS)}
_MOST_HEADER = 1 << 20  # bytes that describe the tensors of a file that is read here: a state, of few and large ones
_MOST_DIMENSIONS = 8
_BY_WORD = {word: kind for kind, word in _KINDS.items()}

Bytes = npt.NDArray[np.uint8]
Chunk = tuple[str, int, Tensor]
"""A tensor's name, the first of its lines and those lines."""


def whole(tensors: Mapping[str, Tensor | Pieces]) -> Iterator[Chunk]:
    """Yield all lines of some tensors, one tensor after the other."""
    for name, value in tensors.items():
        first = 0
        for part in [value] if isinstance(value, Tensor) else value:
            yield name, first, part
            first += len(part) if part.dim() else 0


def write(
    file: IO[bytes], like: Mapping[str, Tensor | Pieces], chunks: Iterable[Chunk], about: Mapping[str, Any]
) -> None:
    """Write tensors from the file's position on; chunks may come in any order and must cover them all.

    Args:
        file: An open file.
        like: Shape and type of every tensor; only these are looked at.
        chunks: The numbers.
        about: What is to be known about them; under one key only, because the library writes several in random order.
    """
    head, begin = _head(like, about)
    file.write(head)
    base = file.tell()
    for name, first, part in chunks:
        line = _bytes(like[name].shape[1:], part.dtype)
        file.seek(base + begin[name] + first * line)
        file.write(as_bytes(part))
    file.seek(base + size(like))


def stream(tensors: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the bytes that `write` writes, in order, some at a time."""
    head, begin = _head(tensors, about)
    yield head
    for _, _, part in whole({name: tensors[name] for name in begin}):
        yield as_bytes(part)


def _head(like: Mapping[str, Tensor | Pieces], about: Mapping[str, Any]) -> tuple[bytes, dict[str, int]]:
    """Return what a file of tensors begins with, and in their order where each of them begins after that."""
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about)}}
    begin, end = {}, 0
    for name in sorted(like, key=lambda name: (_ORDER[like[name].dtype], name)):
        shape, dtype = tuple(like[name].shape), like[name].dtype
        begin[name], end = end, end + _bytes(shape, dtype)
        header[name] = {"dtype": _KINDS[dtype], "shape": list(shape), "data_offsets": [begin[name], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, begin


def size(tensors: Mapping[str, Tensor | Pieces]) -> int:
    """Return the bytes that the numbers of some tensors take; the rest of their file is small."""
    return sum(_bytes(value.shape, value.dtype) for value in tensors.values())


def mapped(file: IO[bytes]) -> Bytes:
    """Return a file's bytes, which are fetched when they are looked at and cannot be written to.

    They may be more than there is memory for: those that can be written to would be counted as if they were.
    """
    return np.memmap(file, dtype=np.uint8, mode="r")


def read(data: Bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that some bytes are, where they lie, and what is to be known about them.

    They are to be copied, not written to: where the bytes are those of a file, that would end the process.
    """
    try:
        base = 8 + int.from_bytes(data[:8].tobytes(), "little")
        if base > min(len(data), _MOST_HEADER):
            raise ValueError(f"it would take {base:,} bytes")
        header = json.loads(data[8:base].tobytes())
        about: dict[str, Any] = dict(json.loads(header.pop("__metadata__")["about"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what cannot be written to
            return {name: _tensor(data[base:], entry) for name, entry in header.items()}, about
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(
            f"its description of the tensors in it cannot be read ({type(error).__name__}: {error})"
        ) from None


def _tensor(data: Bytes, entry: dict[str, Any]) -> Tensor:
    """Return one tensor of a file; what does not fit is a `ValueError`."""
    kind, shape, (begin, end) = _BY_WORD[entry["dtype"]], entry["shape"], entry["data_offsets"]
    whole = all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, begin, end))
    if (
        len(shape) > _MOST_DIMENSIONS
        or not whole
        or not begin <= end <= len(data)
        or end - begin != _bytes(shape, kind)
    ):
        raise ValueError(f"{end} - {begin} bytes of {len(data)} are no {entry['dtype']} of shape {shape}")
    flat = torch.from_numpy(data[begin:end])
    # Numbers that do not begin at a multiple of their size cannot be looked at where they lie.
    return (flat if flat.data_ptr() % kind.itemsize == 0 else flat.clone()).view(kind).reshape(shape)


def _bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return dtype.itemsize * math.prod(shape)


def as_bytes(part: Tensor) -> Any:
    """View a tensor's numbers as bytes."""
    return part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
