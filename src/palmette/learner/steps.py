"""The steps of a chunk of devices in one exchange: which batches each call is given, and how any backend walks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, Diverged, PalmetteError
from palmette.learner import batches
from palmette.learner.backends import Feed, Gradients, Objective, Stack, task_loss
from palmette.learner.descent import take
from palmette.learner.fused import FusedBackend
from palmette.learner.learner import Learner


class Stream:
    """The batches of one pass after the other that several descents take in turn: each goes on where the last one ended.

    Args:
        call: The number that the batches are addressed by.
    """

    def __init__(self, call: int) -> None:
        self.call, self.step = call, 0

    def again(self) -> Stream:
        """Return the same batches from their beginning."""
        return Stream(self.call)


@dataclass(frozen=True)
class Some:
    """A batch of another size than the run's: so many samples of each device, or all where it has fewer."""

    samples: int


BatchKind = Literal["next", "same", "full", "one"] | Stream | Some
# Features, targets, and the samples' weights where batches are not full.
Gathered = tuple[Tensor, Tensor, Tensor | None]
Parts = tuple[str, ...] | None

_STEPS = 32  # steps whose batches are addressed at once
_FULL = 512  # samples of one device taken at once in a full gradient

# All chunks of one exchange have the same scalar address.
_key = lru_cache(maxsize=256)(address.key)


@dataclass(frozen=True)
class Epochs:
    """A number of steps given as passes over each device's own training samples; a pass visits every sample once.

    Attributes:
        passes: How many passes; half a pass is 0.5.
    """

    passes: float


class Steps:
    """What `palmette.learner.LocalWork` is built on: addressed batches, and steps of any backend on them.

    Args:
        learner: What all devices share.
        ids: The devices of this chunk.
        round_: Round of the run.
        exchange: For each device, the number of the exchange within the round.
        kept: What the learner itself keeps of each device between messages (`Learner.keeps`), one line per device; by default
            what it begins with.

    Attributes:
        ids: The numbers of the devices of this chunk.
        round: The round, from 0.
        kept: What the learner itself keeps of each device, one line per device.
        taken: Gradient steps that each device has taken.
    """

    def __init__(self, learner: Learner, ids: Tensor, round_: int, exchange: Tensor, kept: Stack | None = None) -> None:
        self._learner, self.ids, self.round = learner, ids, round_
        # On the host and in numpy, whose calls cost a fraction of torch's.
        self._ids, self._exchange = ids.numpy(), exchange.numpy()
        self._count, self._first = learner.samples.numpy()[self._ids], learner.population.start.numpy()[self._ids]
        self.kept = learner.begin(len(ids)) if kept is None else kept
        self.taken = np.zeros(len(self._ids), dtype=np.int64)  # steps of each device
        self._calls = 0

    @property
    def device_steps(self) -> int:
        """Steps that the devices have taken, all together."""
        return int(self.taken.sum())

    @cached_property
    def samples(self) -> Tensor:
        """Training samples of each device."""
        return torch.from_numpy(self._count)

    # -- what each call is given ---------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        """Return batches for several descents to share; the first ones of an exchange are those of its first descent."""
        self._calls += 1
        return Stream(self._calls - 1)

    def _taken(self, batch: BatchKind, steps: int | Tensor | Epochs) -> Stream:
        """Return where a call's batches begin: each call has its own unless it is given a stream, which then goes on."""
        if not isinstance(batch, Stream):
            return self.stream()
        if not isinstance(steps, int):
            raise PalmetteError("a descent on a stream of batches takes one number of steps, the same for all devices")
        before = Stream(batch.call)
        before.step, batch.step = batch.step, batch.step + steps
        return before

    def _on_device(self, value: Tensor) -> Tensor:
        return value.to(self._learner.device)

    def _wanted(self, steps: int | Tensor | Epochs, batch: BatchKind) -> Tensor:
        """Return the number of steps of each row and count them."""
        n = len(self._ids)
        if isinstance(steps, int):
            self.taken += steps
            return torch.full((n,), steps)
        if isinstance(steps, Epochs):
            size = self._size(batch)
            per_pass = torch.ones_like(self.samples) if size is None else -(-self.samples // size)
            # The tiny part taken off keeps a product like 0.3 * 50 from being rounded up to 16.
            wanted = torch.ceil(per_pass.double() * steps.passes - 1e-9).to(torch.int64)
        else:
            wanted = torch.as_tensor(steps).to("cpu", torch.int64).expand(n)
        self.taken += wanted.numpy()
        return wanted

    def _size(self, batch: BatchKind) -> int | None:
        """Return the batch size, ``None`` for all samples."""
        if batch == "one":
            return 1
        if isinstance(batch, Some):
            return batch.samples
        size = self._learner.batch_size
        return None if batch == "full" or size == "full" else size

    def _address(self, purpose: str, call: int) -> batches.Address:
        base = np.array([_key(self._learner.seed, purpose, self.round, call)], dtype=np.uint64)
        return batches.mix(batches.mix(base, self._exchange), self._learner.addresses[self._ids])

    def _dropout(self, call: int) -> Tensor:
        return self._on_device(torch.from_numpy(self._address("dropout", call).view(np.int64)))

    def _masks(self, taken: Stream, step: int, *, noisy: bool = False) -> Tensor:
        """Return each device's address of dropout and noise at a step; any number where there is known to be neither."""
        backend = self._learner.backend
        if isinstance(backend, FusedBackend) and not backend.has_dropout and not noisy:
            return self._on_device(self.ids)
        masks = batches.mix(self._address("dropout", taken.call), np.full(1, taken.step + step))
        return self._on_device(torch.from_numpy(masks.view(np.int64)))

    def _ids_of(self, which: Tensor | None) -> Tensor:
        return self.ids if which is None else self.ids[which.cpu()]

    def _plan(self, batch: BatchKind, taken: Stream, *, epochs: bool = False) -> batches.Plan | None:
        """Fix the batches of a call; ``None`` for all samples where they are too many to take at once."""
        size, most = self._size(batch), int(self._count.max())
        if size is None and most > _FULL and not self._learner.task.mixes_samples:
            return None
        whole = size is None
        size = most if size is None else min(size, most)
        address, same = self._address("batches", taken.call), whole or batch == "same"
        return batches.Plan(
            *(address, self._count, self._first, size, same), epochs=epochs and not same, whole=whole, begin=taken.step
        )

    # -- steps of any backend ------------------------------------------------------------------------------------------

    def _walk(
        self,
        objective: Objective,
        start: Stack,
        running: Tensor | None,
        wanted: Tensor,
        plan: batches.Plan | None,
        taken: Stream,
        change: Callable[[Stack, Stack, Tensor | None], None],
        only: Parts = None,
    ) -> Gradients:
        """Run the steps of a descent, leaving out rows as their steps are done; return rows and running statistics."""
        rows = {name: value.clone() for name, value in start.items()}
        running = None if running is None else running.clone()
        total = int(wanted.max()) if len(wanted) else 0
        even = bool((wanted == total).all())
        index: Tensor | None = None
        for step in range(total):
            self._learner.go_on()
            which = None if even else self._on_device((wanted > step).nonzero().squeeze(1))
            if plan is not None and (index is None or (step % _STEPS == 0 and not plan.same)):
                index = self._on_device(plan.block(step, min(_STEPS, total - step)))
            samples = None
            if plan is not None and index is not None:
                samples = self._gather(plan, step, index[0 if plan.same else step % _STEPS], which)
            masks = take(self._masks(taken, step, noisy=objective is not task_loss), which)
            moving = take(running, which)
            part = rows if which is None else {name: value[which] for name, value in rows.items()}
            gradients, moved = self._gradients(objective, part, self._ids_of(which), samples, masks, moving, only)
            change(part, gradients, which)
            if which is not None:
                for name, value in rows.items():
                    value[which] = part[name]
            if running is not None and moved is not None:
                running[slice(None) if which is None else which] = moved
        return rows, running

    def _gradients(
        self,
        objective: Objective,
        rows: Stack,
        ids: Tensor,
        samples: Gathered | None,
        masks: Tensor,
        running: Tensor | None,
        only: Parts = None,
    ) -> Gradients:
        """Return the gradients of some devices on the samples gathered for them, or on all they have."""
        with self._blame(ids):
            if samples is None:
                return self._full(objective, rows, ids, masks, only), None
            return self._learner.backend.gradient(objective, rows, Feed(*samples, masks, running, only))

    def _full(self, objective: Objective, rows: Stack, ids: Tensor, masks: Tensor, only: Parts) -> Stack:
        """Sum the gradient over all training samples, block by block, leaving out devices that have no more.

        Models that mix samples, as those with running statistics do, never come here: a block is not the batch.
        """
        learner = self._learner
        count, first = self._on_device(learner.samples[ids]), self._on_device(learner.population.start[ids])
        total = {name: torch.zeros_like(value) for name, value in rows.items()}
        for lo in range(0, int(count.max()), _FULL):
            active = (count > lo).nonzero().squeeze(1)
            size = min(_FULL, int(count[active].max()) - lo)
            position = lo + torch.arange(size, device=learner.device)
            n = count[active, None]
            weight = (position < n).to(learner.dtype) / n.to(learner.dtype)
            x, y = self._take(first[active, None] + torch.minimum(position, n - 1))
            part = {name: value[active] for name, value in rows.items()}
            feed = Feed(x, y, weight, masks[active], None, only)
            for name, value in learner.backend.gradient(objective, part, feed)[0].items():
                total[name][active] += value
        return total

    def _gather(self, plan: batches.Plan, step: int, index: Tensor, which: Tensor | None) -> Gathered:
        """Return the samples of one step for some devices."""
        some = plan if which is None else plan.take(which.cpu().numpy())
        weight = some.weights(step, 1, self._learner.dtype)
        x, y = self._take(take(index.view(len(self.ids), plan.size), which))
        return x, y, None if weight is None else self._on_device(weight[0])

    def _take(self, where: Tensor) -> tuple[Tensor, Tensor]:
        data, flat = self._learner.data, where.reshape(-1)
        return data.features(flat).unflatten(0, where.shape), data.targets(flat).unflatten(0, where.shape)

    @contextmanager
    def _blame(self, ids: Tensor) -> Iterator[None]:
        """Say where an error inside torch came from."""
        try:
            yield
        except PalmetteError:
            raise
        except (RuntimeError, ValueError) as error:
            learner = self._learner
            names = [learner.population.tree.name(0, int(i)) for i in ids[:3]]
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            if "more than 1 value per channel" in str(error):
                raise BadInput(
                    f"{', '.join(names)}{more}: a batch of one sample, and batch normalisation needs two. Choose a batch_size "
                    "that leaves no device a last batch of one sample, or use nn.GroupNorm or nn.LayerNorm"
                ) from error
            lines = str(error).strip().splitlines() or [type(error).__name__]
            why = lines[-1] if "TorchScript" in lines[0] else lines[0]  # where a compiled program failed is told first
            if "without overflow" in why:
                raise Diverged(f"{', '.join(names)}{more}: a step is beyond the range of {learner.dtype}") from error
            raise PalmetteError(
                f"tier 0, {', '.join(names)}{more}, round {self.round}, backend {learner.backend.name}: {why}"
            ) from error
