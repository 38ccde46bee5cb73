"""The memory that the fused backend works in: parameters, where gradients go, and the stages of one model for many devices.

Measured on one core: torch multiplies a batch of small matrices two to three times faster into contiguous memory than into
views of the flat rows. So a descent copies its rows once into a *space*, where each parameter lies contiguous for all
devices, takes all its steps there, and copies them back at the end.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palmette.learner import dense
from palmette.learner.batches import Lines
from palmette.learner.head import Head, classes
from palmette.learner.links import Link
from palmette.learner.lowering import dense_layers
from palmette.learner.samples import Samples
from palmette.learner.stages import Dropout, Join, Piece, Place, Stage
from palmette.task import Task
from palmette.task.layout import Layout


class Space:
    """One thread's memory for the models of n devices: parameters, where gradients go, activations.

    Args:
        task: What is learned.
        links: The model.
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
        self._links = links
        self._stages: list[Piece] = []
        live, places = self._arranged(links, learned, training=training)
        for link, place in zip(links, places, strict=True):
            mine = [sinks[name] if name in learned else None for name in link.names]
            self._stages.append(link.stage(link.layer, [own[name] for name in link.names], mine, place))
        self._back = [
            (i, self._stages[i], [one if one >= 0 and live[one] else None for one in links[i].inputs])
            for i in range(len(links) - 1, -1, -1)
            if live[i]
        ]
        used = {name for link in links for name in link.names}
        self._idle = [sinks[name] for name in layout.names if name not in used and name in learned]
        self._learned = learned
        self._dropouts = [stage for stage in self._stages if isinstance(stage, Dropout)]
        self._head, self._loss = Head(task), task.loss
        self._layers = dense_layers(links) if fold else None
        self._own = own
        self._x: Tensor | None = None
        self._gathered: tuple[Tensor, list[Tensor]] | None = None

    @staticmethod
    def _arranged(links: list[Link], learned: frozenset[str], *, training: bool) -> tuple[list[bool], list[Place]]:
        """Return which links a gradient has to reach, and where each stands."""
        live: list[bool] = []
        readers: list[list[int]] = [[] for _ in links]
        for i, link in enumerate(links):
            behind = any(one >= 0 and live[one] for one in link.inputs)
            live.append(behind or not learned.isdisjoint(link.names))
            for one in link.inputs:
                if one >= 0:
                    readers[one].append(i)
        shared = [False] * len(links)
        for i in range(len(links) - 1, -1, -1):
            # Where several gradients come together, their sum is memory of its own.
            if len(readers[i]) == 1 and links[readers[i][0]].stage.passes:
                reader = readers[i][0]
                shared[i] = len(links[reader].inputs) > 1 or shared[reader]
        places = []
        for i, link in enumerate(links):
            before = link.inputs[-1]
            inplace = before >= 0 and links[before].stage.fresh and readers[before] == [i]
            first = not any(one >= 0 and live[one] for one in link.inputs)
            places.append(Place(first, inplace, training, shared[i]))
        return live, places

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
        values = [x]  # the output of link i has the place i + 1
        for stage, link in zip(self._stages, self._links, strict=True):
            if isinstance(stage, Stage):
                value = stage.forward(values[link.inputs[0] + 1])
            else:
                assert isinstance(stage, Join)
                value = stage.join([values[one + 1] for one in link.inputs])
            values.append(value)
        return values[-1]

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
        self._go_back(delta, beta, alpha)
        for idle in self._idle:
            idle.mul_(beta) if beta else idle.zero_()
        if pull:
            self._sink.add_(self._pulled, alpha=pull)

    def _go_back(self, delta: Tensor, beta: float, alpha: float) -> None:
        """Lead the gradient of the outputs back through the stages."""
        deltas: list[Tensor | None] = [None] * len(self._stages)
        deltas[-1:] = [delta]
        for i, stage, inputs in self._back:
            given, deltas[i] = deltas[i], None
            assert given is not None
            if isinstance(stage, Stage):
                parts: Any = (stage.backward(given, beta, alpha),)
            else:
                assert isinstance(stage, Join)
                parts = stage.part(given, beta, alpha)
            for one, part in zip(inputs, parts, strict=True):
                if one is not None and part is not None:
                    before = deltas[one]
                    deltas[one] = part if before is None else before + part
