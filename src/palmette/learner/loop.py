"""The loop backend: one device after the other with plain autograd, for any module.

It is the reference the other backends must agree with, and the fastest one for models whose single operations are large: then
nothing is gained by stacking devices, and torch's own layers are hard to beat. A thread has one module whose parameters are the
columns of one flat row. So a device's model is put in and taken out by one copy, and a step's pull is one operation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from palmette.learner.backends import (
    Batch,
    Feed,
    Gradients,
    Objective,
    Replicas,
    Stack,
    apart,
    spread,
    task_loss,
    whole,
)
from palmette.learner.head import Head, gradients
from palmette.learner.normalising import rectify_in_place, replace_group_norms
from palmette.task import AddressedDropout, Task

_MANY = 1 << 15  # outputs from which on a closed form of the loss's gradient is faster than autograd's: those of texts

Parts = tuple[str, ...] | None


class Instance:
    """One thread's module, its learned parameters the columns of one flat row.

    Attributes:
        row: The parameters as a flat row; whoever writes into it changes the module.
        module: The module.
        dropout: Its layers of dropout, by name.

    Args:
        task: What is learned.
        dtype: Type of the row.
        device: Where it lives.
        channels_last: Whether images are given with their channels last in memory.
    """

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device, *, channels_last: bool) -> None:
        self._task, self._head, self._channels_last = task, Head(task), channels_last
        self.module = task.replica(training=True, dtype=dtype, device=device)
        if channels_last:
            replace_group_norms(self.module)
        rectify_in_place(self.module)
        self.row = torch.zeros(task.learned.width, dtype=dtype, device=device)
        self._parameters: dict[str, tuple[nn.Parameter, Tensor]] = {}
        named = dict(self.module.named_parameters())
        for name, view in task.learned.unflatten(self.row).items():
            named[name].data = view
            self._parameters[name] = named[name], view
        self.dropout = {name: one for name, one in self.module.named_modules() if isinstance(one, AddressedDropout)}
        moving = dict(self.module.named_buffers())
        self._moving = {} if task.running is None else {name: moving[name] for name in task.running.names}
        self._learned: frozenset[str] | None = None

    def load(self, row: Tensor, running: Tensor | None) -> None:
        """Put a device's model in, and its running statistics where it has some."""
        self.row.copy_(row)
        if running is not None and self._task.running is not None:
            for name, value in self._task.running.unflatten(running).items():
                # A method that extrapolates may bring an averaged variance below zero.
                self._moving[name].copy_(value.clamp(min=0) if name.endswith("_var") else value)

    def running(self) -> Tensor:
        """Return the running statistics as the last batch left them."""
        assert self._task.running is not None
        return self._task.running.flatten(self._moving)

    def learns(self, only: Parts) -> list[Tensor]:
        """Let some parts of the model learn, all by default; return their parameters as views of the row."""
        learned = frozenset(self._parameters) if only is None else self._task.learned.members(only)
        if learned != self._learned:
            self._learned = learned
            for name, (parameter, _) in self._parameters.items():
                parameter.requires_grad_(name in learned)
        return [view for name, (_, view) in self._parameters.items() if name in learned]

    def gradients(self, x: Tensor, y: Tensor, address: Tensor | None) -> Sequence[Tensor | None]:
        """Return the gradient of the mean loss in every parameter that learns; ``None`` where it does not depend on it.

        Args:
            x: Samples.
            y: Their targets.
            address: The address of dropout, where the module has some.
        """
        if address is not None:
            for layer in self.dropout.values():
                layer.address = address
        if self._channels_last and x.dim() == 4:
            x = _channels_last(x)
        leaves = [parameter for parameter, _ in self._parameters.values() if parameter.requires_grad]
        with torch.enable_grad():
            output: Tensor = self.module(x)
            if not output.requires_grad:  # behind a dropout of everything
                return [None] * len(leaves)
            delta = self._head.closed(output.detach()[None], y[None]) if output.numel() >= _MANY else None
            if delta is not None:
                return gradients(output, leaves, delta[0].div_(y.shape[0]))
            return torch.autograd.grad(self._task.per_sample_loss(output, y).mean(), leaves, allow_unused=True)

    def flat(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Return gradients as a row, with zeros where there are none."""
        result, learned = torch.zeros_like(self.row), self._learned or frozenset()
        views = self._task.learned.unflatten(result)
        for name, gradient in zip((name for name in views if name in learned), gradients, strict=True):
            if gradient is not None:
                views[name].copy_(gradient)
        return result


def _channels_last(x: Tensor) -> Tensor:
    """Return images with their channels last in memory; torch takes those of one channel for either order, so they are told."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    return x.as_strided(x.shape, (x.stride(0), 1, *x.stride()[2:]))


class LoopBackend:
    """One device after the other with plain autograd and no padding: the reference the others must agree with.

    Args:
        task: What is learned.
        dtype: Type of the rows.
        device: Where they live.
        channels_last: Whether images are given with their channels last in memory, which torch's convolutions and pooling are
            faster on; not every module can take them so.
    """

    name = "loop"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device, *, channels_last: bool = False) -> None:
        self._task, self._made = task, (dtype, device)
        self._channels_last = channels_last
        self._local = threading.local()
        # A module of its own: after a call with tensors that are handed over, a layer of two names keeps some of them.
        self._replicas = Replicas(task, dtype, device, training=True)

    def instance(self) -> Instance:
        """Return this thread's module."""
        if "instance" not in self._local.__dict__:
            self._local.instance = Instance(self._task, *self._made, channels_last=self._channels_last)
        made: Instance = self._local.instance
        return made

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that this thread's module keeps as its own: not those that every call gives it."""
        mine = self.instance()
        given = {f"{name}.address" for name in mine.dropout}
        given.update(self._task.running.names if self._task.running is not None else ())
        return ((name, value) for name, value in mine.module.named_buffers() if name not in given)

    def gradient(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        """Differentiate the objective device by device."""
        if objective is not task_loss or rows["model"].shape[1] != self._task.learned.width:
            return self._general(objective, rows, feed)
        mine, model = self.instance(), rows["model"]
        mine.learns(feed.only)
        gradients, running = torch.empty_like(model), None if feed.running is None else torch.empty_like(feed.running)
        for i in range(len(feed.x)):
            real = slice(None) if feed.weight is None else feed.weight[i] > 0
            x, y = feed.x[i][real], feed.y[i][real]
            mine.load(model[i], None if feed.running is None else feed.running[i])
            gradients[i] = mine.flat(mine.gradients(x, y, feed.address[i]))
            if feed.weight is not None:  # a block of a larger batch has a share of it
                gradients[i] *= feed.weight[i].sum()
            if running is not None:
                running[i] = mine.running()
        return {"model": gradients}, running

    def _general(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        """Differentiate an objective of someone's own: the module is called with the rows it is given."""
        task, (module, dropout) = self._task, self._replicas.get()
        mine, rest = apart(task, rows, feed)
        gradients = {name: torch.empty_like(value) for name, value in mine.items()}
        running = None if feed.running is None else torch.empty_like(feed.running)
        for i in range(len(feed.x)):
            real = slice(None) if feed.weight is None else feed.weight[i] > 0
            weight = None if feed.weight is None else feed.weight[i][real]
            leaves = {name: value[i].detach().requires_grad_(True) for name, value in mine.items()}
            others = {name: value[i] for name, value in rest.items()}
            moving = None if feed.running is None else feed.running[i]
            addresses = dict.fromkeys(dropout, feed.address[i])
            batch = Batch(feed.x[i][real], feed.y[i][real], weight, task, module, addresses, moving, feed.address[i])
            with torch.enable_grad():
                value = objective(whole(task, leaves, others, feed.only), batch)
            # A value that no leaf enters, such as one behind a dropout of everything, has no graph.
            known = value.requires_grad
            parts = (
                torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if known else [None] * len(leaves)
            )
            for name, part in zip(leaves, parts, strict=True):
                gradients[name][i] = 0 if part is None else part
            if running is not None and batch.running is not None:
                running[i] = batch.running.detach()
        return spread(task, gradients, rows, feed.only), running
