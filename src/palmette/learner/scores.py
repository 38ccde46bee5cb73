"""Losses and metrics of models on devices' own samples, for many devices at once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from palmette.learner.backends import Backend, Replicas
from palmette.learner.fused import FusedBackend
from palmette.learner.samples import Samples
from palmette.population import Population
from palmette.task import Task

Split = Literal["train", "held-out", "test"]

_BLOCK = 256  # samples of one device in one vectorised forward pass
_SHARED = 4096  # samples of one shared model in one forward pass
_NUMBERS = 1 << 20  # numbers in the samples of one vectorised forward pass


class Scorer:
    """Sums every metric of the task over the samples of each device.

    Args:
        task: What is measured.
        population: The samples of all devices.
        samples: The same samples as the learner reads them.
        backend: The learner's backend; `loop` cannot run a module for many rows at once.
        held_out: How many of each device's last training samples are held out.
    """

    def __init__(
        self, task: Task, population: Population, samples: Samples, backend: Backend, *, held_out: Tensor
    ) -> None:
        self._task, self._population, self._samples, self._held_out = task, population, samples, held_out
        self._backend = backend
        self._replicas = Replicas(task, samples.rows_dtype, samples.device, training=False)

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
        own = self._backend.name != "loop" and len(rows) * 2 > len(ids)
        with torch.no_grad():
            result = (self._own if own else self._shared)(rows, owner, first, count)
        return {**result, "count": count.to(torch.float64)}

    def _empty(self, devices: int) -> dict[str, Tensor]:
        return {name: torch.zeros(devices, dtype=torch.float64) for name in self._task.per_sample_metrics}

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        index = index.to(self._samples.device)
        return self._samples.features(index), self._samples.targets(index)

    def _shared(self, rows: Tensor, owner: Tensor, first: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Run each model over the samples of all its devices, one after the other."""
        sums = self._empty(len(count))
        size = max(64, min(_SHARED, _NUMBERS // (4 * self._samples.width)))
        for position in owner.unique().tolist():
            mine = (owner == position).nonzero().squeeze(1)
            mine = mine[count[mine] > 0]
            if not len(mine):
                continue  # a metric need not understand an empty batch
            device_of = torch.repeat_interleave(mine, count[mine])
            shift = torch.cumsum(count[mine], 0) - count[mine]
            index = torch.repeat_interleave(first[mine] - shift, count[mine]) + torch.arange(len(device_of))
            for some, devices in zip(index.split(size), device_of.split(size), strict=True):
                x, y = self._gather(some)
                output = self._output(rows[position], x)
                for name, metric in self._task.per_sample_metrics.items():
                    sums[name].index_add_(0, devices, metric(output, y).to("cpu", torch.float64))
        return sums

    def _output(self, row: Tensor, x: Tensor) -> Tensor:
        """Return one model's output on some samples."""
        if isinstance(self._backend, FusedBackend):
            return self._backend.predict(row[None], x[None])[0]
        module, _ = self._replicas.get()
        output: Tensor = functional_call(module, self._task.layout.unflatten(row), (x,))
        return output

    def _own(self, rows: Tensor, owner: Tensor, first: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Run many models at once, each over its own device's samples in padded blocks."""
        sums = self._empty(len(count))
        for lo in range(0, int(count.max()) if len(count) else 0, _BLOCK):
            active = (count > lo).nonzero().squeeze(1)
            # Devices of like size go together, and no more of them than fit a cache.
            active = active[count[active].argsort(stable=True)]
            size = min(_BLOCK, int(count[active].max()) - lo)
            for some in active.split(max(1, _NUMBERS // (size * self._samples.width))):
                size = min(_BLOCK, int(count[some].max()) - lo)
                position = lo + torch.arange(size)
                real = position < count[some, None]
                index = first[some, None] + torch.minimum(position, count[some, None] - 1)
                x, y = self._gather(index.reshape(-1))
                values = self._values(
                    rows[owner[some].to(rows.device)], x.unflatten(0, index.shape), y.unflatten(0, index.shape)
                )
                for name, value in zip(sums, values, strict=True):
                    sums[name][some] = sums[name][some] + (value.to("cpu", torch.float64) * real).sum(1)
        return sums

    def _values(self, rows: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return every metric ``(n, samples)`` of each row's model on its samples."""
        metrics = self._task.per_sample_metrics.values()

        def measured(output: Tensor, y: Tensor) -> list[Tensor]:
            return [metric(output, y) for metric in metrics]

        if isinstance(self._backend, FusedBackend):
            result: list[Tensor] = vmap(measured)(self._backend.predict(rows, x), y)
            return result
        module, _ = self._replicas.get()

        def one(row: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
            return measured(functional_call(module, self._task.layout.unflatten(row), (x,)), y)

        values: list[Tensor] = vmap(one)(rows, x, y)
        return values
