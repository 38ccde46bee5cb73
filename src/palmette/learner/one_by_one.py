"""Descents of one device after the other, in a module of torch's that each thread has for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from palmette import address
from palmette.learner.batches import Plan
from palmette.learner.descent import STEPS, Update
from palmette.learner.loop import Instance, LoopBackend
from palmette.learner.samples import Samples

Change = Callable[[Sequence[Tensor | None]], None]
"""Takes a step in a thread's module, given the gradient of every parameter that learns."""


def one_by_one(
    backend: LoopBackend,
    samples: Samples,
    start: Tensor,
    running: Tensor | None,
    wanted: Tensor,
    update: Update,
    plan: Plan,
    dropout: Tensor | None,
    go_on: Callable[[], None],
    blame: Callable[[Tensor], AbstractContextManager[None]],
) -> tuple[Tensor, Tensor | None]:
    """Take all steps of a descent device by device; return the rows and the running statistics after them.

    Args:
        backend: Whose module.
        samples: Where batches are gathered from.
        start: Rows to start from; they are not changed.
        running: Running statistics to start from, where the model has some.
        wanted: Number of steps of each row.
        update: The update, without a further gradient that is a function of the rows.
        plan: The batches.
        dropout: One dropout address per row, where the model has dropout.
        go_on: Raises an error when the steps are no longer wanted.
        blame: Tells whose steps an error comes from.
    """
    # What takes no steps stays; of the others nothing is copied that is not read.
    mine, rows = backend.instance(), start.clone() if bool((wanted == 0).any()) else torch.empty_like(start)
    running = None if running is None else running.clone()
    most, changer = int(wanted.max()) if len(wanted) else 0, _changer(mine, update)
    for low in range(0, most, STEPS):
        index = plan.block(low, min(STEPS, most - low)).to(samples.device).unflatten(1, (len(rows), -1)).unbind(1)
        real = plan.real(low, min(STEPS, most - low)).T.tolist()
        for i, total in enumerate(wanted.tolist()):
            if total <= low:
                continue
            mine.load((rows if low else start)[i], None if running is None else running[i])
            change, masks = changer(i), None
            sizes = real[i] * len(index[i]) if len(real[i]) == 1 else real[i]
            each = [batch[:size] for batch, size in zip(index[i].unbind(), sizes, strict=True)]
            with blame(torch.tensor([i])):
                for step in range(min(STEPS, total - low)):
                    go_on()
                    which = each[min(step, len(each) - 1)]
                    if dropout is not None:
                        at = torch.full((), plan.begin + low + step, device=rows.device)
                        masks = address.mix(dropout[i], at)
                    change(mine.gradients(samples.features(which), samples.targets(which), masks))
            rows[i] = mine.row
            if running is not None:
                running[i] = mine.running()
    return rows, running


def _changer(mine: Instance, update: Update) -> Callable[[int], Change]:
    """Return what makes, for one device after the other, what takes its steps in its thread's module."""
    views, row = mine.learns(update.only), mine.row
    if not update.uniform:
        return lambda i: _as_written(mine, update, torch.tensor([i], device=row.device))
    (added, factor), lr = update.added, float(update.lr)
    keep = 1 - lr * (update.number + update.l2 + update.decay)
    # One pass over the row, where what it keeps and what it is drawn by make one together.
    draws = added is not None and keep == 1 - factor and update.only is None

    def of(i: int) -> Change:
        centre = None if added is None else added[i]

        def change(gradients: Sequence[Tensor | None]) -> None:
            if draws and centre is not None:
                row.lerp_(centre, factor)
            elif keep != 1:
                for view in views if update.only is not None else [row]:
                    view.mul_(keep)
            learned = [(view, one) for view, one in zip(views, gradients, strict=True) if one is not None]
            if learned:
                torch._foreach_add_(*map(list, zip(*learned, strict=True)), alpha=-lr)
            if centre is not None and not draws:
                row.add_(centre, alpha=factor)

        return change

    return of


def _as_written(mine: Instance, update: Update, which: Tensor) -> Change:
    """Return what takes the steps of one device as they are written, for optimisers and settings of its own."""
    return lambda gradients: update.apply(mine.row[None], mine.flat(gradients)[None], which)
