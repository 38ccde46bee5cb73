"""Addressed randomness: every random number is a function of *where* it is used, never of when.

A number's address is ``(seed, purpose, round, exchange, tier, node, ...)``, where a node has an address of its own that stays
when other nodes come and go (`palmette.tree.Tree.addresses`). Nothing is drawn from a shared stream, so the number of
threads, the order of arrival and what other algorithms do change nothing. Scalars of an address are folded into a 64-bit key
in plain Python (`key`); the last parts (nodes, steps) are vectors and are mixed in with a counter hash (`mix`) that runs on
whole tensors at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """Reinterpret an unsigned 64-bit integer as the signed one torch can hold."""
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """Finalise one 64-bit counter (the splitmix64 output function)."""
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def key(seed: int, purpose: str, *parts: int) -> int:
    """Fold the scalar parts of an address into one 64-bit key."""
    digest = hashlib.blake2b(purpose.encode(), digest_size=8, key=(seed & _MASK).to_bytes(8, "little")).digest()
    value = int.from_bytes(digest, "little")
    for part in parts:
        value = _mix((value + _GOLDEN * (part + 1)) & _MASK)
    return value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right filling with zeros; torch's own shift of a signed integer keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix(base: int | Tensor, counter: Tensor) -> Tensor:
    """Hash every entry of ``counter`` (int64) under ``base``: the last, vectorised step of an address.

    The arithmetic is that of `key`, so ``mix(key(s, p), t)[i] == key(s, p, t[i])`` as 64-bit patterns.
    """
    start = _signed(base) if isinstance(base, int) else base
    value = (counter + 1) * _signed(_GOLDEN) + start
    value = (value ^ _shift(value, 30)) * _signed(_M1)
    value = (value ^ _shift(value, 27)) * _signed(_M2)
    return value ^ _shift(value, 31)


def of_names(names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return one 64-bit number for each name: the address of the node of that name."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8, person=b"node").digest() for name in names)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def below(bits: Tensor, limit: int | Tensor) -> Tensor:
    """Turn hash bits into integers in ``[0, limit)``; the bias is under limit / 2**62."""
    return (bits & ((1 << 62) - 1)) % limit


def uniform(bits: Tensor) -> Tensor:
    """Turn hash bits into float64 numbers in [0, 1)."""
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def normal(base: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers under an address: two from each hash, by Box and Muller's formula."""
    bits = mix(base, torch.arange((count + 1) // 2, device=base.device))
    radius = (-2 * ((_shift(bits, 32).to(dtype) + 0.5) * 2.0**-32).log()).sqrt()
    angle = (bits & 0xFFFFFFFF).to(dtype) * (2.0**-31 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def normal_rows(base: Tensor, count: int) -> Tensor:
    """Return standard normal numbers under each of some addresses, ``(addresses, count)``, in float32."""
    value = uniform(mix(base[:, None], torch.arange(count)))
    # Half a step up, so that zero, whose normal number is infinite, does not occur.
    normal: Tensor = torch.special.ndtri(value + 2.0**-54)
    return normal.to(torch.float32)


def numpy_generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    """Make a numpy generator for one address, for set-up work (splits, partitions) that wants many kinds of draws."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *parts)))


def torch_generator(seed: int, purpose: str, *parts: int) -> torch.Generator:
    """Make a torch generator for one address, for initial weights."""
    return torch.Generator().manual_seed(_signed(key(seed, purpose, *parts)))
