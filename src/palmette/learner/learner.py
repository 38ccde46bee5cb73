"""What all devices share for their local work: the task, the samples, a backend."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from palmette.errors import BadInput, PalmetteError
from palmette.learner.backends import Stack
from palmette.learner.beginning import Beginning, apart, encode
from palmette.learner.choice import choose, refuse_single_samples, refuse_unrepeatable
from palmette.learner.fused import FusedBackend
from palmette.learner.native import NativeBackend
from palmette.learner.optimisers import Optimiser
from palmette.learner.place import place
from palmette.learner.samples import Samples
from palmette.learner.scores import Scorer
from palmette.learner.spectrum import Spectrum
from palmette.population import Population
from palmette.task import Task

_CACHE = 1 << 21  # numbers in the rows, their centres and the batches of one chunk
_WORK = 24_000_000  # multiplications in one step of a chunk that make its calls a small part of it
_FIXED = 24_000  # what one device's step costs besides its products, in multiplications
_ALONGSIDE = 3_000_000  # multiplications in one step of a chunk below which threads wait for each other ...
_ALONGSIDE_FREE = 200_000  # ... and where they need not, below which a chunk is done before another thread wakes
_MOST = 256  # devices in one chunk
_CHUNKS = 64  # chunks beyond which more of them serve no machine
_FULL = 512  # samples taken at once in a full gradient


class Halted(PalmetteError):  # noqa: N818 - reads as what it is
    """The steps under way are no longer wanted; whoever says so does not look at what this thread returns."""


def keeps(task: Task, optimiser: Optimiser, dtype: torch.dtype) -> Stack:
    """Return what a learner keeps of every device between messages: running statistics, the memory of an optimiser."""
    kept = {"running": task.initial_running(dtype)} if task.own_running else {}
    if optimiser.keep:
        kept |= {name: row.to(dtype) for name, row in optimiser.memory(task.layout).items()}
    return kept


class Learner:
    """What all devices share for their local work: task, samples, backend.

    Args:
        task: What is learned.
        population: The samples of all devices.
        seed: Seed of the run; batches are addressed under it.
        batch_size: Samples per step, or ``"full"`` for all of a device's training samples.
        dtype: Type of the rows.
        device: Where rows and samples live.
        backend: ``"auto"``, ``"native"``, ``"fused"``, ``"vmap"``, ``"compile"`` (vmap through `torch.compile`) or
            ``"loop"``.
        held_out: Share of each device's training samples kept out of training for `LocalWork.loss`.
        memory: Bytes that a converted copy of the samples, or of the features of a frozen beginning, may take.
        optimiser: How devices make steps of gradients; plain gradient descent by default.

    Attributes:
        task: What is computed: the task, or what of its module follows a frozen beginning.
        backend: What takes the gradients; ``backend.name`` says which.
        reason: Why it is this one, in plain words.
        told: Further sentences about how the model is computed.
        doubts: Such sentences that a user should see.
        inside: Threads that one call of the native kernel may use; they change no result.
        used: What of `LocalWork` programs have called so far: ``"descend"`` follows the run's optimiser, ``"steps"`` change
            running statistics.
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
        optimiser: Optimiser | None = None,
    ) -> None:
        if batch_size != "full" and batch_size < 1:
            raise BadInput(f"batch_size must be at least 1 or 'full', not {batch_size}")
        self.task, self.population, self.seed, self.batch_size = task, population, seed, batch_size
        self.dtype, self.device = dtype, place(device)
        self.held_out = population.held_out(held_out) if held_out else torch.zeros_like(population.train)
        self.samples = population.train - self.held_out
        self.addresses = population.tree.addresses[0].view(np.uint64)
        self.data = Samples(population, dtype, self.device, memory)
        x, y = self.probe(), self.data.targets(self._first())
        task.check_targets(population.y, population.classes)
        task = self.task = task.fitted(x, y, population.classes)
        self.told: list[str] = [*task.told]
        self.doubts: list[str] = []
        self.used: set[str] = set()
        self.optimiser = Optimiser() if optimiser is None else optimiser
        plain = refuse_unrepeatable(task, dtype, self.device, (x[None], y[None]))
        if task.buffers is not None and task.running is None:
            self.doubts.append(
                f"buffers = {task.buffers!r} changes nothing, because no layer that trains has running statistics"
            )
        found = apart(task, x, dtype)
        if isinstance(found, Beginning):
            self.data = encode(self.data, found.module, memory)
            x, task = self.probe(), found.rest
            self.task = task
            layers = f"{found.layers} layer" + ("s" if found.layers != 1 else "")
            self.told.append(
                f"the frozen beginning ({layers}) is computed once: {len(self.data.y)} samples of {self.data.width} features"
            )
        elif found is not None:
            self.doubts.append(f"the frozen layers are computed anew at every step, because {found}")
        if task.running is not None:
            where = "are averaged with the models" if task.buffers == "averaged" else "stay with each device"
            self.told.append(f"the running statistics of batch normalisation {where} (buffers = {task.buffers!r})")
        self.backend, self.reason = choose(
            *(backend, task, dtype, self.device, (x[None], y[None])),
            None if isinstance(found, Beginning) else plain,
            batch=_FULL if batch_size == "full" else batch_size,
        )
        if isinstance(self.backend, NativeBackend):
            self.told.append(
                f"the native kernel uses {self.backend.kernel.name}; all instruction sets give the same bits"
            )
        if task.mixes_samples and self._batch_of_one():
            refuse_single_samples(task, dtype, (x[None], y[None]), self._batch_of_one())
        self.scorer = Scorer(task, population, self.data, self.backend, held_out=self.held_out)
        self.width = task.layout.width
        self.inside = 1
        self._unwanted = threading.Event()

    def probe(self) -> Tensor:
        """Return the features of the first two samples, to try the model on."""
        return self.data.features(self._first())

    def _first(self) -> Tensor:
        return torch.arange(min(2, len(self.population.x)), device=self.device)

    def _batch_of_one(self) -> str:
        """Return why some device trains on one sample at a time, or nothing."""
        if self.batch_size == 1:
            return "batch_size is 1"
        alone = (self.samples == 1).nonzero().flatten()
        names = [self.population.tree.name(0, int(i)) for i in alone[:3]]
        more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
        return f"{', '.join(map(repr, names))}{more} train on one sample each" if len(alone) else ""

    @contextmanager
    def halted(self) -> Iterator[None]:
        """End the steps under way in other threads: nobody wants what they would come to."""
        self.halt()
        try:
            yield
        finally:
            self._unwanted.clear()

    def halt(self) -> None:
        """End the steps under way and all that would be begun."""
        self._unwanted.set()

    def go_on(self) -> None:
        """Raise `Halted` where steps are no longer wanted; to be called between any two of them."""
        if self._unwanted.is_set():
            raise Halted

    def keeps(self) -> Stack:
        """Return what the learner itself keeps of every device between messages: initial rows by name."""
        return keeps(self.task, self.optimiser, self.dtype)

    def begin(self, devices: int) -> Stack:
        """Return what it keeps of some devices before their first message."""
        return {name: row.to(self.device).repeat(devices, 1) for name, row in self.keeps().items()}

    def initial(self) -> Tensor:
        """Return the initial model as a flat row."""
        return self.task.initial(self.dtype).to(self.device)

    @cached_property
    def spectrum(self) -> Spectrum | None:
        """How curved the devices' losses are, where the model is linear and there is a closed form."""
        links = self.backend.links if isinstance(self.backend, FusedBackend) else None
        return Spectrum.of(self.task, self.data, self.population.start, self.samples, links)

    def worth_a_thread(self, devices: int) -> bool:
        """Return whether one step of so many devices is work enough for threads to run side by side.

        Smaller steps are mostly calls. Where those hold Python's lock, a second thread only gets in the way of the first;
        a dense chain's do not. This decides who computes a chunk, never what is computed.
        """
        free = isinstance(self.backend, FusedBackend) and self.backend.dense
        return devices * self._cost >= (_ALONGSIDE_FREE if free else _ALONGSIDE)

    @cached_property
    def _cost(self) -> int:
        """Return the multiplications of one device's step, with what its calls are worth."""
        return _FIXED + 2 * self.width * self._batch

    @cached_property
    def _batch(self) -> int:
        return min(_FULL, int(self.samples.max())) if self.batch_size == "full" else self.batch_size

    @lru_cache(maxsize=64)  # noqa: B019 - a learner lives as long as its run
    def chunk(self, participants: int) -> int:
        """Return how many devices work at once: it depends on the model, the batch and who takes part, not on the machine.

        The participants are cut into equal chunks, a power of two of them so that cores share them evenly: as many as keep
        the calls of a step small against its work, and at least so many that rows and batches of a chunk stay in cache.
        """
        fits = max(1, min(_MOST, _CACHE // (2 * self.width + self._batch * self.data.width)))
        least = min(fits, _MOST // 2, math.ceil(_WORK / self._cost))
        # One call of the native kernel uses several threads itself, so where a step is little work, one chunk is enough.
        few = isinstance(self.backend, NativeBackend) and participants * self._cost < 2 * _ALONGSIDE
        chunks = 1 if few else min(2, participants)
        while math.ceil(participants / chunks) > fits:
            chunks *= 2
        while chunks < _CHUNKS and math.ceil(participants / (2 * chunks)) >= least:
            chunks *= 2
        return math.ceil(participants / chunks)
