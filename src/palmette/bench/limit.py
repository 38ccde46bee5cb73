"""Limits: the products a step cannot do without, and nothing else; and how fast a core could do them at best.

`limit` does the products of many small matrices as torch does them (``bmm``). It bounds what is built of such calls, and
nothing else: code that holds a model in cache is faster. Two further limits are as many multiplications and additions in one
large product (`sgemm`: the rate of torch's library where the shape suits it best) and in registers alone (`core`: the rate of
the core's own multiply-add units, which no program exceeds).

For every layer of a step, in the natural order of operands, each product writing new memory:

    forward    bmm(x, W.mT)         (n, rows, inputs) by (n, inputs, outputs)
    gradient   bmm(delta.mT, x)     (n, outputs, rows) by (n, rows, inputs)
    backward   bmm(delta, W)        (n, rows, outputs) by (n, outputs, inputs); not for the first layer

``rows`` is the batch for a linear layer, and batch x positions for a convolution, whose ``inputs`` are channels x window:
the product it is once its windows lie in memory, which they do here beforehand. No samples are gathered, there is no bias,
loss, activation, pull or step, and the operands are the same at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from palmette.address import torch_generator
from palmette.bench.workloads import Case
from palmette.errors import BadInput
from palmette.learner import kernel

_MEMORY = 1 << 23  # numbers in the operands beyond which devices are taken in parts: more would measure the memory


class Product(NamedTuple):
    """The sizes of one layer's products for one device."""

    rows: int
    inputs: int
    outputs: int


def products(module: nn.Module, x: Tensor) -> list[Product]:
    """Return the products of a chain of layers for one batch."""
    if not isinstance(module, nn.Sequential):
        raise BadInput(f"the engine limit works for chains of layers only, not for {type(module).__name__}")
    found = []
    for layer in module:
        x = layer(x)
        if isinstance(layer, nn.Linear):
            found.append(Product(x.numel() // layer.out_features, layer.in_features, layer.out_features))
        elif isinstance(layer, nn.Conv2d):
            window = layer.weight[0].numel()
            found.append(Product(x.numel() // layer.out_channels, window, layer.out_channels))
    return found


def limit(case: Case, chunk: int | None = None) -> Callable[[], int]:
    """Make the products of all devices' steps, ``chunk`` devices in one call (all of them by default)."""
    workload, devices = case.workload, case.population.devices
    generator = torch_generator(0, "bench operands")
    with torch.no_grad():
        sizes = products(case.task.module, torch.zeros(workload.batch, *workload.shape))
    chunk = min(chunk or devices, devices)
    numbers = sum(p.rows * (p.inputs + p.outputs) + p.inputs * p.outputs for p in sizes)
    while chunk > 1 and chunk * numbers > _MEMORY:
        chunk = (chunk + 1) // 2

    def operands(n: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [
            (
                torch.randn(n, p.rows, p.inputs, generator=generator),
                torch.randn(n, p.outputs, p.inputs, generator=generator),
                torch.randn(n, p.rows, p.outputs, generator=generator),
            )
            for p in sizes
        ]

    parts = [operands(n) for n in dict.fromkeys((chunk, devices % chunk)) if n]
    counts = [devices // chunk, 1]

    def unit() -> int:
        for layers, times in zip(parts, counts, strict=False):
            for _ in range(times * workload.local_steps):
                _step(layers)
        return devices * workload.local_steps

    return unit


def _step(layers: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for x, weight, _ in layers:
        torch.bmm(x, weight.mT)
    for number, (x, weight, delta) in reversed(list(enumerate(layers))):
        torch.bmm(delta.mT, x)
        if number:
            torch.bmm(delta, weight)


_LARGE = 768  # rows and columns of the large product: its three matrices fit a cache of 8 MB


def _multiplications(case: Case) -> int:
    """Return how many numbers all devices' steps of one exchange multiply and add in their products."""
    workload = case.workload
    with torch.no_grad():
        sizes = products(case.task.module, torch.zeros(workload.batch, *workload.shape))
    one = sum(p.rows * p.inputs * p.outputs * (3 if number else 2) for number, p in enumerate(sizes))
    return one * workload.local_steps * case.population.devices


def sgemm(case: Case) -> Callable[[], int]:
    """Make as many multiplications as the steps of an exchange need, as products of large matrices."""
    times = max(1, round(_multiplications(case) / _LARGE**3))
    steps = times * _LARGE**3 * case.workload.local_steps * case.population.devices / _multiplications(case)
    generator = torch_generator(0, "bench operands")
    one, other = (torch.randn(_LARGE, _LARGE, generator=generator) for _ in range(2))

    def unit() -> int:
        for _ in range(times):
            torch.mm(one, other)
        return round(steps)

    return unit


def core(case: Case) -> Callable[[], int]:
    """Make as many multiplications as the steps of an exchange need, in registers alone."""
    found = kernel.find()
    if isinstance(found, str):
        raise BadInput(f"the engine core needs the native kernel: {found}")
    rounds = max(1, round(_multiplications(case) / found.multiply_add(1)))

    def unit() -> int:
        return round(
            found.multiply_add(rounds) / _multiplications(case) * case.workload.local_steps * case.population.devices
        )

    return unit
