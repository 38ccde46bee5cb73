"""How devices turn gradients into steps: plain, with momentum or Adam, with weight decay, clipping and a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from palmette.task.layout import Layout, Which
from palmette.task.parts import BUFFERS

Memory = Mapping[str, Tensor]
"""What an optimiser remembers between steps: rows by name, one line per device."""

_Share = Annotated[float, Field(ge=0, lt=1)]


class Optimiser(BaseModel):
    """The optimiser of the devices' gradient steps. By default it is plain stochastic gradient descent.

    Attributes:
        name: Optimiser: ``"sgd"`` or ``"adam"``. Its learning rate is the algorithm's; Adam wants a far smaller one.
        momentum: Momentum of ``"sgd"``; 0 for none.
        nesterov: Whether the momentum is Nesterov's.
        beta1: Adam's decay of the mean of gradients.
        beta2: Adam's decay of the mean of squared gradients.
        epsilon: What Adam adds to the root of the second before it divides.
        weight_decay: Decoupled weight decay (as in AdamW): every step also takes off lr * weight_decay times the model. Weight
            decay in the loss itself is model.l2.
        clip: Longest gradient (Euclidean norm) of a device: a longer one is scaled down to it; by default there is no limit.
            The pull to another model counts as a part of the gradient.
        schedule: How the learning rate changes over rounds: ``"constant"``, ``"linear"`` or ``"cosine"`` down to 0 after the
            last round, or ``"step"``, times decay after every decay_every rounds.
        warmup: Rounds in which the learning rate first grows linearly to its full value.
        decay: Factor of the ``"step"`` schedule.
        decay_every: Rounds between two factors of the ``"step"`` schedule.
        keep: Whether a device keeps momentum and means between exchanges. By default they start at zero each time it is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["sgd", "adam"] = "sgd"
    momentum: _Share = 0.0
    nesterov: bool = False
    beta1: _Share = 0.9
    beta2: _Share = 0.999
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)
    schedule: Literal["constant", "linear", "cosine", "step"] = "constant"
    warmup: int = Field(0, ge=0)
    decay: float = Field(0.5, gt=0, le=1)
    decay_every: int = Field(10, ge=1)
    keep: bool = False

    def memory(self, layout: Layout) -> dict[str, Tensor]:
        """Return what a device remembers before its first step: initial rows by name.

        Args:
            layout: Which numbers of a model's row belong to which parameter.
        """
        if self.name == "sgd" and not self.momentum:
            return {}
        parts = [part for part in layout.parts if part != BUFFERS]
        width = layout.part(parts).width
        if self.name == "adam":
            return {"first": torch.zeros(width), "second": torch.zeros(width), "count": torch.zeros(len(parts))}
        return {"first": torch.zeros(width)}

    @property
    def plain(self) -> bool:
        """Whether a step is the learning rate times the gradient, which can be folded into the gradient's own product."""
        return self.name == "sgd" and not self.momentum and self.clip is None

    def factor(self, round_: int, rounds: Callable[[], int]) -> float:
        """Return the factor of the learning rate in a round; ``rounds`` is only asked where the schedule depends on it.

        Args:
            round_: The round, from 0.
            rounds: Computes how many rounds the run has.
        """
        warm = min(1.0, (round_ + 1) / (self.warmup + 1)) if self.warmup else 1.0
        if self.schedule == "constant":
            return warm
        if self.schedule == "step":
            return warm * float(self.decay ** (round_ // self.decay_every))
        share = min(1.0, round_ / rounds())
        return warm * (1 - share if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share)))


class Stepping:
    """An optimiser at work on some parts of a stack of rows.

    Args:
        optimiser: How steps are made.
        layout: The parameters that are learned.
        only: The parts that take steps; all by default.
        memory: What each device remembers, one line per device; changed in place.
    """

    def __init__(self, optimiser: Optimiser, layout: Layout, only: Which | None, memory: dict[str, Tensor]) -> None:
        self._rule, self.memory = optimiser, memory
        self._layout, self._only = layout, only
        names = list(layout.parts)
        mine = names if only is None else [only] if isinstance(only, str) else list(only)
        self._parts = [names.index(part) for part in mine]
        part_of = {name: position for position, part in enumerate(names) for name in layout.parts[part]}
        chosen = layout if only is None else layout.part(only)
        columns = [part_of[name] for name in chosen.names]
        counts = torch.tensor(chosen.sizes, dtype=torch.int64)
        self._part_of = torch.repeat_interleave(torch.tensor(columns, dtype=torch.int64), counts)

    def step(self, rows: Tensor, gradient: Tensor, which: Tensor | None) -> Tensor:
        """Return the direction of a step, to be multiplied by the learning rate, and remember what is to be.

        Args:
            rows: The columns that take the step.
            gradient: Their gradient.
            which: Positions of the rows in the stack, all by default.
        """
        rule = self._rule
        if rule.clip is not None:
            length = gradient.norm(dim=1, keepdim=True)
            gradient = gradient * (rule.clip / length.clamp(min=rule.clip))
        if rule.name == "adam":
            gradient = self._adam(gradient, which)
        elif rule.momentum:
            mean = rule.momentum * self._read("first", which) + gradient
            self._write("first", which, mean)
            gradient = gradient + rule.momentum * mean if rule.nesterov else mean
        return gradient + rule.weight_decay * rows if rule.weight_decay else gradient

    def _adam(self, gradient: Tensor, which: Tensor | None) -> Tensor:
        rule = self._rule
        count = self.memory["count"] if which is None else self.memory["count"][which]
        count = count.clone()
        count[:, self._parts] += 1
        if which is None:
            self.memory["count"].copy_(count)
        else:
            self.memory["count"][which] = count
        mean = rule.beta1 * self._read("first", which) + (1 - rule.beta1) * gradient
        square = rule.beta2 * self._read("second", which) + (1 - rule.beta2) * gradient.square()
        self._write("first", which, mean)
        self._write("second", which, square)
        # Of one part all columns have taken as many steps, and a number for each of them need not be written out.
        part = self._parts if len(self._parts) == 1 else self._part_of.to(count.device)
        mean = mean / (1 - rule.beta1**count)[:, part]
        square = square / (1 - rule.beta2**count)[:, part]
        return mean / (square.sqrt() + rule.epsilon)

    def _read(self, name: str, which: Tensor | None) -> Tensor:
        rows = self.memory[name] if which is None else self.memory[name][which]
        return rows if self._only is None else self._layout.cut(rows, self._only)

    def _write(self, name: str, which: Tensor | None, values: Tensor) -> None:
        rows = self.memory[name] if which is None else self.memory[name][which]
        rows = values if self._only is None else self._layout.put(rows, self._only, values)
        if which is None:
            self.memory[name].copy_(rows)
        else:
            self.memory[name][which] = rows
