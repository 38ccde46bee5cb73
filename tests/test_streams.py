"""Batches that several descents share, and gradients that are the same at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from palmette.errors import PalmetteError
from palmette.learner import Epochs
from test_backends import close, learner, rows, work

DROPPING = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 3))
every_backend = pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
models = pytest.mark.parametrize("model", ["mclr", "dnn", DROPPING], ids=["mclr", "dnn", "dropout"])


@every_backend
@models
def test_descents_on_a_stream_go_on_where_the_last_one_ended(backend: str, model: Any) -> None:
    of = learner(model, backend)
    whole = work(of).descend(rows(of), steps=7, lr=0.1)
    doing, theta = work(of), rows(of)
    stream = doing.stream()
    for steps in (1, 4, 2):
        theta = doing.descend(theta, steps=steps, lr=0.1, batch=stream)
    assert torch.equal(theta, whole)
    assert doing.device_steps == 7 * len(theta)


@every_backend
@models
def test_a_stream_again_has_the_same_batches(backend: str, model: Any) -> None:
    of = learner(model, backend)
    doing, start = work(of), rows(of)
    stream = doing.stream()
    first, after = (doing.descend(start, steps=3, lr=0.1, batch=stream) for _ in range(2))
    assert torch.equal(doing.descend(start, steps=3, lr=0.1, batch=stream.again()), first)
    assert not torch.equal(after, first)


@every_backend
def test_a_gradient_on_a_stream_is_that_of_its_next_batch(backend: str) -> None:
    of = learner(DROPPING, backend)
    doing, theta = work(of), rows(of)
    stream = doing.stream()
    for _ in range(3):
        theta = theta - 0.1 * doing.oracle(stream)(theta)
    close(theta, work(of).descend(rows(of), steps=3, lr=0.1))


def test_a_stream_wants_one_number_of_steps() -> None:
    of = learner("mclr", "fused")
    doing = work(of)
    for steps in (Epochs(1), torch.ones(len(rows(of)), dtype=torch.int64)):
        with pytest.raises(PalmetteError, match="takes one number of steps"):
            doing.descend(rows(of), steps=steps, lr=0.1, batch=doing.stream())


@every_backend
@pytest.mark.parametrize("pull", [0.0, 0.4])
@pytest.mark.parametrize("steps", [4, torch.tensor([0, 1, 2, 3, 4])], ids=["even", "uneven"])
def test_a_shift_is_an_extra_gradient_that_stays(backend: str, pull: float, steps: Any) -> None:
    given: dict[str, Any] = {"steps": steps, "lr": 0.1, "pull": pull}
    of = learner("dnn", backend, l2=0.1)
    start, shift, centre = rows(of, 1), rows(of, 2), rows(of, 3)
    found = work(of).descend(start, **given, centre=centre, shift=shift)
    expected = start.clone()
    for i in range(len(start)):  # an extra gradient is not told whose rows it sees, so all take the steps of one
        alone = {**given, "steps": steps if isinstance(steps, int) else int(steps[i]), "centre": centre}
        expected[i] = work(of).descend(start, **alone, extra=lambda _: shift)[i]
    close(found, expected)
    assert not torch.equal(found, work(of).descend(start, **given, centre=centre))
