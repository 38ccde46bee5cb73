"""What research code does: one device after another, each with a module and an optimiser of its own.

The loops take plain SGD steps, without the pull that Palmette's engines take on top.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from palmette.address import torch_generator
from palmette.bench.workloads import RATE, Case

PerSample = Callable[[Tensor, Tensor], Tensor]
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


def with_loader(case: Case) -> Callable[[], int]:
    """Make a loop whose batches come from a shuffling DataLoader, made anew at every exchange."""
    size = case.workload.batch
    generator = torch_generator(0, "bench loader")
    data = [TensorDataset(x, y) for x, y in case.training]

    def batches(device: int) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from DataLoader(data[device], batch_size=size, shuffle=True, generator=generator)

    return _loop(case, batches)


def without_loader(case: Case) -> Callable[[], int]:
    """Make a loop that shuffles and indexes the samples itself."""
    size = case.workload.batch
    generator = torch_generator(0, "bench order")

    def batches(device: int) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = case.training[device]
        while True:
            for index in torch.randperm(len(x), generator=generator).split(size):
                yield x[index], y[index]

    return _loop(case, batches)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of one class per sample, or per place of a text."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def _mean(loss: PerSample) -> PerSample:
    return lambda output, target: loss(output, target).mean()


def _loop(case: Case, batches: Batches) -> Callable[[], int]:
    steps, devices = case.workload.local_steps, case.population.devices
    start = [parameter.detach().clone() for parameter in case.task.module.parameters()]
    modules: list[nn.Module] = [copy.deepcopy(case.task.module) for _ in range(devices)]
    score = _cross_entropy if case.task.loss == "cross-entropy" else _mean(case.task.per_sample_loss)
    optimisers = [torch.optim.SGD(module.parameters(), lr=RATE) for module in modules]

    def unit() -> int:
        for device, (module, optimiser) in enumerate(zip(modules, optimisers, strict=True)):
            with torch.no_grad():
                for parameter, value in zip(module.parameters(), start, strict=True):
                    parameter.copy_(value)
            # The steps come first: `zip` must not fetch a batch that nobody takes.
            for _, (x, y) in zip(range(steps), batches(device), strict=False):
                loss = score(module(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return devices * steps

    return unit
