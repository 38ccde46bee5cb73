"""Local work: many devices take gradient steps at once, each on its own row and its own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from palmette.errors import BadInput, PalmetteError
from palmette.learner.backends import Objective, Stack, task_loss
from palmette.learner.descent import PerRow, Update, column, fold, take
from palmette.learner.directions import Directions
from palmette.learner.fused import FusedBackend
from palmette.learner.loop import LoopBackend
from palmette.learner.native import NativeBackend
from palmette.learner.one_by_one import one_by_one
from palmette.learner.optimisers import Memory, Optimiser, Stepping
from palmette.learner.outputs import Outputs, features_of, outputs_of, training_of
from palmette.learner.routine import Move, Routine, fused, native, stepwise
from palmette.learner.scores import Split
from palmette.learner.spectrum import Spectrum
from palmette.learner.steps import BatchKind, Epochs, Parts, Steps
from palmette.task.layout import Layout, Which
from palmette.task.parts import BUFFERS


class LocalWork(Steps):
    """The local work of one chunk of devices in one exchange; what a device program calls."""

    @cached_property
    def held_out(self) -> Tensor:
        """For each device, how many samples `loss` can look at with ``split="held-out"``."""
        return self._learner.held_out[self.ids]

    @property
    def l2(self) -> float:
        """Weight of the squared norm in every device's loss, which an objective of `minimise` has to add by itself."""
        return self._learner.task.l2

    @property
    def spectrum(self) -> Spectrum | None:
        """How curved the devices' losses are, where the model is linear and there is a closed form."""
        return self._learner.spectrum

    def descend(
        self,
        start: Tensor,
        *,
        steps: int | Tensor | Epochs,
        lr: PerRow,
        pull: PerRow | Directions = 0.0,
        centre: Tensor | None = None,
        shift: Tensor | None = None,
        extra: Callable[[Tensor], Tensor] | None = None,
        batch: BatchKind = "next",
        only: Which | None = None,
    ) -> Tensor:
        """Take gradient steps ``row -= lr * (gradient + pull * (row - centre) + shift + extra(row))`` on every row.

        The run's optimiser (`Optimiser`) may make more of a step than this; it is plain by default.

        Args:
            start: Rows to start from; they are not changed.
            steps: One number, one per row, or `Epochs`.
            lr: Step size, one number or one per row.
            pull: Strength of the pull towards ``centre``: one number, one per row, or one per direction of a linear model
                (`Directions`), in which the steps are then implicit.
            centre: Rows to be pulled to; needed with a pull.
            shift: A further gradient, one row each, that is the same at every step; it costs next to nothing.
            extra: A further gradient as a function of the rows; it is slower.
            batch: ``"next"`` batch at every step, the ``"same"`` one, the ``"full"`` training data, or ``"one"`` sample; or
                batches that several descents share (`stream`).
            only: The part of the model that takes steps, or several; the others stay as they are. All by default.
        """
        rule, memory = self._learner.optimiser, None
        self._learner.used.add("descend")
        if rule.keep:
            memory = {name: self.kept[name] for name in rule.memory(self._learner.task.layout)}
        given: dict[str, Any] = {
            "steps": steps,
            "lr": lr,
            "pull": pull,
            "centre": centre,
            "shift": shift,
            "extra": extra,
        }
        rows, after = self.optimise(start, rule, memory, **given, batch=batch, only=only)
        if rule.keep:
            self.kept.update(after)
        return rows

    def optimise(
        self,
        start: Tensor,
        optimiser: Optimiser,
        memory: Memory | None = None,
        *,
        steps: int | Tensor | Epochs,
        lr: PerRow,
        pull: PerRow | Directions = 0.0,
        centre: Tensor | None = None,
        shift: Tensor | None = None,
        extra: Callable[[Tensor], Tensor] | None = None,
        batch: BatchKind = "next",
        only: Which | None = None,
    ) -> tuple[Tensor, Stack]:
        """Take steps as `descend` does, with an optimiser of the program's own; return rows and what it remembers.

        Args:
            start: Rows to start from.
            optimiser: The optimiser.
            memory: What it remembers from before, one line per row, as this method returned it; it starts anew by default.
            steps: As in `descend`; so are the others.
            lr: Step size.
            pull: Strength of the pull.
            centre: Rows to be pulled to.
            shift: A further gradient that is the same at every step.
            extra: A further gradient.
            batch: Which batches.
            only: The part of the model that takes steps.
        """
        if centre is None and (isinstance(pull, Tensor | Directions) or pull != 0):
            raise PalmetteError("descend(pull=...) also needs centre=, the rows to pull to")
        learner, task, parts = self._learner, self._learner.task, self._chosen(only)
        learner.used.add("steps")
        rows, running = self._open(start)
        begun = memory or self._begin(optimiser, task.layout)
        remembered = {name: value.clone() for name, value in begun.items()}
        stepping = None if optimiser.plain else Stepping(optimiser, task.learned, parts, remembered)
        width = task.learned.width
        update = Update(
            lr=lr * optimiser.factor(self.round, self._all_rounds),
            pull=pull,
            centre=_cut(centre, width),
            shift=_cut(shift, width),
            extra=_within(extra, start, width),
            l2=task.l2,
            decay=optimiser.weight_decay if optimiser.plain else 0.0,
            layout=task.learned,
            only=parts,
            stepping=stepping,
        )
        wanted, taken = self._wanted(steps, batch), self._taken(batch, steps)
        plan = self._plan(batch, taken, epochs=isinstance(steps, Epochs))
        backend = learner.backend
        if isinstance(backend, NativeBackend) and plan is not None and backend.takes(learner.data, update):
            with self._blame(self.ids):
                after = backend.descend(learner.data, rows, wanted, update, plan, learner.go_on, learner.inside)
            return after, remembered
        if isinstance(backend, FusedBackend) and update.uniform and plan is not None:
            dropout = self._dropout(taken.call) if backend.has_dropout else None
            with self._blame(self.ids):
                return fold(backend, learner.data, rows, wanted, update, plan, dropout, learner.go_on), remembered
        if isinstance(backend, LoopBackend) and update.extra is None and plan is not None:
            dropout = self._dropout(taken.call) if backend.instance().dropout else None
            given = learner.data, rows, running, wanted, update, plan, dropout, learner.go_on
            rows, running = one_by_one(backend, *given, lambda which: self._blame(self.ids[which]))
            return self._close(rows, running), remembered

        def change(rows: Stack, gradients: Stack, which: Tensor | None) -> None:
            update.apply(rows["model"], gradients["model"], which)

        stack, running = self._walk(task_loss, {"model": rows}, running, wanted, plan, taken, change, parts)
        return self._close(stack["model"], running), remembered

    def iterate(self, rows: Stack, routine: Routine, steps: int) -> Stack:
        """Go through a routine of mixtures (`Mix`) and gradient steps (`Move`) of several named rows some times.

        It is what calls of `descend` with one step each would do, but without copying rows at every step.

        Args:
            rows: Named rows to start from; they are not changed.
            routine: What happens in a step, in turn.
            steps: How many times.
        """
        moves = [one for one in routine if isinstance(one, Move)]
        if len({id(one.batch) for one in moves}) < len(moves):
            raise PalmetteError(
                "every Move of a routine takes a stream of batches of its own: write node.stream() for each"
            )
        learner, rule = self._learner, self._learner.optimiser
        plain = rule.plain and not rule.weight_decay and not learner.task.l2
        if isinstance(learner.backend, FusedBackend) and not learner.backend.has_dropout and plain and steps:
            factor = rule.factor(self.round, self._all_rounds)
            plans = {one: self._plan(one.batch, one.batch) for one in moves}
            with self._blame(self.ids):
                given = (learner.data, rows, routine, steps, plans, factor, learner.go_on)
                after = None
                if isinstance(learner.backend, NativeBackend):
                    after = native(learner.backend, *given, learner.inside)
                if after is None:
                    after = fused(learner.backend, *given)
            if after is not None:
                learner.used.update(("descend", "steps"))
                for one in moves:
                    self._wanted(steps, one.batch)
                    self._taken(one.batch, steps)
                return after
        return stepwise(rows, routine, steps, self._mover(), learner.task.learned.width)

    def _mover(self) -> Callable[[Move, Tensor], Tensor]:
        """Return what takes the single steps of a routine; each of its moves has a momentum of its own."""
        rule, remembered = self._learner.optimiser, dict[Move, Memory]()
        if rule.keep and rule.memory(self._learner.task.layout):
            raise BadInput(
                "optimiser.keep = true keeps the momentum of one model between exchanges, and this method trains several at "
                "once, each step of one depending on the other; leave optimiser.keep out"
            )
        self._learner.used.add("descend")

        def step_of(one: Move, start: Tensor) -> Tensor:
            given: dict[str, Any] = {"steps": 1, "lr": one.lr, "batch": one.batch}
            moved, remembered[one] = self.optimise(start, rule, remembered.get(one), **given)
            return moved

        return step_of

    def minimise(
        self,
        objective: Objective,
        rows: Stack,
        *,
        steps: int | Tensor | Epochs,
        lr: PerRow | Mapping[str, PerRow],
        batch: BatchKind = "next",
        optimiser: Optimiser | None = None,
    ) -> Stack:
        """Take gradient steps on several named rows for an objective of one's own.

        The run's optimiser is for the devices' usual steps and does not apply. Running statistics become those of the
        objective's last prediction; averaged ones are columns of the row ``model``.

        Args:
            objective: ``(rows, batch) -> scalar`` for one device: named rows of one device and its `Batch`.
            rows: Named rows ``(n, ...)`` to start from; they are not changed.
            steps: One number, one per row, or `Epochs`.
            lr: One step size, or one per name.
            batch: As in `descend`.
            optimiser: How gradients become steps, plain by default; what it remembers begins anew at every call.
        """
        task, start, running = self._learner.task, dict(rows), None
        rule = optimiser or Optimiser()
        self._learner.used.add("steps")
        if task.running is not None:
            if not task.own_running and "model" not in rows:
                raise PalmetteError(
                    "minimise: the model's running statistics are averaged, so one of the rows must be named 'model' and take "
                    "them; or use buffers='own'"
                )
            if "model" in rows:
                start["model"], running = self._open(rows["model"])
            else:
                running = self.kept["running"]
        factor = rule.factor(self.round, self._all_rounds)
        rates = {
            name: factor * column(lr[name] if isinstance(lr, Mapping) else lr, value) for name, value in start.items()
        }
        stepping = {} if rule == Optimiser() else {name: self._stepping(rule, row) for name, row in start.items()}

        def change(rows: Stack, gradients: Stack, which: Tensor | None) -> None:
            for name, value in rows.items():
                gradient = gradients[name]
                step = stepping[name].step(value, gradient, which) if stepping else gradient
                value -= take(rates[name], which) * step

        wanted, taken = self._wanted(steps, batch), self._taken(batch, steps)
        plan = self._plan(batch, taken, epochs=isinstance(steps, Epochs))
        after, running = self._walk(objective, start, running, wanted, plan, taken, change)
        if "model" in after:
            after["model"] = self._close(after["model"], running)
        elif running is not None:
            self.kept["running"] = running
        return after

    def gradient(self, rows: Tensor, batch: BatchKind = "full", only: Which | None = None) -> Tensor:
        """Return the gradient of every row on a batch of its own device; zero outside the parts ``only`` names.

        Args:
            rows: One model per device.
            batch: As in `descend`.
            only: The parts of the model to differentiate; all by default.
        """
        return self.oracle(batch, only=only)(rows)

    def oracle(
        self, batch: BatchKind = "next", where: Tensor | None = None, only: Which | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Fix one batch of every device and return the gradient on it as a function of the rows.

        All rows that the function is called with meet the same samples and the same dropout masks, so that gradients at
        different rows can be compared. Every call counts one step of each device it is for. Running statistics stay as they
        are.

        Args:
            batch: As in `descend`.
            where: Which devices it is for (bool, one per row); the others do nothing and get zeros. All by default.
            only: The parts of the model to differentiate; the gradient is zero in the others. All by default.
        """
        taken, l2, parts = self._taken(batch, 1), self._learner.task.l2, self._chosen(only)
        which = None if where is None or bool(where.all()) else self._on_device(where.nonzero().squeeze(1))
        plan, ids = self._plan(batch, taken), self._ids_of(which)
        asked = slice(None) if which is None else which.cpu().numpy()
        samples = None if plan is None else self._gather(plan, 0, self._on_device(plan.block(0, 1)[0]), which)
        masks, layout = take(self._masks(taken, 0), which), self._learner.task.learned

        def gradient(rows: Tensor) -> Tensor:
            result = torch.zeros_like(rows)
            if not len(ids):
                return result
            self.taken[asked] += 1
            opened, running = self._open(rows)
            mine = take(opened, which)
            stack, _ = self._gradients(task_loss, {"model": mine}, ids, samples, masks, take(running, which), parts)
            value = stack["model"]
            if l2:
                value = value + l2 * (mine if parts is None else mine * layout.mask(parts, mine))
            if which is None and value.shape == rows.shape:
                return value
            result[slice(None) if which is None else which, : value.shape[1]] = value
            return result

        return gradient

    def loss(self, rows: Tensor, split: Split = "train") -> Tensor:
        """Return each row's mean loss on its device's training or held-out samples (never on test data).

        Args:
            rows: One model per device.
            split: ``"train"`` or ``"held-out"``.
        """
        _refuse_test(split)
        sums = self._learner.scorer.sums(rows, torch.arange(len(rows)), self.ids, split, self.kept.get("running"))
        value = (sums["loss"] / sums["count"].clamp(min=1)).to(rows)
        return value + 0.5 * self._learner.task.l2 * rows[:, : self._learner.task.learned.width].square().sum(1)

    def outputs(self, rows: Tensor, split: Split = "train") -> Outputs:
        """Return what each row's model gives for its device's training or held-out samples (never for test data).

        Args:
            rows: One model per device.
            split: ``"train"`` or ``"held-out"``.
        """
        _refuse_test(split)
        return outputs_of(self._learner, rows, self.ids, split, self.kept.get("running"))

    def features(self, rows: Tensor, split: Split = "train", *, of: Which = "head") -> Outputs:
        """Return what enters a part of each row's model, for its device's training or held-out samples.

        Args:
            rows: One model per device.
            split: Which samples; never test data.
            of: The part whose input is wanted.
        """
        _refuse_test(split)
        return features_of(self._learner, rows, self.ids, split, self.kept.get("running"), of)

    def training(self, rows: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Return, device after device, the features (double precision) and the targets of its training samples.

        Args:
            rows: One model per device, whose last layer's inputs are then the features; by default the samples' own.
        """
        return training_of(self._learner, self.ids, rows)

    @property
    def loss_name(self) -> str | None:
        """The name of the loss; ``None`` for a loss of the user's own."""
        return self._learner.task.loss if isinstance(self._learner.task.loss, str) else None

    # -- running statistics and memory ---------------------------------------------------------------------------------

    def _open(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the learned columns of rows, and the running statistics their models start with."""
        task = self._learner.task
        if task.running is None:
            return rows, None
        if task.own_running:
            return rows, self.kept["running"]
        width = task.learned.width
        return rows[:, :width], rows[:, width:]

    def _close(self, rows: Tensor, running: Tensor | None) -> Tensor:
        """Undo `_open`: keep running statistics where they belong."""
        if running is None:
            return rows
        if self._learner.task.own_running:
            self.kept["running"] = running
            return rows
        return torch.cat([rows, running], 1)

    def _begin(self, optimiser: Optimiser, layout: Layout) -> Stack:
        """Return what an optimiser remembers of every device's rows before the first step."""
        learner = self._learner
        return {
            name: row.to(learner.device, learner.dtype).repeat(len(self.ids), 1)
            for name, row in optimiser.memory(layout).items()
        }

    def _stepping(self, optimiser: Optimiser, rows: Tensor) -> Stepping:
        """Return an optimiser at work on rows that need not be models."""
        layout = Layout(("rows",), (rows.shape[1:],))
        return Stepping(optimiser, layout, None, self._begin(optimiser, layout))

    def _chosen(self, only: Which | None) -> Parts:
        """Return the parts that ``only`` names; ``None`` for all."""
        if only is None:
            return None
        self._in_parts()
        named = (only,) if isinstance(only, str) else tuple(only)
        return tuple(part for part in named if part != BUFFERS)  # no gradient moves statistics

    def _in_parts(self) -> None:
        """Note that a program treats parts of the model differently."""

    def _all_rounds(self) -> int:
        """Return how many rounds the run has; a device knows it, work outside of a run does not."""
        raise PalmetteError("a schedule over all rounds needs to know how many there are")


def _cut(rows: Tensor | None, width: int) -> Tensor | None:
    """Return the learned columns of rows."""
    return rows if rows is None or rows.shape[1] == width else rows[:, :width]


def _within(extra: Callable[[Tensor], Tensor] | None, start: Tensor, width: int) -> Callable[[Tensor], Tensor] | None:
    """Let a gradient of the program's own see whole rows, with zeros in the place of running statistics."""
    if extra is None or start.shape[1] == width:
        return extra

    def narrow(rows: Tensor) -> Tensor:
        return extra(F.pad(rows, (0, start.shape[1] - width)))[:, :width]

    return narrow


def _refuse_test(split: Split) -> None:
    if split == "test":
        raise PalmetteError("a device program may not look at test data")
