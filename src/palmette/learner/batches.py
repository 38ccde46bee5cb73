"""Which samples each device trains on at each step: addressed, vectorised, without a generator per device.

A device goes through its training samples in shuffled passes. The order of a pass is ``position -> (a * position + b) mod
n``, where ``a`` is a large prime and ``b`` an offset, both picked by the hash of the pass's address. A prime above ``n``
shares no factor with it, so every sample comes once per pass; the samples themselves lie in an order that was shuffled
when the population was split. Where steps are counted, a batch that reaches the end of a pass goes on into the next one, so
all batches have one size. Where epochs are counted, a pass ends with a batch of what is left, so an epoch visits every sample
once. A device with fewer samples than a batch takes all of them at every step.

The arithmetic runs on the host, for many steps at once. What is one number per device and step is computed in numpy, whose
small calls cost a fraction of torch's (`lines`); what is one per sample, in torch (`positions`), which also runs inside the
compiled descents of `palmette.learner.dense`. Quotients are taken in floats where rounding down is exact, many times faster
than integer division.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Address = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

_PRIMES = 256
_EXACT = 1 << 23  # below this, quotients of whole numbers rounded down are exact in float32
_GOLDEN, _M1, _M2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LOW, _WHICH, _ZERO = np.uint64((1 << 62) - 1), np.uint64(_PRIMES - 1), np.zeros(1, np.int64)


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
def primes() -> Counts:
    """Return primes spread over 2**30 to 2**31: larger than any device's number of samples."""
    found = []
    for slot in range(_PRIMES):
        candidate = (1 << 30) + slot * (1 << 22) + 1
        while not _is_prime(candidate):
            candidate += 2
        found.append(candidate)
    return np.array(found, dtype=np.int64)


class Lines(NamedTuple):
    """Batches as straight lines: sample ``i`` of a batch is ``(slope * i + start) mod size``, after the device's first.

    Attributes:
        slope: One per step and device ``(steps, n)``.
        start: Likewise.
        size: Number of samples of each device, in the floats that quotients are taken in.
        first: Each device's first sample.
        bent: The batches, as numbers ``step * n + device``, that run on into another pass and are no lines.
        given: Their samples ``(len(bent), size)``.
    """

    slope: Tensor
    start: Tensor
    size: Tensor
    first: Tensor
    bent: Tensor
    given: Tensor


def lines(
    address: Address, count: Counts, first: Counts, begin: int, steps: int, size: int, epochs: bool = False
) -> Lines:
    """Return the batches of the steps ``begin .. begin + steps - 1``.

    Args:
        address: One 64-bit address per device, the same for all steps of one descent.
        count: Number of samples of each device.
        first: Each device's first sample.
        begin: First step wanted.
        steps: How many steps.
        size: Batch size; a batch that has fewer samples goes through some again, and `Plan.weights` cuts that off.
        epochs: Whether a pass ends with a batch of what is left, or its last batch goes on into the next pass.
    """
    n, inside, device = np.maximum(count, size), np.arange(size), np.arange(len(count))
    step = np.arange(begin, begin + steps)[:, None]
    each = -(-n // size)
    passes = step // each if epochs else step * size // n
    within, early = (step - passes * each) * size if epochs else step * size - passes * n, passes[0].copy()
    passes -= early
    late = int((passes[-1] + (within[-1] + size > n)).max())
    table = mix(address, early + np.arange(late + 1)[:, None])
    stride = primes()[table & _WHICH] % n
    offset = (mix(table, _ZERO) & _LOW).astype(np.int64) % n
    slope = stride[passes, device]
    start = (slope * within + offset[passes, device]) % n
    small = count < size
    if small.any():
        slope[:, small], start[:, small] = 1, 0
    bent, given = np.nonzero((within + size > n).ravel())[0], np.zeros((0, size), np.int64)
    if epochs:
        bent = bent[:0]
    if len(bent):
        step, row = np.divmod(bent, len(n))
        beyond, after = inside - (n[row] - within[step, row])[:, None], passes[step, row] + 1
        given = np.where(
            beyond < 0,
            slope[step, row][:, None] * inside + start[step, row][:, None],
            stride[after, row][:, None] * beyond + offset[after, row][:, None],
        )
        given = given % n[row][:, None] + first[row][:, None]
    return _lines(slope, start, count, first, bent, given)


def _lines(slope: Counts, start: Counts, count: Counts, first: Counts, bent: Counts, given: Counts) -> Lines:
    kind = np.float32 if int(count.max()) * (given.shape[1] + 1) < _EXACT else np.float64
    floats = (torch.from_numpy(part.astype(kind)) for part in (slope, start, count))
    return Lines(*floats, *map(torch.from_numpy, (first, bent, given)))


def positions(
    slope: Tensor, start: Tensor, count: Tensor, first: Tensor, bent: Tensor, given: Tensor, size: int
) -> Tensor:
    """Return the samples ``(steps, n * size)`` of the batches that `Lines` tells of."""
    by, place = count.unsqueeze(1), slope.unsqueeze(2) * torch.arange(size, dtype=slope.dtype)
    place.add_(start.unsqueeze(2))
    place.sub_((place / by).floor_().mul_(by))
    result = place.to(torch.int64).add_(first.unsqueeze(1))
    if bent.size(0) > 0:
        result.view(-1, size).index_copy_(0, bent, given)
    return result.flatten(1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The batches of one descent of some devices.

    Attributes:
        address: One 64-bit address per device.
        count: Number of training samples of each device.
        first: Each device's first sample.
        size: Batch size.
        same: Whether every step takes the first step's batch.
        epochs: Whether every pass ends with a batch of what is left.
        whole: Whether that batch is all of a device's samples, in their order.
        begin: How many of the stream's batches earlier descents have taken.
    """

    address: Address
    count: Counts
    first: Counts
    size: int
    same: bool
    epochs: bool = False
    whole: bool = False
    begin: int = 0

    def take(self, rows: Any) -> Plan:
        """Return the plan of some of the devices."""
        return replace(self, address=self.address[rows], count=self.count[rows], first=self.first[rows])

    def lines(self, step: int, steps: int) -> Lines:
        """Return the batches of consecutive steps; a plan of the same batch has one step."""
        if self.whole:
            rows = np.zeros((1, len(self.count)), np.int64)
            none = np.zeros((0, self.size), np.int64)
            return _lines(rows + 1, rows, self.count, self.first, none[:, 0], none)
        step, steps = (0, 1) if self.same else (self.begin + step, steps)
        return lines(self.address, self.count, self.first, step, steps, self.size, self.epochs)

    def block(self, step: int, steps: int) -> Tensor:
        """Return the samples ``(steps, n * size)`` of consecutive steps; a plan of the same batch has one step."""
        return positions(*self.lines(step, steps), self.size)

    @property
    def full(self) -> bool:
        """Whether every batch has as many samples as the batch size says."""
        return bool(((self.count % self.size == 0) if self.epochs else (self.count >= self.size)).all())

    def weights(self, step: int, steps: int, dtype: torch.dtype) -> Tensor | None:
        """Return each sample's weight in the mean of its batch; ``None`` when every batch of the plan is full.

        It is ``(steps, n, size)`` for consecutive steps, or ``(1, n, size)`` where all steps weigh alike.
        """
        if self.full:
            return None
        filled = torch.from_numpy(self.real(step, steps))[:, :, None]
        return (torch.arange(self.size) < filled).to(dtype) / filled.to(dtype)

    def real(self, step: int, steps: int) -> Counts:
        """Return how many samples each batch has: ``(steps, n)``, or ``(1, n)`` where all steps have as many."""
        if not self.epochs:
            return np.minimum(self.count, self.size)[None]
        place = (self.begin + np.arange(step, step + steps))[:, None] % -(-self.count // self.size)
        return np.minimum(self.count - place * self.size, self.size)
