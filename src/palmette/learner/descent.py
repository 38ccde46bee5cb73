"""Gradient steps with a pull: as they are written, and folded into the fused backend's products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from palmette import address
from palmette.learner.batches import Plan
from palmette.learner.directions import Directions
from palmette.learner.fused import FusedBackend
from palmette.learner.optimisers import Stepping
from palmette.learner.samples import Samples
from palmette.learner.space import Space
from palmette.task.layout import Layout

PerRow = float | Tensor

STEPS = 32  # steps whose batches are addressed at once
_CALL_STEPS, _CALL_WORK = 1 << 10, 1 << 28  # steps and products of one call, which takes about a tenth of a second
_GATHERED = 1 << 16  # numbers of the samples gathered at once, where that is more than one step's


@dataclass(frozen=True, eq=False)
class Update:
    """The step ``row -= lr * (gradient + l2 * row + pull * (row - centre) + shift + extra(row))``, or an optimiser's of it.

    Attributes:
        lr: Step size, one number or one per row.
        pull: Strength of the pull, one number, one per row, or one per direction; in the last case steps are implicit in it.
        centre: Rows to be pulled to.
        shift: A further gradient that is the same at every step.
        extra: A further gradient as a function of the rows.
        l2: Weight of the squared norm in the loss.
        decay: Decoupled weight decay of an optimiser that is otherwise plain.
        layout: The parameters that are learned.
        only: The parts of them that take steps; all by default.
        stepping: An optimiser that is more than plain gradient descent.
    """

    lr: PerRow
    pull: PerRow | Directions
    centre: Tensor | None
    shift: Tensor | None
    extra: Callable[[Tensor], Tensor] | None
    l2: float
    decay: float
    layout: Layout
    only: tuple[str, ...] | None = None
    stepping: Stepping | None = None

    @property
    def uniform(self) -> bool:
        """Whether all rows take the same step, so that it can be folded into the gradient."""
        numbers = not isinstance(self.lr, Tensor) and not isinstance(self.pull, Tensor | Directions)
        return numbers and self.extra is None and self.stepping is None

    @property
    def number(self) -> float:
        """The pull of a uniform step."""
        assert not isinstance(self.pull, Directions)
        return float(self.pull)

    @property
    def added(self) -> tuple[Tensor | None, float]:
        """What a uniform step adds to rows besides the gradient, and its factor: zero in the parts that take no steps."""
        lr, pull = float(self.lr), self.number
        rows, factor = (self.centre, lr * pull) if pull else (None, 0.0)
        if self.shift is not None:
            rows, factor = (-self.shift, lr) if rows is None else (rows - self.shift / pull, factor)
        if rows is None or self.only is None:
            return rows, factor
        return rows * self.layout.mask(self.only, rows), factor

    def apply(self, rows: Tensor, gradient: Tensor, which: Tensor | None) -> None:
        """Change rows in place; ``which`` are their positions in the stack, all by default."""
        if self.l2:
            gradient = gradient + self.l2 * rows
        turned = self.pull if isinstance(self.pull, Directions) else None
        if self.centre is not None:
            away = rows - take(self.centre, which)
            if isinstance(self.pull, Directions):
                gradient = gradient + self.pull.times(away, self.layout, which)
            else:
                gradient = gradient + take(column(self.pull, rows), which) * away
        if self.shift is not None:
            gradient = gradient + take(self.shift, which)
        if self.extra is not None:
            gradient = gradient + self.extra(rows)
        mine = rows if self.only is None else self.layout.cut(rows, self.only)
        if self.only is not None:
            gradient = self.layout.cut(gradient, self.only)
        if self.stepping is not None:
            gradient = self.stepping.step(mine, gradient, which)
        elif self.decay:
            gradient = gradient + self.decay * mine
        lr = take(column(self.lr, rows), which)
        change = lr * gradient if turned is None else lr * turned.damped(gradient, self.layout, lr, which)
        if self.only is None:
            rows -= change
        else:
            rows.copy_(self.layout.put(rows, self.only, mine - change))


def fold(
    backend: FusedBackend,
    samples: Samples,
    start: Tensor,
    wanted: Tensor,
    update: Update,
    plan: Plan,
    dropout: Tensor | None,
    go_on: Callable[[], None],
) -> Tensor:
    """Take all steps of a descent inside the fused backend's memory.

    Rows that take more steps come first, so the rows still under way are always a leading part of the stack.

    Args:
        backend: Whose memory.
        samples: Where batches are gathered from.
        start: Rows to start from; they are not changed.
        wanted: Number of steps of each row.
        update: A uniform update.
        plan: The batches.
        dropout: One dropout address per row, where the model has dropout.
        go_on: Raises an error when the steps are no longer wanted.
    """
    ends = sorted(set(wanted.tolist()))
    added, factor = update.added
    if len(ends) <= 1:
        return _run(backend, samples, start, added, factor, 0, sum(ends), update, plan, dropout, go_on)
    order = torch.argsort(wanted, descending=True, stable=True)
    place = order.to(start.device)
    rows, added = start[place], take(added, place)
    plan, dropout = plan.take(order.numpy()), take(dropout, place)
    done = 0
    for end in ends:
        k = int((wanted >= end).sum()) if end else 0
        if k:
            part = slice(k)
            rows[part] = _run(
                *(backend, samples, rows[part], take(added, part), factor, done, end, update),
                *(plan.take(part), take(dropout, part), go_on),
            )
        done = end
    result = torch.empty_like(rows)
    result[place] = rows
    return result


def _run(
    backend: FusedBackend,
    samples: Samples,
    rows: Tensor,
    added: Tensor | None,
    factor: float,
    begin: int,
    end: int,
    update: Update,
    plan: Plan,
    dropout: Tensor | None,
    go_on: Callable[[], None],
) -> Tensor:
    """Take the steps ``begin .. end - 1`` of rows that all take them."""
    if begin == end or not len(rows):
        return rows.clone()
    lr = float(update.lr)
    beta = 1 - lr * (update.number + update.l2 + update.decay)
    alpha = -lr / plan.size if plan.full else -lr
    space = backend.space(len(rows), plan.size, fold=True, only=update.only)
    if dropout is None and space.alone(samples):
        # Nothing can stop a call, so a long descent is several of them.
        most = max(1, min(_CALL_STEPS, _CALL_WORK // (rows.numel() * plan.size)))
        for low in range(begin, end, most):
            go_on()
            high = min(low + most, end)
            told = range(low, low + 1 if plan.same else high, STEPS)
            lines = [plan.lines(lo, min(high - lo, STEPS)) for lo in told]
            weight = _weights(plan, low, high, rows)
            rows = space.descend(samples, rows, added, lines, high - low, weight, beta, alpha, factor)
        return rows
    space.load(rows, added)
    weight = _weights(plan, begin, end, rows)
    for step, x, y in _batches(samples, space, plan, len(rows), begin, end):
        go_on()
        at = torch.full((), plan.begin + step, device=rows.device)
        masks = None if dropout is None else address.mix(dropout, at)
        share = None if weight is None else weight[min(step - begin, len(weight) - 1)]
        space.step(x, y, share, masks, beta, alpha, factor)
    return space.store()


def _weights(plan: Plan, begin: int, end: int, like: Tensor) -> Tensor | None:
    """Return the samples' weights in the steps ``begin .. end - 1``, where batches are not full."""
    weight = plan.weights(begin, end - begin, like.dtype)
    return None if weight is None else weight.to(like.device)


def _batches(
    samples: Samples, space: Space, plan: Plan, n: int, begin: int, end: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Gather the batches of all rows, several steps at once where they are small."""
    many = max(1, min(STEPS, _GATHERED // (n * plan.size * samples.width)))
    memory, views = space.batches(many, plan.size, samples)
    for lo in range(begin, end, STEPS):
        index = plan.block(lo, min(end - lo, STEPS)).to(samples.device)
        steps = len(index)
        targets = samples.targets(index.view(-1)).unflatten(0, (steps, n, plan.size)).unbind()
        for first, part in zip(range(0, steps, many), index.split(many), strict=True):
            samples.features(part.view(-1), out=memory[: part.numel()])
            if plan.same:
                yield from zip(range(begin, end), repeat(views[0]), repeat(targets[0]))
                return
            yield from zip(range(lo + first, lo + steps), views, targets[first:])  # noqa: B905 - the last are fewer


def column(value: PerRow, like: Tensor) -> Tensor:
    """Shape one number, or one per row, so that it multiplies rows of any width."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return tensor if tensor.dim() == 0 else tensor.reshape(-1, *([1] * (like.dim() - 1)))


def take(value: Any, which: Any) -> Any:
    """Select rows, leaving alone what is shared by all rows."""
    if value is None or which is None or value.dim() == 0:
        return value
    return value[which]
