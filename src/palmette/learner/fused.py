"""The fused backend: a chain of common layers runs for all devices of a chunk as stacked products, with no autograd in between.

Measured on one core: torch multiplies a batch of small matrices two to three times faster into contiguous memory than into
views of the flat rows. So a descent copies its rows once into a *space*, where each parameter lies contiguous for all
devices, takes all its steps there, and copies them back at the end.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palmette.learner import dense
from palmette.learner.backends import Backend, Feed, Gradients, Objective, Stack, VmapBackend, task_loss
from palmette.learner.batches import Lines
from palmette.learner.head import Head, classes
from palmette.learner.loop import LoopBackend
from palmette.learner.lowering import Link, NotFused, dense_layers, lower
from palmette.learner.samples import Samples
from palmette.learner.stages import Dropout, Place, Stage
from palmette.task import Task
from palmette.task.layout import Layout

_KEPT = 6  # spaces a thread keeps for its next descents


class Space:
    """One thread's memory for the chain of n devices: parameters, where gradients go, activations.

    Args:
        task: What is learned.
        links: The chain.
        n: Number of devices.
        batch: Batch size.
        like: A tensor of the rows' type and place.
        fold: Whether gradients go straight into the parameters, as steps.
        training: Whether dropout drops.
        only: The parts of the model that are learned; all by default.
    """

    def __init__(
        self,
        task: Task,
        links: list[Link],
        n: int,
        batch: int,
        like: Tensor,
        *,
        fold: bool,
        training: bool = True,
        only: tuple[str, ...] | None = None,
    ) -> None:
        layout = task.learned
        self._n, self._batch, self._sizes = n, batch, list(layout.sizes)
        self._flat = like.new_empty(n * layout.width)
        self._sink = self._flat if fold else torch.empty_like(self._flat)
        self.parts, self._sink_parts = self._pieces(self._flat), self._pieces(self._sink)
        own, sinks = self._named(self._flat, layout), self._named(self._sink, layout)
        own |= {name: value.to(like).expand(n, *value.shape) for name, value in task.frozen.items()}
        learned = frozenset(layout.names) if only is None else layout.members(only)
        if not fold and only is not None:
            self._sink.zero_()  # the gradient of what is not learned
        self._stages: list[Stage] = []
        at_work = (i for i, link in enumerate(links) if learned.intersection(link.names))
        self._first = next(at_work, len(links))
        for i, link in enumerate(links):
            inplace = i > 0 and links[i - 1].stage.fresh
            place = Place(i == self._first, inplace, training)
            mine = [sinks[name] if name in learned else None for name in link.names]
            self._stages.append(link.stage(link.layer, [own[name] for name in link.names], mine, place))
        used = {name for link in links for name in link.names}
        self._idle = [sinks[name] for name in layout.names if name not in used and name in learned]
        self._learned = learned
        self._back = list(reversed(self._stages[self._first :]))
        self._dropouts = [stage for stage in self._stages if isinstance(stage, Dropout)]
        self._head, self._loss = Head(task), task.loss
        self._layers = dense_layers(links) if fold else None
        self._own = own
        self._x: Tensor | None = None
        self._gathered: tuple[Tensor, list[Tensor]] | None = None

    def _named(self, flat: Tensor, layout: Layout) -> dict[str, Tensor]:
        parts = flat.split([self._n * size for size in layout.sizes])
        named = zip(layout.names, parts, layout.shapes, strict=True)
        return {name: part.view(self._n, *shape) for name, part, shape in named}

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """View the parameters as the columns of rows."""
        return [part.view(self._n, -1) for part in flat.split([self._n * size for size in self._sizes])]

    def load(self, rows: Tensor, centre: Tensor | None = None) -> None:
        """Copy rows in, and the rows they will be pulled to."""
        dense.copy_in(self.parts, rows, self._sizes)
        if centre is not None:
            dense.copy_in(self._pieces(self._pulled), centre, self._sizes)

    @cached_property
    def _pulled(self) -> Tensor:
        return torch.empty_like(self._flat)

    def store(self) -> Tensor:
        """Return as rows what the gradients were written to: the new parameters, or the gradients themselves."""
        return dense.copy_out(self._sink_parts, self._sizes)

    def batches(self, steps: int, size: int, samples: Samples) -> tuple[Tensor, list[Tensor]]:
        """Return memory for the features of some steps' batches, and the view ``(n, size, ...)`` of each step."""
        if self._gathered is None:
            shape = steps, self._n, size, *samples.shape
            whole = torch.empty(shape, dtype=samples.dtype, device=samples.device)
            self._gathered = whole.flatten(0, 2), list(whole.unbind())
        return self._gathered

    def alone(self, samples: Samples) -> bool:
        """Return whether `descend` can take the steps: a chain of linear layers with a loss of Palmette's own."""
        if self._layers is None or self._idle or not isinstance(self._loss, str) or samples.dtype != self._flat.dtype:
            return False
        weight = self._own[self._layers[0].weight]
        return samples.width == weight.shape[2] and (self._loss != "cross-entropy" or classes(samples.y, 1))

    def descend(
        self,
        samples: Samples,
        start: Tensor,
        centre: Tensor | None,
        lines: list[Lines],
        steps: int,
        weight: Tensor | None,
        beta: float,
        alpha: float,
        pull: float,
    ) -> Tensor:
        """Take all steps of a descent in one call: those that `load`, `step` and `store` would take one by one.

        Args:
            samples: Where batches are gathered from.
            start: Rows to start from.
            centre: Rows they are pulled to.
            lines: The batches; the last one serves all further steps.
            steps: Number of steps.
            weight: As in `step`, one for every step, of which the last serves all further ones; so are the others.
            beta: What becomes of the parameters.
            alpha: Factor of the gradients.
            pull: Factor of the centre.
        """
        source, affine = samples.source
        result: Tensor = dense.compiled()(
            *(start, centre, self._sizes, self._flat, self._flat if centre is None else self._pulled),
            *self.chain,
            *(source.view(len(source), -1), affine, samples.y, self.memory(samples)),
            *(
                [list(told) for told in lines],
                steps,
                None if weight is None else weight.unsqueeze(3),
                self._loss,
                beta,
                alpha,
                pull,
            ),
        )
        return result

    @cached_property
    def chain(self) -> tuple[Any, ...]:
        """The weights, biases and activations of a dense chain, what of them is learned, and the first layer that is."""
        layers = self._layers or []
        weights = [self._own[layer.weight] for layer in layers]
        biases = [None if layer.bias is None else self._own[layer.bias] for layer in layers]
        sinks = [part if layer.weight in self._learned else None for layer, part in zip(layers, weights, strict=True)]
        bias_sinks = [part if layer.bias in self._learned else None for layer, part in zip(layers, biases, strict=True)]
        at_work = (k for k, layer in enumerate(layers) if self._learned.intersection((layer.weight, layer.bias)))
        first = next(at_work, len(layers))
        return weights, biases, [layer.activation for layer in layers], sinks, bias_sinks, first

    def memory(self, samples: Samples) -> Tensor:
        """Return memory for the samples of one step."""
        if self._x is None:
            self._x = self._flat.new_empty((self._n, self._batch, samples.width))
        return self._x

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs for samples ``(n, batch, ...)``; the next call may overwrite them."""
        for stage in self._stages:
            x = stage.forward(x)
        return x

    def step(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        address: Tensor | None,
        beta: float,
        alpha: float,
        pull: float,
    ) -> None:
        """Set every sink to ``beta * sink + alpha * sum of the gradients + pull * centre``.

        Args:
            x: Samples ``(n, batch, ...)``.
            y: Targets.
            weight: Weight ``(n, batch)`` of each sample in the sum; all one by default.
            address: Dropout address of each device, where the model has dropout.
            beta: What becomes of the sink.
            alpha: Factor of the gradients.
            pull: Factor of the centre given to `load`.
        """
        if address is not None:
            for dropout in self._dropouts:
                dropout.address = address
        delta = self._head.delta(self.predict(x), y)
        if weight is not None:
            delta.mul_(weight.view(*weight.shape, *[1] * (delta.dim() - 2)))
        for stage in self._back:
            delta = stage.backward(delta, beta, alpha)
        for idle in self._idle:
            idle.mul_(beta) if beta else idle.zero_()
        if pull:
            self._sink.add_(self._pulled, alpha=pull)


class FusedBackend:
    """All devices of a chunk at once as stacked products, for chains of common layers.

    Args:
        task: What is learned; `NotFused` says why its module has no fused form.
        dtype: Type of the rows.
        device: Where they live.
    """

    name = "fused"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        if task.running is not None:
            raise NotFused("it has running statistics (BatchNorm)")
        self._task, self.loss = task, task.loss
        self.links = lower(task.replica(training=True, dtype=dtype, device=device))
        if unknown := {name for link in self.links for name in link.names} - {*task.learned.names, *task.frozen}:
            raise NotFused(f"parameter {min(unknown)} is shared between layers")
        self.has_dropout = any(link.stage is Dropout for link in self.links)
        self.dense = dense_layers(self.links) is not None
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._local = threading.local()
        self._other: dict[str, Backend] = {
            "vmap": VmapBackend(task, dtype, device),
            "loop": LoopBackend(task, dtype, device),
        }

    def space(
        self,
        n: int,
        batch: int,
        *,
        fold: bool,
        training: bool = True,
        only: tuple[str, ...] | None = None,
        name: str = "",
    ) -> Space:
        """Return this thread's memory for n devices and a batch size, in which some parts of the model are learned.

        There is one for each ``name``, for work on several models at once.
        """
        kept: dict[Any, Space] = self._local.__dict__.setdefault("spaces", {})
        key = (n, batch, fold, training, only, name)
        space = kept.pop(key, None) or Space(
            *(self._task, self.links, n, batch, self._like), fold=fold, training=training, only=only
        )
        while len(kept) >= _KEPT:
            del kept[next(iter(kept))]
        kept[key] = space
        return space

    def gradient(self, objective: Objective, rows: Stack, feed: Feed) -> Gradients:
        """Return the gradient of the task's loss; other objectives go to `vmap`, or to `loop` where it cannot follow."""
        if objective is not task_loss:
            try:
                return self._other["vmap"].gradient(objective, rows, feed)
            except RuntimeError:
                return self._other["loop"].gradient(objective, rows, feed)
        batch = feed.x.shape[1]
        space = self.space(len(feed.x), batch, fold=False, only=feed.only)
        space.load(rows["model"])
        space.step(feed.x, feed.y, feed.weight, feed.address, 0.0, 1.0 if feed.weight is not None else 1 / batch, 0.0)
        return {"model": space.store()}, None

    def predict(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of each row's model, without dropout, on its samples ``(n, batch, ...)``."""
        space = self.space(len(x), x.shape[1], fold=True, training=False)
        space.load(rows)
        return space.predict(x)
