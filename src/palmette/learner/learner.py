"""Local work: many devices take gradient steps at once, each on its own row and its own samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, PalmetteError
from palmette.learner import batches
from palmette.learner.backends import Objective, Stack, choose, task_loss
from palmette.learner.scores import Scorer, Split, _target
from palmette.population import Population
from palmette.task import Task

BatchKind = Literal["next", "same", "full", "one"]
PerRow = float | Tensor

_STEPS = 32  # steps whose batches are addressed at once
_FULL = 512  # samples of one device taken at once in a full gradient
_FLOATS = 1 << 20  # numbers in the rows of one chunk of devices


@dataclass(frozen=True)
class Epochs:
    """A number of steps given as passes over each device's own training samples."""

    passes: float


class Learner:
    """What all devices share for their local work: task, samples, backend.

    Args:
        task: What is learned.
        population: Whose samples.
        seed: Seed of the run; batches are addressed under it.
        batch_size: Samples per step, or ``"full"`` for all of a device's training samples.
        dtype: Type of the rows.
        device: Where rows and samples live.
        backend: ``"auto"``, ``"vmap"`` or ``"loop"``.
        held_out: Share of each device's training samples kept out of training for `LocalWork.loss`.
        memory: Bytes that a converted copy of the samples may take.
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        *,
        seed: int = 0,
        batch_size: int | Literal["full"] = 20,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        backend: str = "auto",
        held_out: float = 0.0,
        memory: int = 2 << 30,
    ) -> None:
        if batch_size != "full" and batch_size < 1:
            raise BadInput(f"batch_size must be at least 1 or 'full', not {batch_size}")
        self.task, self.population, self.seed, self.batch_size = task, population, seed, batch_size
        self.dtype, self.device = dtype, torch.device(device)
        self.held_out = population.held_out(held_out) if held_out else torch.zeros_like(population.train)
        self.samples = population.train - self.held_out
        self._first, self._y = population.start.to(self.device), _target(population.y, dtype).to(self.device)
        self._x: Tensor | None = None
        if population.affine is None and population.x.dtype in (dtype, torch.int64):
            self._x = population.x.to(self.device)
        elif population.x.numel() * dtype.itemsize <= memory:
            self._x = population.features(torch.arange(len(population.x)), dtype).to(self.device)
        probe = torch.arange(min(2, len(population.x)))
        x, y = self.features(probe.to(self.device)), self._y[: len(probe)]
        task.check(x, y, population.classes)
        self.backend, self.reason = choose(backend, task, dtype, self.device, (x[None], y[None]))
        self.scorer = Scorer(
            task,
            population,
            dtype=dtype,
            device=self.device,
            held_out=self.held_out,
            vectorised=self.backend.name != "loop",
        )
        self.width = task.layout.width

    def initial(self) -> Tensor:
        """Return the initial model as a flat row."""
        return self.task.initial(self.dtype).to(self.device)

    def chunk(self, participants: int) -> int:
        """Return how many devices work at once: it depends on the model and on who takes part, not on the machine."""
        return max(1, min(_FLOATS // self.width, math.ceil(participants / 4), 64))

    def features(self, index: Tensor) -> Tensor:
        """Gather samples in the rows' type."""
        if self._x is None:
            return self.population.features(index.cpu(), self.dtype).to(self.device)
        return self._x.index_select(0, index)

    def targets(self, index: Tensor) -> Tensor:
        """Gather targets."""
        return self._y.index_select(0, index)

    def first(self, ids: Tensor) -> Tensor:
        """Return each device's first sample."""
        return self._first[ids]


class LocalWork:
    """The local work of one chunk of devices in one exchange; what a device program calls.

    Args:
        learner: What all devices share.
        ids: The devices of this chunk.
        round_: Round of the run.
        exchange: For each device, the number of the exchange within the round.
    """

    def __init__(self, learner: Learner, ids: Tensor, round_: int, exchange: Tensor) -> None:
        self._learner, self.ids, self.round, self._exchange = learner, ids, round_, exchange
        self._ids = ids.to(learner.device)
        self.samples = learner.samples[ids]
        self.device_steps = 0
        self._calls = 0

    def descend(
        self,
        start: Tensor,
        *,
        steps: int | Tensor | Epochs,
        lr: PerRow,
        pull: PerRow = 0.0,
        centre: Tensor | None = None,
        extra: Callable[[Tensor], Tensor] | None = None,
        batch: BatchKind = "next",
    ) -> Tensor:
        """Take gradient steps ``row -= lr * (gradient + pull * (row - centre) + extra(row))`` on every row.

        Args:
            start: Rows to start from; they are not changed.
            steps: One number, one per row, or `Epochs`.
            lr: Step size, one number or one per row.
            pull: Strength of the pull towards ``centre``, one number or one per row.
            centre: Rows to be pulled to; needed with a pull.
            extra: A further gradient as a function of the rows.
            batch: ``"next"`` batch at every step, the ``"same"`` one, the ``"full"`` training data, or ``"one"`` sample.
        """
        if centre is None and (isinstance(pull, Tensor) or pull != 0):
            raise PalmetteError("descend: a pull needs a centre")
        rate, strength = _column(lr, start), _column(pull, start)
        l2 = self._learner.task.l2

        def update(rows: Stack, gradients: Stack, which: Tensor | None) -> None:
            row, gradient = rows["model"], gradients["model"]
            if l2:
                gradient = gradient + l2 * row
            if centre is not None:
                gradient = gradient + _take(strength, which) * (row - _take(centre, which))
            if extra is not None:
                gradient = gradient + extra(row)
            row -= _take(rate, which) * gradient

        return self._walk(task_loss, {"model": start}, steps, batch, update)["model"]

    def minimise(
        self,
        objective: Objective,
        rows: Stack,
        *,
        steps: int | Tensor | Epochs,
        lr: PerRow | dict[str, PerRow],
        batch: BatchKind = "next",
    ) -> Stack:
        """Take gradient steps on several named rows for an objective of one's own.

        Args:
            objective: ``(rows, batch) -> scalar`` for one device: named rows of one device and its `Batch`.
            rows: Named rows ``(n, ...)`` to start from; they are not changed.
            steps: One number, one per row, or `Epochs`.
            lr: One step size, or one per name.
            batch: As in `descend`.
        """
        rates = {name: _column(lr[name] if isinstance(lr, dict) else lr, value) for name, value in rows.items()}

        def update(rows: Stack, gradients: Stack, which: Tensor | None) -> None:
            for name, value in rows.items():
                value -= _take(rates[name], which) * gradients[name]

        return self._walk(objective, rows, steps, batch, update)

    def gradient(self, rows: Tensor, batch: BatchKind = "full") -> Tensor:
        """Return the gradient of every row on a batch of its own device."""
        index, weight, dropout = self._plan(batch, 1)
        self.device_steps += len(rows)
        value = self._gradients(task_loss, {"model": rows}, index, weight, dropout, 0, None)["model"]
        return value + self._learner.task.l2 * rows

    def loss(self, rows: Tensor, split: Split = "train") -> Tensor:
        """Return each row's mean loss on its device's training or held-out samples (never on test data)."""
        if split == "test":
            raise PalmetteError("a device program may not look at test data")
        sums = self._learner.scorer.sums(rows, torch.arange(len(rows)), self.ids, split)
        value = (sums["loss"] / sums["count"].clamp(min=1)).to(rows)
        return value + 0.5 * self._learner.task.l2 * rows.square().sum(1)

    # -- the machinery -------------------------------------------------------------------------------------------------

    def _walk(
        self,
        objective: Objective,
        start: Stack,
        steps: int | Tensor | Epochs,
        batch: BatchKind,
        update: Callable[[Stack, Stack, Tensor | None], None],
    ) -> Stack:
        """Run the steps of a descent, dropping rows from the stack as their steps are done."""
        rows = {name: value.clone() for name, value in start.items()}
        wanted = self._steps(steps, batch)
        total = int(wanted.max()) if len(wanted) else 0
        self.device_steps += int(wanted.sum())
        even = bool((wanted == total).all())
        plan = self._plan(batch, total)
        for step in range(total):
            which = None if even else (wanted > step).nonzero().squeeze(1).to(self._learner.device)
            part = rows if which is None else {name: value[which] for name, value in rows.items()}
            update(part, self._gradients(objective, part, *plan, step, which), which)
            if which is not None:
                for name, value in rows.items():
                    value[which] = part[name]
        return rows

    def _steps(self, steps: int | Tensor | Epochs, batch: BatchKind) -> Tensor:
        if isinstance(steps, Epochs):
            size = self._size(batch)
            per_pass = torch.ones_like(self.samples) if size is None else torch.ceil(self.samples / size)
            return torch.ceil(per_pass * steps.passes).to(torch.int64)
        return torch.as_tensor(steps, dtype=torch.int64, device="cpu").expand(len(self.ids))

    def _size(self, batch: BatchKind) -> int | None:
        """Return the batch size, ``None`` for all samples."""
        if batch == "one":
            return 1
        size = self._learner.batch_size
        return None if batch == "full" or size == "full" else size

    def _plan(self, batch: BatchKind, total: int) -> tuple[_Index | None, Tensor | None, Tensor]:
        """Fix the addresses of this call's batches."""
        learner, call = self._learner, self._calls
        self._calls += 1
        exchange = self._exchange.to(learner.device)
        where = [
            address.mix(address.mix(address.key(learner.seed, purpose, self.round, call), exchange), self._ids)
            for purpose in ("batches", "dropout")
        ]
        size = self._size(batch)
        count = self.samples.to(learner.device)
        if size is None:
            return None, None, where[1]
        size = min(size, int(self.samples.max()))
        index = _Index(where[0], count, learner.first(self._ids), size, total, same=batch == "same")
        return index, batches.weights(count, size, learner.dtype), where[1]

    def _gradients(
        self,
        objective: Objective,
        rows: Stack,
        index: _Index | None,
        weight: Tensor | None,
        dropout: Tensor,
        step: int,
        which: Tensor | None,
    ) -> Stack:
        learner = self._learner
        masks = address.mix(_take(dropout, which), torch.full((), step, device=learner.device))
        try:
            if index is None:
                return self._full(objective, rows, masks, which)
            where = _take(index.at(step), which)
            x, y = _gather(learner, where)
            return learner.backend.gradient(objective, rows, x, y, _take(weight, which), masks)
        except RuntimeError as error:
            ids = _take(self._ids, which)
            names = [learner.population.tree.name(0, int(i)) for i in ids[:3]]
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            raise PalmetteError(
                f"tier 0, {', '.join(names)}{more}, round {self.round}, step {step}, backend {learner.backend.name}: {error}"
            ) from error

    def _full(self, objective: Objective, rows: Stack, masks: Tensor, which: Tensor | None) -> Stack:
        """Sum the gradient over all training samples, block by block, leaving out devices that have no more."""
        learner = self._learner
        ids = _take(self._ids, which)
        count, first = learner.samples.to(learner.device)[ids], learner.first(ids)
        total = {name: torch.zeros_like(value) for name, value in rows.items()}
        for lo in range(0, int(count.max()), _FULL):
            active = (count > lo).nonzero().squeeze(1)
            size = min(_FULL, int(count[active].max()) - lo)
            position = lo + torch.arange(size, device=learner.device)
            n = count[active, None]
            weight = (position < n).to(learner.dtype) / n.to(learner.dtype)
            x, y = _gather(learner, first[active, None] + torch.minimum(position, n - 1))
            part = {name: value[active] for name, value in rows.items()}
            for name, value in learner.backend.gradient(objective, part, x, y, weight, masks[active]).items():
                total[name][active] += value
        return total


class _Index:
    """The samples of every step of one descent, addressed a block of steps at a time."""

    def __init__(self, where: Tensor, count: Tensor, first: Tensor, size: int, total: int, *, same: bool) -> None:
        self._where, self._count, self._first, self._size = where, count, first, size
        self._total, self._same = total, same
        self._lo, self._block = 0, torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the samples ``(n, size)`` of one step; steps are asked for in ascending order."""
        step = 0 if self._same else step
        if not len(self._block) or step >= self._lo + self._block.shape[1]:
            self._lo = step
            steps = 1 if self._same else min(_STEPS, self._total - step)
            block = batches.shuffled(self._where, self._count, step, steps, self._size)
            self._block = block + self._first[:, None, None]
        return self._block[:, step - self._lo]


def _gather(learner: Learner, where: Tensor) -> tuple[Tensor, Tensor]:
    flat = where.reshape(-1)
    return learner.features(flat).unflatten(0, where.shape), learner.targets(flat).unflatten(0, where.shape)


def _column(value: PerRow, like: Tensor) -> Tensor:
    """Shape one number, or one per row, so that it multiplies rows of any width."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return tensor if tensor.dim() == 0 else tensor.reshape(-1, *([1] * (like.dim() - 1)))


def _take(value: Any, which: Tensor | None) -> Any:
    """Select rows, leaving alone what is shared by all rows."""
    if value is None or which is None or value.dim() == 0:
        return value
    return value[which]
