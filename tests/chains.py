"""Dense chains and the descents that they are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from palmette.learner import Epochs, Learner, LocalWork
from palmette.population import Population
from palmette.task import Task
from palmette.tree import Tree

CHAINS: dict[str, Callable[[int], list[nn.Module]]] = {
    "one layer": lambda out: [nn.Flatten(), nn.Linear(12, out)],
    "without bias": lambda out: [nn.Flatten(), nn.Linear(12, 25, bias=False), nn.ReLU(), nn.Linear(25, out)],
    "narrow": lambda out: [nn.Flatten(), nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 30), nn.Linear(30, out)],
    "ends bent": lambda out: [nn.Flatten(), nn.Linear(12, 9), nn.Sigmoid(), nn.Linear(9, out), nn.Tanh()],
}


def learner(
    chain: list[nn.Module], *, loss: str = "cross-entropy", few: bool = False, backend: str = "fused", **options: Any
) -> Learner:
    """Make a learner for 4 devices of 30 samples with bytes for features, or with fewer samples than a batch."""
    torch.manual_seed(0)
    sizes = [3, 7, 5, 2] if few else [30] * 4
    count = sum(sizes)
    y = torch.arange(count) * 7 % 5
    targets = {"cross-entropy": y, "squared": (y - 2.0)[:, None], "logistic": (y % 2 * 2 - 1.0)}[loss]
    people = Population(
        tree=Tree.parse("2x2"),
        x=torch.randint(0, 256, (count, 1, 4, 3), dtype=torch.uint8),
        y=targets,
        start=torch.tensor([0, *sizes]).cumsum(0),
        train=torch.tensor(sizes),
        affine=(1 / 255, -0.5),
        classes=5 if loss == "cross-entropy" else None,
    )
    task = options.pop("task", {})
    options = {"batch_size": 6, "backend": backend, **options}
    return Learner(Task(nn.Sequential(*chain), loss=loss, **task), people, **options)


def trained(of: Learner, batch: str = "next", steps: int | Epochs = 40, **options: Any) -> Tensor:
    """Take more steps than are addressed at once."""
    start = (of.initial() + torch.arange(4.0)[:, None] / 100).to(of.dtype)
    work = LocalWork(of, torch.arange(4), 3, torch.zeros(4, dtype=torch.int64))
    given = {"lr": 0.1, "pull": 0.2, "centre": start.flip(0), **options}
    with torch.no_grad():
        return work.descend(start, steps=steps, batch=batch, **given)
