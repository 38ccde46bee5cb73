"""Memory that torch frees after one step and asks for again in the next."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM, _MMAP = -1, -3  # names of the C library's settings (M_TRIM_THRESHOLD and M_MMAP_THRESHOLD)
_LARGE = (
    32 << 20
)  # bytes up to which a piece comes from memory that is kept; glibc goes so far by itself, but not at once
_KEPT = 256 << 20  # bytes of free memory that the process keeps


@cache
def keep_freed_memory() -> bool:
    """Tell the C library (glibc) not to give free memory back to the system between steps; return whether it took it.

    Left to itself it may give back the memory of a step's values at its end and ask for it again in the next step. The system
    then hands it out page by page: for an LSTM of two layers with 128 units each, that was a quarter of all time. Other C
    libraries are left as they are. The setting is of the whole process and does not change any result.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_MMAP, _LARGE)) and bool(mallopt(_TRIM, _KEPT))
