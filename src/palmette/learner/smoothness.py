"""How curved the devices' losses are: the constants L_f and mu_f that step sizes and theorems depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from palmette.learner.learner import Learner
from palmette.learner.work import LocalWork
from palmette.task import Task

_WORK = 10_000_000_000  # products of samples and weights that an estimate may take
_STEP = 1e-3  # length of a difference relative to the rows; a far shorter one would see the kinks of a ReLU, not its curvature
_LEAST = 16  # devices that an estimate looks at whatever that takes


@dataclass(frozen=True)
class Curvature:
    """The largest and the smallest curvature of the devices' training losses.

    Attributes:
        smoothness: L_f, which no device's loss is more curved than; for networks an estimate at the initial model.
        convexity: mu_f, which no device's loss is less curved than; 0 where that is not known.
        start: The largest curvature before anything is learned: a step beyond 2 / start is unstable from the first.
        exact: Whether this holds for all models and all devices (a closed form); an estimate otherwise.
        devices: How many devices were looked at.
    """

    smoothness: float
    convexity: float
    start: float
    exact: bool
    devices: int


def curvature(learner: Learner, *, iterations: int = 6, convexity: bool = False) -> Curvature:
    """Return how curved the devices' losses are.

    Linear models with squared errors, a softmax or the logistic loss have a closed form, and all devices are looked at
    (`palmette.learner.spectrum`). For all other models L_f is an estimate: power iteration at the initial model, on as many
    devices as a set amount of work allows and no fewer than sixteen, evenly chosen; of text, where every word takes as much
    work as a sample does elsewhere, no fewer than two.

    Args:
        learner: Whose samples and model.
        iterations: Steps of the power iteration.
        convexity: Whether mu_f is wanted too; it is 0 otherwise.
    """
    spectrum, total = learner.spectrum, len(learner.samples)
    if spectrum is not None:
        smallest = spectrum.smallest if convexity else 0.0
        return Curvature(spectrum.largest, smallest, spectrum.at_start, True, total)
    places = learner.population.y[0].numel() if learner.population.classes is not None else 1
    cost = int(learner.samples.max()) * learner.width * (iterations + 1) * places
    many = min(total, max(_LEAST if places == 1 else 2, _WORK // cost))
    ids = torch.arange(many) * total // many
    largest = 0.0
    with torch.no_grad():
        for some in ids.split(learner.chunk(len(ids))):
            work = LocalWork(learner, some, 0, torch.zeros_like(some))
            start = learner.initial().expand(len(some), -1).contiguous()
            largest = max(largest, float(power(work.oracle("full"), start, iterations).max()))
    return Curvature(largest, 0.0, largest, False, len(ids))


def takes_long(learner: Learner, *, iterations: int = 6) -> bool:
    """Return whether an estimate takes more than the set amount of work even on one device, as of large convolutions."""
    if learner.spectrum is not None or learner.task.frozen:  # what a frozen beginning gives is computed once
        return False
    each = products(learner.task, learner.population.features(torch.zeros(1, dtype=torch.int64)))
    return each * int(learner.samples.max()) * (iterations + 1) > _WORK


def products(task: Task, sample: Tensor) -> int:
    """Count the products of weights and values that a model takes for one sample, layer by layer.

    Args:
        task: The model.
        sample: The sample, as a batch of one.
    """
    module, found = task.replica(training=False, dtype=torch.float32, device=torch.device("cpu")), [0]

    def count(layer: nn.Module, _: object, output: Tensor | tuple[Tensor, ...]) -> None:
        values = output[0] if isinstance(output, tuple) else output
        for weight in layer.parameters(recurse=False):
            known = weight.dim() > 1 and not isinstance(layer, nn.Embedding)
            found[0] += weight[0].numel() * values.numel() if known else values.numel()

    for layer in module.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(sample)
    return found[0]


def power(
    gradient: Callable[[Tensor], Tensor], at: Tensor, iterations: int, shift: Tensor | float | None = None
) -> Tensor:
    """Return the largest curvature ``(n, 1)`` of some losses at some rows, by power iteration on differences of gradients.

    Args:
        gradient: The gradients at given rows, always of the same samples and under the same dropout masks.
        at: The rows.
        iterations: How often the Hessian is multiplied.
        shift: With a number at or above it, the largest eigenvalue of ``shift - Hessian`` is returned instead.
    """
    base = gradient(at)
    scale = _STEP * at.norm(dim=1, keepdim=True).clamp(min=1.0)
    # The gradient alone may lie in a flat subspace; a fixed irregular direction beside it does not.
    mixed = base / _norm(base) + torch.sin(torch.arange(1, base.shape[1] + 1)).to(base) / base.shape[1] ** 0.5
    direction, size = mixed, base.new_zeros(len(base), 1)
    for _ in range(iterations):
        direction = direction / _norm(direction)
        image = (gradient(at + scale * direction) - base) / scale
        direction = image if shift is None else shift * direction - image
        size = direction.norm(dim=1, keepdim=True)
    return size


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = rows.norm(dim=1, keepdim=True)
    return norm.clamp(min=1e-30)
