"""The general ways to take the gradients of many devices: `vmap`, all at once, and `loop`, one after the other.

Both compute, for every row of a stack, the gradient of an objective on that row's own batch. `loop` is plain autograd, slow
and easy to debug; `vmap` must agree with it. An objective is ``(rows, batch) -> scalar``: ``rows`` holds one device's named
rows, ``batch`` its samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from palmette.task import AddressedDropout, Task

Stack = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """One device's batch, as an objective sees it."""

    x: Tensor
    y: Tensor
    _weight: Tensor | None
    _task: Task
    _module: nn.Module
    _dropout: dict[str, Tensor]

    def predict(self, row: Tensor) -> Tensor:
        """Return the module's output on this batch with the parameters in ``row``."""
        tensors = {**self._task.layout.unflatten(row), **self._dropout}
        output = functional_call(self._module, tensors, (self.x,))
        assert isinstance(output, Tensor)
        return output

    def mean(self, per_sample: Tensor) -> Tensor:
        """Average a value per sample over the real samples of the batch."""
        return per_sample.mean() if self._weight is None else (per_sample * self._weight).sum()

    def loss(self, row: Tensor) -> Tensor:
        """Return the task's mean loss of ``row`` on this batch."""
        return self.mean(self._task.per_sample_loss(self.predict(row), self.y))


Objective = Callable[[Stack, Batch], Tensor]


def task_loss(rows: Stack, batch: Batch) -> Tensor:
    """The objective of plain training: the task's loss of the row named ``model``."""
    return batch.loss(rows["model"])


class Backend(Protocol):
    """What the learner needs of a backend."""

    name: str

    def gradient(
        self, objective: Objective, rows: Stack, x: Tensor, y: Tensor, weight: Tensor | None, address: Tensor
    ) -> Stack:
        """Return the objective's gradient for every row: ``rows`` are ``(n, ...)``, samples ``(n, batch, ...)``."""
        ...


class Replicas:
    """One copy of the module per thread: functional calls swap a module's tensors in place while they run."""

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device, *, training: bool) -> None:
        self._make = partial(task.replica, training=training, dtype=dtype, device=device)
        self._local = threading.local()

    def get(self) -> tuple[nn.Module, list[str]]:
        """Return this thread's module and the names of its dropout addresses."""
        if "module" not in self._local.__dict__:
            module = self._local.module = self._make()
            self._local.dropout = [
                f"{name}.address" for name, layer in module.named_modules() if isinstance(layer, AddressedDropout)
            ]
        return self._local.module, self._local.dropout


class VmapBackend:
    """All devices of a chunk at once, for any module `torch.func.vmap` can follow."""

    name = "vmap"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        self._task, self._replicas = task, Replicas(task, dtype, device, training=True)

    def gradient(
        self, objective: Objective, rows: Stack, x: Tensor, y: Tensor, weight: Tensor | None, address: Tensor
    ) -> Stack:
        """Differentiate the objective under `vmap`."""
        gradients: Stack = self._differentiate(objective, masked=weight is not None)(rows, x, y, weight, address)
        return gradients

    def _differentiate(self, objective: Objective, *, masked: bool) -> Callable[..., Stack]:
        module, dropout = self._replicas.get()

        def one(row: Stack, x: Tensor, y: Tensor, weight: Tensor | None, address: Tensor) -> Tensor:
            return objective(row, Batch(x, y, weight, self._task, module, dict.fromkeys(dropout, address)))

        function: Callable[..., Stack] = vmap(grad(one), in_dims=(0, 0, 0, 0 if masked else None, 0))
        return function


class CompiledBackend(VmapBackend):
    """`vmap` through `torch.compile`: half a minute to start, then several times as fast; needs a C++ compiler.

    Every thread compiles for itself, because every thread has a module of its own.
    """

    name = "compile"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(task, dtype, device)
        self._compiled: dict[tuple[int, Objective, bool], Callable[..., Stack]] = {}

    def _differentiate(self, objective: Objective, *, masked: bool) -> Callable[..., Stack]:
        key = (threading.get_ident(), objective, masked)
        if key not in self._compiled:
            self._compiled[key] = torch.compile(super()._differentiate(objective, masked=masked))
        return self._compiled[key]


class LoopBackend:
    """One device after the other with plain autograd and no padding: the reference the others must agree with."""

    name = "loop"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        self._task, self._replicas = task, Replicas(task, dtype, device, training=True)

    def gradient(
        self, objective: Objective, rows: Stack, x: Tensor, y: Tensor, weight: Tensor | None, address: Tensor
    ) -> Stack:
        """Differentiate the objective device by device."""
        module, dropout = self._replicas.get()
        gradients = {name: torch.empty_like(value) for name, value in rows.items()}
        for i in range(len(x)):
            real = slice(None) if weight is None else weight[i] > 0
            weight_i = None if weight is None else weight[i][real]
            leaves = {name: value[i].detach().requires_grad_(True) for name, value in rows.items()}
            batch = Batch(x[i][real], y[i][real], weight_i, self._task, module, dict.fromkeys(dropout, address[i]))
            with torch.enable_grad():
                value = objective(leaves, batch)
            parts = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            for name, part in zip(leaves, parts, strict=True):
                gradients[name][i] = 0 if part is None else part
        return gradients
