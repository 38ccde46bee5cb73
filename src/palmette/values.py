"""What a user gave: made plain where it is only written in another way, refused with a sentence where it cannot be used."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.errors import BadInput

Array = NDArray[Any]
"""A numpy array of any type."""

_SHOWN = 80  # letters of a value that an error message repeats
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def plain(value: Any) -> Any:
    """Return numpy's numbers and arrays, tensors, tuples and paths as the plain values a config can hold."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    """Write a value for an error message: as Python does, in one line, the middle of a long one left out."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, a list within itself
        text = f"a {type(value).__name__} too large to show"
    text = one_line(text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]} ... {text[-15:]}"


def pointed(value: Any) -> str:
    """Return ``"; decimals are written with a point: 0.1"`` for a text with a decimal comma, nothing for all else."""
    comma = isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+,[0-9]+", value)
    return f"; decimals are written with a point: {shown(value)[1:-1].replace(',', '.')}" if comma else ""


def one_line(text: str) -> str:
    """Return a text with every run of white space as one blank."""
    return " ".join(text.split())


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number of any type, or refuse what is none or outside its limits."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else least - 1
    if number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {_power(most)}"
        raise BadInput(f"{name} = {shown(value)} must be a whole number {limits}")
    return number


def seed(value: Any) -> int:
    """Return a seed as a plain number, or refuse what is none."""
    return whole("seed", value, 0, 2**63 - 1)


def fraction(name: str, value: Any) -> float:
    """Return a part of something, from 0 to below 1, or refuse what is none."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:
        raise BadInput(
            f"{name} = {shown(value)} is not a fraction in 0 <= {name} < 1; write a quarter as 0.25{pointed(value)}"
        )
    return float(value)


def real(name: str, value: Any) -> float:
    """Return a finite number, or refuse what is none."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise BadInput(f"{name} = {shown(value)} must be a finite number")
    return number


def writable(where: str, text: str) -> str:
    """Return a text, or refuse one that no file can hold: half a character, left over from a wrong decoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{where} {text!r} holds half a character (a lone surrogate), which no file can hold; write it again as UTF-8"
        ) from None
    return text


def unwritable(value: Any, where: str = "") -> list[str]:
    """Return a sentence for everything in a config that no config file can hold."""
    if isinstance(value, Mapping):
        inner = [(str(key), f"{where}.{key}" if where else str(key), part) for key, part in value.items()]
        return [text for key, at, part in inner for text in (*unwritable(key, where), *unwritable(part, at))]
    if isinstance(value, list):
        return [text for part in value for text in unwritable(part, where)]
    if isinstance(value, str):
        try:
            writable(f"{where}: the text" if where else "the name", value)
        except BadInput as error:
            return [str(error)]
    elif not isinstance(value, int | float | None):
        return [f"{where}: a {type(value).__name__} is no value of a setting; give a number, a text or a list"]
    return []


def path(name: str, value: Any) -> Path:
    """Return the path of a file or folder, there or not, or refuse what can be none."""
    if not isinstance(value, str | Path):
        raise BadInput(f"{name} must be the path of a folder, not {shown(value)}")
    found = Path(writable(name, str(value)))
    try:
        found.exists()
    except OSError as error:  # too long, or not to be looked at
        raise BadInput(f"{name} = {shown(str(value))} cannot be a path: {error.strerror}") from None
    except ValueError as error:  # a zero byte
        raise BadInput(f"{name} = {shown(str(value))} cannot be a path: {error}") from None
    return found


def memory() -> int:
    """Return the bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_larger_than_memory(what: str, count: float, lower: str) -> None:
    """Refuse what must lie in memory and cannot.

    Args:
        what: What it is, as the beginning of a sentence.
        count: Its bytes.
        lower: The setting to lower.
    """
    if count > memory():
        raise BadInput(f"{what} would take {size(count)} of memory, this machine has {size(memory())}; {lower}")


def size(count: float) -> str:
    """Write a number of bytes in three digits with its unit: ``480 GB``; beyond all units as a power of ten."""
    power = 0 if count < 1000 else int(math.log10(count)) // 3
    if power >= len(_UNITS):
        return f"{rough(count)} B"
    return f"{count / 1000**power:.3g} {_UNITS[power]}"


def rough(count: float) -> str:
    """Write a number of any size in three digits: ``40``, ``1e+12``."""
    return f"{count:.3g}" if count < 1e300 else f"1e+{int(math.log10(min(count, 10**4000)))}"


def _power(number: int) -> str:
    return f"2**{number.bit_length()} - 1" if number > 2**31 and number & (number + 1) == 0 else str(number)
