"""Routines: what one step does to several rows of every device, as a list of mixtures and gradient steps.

Methods that train two models at once, each step of one depending on the other, would have to copy all rows in and out of the
fused backend's memory at every step. A routine is told as data, so the rows stay there for all steps (`fused`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palmette.learner import dense, kernel
from palmette.learner.batches import Plan, positions
from palmette.learner.dense import gather, ones, step
from palmette.learner.descent import PerRow, column
from palmette.learner.fused import FusedBackend
from palmette.learner.native import NativeBackend, told_of
from palmette.learner.samples import Samples
from palmette.learner.steps import Stream

_STEPS = 32  # steps whose batches are addressed at once


@dataclass(frozen=True, eq=False)
class Mix:
    """Set rows to a mixture of two others, ``share * one + (1 - share) * other``, or to a copy.

    Attributes:
        into: The name of the rows that are set.
        one: The name of the first.
        other: The name of the second; without it the first is copied.
        share: The share of the first in the mixture, one number or one per row.
    """

    into: str
    one: str
    other: str | None = None
    share: PerRow = 1.0

    def of(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the mixture."""
        one = rows[self.one]
        return one if self.other is None else torch.lerp(rows[self.other], one, column(self.share, one))


@dataclass(frozen=True, eq=False)
class Move:
    """Take a gradient step, ``into -= lr * gradient(at)``, on the next batch of a stream.

    Attributes:
        into: The name of the rows that move.
        lr: Step size, one number or one per row.
        batch: Where its batches come from (`LocalWork.stream`).
        at: The name of the rows at which the gradient is taken; by default those that move.
    """

    into: str
    lr: PerRow
    batch: Stream
    at: str | None = None


Routine = Sequence[Mix | Move]


def iterate(
    moves: list[list[int]],
    factors: list[Tensor | None],
    rates: list[list[float]],
    parts: list[list[Tensor]],
    weights: list[list[Tensor]],
    biases: list[list[Tensor | None]],
    kinds: list[str],
    sinks: list[list[Tensor | None]],
    bias_sinks: list[list[Tensor | None]],
    first: int,
    source: Tensor,
    affine: list[float],
    y: Tensor,
    x: Tensor,
    lines: list[list[Tensor]],
    steps: int,
    loss: str,
) -> None:
    """Go through a routine of several chains some times, in their memory.

    Args:
        moves: What happens in turn: ``[0, into, one, other]`` mixes two chains, ``[1, into, at, 0]`` adds a gradient to one.
        factors: For each, the share ``(n, 1)`` of the first in a mixture, or the factor ``(n, batch, 1)`` of each sample.
        rates: For each, the factors of the chain and of the gradient.
        parts: The parameters of each chain as the columns of rows.
        weights: As in `descend`, for each chain; so are biases, sinks and bias_sinks.
        biases: Biases.
        kinds: Activations.
        sinks: The weights that are learned.
        bias_sinks: The biases that are learned.
        first: The first layer that is learned.
        source: As in `descend`; so are the others.
        affine: Scale and shift.
        y: Targets.
        x: Memory.
        lines: For each move, which samples its steps take.
        steps: How many times.
        loss: The loss.
    """
    n, batch, one = x.size(0), x.size(1), ones(x)
    indices: list[Tensor] = []
    targets: list[Tensor] = []
    for told in lines:
        if len(told) == 0:
            indices.append(y)
            targets.append(y)
            continue
        index = positions(told[0], told[1], told[2], told[3], told[4], told[5], batch)
        targets.append(torch.index_select(y, 0, index.flatten().to(y.device)).unflatten(0, [-1, n, batch]))
        indices.append(index.to(source.device))
    for now in range(steps):
        for k in range(len(moves)):
            into, at, other = moves[k][1], moves[k][2], moves[k][3]
            factor = factors[k]
            if moves[k][0] == 0:
                for part in range(len(parts[into])):
                    if factor is None:
                        parts[into][part].copy_(parts[at][part])
                    else:
                        torch.lerp(parts[other][part], parts[at][part], factor, out=parts[into][part])
            else:
                taken = min(now, indices[k].size(0) - 1)
                gather(source, indices[k][taken], affine, x.flatten(0, 1))
                step(
                    x,
                    targets[k][taken],
                    factor,
                    weights[at],
                    biases[at],
                    kinds,
                    sinks[into],
                    bias_sinks[into],
                    first,
                    one,
                    loss,
                    rates[k][0],
                    rates[k][1],
                )


def stepwise(
    rows: Mapping[str, Tensor], routine: Routine, steps: int, step_of: Callable[[Move, Tensor], Tensor], learned: int
) -> dict[str, Tensor]:
    """Go through a routine by single steps, which all backends and optimisers know.

    Args:
        rows: Named rows; they are not changed.
        routine: What happens in a step.
        steps: How many times.
        step_of: Takes one gradient step of a move from rows.
        learned: How many columns are learned. Those after them are running statistics, which become those of the step.
    """
    after = dict(rows)
    for one in list(routine) * steps:
        if isinstance(one, Mix):
            after[one.into] = one.of(after)
            continue
        at = after[one.at or one.into]
        moved = step_of(one, at)
        if one.at:
            # In this order it is the step itself where both rows are the same.
            step = moved + (after[one.into] - at)
            moved = step if step.shape[1] == learned else torch.cat([step[:, :learned], moved[:, learned:]], 1)
        after[one.into] = moved
    return after


def fused(
    backend: FusedBackend,
    samples: Samples,
    rows: Mapping[str, Tensor],
    routine: Routine,
    steps: int,
    plans: Mapping[Move, Plan | None],
    factor: float,
    go_on: Callable[[], None],
) -> dict[str, Tensor] | None:
    """Go through a routine inside the fused backend's memory; return ``None`` where that is not possible.

    Args:
        backend: Whose memory.
        samples: Where batches are gathered from.
        rows: Named rows; they are not changed.
        routine: What happens in a step.
        steps: How many times.
        plans: The batches of each move; ``None`` for samples too many to take at once.
        factor: What the learning rates are multiplied by in this round.
        go_on: Raises an error when the steps are no longer wanted.
    """
    names, like = list(rows), next(iter(rows.values()))
    known = {one: plan for one, plan in plans.items() if plan is not None}
    if len(known) < len(plans):
        return None
    size = next(iter(known.values())).size
    spaces = [backend.space(len(like), size, fold=True, name=name) for name in names]
    if not spaces[0].alone(samples):
        return None
    for space, name in zip(spaces, names, strict=True):
        space.load(rows[name])
    told = [_told(one, names) for one in routine]
    scaled = [_share(one, like) if isinstance(one, Mix) else _scaled(one, known[one], factor, like) for one in routine]
    program, memory = dense.compiled(iterate), spaces[0].memory(samples)
    for low in range(0, steps, _STEPS):
        go_on()
        many = min(_STEPS, steps - low)
        lines = [list(known[one].lines(low, many)) if isinstance(one, Move) else [] for one in routine]
        chains = [list(parts) for parts in zip(*(space.chain for space in spaces), strict=True)]
        weights, biases, kinds, sinks, bias_sinks, first = chains
        source, affine = samples.source
        program(
            *(told, [each for each, _ in scaled], [list(rate) for _, rate in scaled]),
            *([space.parts for space in spaces], weights, biases, kinds[0], sinks, bias_sinks, first[0]),
            *(source.view(len(source), -1), affine, samples.y, memory, lines, many, backend.loss),
        )
    return {name: space.store() for name, space in zip(names, spaces, strict=True)}


def native(
    backend: NativeBackend,
    samples: Samples,
    rows: Mapping[str, Tensor],
    routine: Routine,
    steps: int,
    plans: Mapping[Move, Plan | None],
    factor: float,
    go_on: Callable[[], None],
    threads: int,
) -> dict[str, Tensor] | None:
    """Go through a routine in the native kernel; return ``None`` where that is not possible.

    Args:
        backend: Whose kernel.
        samples: Where batches are read.
        rows: Named rows; they are not changed.
        routine: What happens in a step.
        steps: How many times.
        plans: The batches of each move; ``None`` for samples too many to take at once.
        factor: What the learning rates are multiplied by in this round.
        go_on: Raises an error when the steps are no longer wanted.
        threads: How many threads may share the devices.
    """
    known = {one: plan for one, plan in plans.items() if plan is not None}
    if len(known) < len(plans) or not backend.reads(samples):
        return None
    names, told = list(rows), {one: told_of(plan) for one, plan in known.items()}
    numbers = [_factor(one, factor) for one in routine]
    if not {len(number) for number in numbers} <= {1, len(rows[names[0]])}:
        raise ValueError("shares and step sizes of a routine must be one number, or one per row")
    operations = []
    for one, number in zip(routine, numbers, strict=True):
        into, at = names.index(one.into), names.index(one.one if isinstance(one, Mix) else one.at or one.into)
        other = names.index(one.other) if isinstance(one, Mix) and one.other is not None else -1
        plan = ctypes.pointer(told[one]) if isinstance(one, Move) else None
        operations.append(kernel.Operation(into, at, other, number.ctypes.data, len(number) > 1, plan))
    stack, batch = torch.stack([rows[name] for name in names], 1), max(plan.size for plan in known.values())
    after = backend.iterate(samples, stack, operations, steps, batch, go_on, threads)
    return {name: after[:, k].contiguous() for k, name in enumerate(names)}


def _factor(one: Mix | Move, factor: float) -> npt.NDArray[np.float64]:
    """Return the share of a mixture or the rate of a move: one number, or one per row."""
    value = one.share if isinstance(one, Mix) else factor * one.lr
    return np.atleast_1d(torch.as_tensor(value, dtype=torch.float64).cpu().flatten().numpy())


def _told(one: Mix | Move, names: list[str]) -> list[int]:
    """Return a mixture or a move as numbers."""
    into = names.index(one.into)
    if isinstance(one, Mix):
        first = names.index(one.one)
        return [0, into, first, first if one.other is None else names.index(one.other)]
    return [1, into, names.index(one.at or one.into), 0]


def _share(one: Mix, like: Tensor) -> tuple[Tensor | None, tuple[float, float]]:
    """Return the share of the first rows in a mixture, as `iterate` wants it."""
    return None if one.other is None else column(one.share, like).expand(len(like), 1), (1.0, 0.0)


def _scaled(one: Move, plan: Plan, factor: float, like: Tensor) -> tuple[Tensor | None, tuple[float, float]]:
    """Return the factors of samples, and those of rows and gradient, as `iterate` wants them."""
    weight = plan.weights(0, 1, like.dtype)
    each = None if weight is None else weight[0].to(like.device)[:, :, None]
    if not isinstance(one.lr, Tensor):
        rate = -factor * one.lr
        return each, (1.0, rate / plan.size if each is None else rate)
    rates = column(factor * one.lr, like).reshape(-1, 1, 1)
    return (rates / plan.size).expand(-1, plan.size, 1) if each is None else rates * each, (1.0, -1.0)
