"""What a device measures by itself: its own model, and those that came down to it, on its own test samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.learner import Learner
from palmette.learner.scores import model_output
from palmette.protocol import Algorithm, Device, ModelKind, State


def scores_of_device(
    method: Algorithm,
    learner: Learner,
    device: Device,
    state: State,
    declared: State,
    took_part: bool,
    models: dict[ModelKind, Tensor],
    kinds: Sequence[ModelKind],
) -> dict[str, Tensor]:
    """Return sums over one device's test samples, ``"PM/accuracy"`` and so on, each ``(1, 1)``.

    Args:
        method: The algorithm.
        learner: The device's own, with its samples.
        device: The device.
        state: All that is kept of it.
        declared: Initial rows of what is kept.
        took_part: Whether the device ever took part; one that did not makes its model from its parent's.
        models: The models above it, from the server's down to its parent's.
        kinds: The kinds of models that are measured.
    """
    personal, running = personal_rows(method, device, state, declared, took_part, next(reversed(models.values())))
    predict = method.predict if type(method).predict is not Algorithm.predict else model_output
    one, found = torch.zeros(1, dtype=torch.int64), dict[str, Tensor]()
    sums = learner.scorer.sums
    for kind in kinds:
        if kind == "PM":
            scores = sums(personal, one, device.ids, "test", running, predict)
        elif learner.task.own_running:
            scores = sums(models[kind], one, device.ids, "test", rules.of_work(state, declared).get("running"))
        else:
            scores = sums(models[kind], one, device.ids, "test")
        found |= {f"{kind}/{metric}": value.to(torch.float64)[None] for metric, value in scores.items()}
    return found


def personal_rows(
    method: Algorithm, device: Device, state: State, declared: State, took_part: bool, parent: Tensor
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the rows that one device predicts with, and its own running statistics where it keeps some."""
    visible = rules.Visible(state, declared)
    running = rules.of_work(state, declared).get("running")
    rows = dict(visible) if type(method).predict is not Algorithm.predict else {}
    if took_part and "model" in declared:
        return {**rows, "model": state["model"]}, running
    made = rules.adapt(method, device, parent, state, declared)
    rows |= {name: value for name, value in made.items() if name in rows or name == "model"}
    return rows, device.kept.get("running", running)
