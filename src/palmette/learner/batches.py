"""Which samples each device trains on at each step: addressed, vectorised, without a generator per device.

A device goes through its training samples in shuffled passes. The order of a pass is ``position -> (a * position + b) mod
n``, where ``a`` is a large prime and ``b`` an offset, both picked by the hash of the pass's address. A prime above ``n``
shares no factor with it, so every sample comes once per pass; the samples themselves lie in an order that was shuffled
when the population was split. A batch that reaches the end of a pass goes on into the next one, so all batches have one
size. A device with fewer samples than a batch takes all of them at every step.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from palmette.address import below, mix

_PRIMES = 256


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
def _primes() -> Tensor:
    """Return primes spread over 2**30 to 2**31: larger than any device's number of samples."""
    found = []
    for slot in range(_PRIMES):
        candidate = (1 << 30) + slot * (1 << 22) + 1
        while not _is_prime(candidate):
            candidate += 2
        found.append(candidate)
    return torch.tensor(found, dtype=torch.int64)


def shuffled(address: Tensor, count: Tensor, first: int, steps: int, size: int) -> Tensor:
    """Return positions ``(n, steps, size)`` within each device's samples for steps ``first .. first + steps - 1``.

    Args:
        address: One 64-bit address per device (int64), the same for all steps of one descent.
        count: Number of samples of each device.
        first: First step wanted.
        steps: How many steps.
        size: Batch size; for a device with fewer samples, positions wrap around and `weights` cuts the rest off.
    """
    device = address.device
    drawn = torch.arange(first * size, (first + steps) * size, device=device)
    n = count[:, None]
    passes = drawn // n
    early = passes[:, :1]
    table = mix(address[:, None], early + torch.arange(int((passes[:, -1:] - early).max()) + 1, device=device))
    here = passes - early
    stride = (_primes().to(device)[below(table, _PRIMES)] % n).gather(1, here)
    offset = below(mix(table, torch.zeros((), dtype=torch.int64, device=device)), n).gather(1, here)
    small = n < size
    position = torch.where(small, (drawn % size) % n, (stride * (drawn - passes * n) + offset) % n)
    return position.reshape(len(count), steps, size)


def weights(count: Tensor, size: int, dtype: torch.dtype) -> Tensor | None:
    """Return each sample's weight ``(n, size)`` in its batch mean, or ``None`` when every batch is full."""
    if bool((count >= size).all()):
        return None
    real = count.clamp(max=size)[:, None]
    return (torch.arange(size, device=count.device) < real).to(dtype) / real.to(dtype)
