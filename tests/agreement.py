"""Hold the fused backend against plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palmette.learner.backends import Feed, task_loss
from palmette.learner.fused import FusedBackend
from palmette.learner.loop import LoopBackend
from palmette.task import Task

CPU = torch.device("cpu")


def task(module: nn.Module | list[nn.Module], **options) -> Task:
    return Task(nn.Sequential(*module) if isinstance(module, list) else module, **options)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(of: Task, x: Tensor, y: Tensor, weight: Tensor | None = None, dtype: torch.dtype = torch.float64) -> None:
    """Compare the fused gradient with that of plain autograd, and a folded step with the step."""
    n = len(x)
    rows = (0.3 * drawn((n, of.layout.width), 1)).to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    fused, loop = FusedBackend(of, dtype, CPU), LoopBackend(of, dtype, CPU)
    address = torch.arange(n) * 7919
    with torch.no_grad():
        expected = loop.gradient(task_loss, {"model": rows}, Feed(x, y, weight, address))[0]["model"]
        # Twice: the second use of the same memory must not see the first.
        for _ in range(2):
            found = fused.gradient(task_loss, {"model": rows}, Feed(x, y, weight, address))[0]["model"]
            scale = max(1.0, float(expected.abs().max()))
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)
        space, centre = fused.space(n, x.shape[1], fold=True), rows.flip(0)
        space.load(rows, centre)
        mean = 1.0 if weight is not None else 1 / x.shape[1]
        for _ in range(2):
            space.step(x, y, weight, address, 0.9, -0.1 * mean, 0.1)
        twice = 0.9 * rows - 0.1 * expected + 0.1 * centre
        second = loop.gradient(task_loss, {"model": twice}, Feed(x, y, weight, address))[0]["model"]
        stepped = 0.9 * twice - 0.1 * second + 0.1 * centre
        torch.testing.assert_close(space.store(), stepped, rtol=0, atol=tolerance * scale)
