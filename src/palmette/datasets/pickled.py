"""Read pickles of plain values and numpy arrays without running code.

A pickle is a program for a small machine that may call any function by name. Old public data sets come as pickles all the same,
so this machine knows only the names that an array of numbers needs, and refuses every other.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import BadInput


def _latin(text: str, encoding: str) -> bytes:
    """Make the bytes that Python 3 wrote into an old kind of pickle."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding!r}")
    return text.encode("latin1")


def _empty(kind: object, shape: object, code: object) -> NDArray[Any]:
    """Make the empty array that a pickle fills with its numbers; one of a given shape would take any memory it asks for."""
    return np.empty(0)


_ARRAY = object()  # stands for the class of arrays, which a pickle may name and not call
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin,
}


class _Plain(pickle.Unpickler):
    """Makes plain values and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data have no need of")
        return _KNOWN[module, name]


def read_pickle(data: bytes, where: str) -> dict[bytes, Any]:
    """Return the dictionary that a pickle of Python 2 or 3 holds, its texts as bytes.

    Args:
        data: The pickle.
        where: What to call the file in errors.
    """
    try:
        found = _Plain(io.BytesIO(data), encoding="bytes").load()
    # Whatever a damaged program does to the machine.
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
    ) as fault:
        raise BadInput(f"{where} is damaged or holds more than data ({fault}); get it again") from fault
    if not isinstance(found, dict):
        raise BadInput(f"{where} holds a {type(found).__name__}, not a dictionary; get it again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}
