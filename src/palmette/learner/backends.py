"""What all backends share, and the general way to take the gradients of many devices at once: `vmap`.

A backend computes, for every row of a stack, the gradient of an objective on that row's own batch. `palmette.learner.loop` is
plain autograd, one device after the other; the others must agree with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from palmette import address
from palmette.errors import PalmetteError
from palmette.task import AddressedDropout, Task
from palmette.task.layout import Which
from palmette.task.parts import layer_of

Stack = dict[str, Tensor]

_NOISE = 1 << 40  # where the addresses of noise begin, beyond those of dropout


@dataclass(frozen=True, eq=False)
class Feed:
    """What the gradients of n devices are taken on.

    Attributes:
        x: Samples ``(n, batch, ...)``.
        y: Their targets.
        weight: Weight ``(n, batch)`` of each sample in its batch's mean, zero for samples that only fill up; ``None`` where all
            batches are full.
        address: One address per device, for dropout and noise.
        running: Running statistics ``(n, s)``, for models that have some.
        only: The parts of the row ``model`` to differentiate; all by default.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    address: Tensor
    running: Tensor | None = None
    only: tuple[str, ...] | None = None

    def take(self, which: Any, batch: slice = slice(None)) -> Feed:
        """Return what is for some of the devices, and some of the places in their batches."""
        return replace(
            self,
            x=self.x[which][:, batch],
            y=self.y[which][:, batch],
            weight=None if self.weight is None else self.weight[which][:, batch],
            address=self.address[which],
            running=None if self.running is None else self.running[which],
        )


Gradients = tuple[Stack, Tensor | None]
"""The gradient of every row, by name, and the running statistics after the batch, where there are some."""


class Batch:
    """One device's batch, as an objective sees it.

    Attributes:
        x: Samples.
        y: Targets.
        running: Running statistics: as they were, and after `predict` as the batch left them.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        task: Task,
        module: nn.Module,
        dropout: Mapping[str, Tensor],
        running: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        self.x, self.y, self.running = x, y, running
        self._weight, self._task, self._module, self._dropout = weight, task, module, dropout
        self._place, self._draws = place, 0

    def predict(self, row: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the module's output on this batch with the parameters in ``row``: a flat row, or tensors by name.

        Args:
            row: The parameters.
        """
        task, moving = self._task, self._task.running
        if isinstance(row, Tensor):
            row = task.named(row)
        tensors = {**row, **self._dropout}
        if moving is not None:
            # The module changes its statistics in place, so it is given copies.
            there = moving.unflatten(self.running) if self.running is not None else {}
            given = {name: (row[name] if name in row else there[name]).clone() for name in moving.names}
            # A method that extrapolates may bring an averaged variance below zero.
            tensors |= {name: value.clamp(min=0) if name.endswith("_var") else value for name, value in given.items()}
        output = functional_call(self._module, tensors, (self.x,))
        assert isinstance(output, Tensor)
        if moving is not None:
            self.running = moving.flatten(tensors)
        return output

    def features(self, row: Tensor | Mapping[str, Tensor], of: Which | None = "head") -> Tensor:
        """Return what enters a part of the module: the input of the first of its layers that is called.

        Args:
            row: The parameters, as in `predict`.
            of: The part; ``None`` for the last layer that is learned.
        """
        seen: list[Any] = []
        layout = self._task.layout
        layers = {layer_of(name) for name in (layout.members(of) if of is not None else self._task.learned.names[-1:])}
        hooks = [
            self._module.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
            for layer in layers
        ]
        try:
            self.predict(row)
        finally:
            for hook in hooks:
                hook.remove()
        if not seen or not isinstance(seen[0], Tensor):
            raise PalmetteError(f"no layer of the part {of!r} is called with a tensor, so it has no features before it")
        return seen[0]

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers like ``like``: new ones at every call and every step, the same on every machine."""
        if self._place is None:
            raise PalmetteError("there is noise in an objective of node.minimise alone")
        self._draws += 1
        base = address.mix(self._place, torch.full((), _NOISE + self._draws, device=like.device))
        return address.normal(base, like.numel(), like.dtype).reshape(like.shape)

    @property
    def real(self) -> Tensor:
        """Which samples are real (bool); the others only fill up. Real ones come first."""
        return self.y.new_ones(len(self.y), dtype=torch.bool) if self._weight is None else self._weight > 0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the task's loss of outputs, one value per sample.

        Args:
            outputs: What the module gave.
            targets: The targets, in the same order; `y` for those of this batch.
        """
        return self._task.per_sample_loss(outputs, targets)

    @property
    def share(self) -> float | Tensor:
        """How much of the device's batch this is: 1, or less where a large one comes in blocks whose values are added up."""
        return 1.0 if self._weight is None else self._weight.sum()

    def mean(self, per_sample: Tensor) -> Tensor:
        """Average a value per sample over the real samples of the batch.

        Args:
            per_sample: One value per sample.
        """
        return per_sample.mean() if self._weight is None else (per_sample * self._weight).sum()

    def loss(self, row: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the task's mean loss of ``row`` on this batch.

        Args:
            row: The parameters, as in `predict`.
        """
        return self.mean(self.losses(self.predict(row), self.y))


Objective = Callable[[Any, Batch], Tensor]
"""``(rows, batch) -> scalar`` for one device: named rows of one device and its `Batch`."""


def task_loss(rows: Mapping[str, Any], batch: Batch) -> Tensor:
    """The objective of plain training: the task's loss of the row named ``model``."""
    return batch.loss(rows["model"])


class Backend(Protocol):
    """What the learner needs of a backend."""

    name: str

    def gradient(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        """Return the objective's gradient for every row; ``rows`` are ``(n, ...)``.

        Where only parts of the row ``model`` are differentiated, its gradient is zero in the others.
        """
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


def apart(task: Task, rows: Stack, feed: Feed) -> tuple[Stack, Stack]:
    """Return what is differentiated, and the whole rows of which it is a part, where it is one."""
    if feed.only is None:
        return rows, {}
    return {**rows, "model": task.learned.cut(rows["model"], feed.only)}, {"model": rows["model"]}


def whole(task: Task, rows: Stack, rest: Stack, only: tuple[str, ...] | None) -> dict[str, Any]:
    """Return one device's rows as an objective sees them; a model in parts comes as tensors by name."""
    if only is None:
        return dict(rows)
    # By name and not as a row, so that autograd leaves alone what is not differentiated.
    mine = task.learned.part(only).unflatten(rows["model"])
    return {**rows, "model": {**task.named(rest["model"]), **mine}}


def spread(task: Task, gradients: Stack, rows: Stack, only: tuple[str, ...] | None) -> Stack:
    """Return gradients of whole rows: zero where nothing was differentiated."""
    if only is None:
        return gradients
    layout, part = task.learned, task.learned.part(only)
    whole = layout.unflatten(torch.zeros_like(rows["model"]))
    whole |= part.unflatten(gradients["model"])
    return {**gradients, "model": layout.flatten(whole)}


class VmapBackend:
    """All devices of a chunk at once, for any module `torch.func.vmap` can follow."""

    name = "vmap"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        self._task, self._replicas = task, Replicas(task, dtype, device, training=True)

    def gradient(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        """Differentiate the objective under `vmap`."""
        if feed.weight is None or not self._task.mixes_samples:
            return self._of(objective, rows, feed)
        # Samples that only fill up must not be seen by the others, so devices with as many real ones go together.
        real = (feed.weight > 0).sum(1)
        gradients = {name: torch.empty_like(value) for name, value in rows.items()}
        running = None if feed.running is None else torch.empty_like(feed.running)
        for count in real.unique().tolist():
            which = (real == count).nonzero().squeeze(1)
            mine = {name: value[which] for name, value in rows.items()}
            some, moved = self._of(objective, mine, feed.take(which, slice(count)))
            for name, value in some.items():
                gradients[name][which] = value
            if running is not None and moved is not None:
                running[which] = moved
        return gradients, running

    def _of(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        mine, rest = apart(self._task, rows, feed)
        masked, moving = feed.weight is not None, feed.running is not None
        function = self._differentiate(objective, masked=masked, moving=moving, only=feed.only)
        gradients, running = function(mine, rest, feed.x, feed.y, feed.weight, feed.address, feed.running)
        return spread(self._task, gradients, rows, feed.only), running if moving else None

    def _differentiate(
        self, objective: Objective, *, masked: bool, moving: bool, only: tuple[str, ...] | None
    ) -> Callable[..., tuple[Stack, Tensor]]:
        task, (module, dropout) = self._task, self._replicas.get()

        def one(
            rows: Stack,
            rest: Stack,
            x: Tensor,
            y: Tensor,
            weight: Tensor | None,
            place: Tensor,
            running: Tensor | None,
        ) -> tuple[Tensor, Tensor]:
            batch = Batch(x, y, weight, task, module, dict.fromkeys(dropout, place), running, place)
            value = objective(whole(task, rows, rest, only), batch)
            return value, place if batch.running is None else batch.running

        dims = (0, 0, 0, 0, 0 if masked else None, 0, 0 if moving else None)
        function: Callable[..., tuple[Stack, Tensor]] = vmap(grad(one, has_aux=True), in_dims=dims)
        return function


class CompiledBackend(VmapBackend):
    """`vmap` through `torch.compile`: half a minute to start, then several times as fast; needs a C++ compiler.

    Every thread compiles for itself, because every thread has a module of its own.
    """

    name = "compile"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(task, dtype, device)
        self._compiled: dict[Any, Callable[..., tuple[Stack, Tensor]]] = {}

    def _differentiate(
        self, objective: Objective, *, masked: bool, moving: bool, only: tuple[str, ...] | None
    ) -> Callable[..., tuple[Stack, Tensor]]:
        key = (threading.get_ident(), objective, masked, moving, only)
        if key not in self._compiled:
            plain = super()._differentiate(objective, masked=masked, moving=moving, only=only)
            self._compiled[key] = torch.compile(plain)
        return self._compiled[key]
