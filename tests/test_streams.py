"""Batches that several descents share, gradients that are the same at every step, and routines of several rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from palmette.errors import PalmetteError
from palmette.learner import Epochs, LocalWork, Mix, Move, dense
from palmette.learner.routine import iterate
from test_backends import close, learner, rows, work

DROPPING = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 3))
UNEVEN = torch.tensor([0, 1, 2, 3, 4])
every_backend = pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
# Plain loops are slow, and what they do with a stream does not depend on the model.
models = pytest.mark.parametrize(
    ("backend", "model"),
    [("loop", DROPPING), ("vmap", "dnn"), ("fused", "mclr"), ("fused", "dnn"), ("fused", DROPPING)],
    ids=["loop", "vmap", "fused-mclr", "fused-dnn", "fused-dropout"],
)


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


@pytest.mark.parametrize(
    ("backend", "pull", "steps"),
    [
        *(("loop", 0.4, 4), ("vmap", 0.4, 4), ("vmap", 0.0, UNEVEN)),
        *(("fused", 0.0, 4), ("fused", 0.4, 4), ("fused", 0.0, UNEVEN), ("fused", 0.4, UNEVEN)),
    ],
)
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


# -- routines ----------------------------------------------------------------------------------------------------------


def coupled(doing: LocalWork, steps: int, share: Any, lr: Any) -> dict[str, torch.Tensor]:
    """Train two rows whose steps depend on each other, on streams of their own."""
    start = rows(doing._learner)
    one, other = doing.stream(), doing.stream()
    routine = [Mix("u", "v", "w", share), Move("v", lr, one, at="u"), Mix("kept", "u"), Move("w", 0.1, other)]
    return doing.iterate({"w": start, "v": 2 * start, "u": start, "kept": start}, routine, steps)


@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
@pytest.mark.parametrize(("model", "size"), [("dnn", "full"), (DROPPING, 8)], ids=["dnn", "dropout"])
def test_every_backend_goes_through_a_routine_alike(model: Any, each: bool, size: Any) -> None:
    share = torch.linspace(0, 1, 5, dtype=torch.float64) if each else 0.3
    found = []
    for backend in ("loop", "vmap", "fused"):
        of = learner(model, backend)
        of.batch_size = size
        doing = work(of)
        found.append(coupled(doing, 4, share, 0.1 * share if each else 0.1))
        assert doing.device_steps == 2 * 4 * 5
    for name, value in found[0].items():
        close(found[1][name], value)
        close(found[2][name], value)
    assert not torch.equal(found[0]["v"], found[0]["w"])


def test_a_routine_is_written_as_single_steps_would_be() -> None:
    of = learner("dnn", "fused")
    doing = work(of)
    w, v, one, other = rows(of), 2 * rows(of), doing.stream(), doing.stream()
    for _ in range(40):  # more than are addressed at once
        u = 0.3 * v + 0.7 * w
        v = v - 0.1 * doing.oracle(one)(u)
        w = w - 0.1 * doing.oracle(other)(w)
    found = coupled(work(of), 40, 0.3, 0.1)
    close(found["w"], w)
    close(found["v"], v)
    close(found["kept"], u)


def test_a_stream_goes_on_after_a_routine() -> None:
    of = learner("mclr", "fused")
    doing, start = work(of), rows(of)
    stream = doing.stream()
    first = doing.iterate({"w": start}, [Move("w", 0.1, stream)], 3)["w"]
    after = doing.descend(first, steps=2, lr=0.1, batch=stream)
    assert torch.equal(after, work(of).descend(start, steps=5, lr=0.1))


def test_no_steps_change_nothing_and_inputs_are_left_alone() -> None:
    of = learner("mclr", "fused")
    doing, start = work(of), rows(of)
    for steps in (0, 2):
        doing.iterate({"w": start}, [Move("w", 0.1, doing.stream())], steps)
        assert torch.equal(start, rows(of))


def test_moves_of_a_routine_must_not_share_a_stream() -> None:
    of = learner("mclr", "fused")
    doing = work(of)
    stream = doing.stream()
    with pytest.raises(PalmetteError, match="a stream of batches of its own"):
        doing.iterate({"w": rows(of)}, [Move("w", 0.1, stream), Move("w", 0.1, stream)], 2)


def test_a_routine_of_linear_layers_is_one_program() -> None:
    assert isinstance(dense.compiled(iterate), torch.jit.ScriptFunction)
