"""The fused backend: a model of common layers runs for all devices of a chunk as stacked products, with no autograd between."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from palmette.learner.backends import Backend, Feed, Gradients, Objective, Stack, VmapBackend, task_loss
from palmette.learner.links import NotFused
from palmette.learner.loop import LoopBackend
from palmette.learner.lowering import dense_layers, lower
from palmette.learner.space import Space
from palmette.learner.stages import Dropout
from palmette.task import Task

_KEPT = 6  # spaces a thread keeps for its next descents


class FusedBackend:
    """All devices of a chunk at once as stacked products, for models of common layers.

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
