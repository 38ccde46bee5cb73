"""The native kernel: a small C++ library for the local descents of dense chains, loaded through its C interface.

It is built when Palmette is installed, where there is a C++ compiler, and nothing depends on it: without it the `fused` backend
does the same work. It is written for processors with AVX2, AVX-512 or NEON and gives the same bits on all of them.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, ClassVar

ARITHMETIC = 1
"""Which bits the kernel gives; another number where a change to it changes them."""

INSTRUCTIONS = {1: "AVX2", 2: "AVX-512", 3: "NEON"}
ACTIVATIONS = {"": 0, "relu": 1, "tanh": 2, "sigmoid": 3}
LOSSES = {"cross-entropy": 0, "squared": 1, "logistic": 2}


class Described(Structure):
    """Addresses and numbers as the kernel reads them; see ``kernel.h``.

    Attributes:
        held: What lies at the addresses, which must live as long as this does.
    """

    held: Any


class Layer(Described):
    """One linear layer."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("inputs", "outputs", "weight", "bias")),
        *((name, c_void_p) for name in ("frozen_weight", "frozen_bias")),
        *((name, c_int64) for name in ("activation", "learns_weight", "learns_bias")),
    ]


class Samples(Described):
    """Where features and targets lie."""

    _fields_: ClassVar = [
        ("features", c_void_p),
        *((name, c_int64) for name in ("bytes", "width", "count")),
        *((name, c_float) for name in ("scale", "shift")),
        *((name, c_void_p) for name in ("classes", "targets")),
    ]


class Plan(Described):
    """Which samples each step takes."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("address", "count", "first", "primes")),
        *((name, c_int64) for name in ("size", "begin", "same", "epochs", "whole")),
    ]


class Operation(Described):
    """A mixture of two models or a gradient step of one."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("into", "at", "other")),
        ("number", c_void_p),
        ("each", c_int64),
        ("plan", POINTER(Plan)),
    ]


class Descent(Described):
    """Some steps of some devices."""

    _fields_: ClassVar = [
        ("layers", POINTER(Layer)),
        *((name, c_int64) for name in ("depth", "loss")),
        ("operations", POINTER(Operation)),
        *((name, c_int64) for name in ("many", "models")),
        *((name, c_void_p) for name in ("start", "centre")),
        *((name, c_int64) for name in ("start_line", "centre_line", "width")),
        *((name, c_void_p) for name in ("result", "pull", "decay")),
        ("each", c_int64),
        ("steps", c_void_p),
        *((name, c_int64) for name in ("devices", "begin", "end")),
        ("samples", POINTER(Samples)),
    ]


class Kernel:
    """The library, loaded.

    Attributes:
        path: Where the library lies.
        instructions: Number of the instruction set it uses here.

    Args:
        path: Where the library lies.
        instructions: An instruction set of `INSTRUCTIONS` that this processor has; the best by default.
    """

    def __init__(self, path: Path, instructions: int | None = None) -> None:
        self.path, library = path, ctypes.CDLL(str(path))
        library.palmette_instructions.restype = c_int64
        library.palmette_instructions.argtypes = []
        self._call = library.palmette_descend
        self._call.restype = c_int64
        self._call.argtypes = [POINTER(Descent), c_int64, c_int64]
        self._multiply_add = library.palmette_multiply_add
        self._multiply_add.restype = c_double
        self._multiply_add.argtypes = [c_int64, c_int64]
        self.instructions: int = instructions or library.palmette_instructions()

    @property
    def name(self) -> str:
        """The instruction set in words."""
        return INSTRUCTIONS[self.instructions]

    def descend(self, descent: Descent, threads: int) -> None:
        """Take the steps, without Python's lock; devices are shared among the threads.

        Args:
            descent: What to do.
            threads: How many threads may work on it.
        """
        bad = self._call(ctypes.byref(descent), self.instructions, threads)
        if bad < 0:
            raise MemoryError("the native kernel has no memory for a model and a batch")
        if bad:
            raise RuntimeError(f"the samples of device {bad - 1} of this call do not lie within the population")

    def multiply_add(self, rounds: int) -> float:
        """Multiply and add in registers alone, which is a core's own limit, and return how often it was done.

        Args:
            rounds: How long to go on.
        """
        return float(self._multiply_add(rounds, self.instructions))


@cache
def find() -> Kernel | str:
    """Return the kernel, or why there is none."""
    built = [path for suffix in EXTENSION_SUFFIXES for path in Path(__file__).parent.glob(f"library{suffix}")]
    if not built:
        return "it was not built when Palmette was installed, which needs a C++ compiler"
    try:
        kernel = Kernel(built[0])
    except (OSError, AttributeError) as error:
        return f"it cannot be loaded: {error}"
    if kernel.instructions not in INSTRUCTIONS:
        return "this processor has neither AVX2 nor NEON"
    return kernel


def version() -> str:
    """Return which bits dense chains have here: ``native-1`` and so on with the kernel, ``none`` without."""
    return "none" if isinstance(find(), str) else f"native-{ARITHMETIC}"
