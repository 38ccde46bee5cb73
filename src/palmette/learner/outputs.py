"""What models give for devices' own samples, and what enters one of their parts, for programs that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from palmette.errors import PalmetteError
from palmette.learner.backends import Batch
from palmette.learner.learner import Learner
from palmette.learner.scores import Split
from palmette.task.layout import Which


@dataclass(frozen=True, eq=False)
class Outputs:
    """What some models give for samples of their devices; devices with fewer samples than the most are filled up.

    Attributes:
        values: Outputs or features ``(devices, samples, ...)``.
        targets: The samples' targets ``(devices, samples, ...)``.
        real: Which of them are real samples (bool); the others only fill up.
    """

    values: Tensor
    targets: Tensor
    real: Tensor


def outputs_of(learner: Learner, rows: Tensor, ids: Tensor, split: Split, running: Tensor | None) -> Outputs:
    """Return each row's outputs, without dropout, on a part of its device's samples."""
    return _run(learner, rows, ids, split, running, lambda row, batch: batch.predict(row))


def features_of(
    learner: Learner, rows: Tensor, ids: Tensor, split: Split, running: Tensor | None, of: Which | None
) -> Outputs:
    """Return what enters a part of each row's model: the input of the first of its layers that is called."""
    return _run(learner, rows, ids, split, running, lambda row, batch: batch.features(row, of))


def _run(
    learner: Learner,
    rows: Tensor,
    ids: Tensor,
    split: Split,
    running: Tensor | None,
    function: Callable[[Tensor, Batch], Tensor],
) -> Outputs:
    """Run a function of one device's model and samples for all devices."""
    scorer, task = learner.scorer, learner.task
    first, count = scorer.ranges(ids, split)
    most = int(count.max()) if len(count) else 0
    if not most:
        raise PalmetteError(f"none of these devices has {split} samples to look at")
    position = torch.arange(most)
    index = (first[:, None] + torch.minimum(position, (count[:, None] - 1).clamp(min=0))).to(learner.device)
    flat = index.reshape(-1).clamp(max=len(learner.data.y) - 1)
    x = learner.data.features(flat).unflatten(0, index.shape)
    y = learner.data.targets(flat).unflatten(0, index.shape)
    module, _ = scorer.replicas.get()

    def one(row: Tensor, x: Tensor, y: Tensor, running: Tensor | None) -> Tensor:
        return function(row, Batch(x, y, None, task, module, {}, running))

    with torch.no_grad():
        if learner.backend.name == "loop":
            parts = [one(rows[i], x[i], y[i], None if running is None else running[i]) for i in range(len(rows))]
            values = torch.stack(parts)
        else:
            values = vmap(one, in_dims=(0, 0, 0, None if running is None else 0))(rows, x, y, running)
    return Outputs(values, y, (position < count[:, None]).to(learner.device))


def training_of(learner: Learner, ids: Tensor, rows: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Return, device after device, the features and the targets of its training samples, in double precision.

    Args:
        learner: Whose samples.
        ids: The devices.
        rows: Models whose last layer's inputs are the features; without them, the samples' own features are.
    """
    first, count = learner.scorer.ranges(ids, "train")
    found = None if rows is None else features_of(learner, rows, ids, "train", None, None)
    for position, (begin, size) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        index = torch.arange(begin, begin + size, device=learner.device)
        x = learner.data.features(index) if found is None else found.values[position, :size]
        y = learner.data.targets(index)
        yield x.flatten(1).double(), y
