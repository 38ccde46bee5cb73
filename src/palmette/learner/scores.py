"""Losses and metrics of models on devices' own samples, for many devices at once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from palmette.learner.backends import Replicas
from palmette.population import Population
from palmette.task import Task

Split = Literal["train", "held-out", "test"]

_BLOCK = 256  # samples of one device in one vectorised forward pass
_SHARED = 4096  # samples of one shared model in one plain forward pass


class Scorer:
    """Sums every metric of the task over the samples of each device.

    Args:
        task: What is measured.
        population: Whose samples.
        dtype: Type of the rows.
        device: Where they live.
        held_out: How many of each device's last training samples are held out.
        vectorised: Whether the module can be run for many rows at once.
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        *,
        dtype: torch.dtype,
        device: torch.device,
        held_out: Tensor,
        vectorised: bool,
    ) -> None:
        self._task, self._population, self._dtype, self._device = task, population, dtype, device
        self._held_out, self._vectorised = held_out, vectorised
        self._replicas = Replicas(task, dtype, device, training=False)

    def ranges(self, ids: Tensor, split: Split) -> tuple[Tensor, Tensor]:
        """Return the first sample and the number of samples of each device's part."""
        start, train, held = self._population.start, self._population.train[ids], self._held_out[ids]
        first = start[ids]
        if split == "train":
            return first, train - held
        if split == "held-out":
            return first + train - held, held
        return first + train, start[ids + 1] - first - train

    def sums(self, rows: Tensor, owner: Tensor, ids: Tensor, split: Split) -> dict[str, Tensor]:
        """Return, for each device of ``ids``, the sum of every metric and the ``count`` of samples (float64, on CPU).

        Args:
            rows: Models ``(k, d)``.
            owner: For each device, the position of its model in ``rows``.
            ids: The devices.
            split: Which of their samples.
        """
        first, count = self.ranges(ids, split)
        own = self._vectorised and len(rows) * 2 > len(ids)
        with torch.no_grad():
            result = (self._own if own else self._shared)(rows, owner, first, count)
        return {**result, "count": count.to(torch.float64)}

    def _empty(self, devices: int) -> dict[str, Tensor]:
        return {name: torch.zeros(devices, dtype=torch.float64) for name in self._task.per_sample_metrics}

    def _samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x = self._population.features(index, self._dtype).to(self._device)
        return x, _target(self._population.y[index], self._dtype).to(self._device)

    def _shared(self, rows: Tensor, owner: Tensor, first: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Run each model plainly over the samples of all its devices."""
        module, _ = self._replicas.get()
        sums = self._empty(len(count))
        for position in owner.unique().tolist():
            tensors = self._task.layout.unflatten(rows[position])
            mine = (owner == position).nonzero().squeeze(1)
            device_of = torch.repeat_interleave(mine, count[mine])
            shift = torch.cumsum(count[mine], 0) - count[mine]
            index = torch.repeat_interleave(first[mine] - shift, count[mine]) + torch.arange(len(device_of))
            for lo in range(0, len(index), _SHARED):
                x, y = self._samples(index[lo : lo + _SHARED])
                output = functional_call(module, tensors, (x,))
                for name, metric in self._task.per_sample_metrics.items():
                    sums[name].index_add_(0, device_of[lo : lo + _SHARED], metric(output, y).to("cpu", torch.float64))
        return sums

    def _own(self, rows: Tensor, owner: Tensor, first: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Run many models at once, each over its own device's samples in padded blocks."""
        module, _ = self._replicas.get()
        metrics = self._task.per_sample_metrics

        def one(row: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
            output = functional_call(module, self._task.layout.unflatten(row), (x,))
            return [metric(output, y) for metric in metrics.values()]

        sums = self._empty(len(count))
        for lo in range(0, int(count.max()) if len(count) else 0, _BLOCK):
            active = (count > lo).nonzero().squeeze(1)
            size = min(_BLOCK, int(count[active].max()) - lo)
            position = lo + torch.arange(size)
            real = position < count[active, None]
            index = first[active, None] + torch.minimum(position, count[active, None] - 1)
            x, y = self._samples(index.reshape(-1))
            x, y = x.unflatten(0, (len(active), size)), y.unflatten(0, (len(active), size))
            for name, values in zip(metrics, vmap(one)(rows[owner[active]], x, y), strict=True):
                sums[name][active] += (values.to("cpu", torch.float64) * real).sum(1)
        return sums


def _target(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Give float targets the rows' type and leave class labels whole numbers."""
    return y.to(dtype) if y.is_floating_point() else y
