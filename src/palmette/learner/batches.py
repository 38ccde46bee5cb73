"""Which samples each device trains on at each step: addressed, vectorised, without a generator per device.

A device goes through its training samples in shuffled passes. The order of a pass is ``position -> (a * position + b) mod
n``, where ``a`` is a large prime and ``b`` an offset, both picked by the hash of the pass's address. A prime above ``n``
shares no factor with it, so every sample comes once per pass; the samples themselves lie in an order that was shuffled
when the population was split. A batch that reaches the end of a pass goes on into the next one, so all batches have one
size. A device with fewer samples than a batch takes all of them at every step.

The arithmetic runs in numpy on the host, for many steps at once: its calls cost a fraction of torch's, and an index is
small. Quotients are taken in float32 where they are exact, many times faster than integer division.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Address = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

_PRIMES = 256
_EXACT = 1 << 23  # below this, quotients of whole numbers rounded down are exact in float32
_GOLDEN, _M1, _M2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LOW = np.uint64((1 << 62) - 1)


def mix(base: Address, counter: npt.NDArray[Any]) -> Address:
    """Hash counters under addresses: `palmette.address.mix` on numpy arrays, bit for bit."""
    value = (counter.astype(np.uint64) + np.uint64(1)) * _GOLDEN + base
    value ^= value >> np.uint64(30)
    value *= _M1
    value ^= value >> np.uint64(27)
    value *= _M2
    value ^= value >> np.uint64(31)
    return value


def _is_prime(number: int) -> bool:
    """Decide primality below 3.2e9 (the Miller-Rabin test with the bases that are known to suffice there)."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        value = pow(base, odd, number)
        if value not in (1, number - 1) and all(
            (value := value * value % number) != number - 1 for _ in range(twos - 1)
        ):
            return False
    return True


@lru_cache
def _primes() -> Counts:
    """Return primes spread over 2**30 to 2**31: larger than any device's number of samples."""
    found = []
    for slot in range(_PRIMES):
        candidate = (1 << 30) + slot * (1 << 22) + 1
        while not _is_prime(candidate):
            candidate += 2
        found.append(candidate)
    return np.array(found, dtype=np.int64)


def shuffled(address: Address, count: Counts, first: int, steps: int, size: int) -> Counts:
    """Return positions ``(n, steps, size)`` within each device's samples for steps ``first .. first + steps - 1``.

    Args:
        address: One 64-bit address per device, the same for all steps of one descent.
        count: Number of samples of each device.
        first: First step wanted.
        steps: How many steps.
        size: Batch size; for a device with fewer samples, positions wrap around and `weights` cuts the rest off.
    """
    small = count < size
    # A device with less than a batch is set right at the end.
    n, begin, inside = np.maximum(count, size)[:, None], np.arange(first, first + steps) * size, np.arange(size)
    passes = begin // n
    early = passes[:, :1]
    late = (begin[-1:] + size - 1) // n - early
    table = mix(address[:, None], early + np.arange(int(late.max()) + 1))
    stride = (_primes()[table & np.uint64(_PRIMES - 1)] % n).ravel()
    offset = ((mix(table, np.zeros(1, np.int64)) & _LOW).astype(np.int64) % n).ravel()
    place = passes - early + np.arange(len(count))[:, None] * table.shape[1]
    within, slope = begin - passes * n, stride[place]
    lines = (slope, (slope * within + offset[place]) % n)
    # Each batch as if its pass did not end ...
    kind = np.float32 if int(n.max()) * (size + 1) < _EXACT else np.int64
    slopes, starts = (line.astype(kind)[:, :, None] for line in lines)
    position = slopes * inside.astype(kind)
    position += starts
    position -= _below(position, n.astype(kind)[:, :, None])
    result: Counts = position.astype(np.int64)
    # ... then the few that run on into the next pass.
    row, step = np.nonzero(within + size > n)
    if len(row):
        beyond = inside - (n[row] - within[row, step][:, None])
        following = place[row, step][:, None] + 1
        result[row, step] = np.where(
            beyond < 0, result[row, step], (stride[following] * beyond + offset[following]) % n[row]
        )
    if small.any():
        result[small] = (inside % count[small][:, None])[:, None]
    return result


def _below(value: npt.NDArray[Any], by: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the multiple of ``by`` just below whole numbers, in the type they are held in."""
    multiple: npt.NDArray[Any] = value / by if value.dtype == np.float32 else value // by
    if value.dtype == np.float32:
        np.floor(multiple, out=multiple)
    multiple *= by
    return multiple


def weights(count: Counts, size: int, dtype: torch.dtype) -> Tensor | None:
    """Return each sample's weight ``(n, size)`` in its batch mean, or ``None`` when every batch is full."""
    if (count >= size).all():
        return None
    real = torch.from_numpy(np.minimum(count, size))[:, None]
    return (torch.arange(size) < real).to(dtype) / real.to(dtype)


@dataclass(frozen=True, eq=False)
class Plan:
    """The batches of one descent of some devices.

    Attributes:
        address: One 64-bit address per device.
        count: Number of training samples of each device.
        first: Each device's first sample.
        size: Batch size.
        same: Whether every step takes the first step's batch.
        whole: Whether that batch is all of a device's samples, in their order.
    """

    address: Address
    count: Counts
    first: Counts
    size: int
    same: bool
    whole: bool = False

    def take(self, rows: Any) -> Plan:
        """Return the plan of some of the devices."""
        return replace(self, address=self.address[rows], count=self.count[rows], first=self.first[rows])

    def block(self, step: int, steps: int) -> Tensor:
        """Return the samples ``(steps, n * size)`` of consecutive steps; a plan of the same batch has one step."""
        step, steps = (0, 1) if self.same else (step, steps)
        if self.whole:
            position = np.minimum(np.arange(self.size), self.count[:, None] - 1)[:, None]
        else:
            position = shuffled(self.address, self.count, step, steps, self.size)
        position += self.first[:, None, None]
        return torch.from_numpy(np.ascontiguousarray(position.transpose(1, 0, 2)).reshape(steps, -1))
