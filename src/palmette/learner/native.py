"""The native backend: dense chains descend in a compiled kernel, device after device, the model and its step in cache.

It is the fused backend in all but one thing: the descents that `palmette.learner.kernel` can do are done there. Samples are
read where they lie, pull and step are part of the gradient's product, and which samples a step takes is computed there too.
What remains the fused backend's: optimisers with a memory, further gradients as functions of the rows, gradients by
themselves, and full gradients over more samples than are taken at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palmette.learner import kernel
from palmette.learner.batches import Plan, primes
from palmette.learner.descent import PerRow, Update, column
from palmette.learner.directions import Directions
from palmette.learner.fused import FusedBackend
from palmette.learner.links import NotFused
from palmette.learner.lowering import Layer, dense_layers
from palmette.learner.samples import Samples
from palmette.task import Task, signs

Floats = npt.NDArray[np.float64]

CALL_STEPS, CALL_WORK = 1 << 12, 1 << 31  # steps and products of one call, which takes about a tenth of a second
_THREAD = 1 << 21  # multiplications and additions that are worth the start of a thread


class NativeBackend(FusedBackend):
    """Chains of linear layers, one device after the other in the native kernel.

    Args:
        task: What is learned; `NotFused` says why the kernel cannot do it.
        dtype: Type of the rows.
        device: Where they live.
    """

    name = "native"

    def __init__(self, task: Task, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(task, dtype, device)
        layers, found = dense_layers(self.links), kernel.find()
        if layers is None or not isinstance(task.loss, str):
            raise NotFused("it is not a chain of linear layers with a loss of Palmette's own")
        if set(task.learned.names) - {name for link in self.links for name in link.names}:
            raise NotFused("it has parameters that no layer uses")
        if dtype != torch.float32 or device.type != "cpu":
            raise NotFused(
                f"the native kernel is for float32 on a CPU, not for {dtype} on {device.type}".replace("torch.", "")
            )
        if isinstance(found, str):
            raise NotFused(f"there is no native kernel, because {found}")
        self.kernel, self._layers = found, layers
        self._offsets = dict(zip(task.learned.names, np.cumsum([0, *task.learned.sizes]).tolist(), strict=False))
        self._shapes = {name: tuple(value.shape) for name, value in self._parameters(task).items()}
        self._frozen = {name: value.to(dtype).contiguous() for name, value in task.frozen.items()}
        self._chains: dict[tuple[str, ...] | None, Any] = {}
        self._bound: tuple[Samples, kernel.Samples | None] | None = None

    def _parameters(self, task: Task) -> dict[str, Tensor]:
        return {**task.learned.unflatten(task.initial()[: task.learned.width]), **task.frozen}

    def _chain(self, only: tuple[str, ...] | None) -> Any:
        """Return the layers as the kernel reads them, given the parts of the model that take steps."""
        if only not in self._chains:
            layout = self._task.learned
            learned = frozenset(layout.names) if only is None else layout.members(only)
            made = [self._layer(layer, learned) for layer in self._layers]
            self._chains[only] = (kernel.Layer * len(made))(*made)
        return self._chains[only]

    def _layer(self, layer: Layer, learned: frozenset[str]) -> kernel.Layer:
        outputs, inputs = self._shapes[layer.weight]
        bias = layer.bias or ""
        frozen = {name: value.data_ptr() for name, value in self._frozen.items()}
        return kernel.Layer(
            *(inputs, outputs, self._offsets.get(layer.weight, -1), self._offsets.get(bias, -1)),
            *(frozen.get(layer.weight), frozen.get(bias), kernel.ACTIVATIONS[layer.activation]),
            *(layer.weight in learned, bias in learned),
        )

    def _bind(self, samples: Samples) -> kernel.Samples | None:
        """Look at samples once, and return them as the kernel reads them; nothing where it cannot."""
        bound = self._bound  # another thread may put its own in the place of this one
        if bound is None or bound[0] is not samples:
            bound = self._bound = samples, self._look(samples)
        return bound[1]

    def _look(self, samples: Samples) -> kernel.Samples | None:
        features, affine = samples.source
        (_, inputs), (outputs, _) = self._shapes[self._layers[0].weight], self._shapes[self._layers[-1].weight]
        plain = features.dtype == torch.float32 and not affine
        if not (plain or (features.dtype == torch.uint8 and affine)) or not features.is_contiguous():
            return None
        if samples.width != inputs or features.device.type != "cpu" or features.numel() != len(samples.y) * inputs:
            return None
        classes = targets = None
        if self.loss == "cross-entropy":
            classes = samples.y.contiguous()
            if classes.dtype != torch.int64 or classes.dim() != 1:
                return None
            if not 0 <= int(classes.min()) <= int(classes.max()) < outputs:
                return None
        else:
            targets = (signs(samples.y) if self.loss == "logistic" else samples.y).to(torch.float32).contiguous()
            if targets.numel() != len(targets) * outputs:
                return None
        made = kernel.Samples(
            *(features.data_ptr(), not plain, inputs, len(samples.y)),
            *((1.0, 0.0) if plain else affine),
            *(None if part is None else part.data_ptr() for part in (classes, targets)),
        )
        made.held = features, classes, targets
        return made

    def reads(self, samples: Samples) -> bool:
        """Return whether the kernel can read samples."""
        return self._bind(samples) is not None

    def takes(self, samples: Samples, update: Update) -> bool:
        """Return whether the kernel can do a descent."""
        whole = update.extra is None and update.stepping is None and not isinstance(update.pull, Directions)
        return whole and self.reads(samples)

    def descend(
        self,
        samples: Samples,
        start: Tensor,
        wanted: Tensor,
        update: Update,
        plan: Plan,
        go_on: Callable[[], None],
        threads: int = 1,
    ) -> Tensor:
        """Take all steps of a descent and return the rows after them.

        Args:
            samples: Where batches are read.
            start: Rows to start from; they are not changed.
            wanted: Number of steps of each row.
            update: The step; `takes` says whether the kernel can do it.
            plan: The batches.
            go_on: Raises an error when the steps are no longer wanted.
            threads: How many threads may share the devices.
        """
        if not len(start) or not start.shape[1]:
            return start.clone()
        n, (centre, numbers) = len(start), _added(update)
        told, steps = told_of(plan), wanted.contiguous()
        if numbers.shape[1] not in (1, n) or not len(steps) == len(plan.count) == n:
            raise ValueError(f"step sizes, pulls, steps and batches must be one each for {n} rows")
        call = self._call(samples, _lines(start), update.only)
        call.pull, call.decay, rate = (numbers.ctypes.data + k * numbers.strides[0] for k in range(3))
        call.each = numbers.shape[1] > 1
        if centre is not None:
            centre = _lines(centre.expand_as(start))
            call.centre, call.centre_line = centre.data_ptr(), centre.stride(0)
        step = kernel.Operation(0, 0, -1, rate, call.each, ctypes.pointer(told))
        return self._run(call, [step], steps, plan.size, go_on, threads)

    def iterate(
        self,
        samples: Samples,
        rows: Tensor,
        operations: list[kernel.Operation],
        steps: int,
        batch: int,
        go_on: Callable[[], None],
        threads: int = 1,
    ) -> Tensor:
        """Go through operations on several models of every device some times and return the models after them.

        Args:
            samples: Where batches are read; `reads` says whether the kernel can.
            rows: The models ``(n, models, width)``; they are not changed.
            operations: Mixtures and gradient steps, in turn.
            steps: How many times.
            batch: Samples of the largest batch.
            go_on: Raises an error when the steps are no longer wanted.
            threads: How many threads may share the devices.
        """
        n, models, _ = rows.shape
        zero = np.zeros(1)
        call = self._call(samples, _lines(rows.flatten(1)), None, models)
        call.pull = call.decay = zero.ctypes.data
        return self._run(call, operations, torch.full((n,), steps), batch, go_on, threads).view(rows.shape)

    def _call(self, samples: Samples, rows: Tensor, only: tuple[str, ...] | None, models: int = 1) -> kernel.Descent:
        """Begin to describe a descent."""
        bound = self._bind(samples)
        assert bound is not None
        chain, (n, line) = self._chain(only), rows.shape
        if line != models * self._task.learned.width:
            raise ValueError(f"rows of {line} numbers for {models} x {self._task.learned.width} that are learned")
        call = kernel.Descent(layers=chain, depth=len(chain), loss=kernel.LOSSES[str(self.loss)], models=models)
        call.start, call.start_line, call.width, call.devices = rows.data_ptr(), rows.stride(0), line // models, n
        call.samples = ctypes.pointer(bound)
        call.held = rows
        return call

    def _run(
        self,
        call: kernel.Descent,
        operations: list[kernel.Operation],
        steps: Tensor,
        batch: int,
        go_on: Callable[[], None],
        threads: int,
    ) -> Tensor:
        """Take all steps, in calls of some of them: nothing can stop a call."""
        line, total = call.models * call.width, int(steps.numpy().max())
        result = torch.empty((call.devices, line))
        call.operations, call.many = (kernel.Operation * len(operations))(*operations), len(operations)
        call.steps, call.result = steps.data_ptr(), result.data_ptr()
        work = max(1, call.devices * line * batch)  # of one step
        most = max(1, min(CALL_STEPS, CALL_WORK // work))
        for low in range(0, max(total, 1), most):
            go_on()
            call.begin, call.end = low, min(low + most, total)
            self.kernel.descend(call, max(1, min(threads, (call.end - low) * work // _THREAD)))
            call.start, call.start_line = call.result, line
        return result


def told_of(plan: Plan) -> kernel.Plan:
    """Return a plan as the kernel reads it."""
    held = plan.address, plan.count, plan.first, primes()
    told = kernel.Plan(
        *(part.ctypes.data for part in held), *(plan.size, plan.begin, plan.same, plan.epochs, plan.whole)
    )
    told.held = held
    return told


def _added(update: Update) -> tuple[Tensor | None, Floats]:
    """Return the centre, and the factors of ``centre - row``, of ``-row`` and of the gradient: one each, or one per row."""
    assert not isinstance(update.pull, Directions)  # the kernel takes no such descent
    rate, pull = _numbers(update.lr), _numbers(update.pull)
    near, centre, decay = rate * pull, update.centre, rate * (update.l2 + update.decay)
    if update.shift is not None:
        # What every step adds is a centre as well; that rows are drawn to it is taken back.
        moved = -update.shift if centre is None else column(update.pull, update.shift) * centre - update.shift
        near, centre, decay = rate, moved, decay + near - rate
    alike = isinstance(near, float)
    if not (near if alike else near.any()):
        centre = None
    numbers = np.array([near, decay, rate] if alike else np.broadcast_arrays(near, decay, rate))
    return centre, numbers.reshape(3, -1)


def _numbers(value: PerRow) -> Any:
    """Return a number, or a line of them with one per row."""
    return value.detach().to("cpu", torch.float64).reshape(-1).numpy() if isinstance(value, Tensor) else float(value)


def _lines(rows: Tensor) -> Tensor:
    """Return rows whose numbers lie side by side in float32."""
    rows = rows.to(torch.float32)
    return rows if rows.stride(1) == 1 else rows.contiguous()
