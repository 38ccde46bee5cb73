"""Losses and metrics of models on devices' own samples, for many devices at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from palmette.learner.backends import Backend, Batch, Replicas, Stack
from palmette.learner.footprint import footprint
from palmette.learner.fused import FusedBackend
from palmette.learner.samples import Samples
from palmette.population import Population
from palmette.task import Task

Split = Literal["train", "held-out", "test"]

Predict = Callable[[Any, Batch], Tensor]
"""``(rows, batch) -> outputs`` for one device: its rows by name and samples of its own."""

_BLOCK = 256  # samples of one device in one vectorised forward pass
_SHARED = 4096  # samples of one shared model in one forward pass
_NUMBERS = 1 << 20  # numbers in the samples of one vectorised forward pass
_OUTPUTS = 1 << 22  # numbers in the outputs of one forward pass, where they are many more than those of the samples
_VALUES = 16  # numbers of the layers for each number of the samples in a pass; where there are more, they count


def model_output(rows: Any, batch: Batch) -> Tensor:
    """Predict with the row named ``model``, as most devices do."""
    return batch.predict(rows["model"])


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
        self.replicas = Replicas(task, samples.rows_dtype, samples.device, training=False)

    @cached_property
    def _width(self) -> int:
        """The numbers that one sample counts for in a forward pass: its own, or those of the layers where they are far more."""
        population, samples = self._population, self._samples
        probe = samples.features(torch.arange(min(2, len(population.x)), device=samples.device))
        width = max(samples.width, footprint(self._task, probe).values // _VALUES)
        # A text has outputs for every word of the vocabulary at every place: they are what takes the memory.
        return max(width, population.y[0].numel() * population.classes) if self._text and population.classes else width

    @property
    def _text(self) -> bool:
        return self._population.y.dim() > 1 and self._population.classes is not None

    @cached_property
    def _block(self) -> int:
        """The most samples of one device in one pass."""
        return max(1, min(_BLOCK, _OUTPUTS // self._width)) if self._text else _BLOCK

    @property
    def _most(self) -> int:
        """The most samples of one shared model in one pass."""
        return self._block if self._text else _SHARED

    def ranges(self, ids: Tensor, split: Split) -> tuple[Tensor, Tensor]:
        """Return the first sample and the number of samples of each device's part."""
        start, train, held = self._population.start, self._population.train[ids], self._held_out[ids]
        first = start[ids]
        if split == "train":
            return first, train - held
        if split == "held-out":
            return first + train - held, held
        return first + train, start[ids + 1] - first - train

    def sums(
        self,
        rows: Tensor | Stack,
        owner: Tensor,
        ids: Tensor,
        split: Split,
        running: Tensor | None = None,
        predict: Predict = model_output,
    ) -> dict[str, Tensor]:
        """Return, for each device of ``ids``, the sum of every metric and the ``count`` of samples (float64, on CPU).

        Args:
            rows: Models ``(k, d)``, or several rows by name.
            owner: For each device, the position of its model in ``rows``.
            ids: The devices.
            split: Which of their samples.
            running: Each device's own running statistics, where devices keep them.
            predict: How a device predicts from its rows; by default with the row ``model``.
        """
        first, count = self.ranges(ids, split)
        stack: Stack = {"model": rows} if isinstance(rows, Tensor) else rows
        if running is not None:  # every device is a model of its own
            stack = {name: value[owner.to(value.device)] for name, value in stack.items()}
            owner = torch.arange(len(ids))
        lines = len(next(iter(stack.values())))
        own = self._backend.name != "loop" and lines * 2 > len(ids)
        with torch.no_grad():
            result = (self._own if own else self._shared)(stack, owner, first, count, running, predict)
        return {**result, "count": count.to(torch.float64)}

    def _empty(self, devices: int) -> dict[str, Tensor]:
        return {name: torch.zeros(devices, dtype=torch.float64) for name in self._task.per_sample_metrics}

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        index = index.to(self._samples.device)
        return self._samples.features(index), self._samples.targets(index)

    def _shared(
        self, rows: Stack, owner: Tensor, first: Tensor, count: Tensor, running: Tensor | None, predict: Predict
    ) -> dict[str, Tensor]:
        """Run each model over the samples of all its devices, one after the other."""
        sums = self._empty(len(count))
        for devices, output, y in self._passes(rows, owner, first, count, running, predict):
            for name, metric in self._task.per_sample_metrics.items():
                sums[name].index_add_(0, devices, metric(output, y).to("cpu", torch.float64))
        return sums

    def outputs(
        self,
        rows: Tensor | Stack,
        owner: Tensor,
        ids: Tensor,
        split: Split,
        running: Tensor | None = None,
        predict: Predict = model_output,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs for all samples of some devices, their targets and their devices (on CPU); as in `sums`."""
        first, count = self.ranges(ids, split)
        stack: Stack = {"model": rows} if isinstance(rows, Tensor) else rows
        if running is not None:
            stack = {name: value[owner.to(value.device)] for name, value in stack.items()}
            owner = torch.arange(len(ids))
        with torch.no_grad():
            parts = list(self._passes(stack, owner, first, count, running, predict))
        if not parts:
            return torch.zeros((0, 1)), torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        outputs, targets = (torch.cat([part[at].cpu() for part in parts]) for at in (1, 2))
        return outputs, targets, ids[torch.cat([part[0] for part in parts])]

    def _passes(
        self, rows: Stack, owner: Tensor, first: Tensor, count: Tensor, running: Tensor | None, predict: Predict
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run each model over its devices' samples; give the samples' devices, the outputs and the targets, some at a time."""
        size = min(self._most, max(64, _NUMBERS // (4 * self._width)))
        for position in owner.unique().tolist():
            mine = (owner == position).nonzero().squeeze(1)
            mine = mine[count[mine] > 0]
            if not len(mine):
                continue  # a metric need not understand an empty batch
            device_of = torch.repeat_interleave(mine, count[mine])
            shift = torch.cumsum(count[mine], 0) - count[mine]
            index = torch.repeat_interleave(first[mine] - shift, count[mine]) + torch.arange(len(device_of))
            row = {name: value[position] for name, value in rows.items()}
            moving = None if running is None else running[position]
            for some, devices in zip(index.split(size), device_of.split(size), strict=True):
                x, y = self._gather(some)
                yield devices, self._output(row, x, y, moving, predict), y

    def _output(self, row: Stack, x: Tensor, y: Tensor, running: Tensor | None, predict: Predict) -> Tensor:
        """Return one model's output on some samples."""
        if isinstance(self._backend, FusedBackend) and predict is model_output:
            return self._backend.predict(row["model"][None], x[None])[0]
        module, _ = self.replicas.get()
        return predict(row, Batch(x, y, None, self._task, module, {}, running))

    def _own(
        self, rows: Stack, owner: Tensor, first: Tensor, count: Tensor, running: Tensor | None, predict: Predict
    ) -> dict[str, Tensor]:
        """Run many models at once, each over its own device's samples in padded blocks."""
        sums = self._empty(len(count))
        for lo in range(0, int(count.max()) if len(count) else 0, self._block):
            active = (count > lo).nonzero().squeeze(1)
            # Devices of like size go together, and no more of them than fit a cache.
            active = active[count[active].argsort(stable=True)]
            size = min(self._block, int(count[active].max()) - lo)
            for some in active.split(max(1, _NUMBERS // (size * self._width))):
                size = min(self._block, int(count[some].max()) - lo)
                position = lo + torch.arange(size)
                real = position < count[some, None]
                index = first[some, None] + torch.minimum(position, count[some, None] - 1)
                x, y = self._gather(index.reshape(-1))
                mine = {name: value[owner[some].to(value.device)] for name, value in rows.items()}
                moving = None if running is None else running[some.to(running.device)]
                x, y = x.unflatten(0, index.shape), y.unflatten(0, index.shape)
                values = self._values(mine, x, y, moving, predict)
                for name, value in zip(sums, values, strict=True):
                    sums[name][some] = sums[name][some] + (value.to("cpu", torch.float64) * real).sum(1)
        return sums

    def _values(self, rows: Stack, x: Tensor, y: Tensor, running: Tensor | None, predict: Predict) -> list[Tensor]:
        """Return every metric ``(n, samples)`` of each row's model on its samples."""
        task, metrics = self._task, self._task.per_sample_metrics.values()

        def measured(output: Tensor, y: Tensor) -> list[Tensor]:
            return [metric(output, y) for metric in metrics]

        if isinstance(self._backend, FusedBackend) and predict is model_output:
            result: list[Tensor] = vmap(measured)(self._backend.predict(rows["model"], x), y)
            return result
        module, _ = self.replicas.get()

        def one(row: Stack, x: Tensor, y: Tensor, running: Tensor | None) -> list[Tensor]:
            return measured(predict(row, Batch(x, y, None, task, module, {}, running)), y)

        values: list[Tensor] = vmap(one, in_dims=(0, 0, 0, None if running is None else 0))(rows, x, y, running)
        return values
