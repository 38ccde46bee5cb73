"""How curved the devices' losses are: the constants L_f and mu_f that step sizes and theorems depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.learner.footprint import footprint
from palmette.learner.learner import Learner
from palmette.learner.steps import Some
from palmette.learner.work import LocalWork

_WORK = 3_500_000_000  # products of weights and values that an estimate may take: about a third of a second of one core
_MOST, _LEAST = (16, 64), (2, 16)  # the most and the fewest devices, and samples of each, that an estimate looks at
_TOO_MUCH = 4  # times that work which are too much to be spent before a run that did not ask for it
_LEAVES = 6  # times too large a step with which a network leaves a curved place for a flatter one
_STEP = 1e-3  # length of a difference relative to the rows; a far shorter one would see the kinks of a ReLU, not its curvature


@dataclass(frozen=True)
class Curvature:
    """The largest and the smallest curvature of the devices' training losses.

    Attributes:
        smoothness: L_f, which no device's loss is more curved than; for networks an estimate at the initial model.
        convexity: mu_f, which no device's loss is less curved than; 0 where that is not known.
        start: The curvature before anything is learned that counts: a step beyond 2 / start is unstable from the first. Of a
            network it is a sixth of L_f, since gradient steps of up to about 12 / L_f leave a place that is too curved for
            them for a flatter one (Lewkowycz et al., 2020, arXiv 2003.02218).
        exact: Whether this holds for all models and all devices (a closed form); an estimate otherwise.
        devices: How many devices were looked at ...
        total: ... of how many.
        samples: How many samples of each, at most.
    """

    smoothness: float
    convexity: float
    start: float
    exact: bool
    devices: int
    total: int
    samples: int

    @property
    def told(self) -> str:
        """How it was found, in words."""
        return f"estimated on {seen(self.devices, self.total, self.samples)}"


def curvature(learner: Learner, *, iterations: int = 6, convexity: bool = False) -> Curvature:
    """Return how curved the devices' losses are.

    Linear models with squared errors, a softmax or the logistic loss have a closed form, and all devices are looked at
    (`palmette.learner.spectrum`). For all other models L_f is an estimate: a few Lanczos iterations at the initial model, on a
    few evenly chosen devices and a batch of each, addressed by the run's seed; no more of them than a set amount of work
    allows. A batch is somewhat more curved than all samples together, which is what steps on batches meet.

    Args:
        learner: Whose samples and model.
        iterations: Products with the Hessian.
        convexity: Whether mu_f is wanted too; it is 0 otherwise.
    """
    spectrum, total = learner.spectrum, len(learner.samples)
    if spectrum is not None:
        smallest = spectrum.smallest if convexity else 0.0
        return Curvature(spectrum.largest, smallest, spectrum.at_start, True, total, total, int(learner.samples.max()))
    many, total, size = looked_at(learner, iterations)
    ids = torch.arange(many) * total // many
    found = 0.0
    with torch.no_grad():
        for some in ids.split(learner.chunk(len(ids))):
            work = LocalWork(learner, some, 0, torch.zeros_like(some))
            start = learner.initial().expand(len(some), -1).contiguous()
            found = max(found, float(lanczos(work.oracle(Some(size)), start, iterations).max()))
    return Curvature(found, 0.0, found / _LEAVES, False, many, total, size)


def seen(devices: int, total: int, samples: int) -> str:
    """Write which devices and samples an estimate looks at."""
    who = f"all {total} devices" if devices == total else f"{devices} of {total} devices"
    return f"{who}, up to {samples} samples of each"


def looked_at(learner: Learner, iterations: int = 6) -> tuple[int, int, int]:
    """Return how many devices an estimate looks at, of how many, and how many samples of each: fewer for a larger model."""
    slots, total = _WORK // max(1, _each(learner) * (iterations + 1)), len(learner.samples)
    size = min(int(learner.samples.max()), max(_LEAST[1], min(_MOST[1], slots // _MOST[0])))
    return min(total, max(_LEAST[0], min(_MOST[0], slots // size))), total, size


def takes_long(learner: Learner, *, iterations: int = 6) -> bool:
    """Return whether an estimate takes far more than the set amount of work, even on the fewest devices and samples."""
    if learner.spectrum is not None:
        return False
    many, _, size = looked_at(learner, iterations)
    return _each(learner) * many * size * (iterations + 1) > _TOO_MUCH * _WORK


def _each(learner: Learner) -> int:
    """Return the products that one sample takes."""
    return footprint(learner.task, learner.probe()).products


def lanczos(gradient: Callable[[Tensor], Tensor], at: Tensor, iterations: int) -> Tensor:
    """Return an estimate from below of the largest curvature ``(n,)`` of some losses at some rows.

    It is the largest eigenvalue of the Hessian within the subspace of as many directions as there are iterations, each made
    orthogonal to all before; so it needs far fewer of them than `power`, which also takes a curvature below zero for one above.

    Args:
        gradient: The gradients at given rows, always of the same samples and under the same dropout masks.
        at: The rows.
        iterations: How often the Hessian is multiplied.
    """
    times, direction = _hessian(gradient, at)
    basis, inside = [direction], at.new_zeros(len(at), iterations, iterations)
    for step in range(iterations):
        image = times(basis[step])
        for turn in range(2):  # once more, since rounding leaves a little of the others in what is left of a long row
            for number, other in enumerate(basis):
                part = (image * other).sum(1)
                image = image - part[:, None] * other
                if turn == 0:
                    inside[:, number, step] = part
        basis.append(image / _norm(image))
    known = inside.isfinite().all(2).all(1)
    inside = torch.where(known[:, None, None], inside.triu() + inside.triu(1).mT, 0.0)
    values: Tensor = torch.linalg.eigvalsh(inside.double())
    return torch.where(known, values[:, -1].clamp(min=0.0), torch.inf)


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
    times, direction = _hessian(gradient, at)
    size = at.new_zeros(len(at), 1)
    for _ in range(iterations):
        direction = direction / _norm(direction)
        image = times(direction)
        direction = image if shift is None else shift * direction - image
        size = direction.norm(dim=1, keepdim=True)
    return size


def _hessian(gradient: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the product with the Hessian at some rows, by differences of gradients, and directions to begin with."""
    base = gradient(at)
    scale = _STEP * at.norm(dim=1, keepdim=True).clamp(min=1.0)
    # The gradient alone may lie in a flat subspace; a fixed irregular direction beside it does not.
    mixed = base / _norm(base) + torch.sin(torch.arange(1, base.shape[1] + 1)).to(base) / base.shape[1] ** 0.5

    def times(direction: Tensor) -> Tensor:
        image: Tensor = (gradient(at + scale * direction) - base) / scale
        return image

    begin: Tensor = mixed / _norm(mixed)
    return times, begin


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = rows.norm(dim=1, keepdim=True)
    return norm.clamp(min=1e-30)
