"""The learner's backends agree: same batches, same gradients, same descents, whatever the model and the setting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palmette import address
from palmette.errors import BadInput
from palmette.learner import Epochs, Learner, LocalWork, batches
from palmette.population import Population
from palmette.task import make_task

SIZES = [30, 7, 12, 45, 3]
"""Training and test samples of the devices; the batch is 8, so two devices have fewer."""

SETTINGS = {
    "plain": {"steps": 5, "lr": 0.1},
    "pulled": {"steps": 40, "lr": 0.05, "pull": 0.7},
    "pull per row": {"steps": 4, "lr": 0.05, "pull": torch.tensor([0.1, 0.5, 0.0, 1.0, 2.0])},
    "rate per row": {"steps": 4, "lr": torch.tensor([0.1, 0.02, 0.0, 0.05, 0.2]), "pull": 0.5},
    "steps per row": {"steps": torch.tensor([3, 0, 40, 3, 1]), "lr": 0.05, "pull": 0.5},
    "epochs": {"steps": Epochs(1.5), "lr": 0.05},
    "extra": {"steps": 4, "lr": 0.05, "extra": lambda rows: 0.3 * rows},
    "same batch": {"steps": 4, "lr": 0.05, "batch": "same"},
    "one sample": {"steps": 4, "lr": 0.02, "batch": "one"},
    "full batch": {"steps": 3, "lr": 0.05, "pull": 0.5, "batch": "full"},
}


SMALL: dict[str, dict[str, Any]] = {
    "dnn": {"hidden": (9, 5)},
    "mclr": {"start": "random"},
    "cnn of MNIST": {"kind": "mnist"},
    "cnn with dropout": {"kind": "cifar10"},
    "vgg": {"channels": (4, 8)},
    "vgg without norm": {"channels": (4, 8), "norm": "none"},
    "vgg with BatchNorm": {"channels": (4, 8), "norm": "batch"},
    "resnet": {"width": 2},
    "resnet with BatchNorm": {"width": 2, "norm": "batch"},
}
"""Settings that make a model small; what stands after a model's name tells apart its settings."""

IMAGES = [model for model in SMALL if model.startswith(("cnn", "vgg", "resnet"))]


def population(shape: tuple[int, ...] = (1, 8, 8), classes: int | None = 3) -> Population:
    random = np.random.default_rng(5)
    x = [random.normal(size=(size, *shape)).astype(np.float32) for size in SIZES]
    if classes is None:
        y = [random.normal(size=(size, 1)).astype(np.float32) for size in SIZES]
    else:
        y = [random.integers(0, classes, size) for size in SIZES]
    return Population.from_arrays(x, y, test=0.25, classes=classes)


def learner(model: str | nn.Module, backend: str, *, people: Population | None = None, **options: float) -> Learner:
    people = people or population(classes=None if model == "linear" else 3)
    extra = SMALL.get(model, {}) if isinstance(model, str) else {}
    model = model.split()[0] if isinstance(model, str) else model
    task = make_task(model, people.shape, people.classes, seed=1, **options, **extra)
    return Learner(task, people, seed=3, batch_size=8, backend=backend, dtype=torch.float64)


def work(of: Learner, ids: Tensor | None = None) -> LocalWork:
    ids = torch.arange(len(SIZES)) if ids is None else ids
    return LocalWork(of, ids, 2, torch.full_like(ids, 4))


def rows(of: Learner, seed: int = 0) -> Tensor:
    noise = torch.randn(len(SIZES), of.width, generator=torch.Generator().manual_seed(seed), dtype=of.dtype)
    return of.initial() + 0.1 * noise


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        *((model, setting) for model in ("mclr", "dnn", "linear") for setting in SETTINGS),
        *(("cnn", setting) for setting in ("plain", "steps per row", "full batch")),
        *((model, "plain") for model in IMAGES),
    ],
)
def test_descents_agree(model: str, setting: str) -> None:
    expected = None
    unfused = "BatchNorm" in model
    for backend in ("loop", "vmap") if unfused else ("loop", "vmap", "fused"):
        of = learner(model, backend, l2=0.01)
        options = dict(SETTINGS[setting])
        if "pull" in options:
            options["centre"] = rows(of, 7)
        start = rows(of)
        before = start.clone()
        doing = work(of)
        found = doing.descend(start, **options)
        assert torch.equal(start, before)
        steps = doing.device_steps
        # A second call takes other batches: the addresses go on in the same way.
        found = torch.stack([found, doing.descend(start, **options)])
        if expected is None:
            expected, expected_steps = found, steps
        else:
            close(found, expected)
            assert steps == expected_steps
    assert expected is not None
    assert expected.isfinite().all()


@pytest.mark.parametrize("backend", ["vmap", "fused"])
@pytest.mark.parametrize("batch", ["next", "full", "one"])
def test_gradients_and_losses_agree(backend: str, batch: str) -> None:
    one, other = learner("dnn", "loop", l2=0.1), learner("dnn", backend, l2=0.1)
    start = rows(one)
    close(work(other).gradient(start, batch), work(one).gradient(start, batch))
    close(work(other).loss(start), work(one).loss(start))


@pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
def test_a_full_gradient_does_not_depend_on_the_blocks_it_is_summed_in(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = learner("dnn", backend)
    start = rows(of)
    once, stepped = work(of).gradient(start), work(of).descend(start, steps=2, lr=0.1, batch="full")
    monkeypatch.setattr("palmette.learner.steps._FULL", 10)
    close(work(of).gradient(start), once)
    close(work(of).descend(start, steps=2, lr=0.1, batch="full"), stepped)


def test_threads_have_memory_of_their_own() -> None:
    of = learner("dnn", "fused")
    start = rows(of)
    parts = torch.arange(len(SIZES)).split(1) * 8

    def one(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return work(of, ids).descend(start[ids], steps=30, lr=0.1, pull=0.3, centre=start[ids])

    expected = [one(ids) for ids in parts]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(one, parts), expected))


def test_an_objective_of_ones_own_agrees() -> None:
    def objective(named: dict[str, Tensor], batch) -> Tensor:
        return batch.loss(named["a"] + named["b"]) + 0.5 * (named["a"] - named["b"]).square().sum()

    found = []
    for backend in ("loop", "vmap", "fused"):
        of = learner("mclr", backend)
        start = {"a": rows(of, 1), "b": rows(of, 2)}
        found.append(work(of).minimise(objective, start, steps=3, lr={"a": 0.1, "b": 0.2}))
    for other in found[1:]:
        for name in ("a", "b"):
            close(other[name], found[0][name])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    of = learner("dnn", "fused")
    start, some = rows(of), torch.tensor([3, 0])
    options = {"steps": 6, "lr": 0.1, "pull": 0.3}
    together = work(of).descend(start, centre=start, **options)
    alone = work(of, some).descend(start[some], centre=start[some], **options)
    close(alone, together[some])


def test_the_numpy_hash_is_the_address_hash() -> None:
    random = np.random.default_rng(0)
    base = random.integers(0, 2**64, 50, dtype=np.uint64)
    counter = random.integers(0, 2**40, 50)
    expected = address.mix(torch.from_numpy(base.view(np.int64)), torch.from_numpy(counter))
    assert np.array_equal(batches.mix(base, counter).view(np.int64), expected.numpy())


def test_bytes_converted_on_the_fly_train_like_a_float_copy() -> None:
    random = np.random.default_rng(5)
    x = [random.integers(0, 256, (size, 6)).astype(np.uint8) for size in SIZES]
    y = [random.integers(0, 3, size) for size in SIZES]
    people = Population.from_arrays(x, y, test=0.25, classes=3, affine=(2 / 255, -1.0))
    task = make_task("mclr", people.shape, 3, seed=1)
    found = [
        work(of := Learner(task, people, batch_size=8, backend="fused", memory=memory)).descend(
            rows(of), steps=3, lr=0.1
        )
        for memory in (0, 1 << 30)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("backend", ["vmap", "fused", "loop"])
def test_scores_agree_whether_rows_are_shared_or_own(backend: str) -> None:
    of = learner("cnn", backend)
    ids, start = torch.arange(len(SIZES)), rows(of)
    plain = learner("cnn", "loop").scorer.sums(start, ids, ids, "test")
    for name, value in of.scorer.sums(start, ids, ids, "test").items():
        close(value, plain[name])
    owner = torch.tensor([0, 0, 1, 1, 1])
    shared, own = of.scorer.sums(start[:2], owner, ids, "test"), of.scorer.sums(start[owner], ids, ids, "test")
    for name, value in shared.items():
        close(value, own[name])


@pytest.mark.parametrize("backend", ["vmap", "fused", "loop"])
def test_devices_without_samples_of_a_split_score_nothing(backend: str) -> None:
    random = np.random.default_rng(0)
    x, y = [random.normal(size=(size, 4)) for size in (1, 9, 1)], [random.normal(size=size) for size in (1, 9, 1)]
    with pytest.warns(UserWarning, match="no test samples"):
        people = Population.from_arrays(x, y, test=0.0, classes=None)
    task = make_task("linear", people.shape, None)
    of = Learner(task, people, seed=0, batch_size=8, backend=backend, dtype=torch.float64, held_out=0.25)
    ids = torch.arange(3)
    found = of.scorer.sums(torch.ones(3, of.width, dtype=torch.float64), ids, ids, "held-out")
    assert found["count"].tolist() == [0, 2, 0]
    assert found["loss"][[0, 2]].tolist() == [0, 0]
    assert float(found["loss"][1]) > 0
    nobody = of.scorer.sums(torch.ones(1, of.width, dtype=torch.float64), torch.zeros_like(ids), ids, "test")
    assert nobody["loss"].tolist() == nobody["count"].tolist() == [0, 0, 0]


def test_the_fused_backend_is_chosen_and_says_so() -> None:
    of = learner("cnn", "auto")
    assert of.backend.name == "fused"
    assert of.reason == "made of common layers"


class Gate(nn.Module):
    """A layer that another one's output multiplies, which has no fused form."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(x * torch.sigmoid(self.inner(x)))


class Branch(nn.Module):
    """A module whose path depends on its data, which only plain autograd follows."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(x.flatten(1))
        return x if float(x.sum()) > 0 else 2 * x


def test_other_models_fall_back_and_say_why() -> None:
    chosen = learner(Gate(), "auto")
    assert chosen.backend.name == "vmap"
    assert "layer 4 (mul) has no fused form" in chosen.reason
    chosen = learner(Branch(), "auto")
    assert chosen.backend.name == "loop"
    assert "torch.fx cannot trace it" in chosen.reason
    assert "vmap cannot run" in chosen.reason
    chosen = learner(nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softshrink()), "auto")
    assert chosen.backend.name == "vmap"
    assert "layer 3 (Softshrink) has no fused form" in chosen.reason


def test_asking_for_a_backend_that_cannot_run_the_model_is_refused() -> None:
    with pytest.raises(BadInput, match="has no fused form"):
        learner(Gate(), "fused")
    with pytest.raises(BadInput, match="backend must be auto"):
        learner("mclr", "fast")


@pytest.mark.parametrize("model", ["mclr", "dnn", "cnn"])
def test_chunks_are_even_and_bounded(model: str) -> None:
    of = learner(model, "auto")
    assert of.chunk(1) == 1
    for participants in (2, 40, 1000, 3500, 100_000):
        size = of.chunk(participants)
        assert 1 <= size <= 256
        # At least two chunks, so that two cores have work, all of a size but for a few in the last.
        assert size <= (participants + 1) // 2
        rest = -(-participants // size) * size - participants
        assert rest < -(-participants // size)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiling_is_an_option_and_agrees_with_loop() -> None:
    people = population((6,))
    task = make_task("mclr", people.shape, people.classes)
    rows = torch.linspace(-1, 1, 5 * task.layout.width).view(5, -1)
    found = []
    for backend in ("loop", "compile"):
        made = Learner(task, people, batch_size=8, backend=backend)
        assert made.backend.name == backend
        found.append(LocalWork(made, torch.arange(5), 0, torch.zeros(5, dtype=torch.int64)).gradient(rows, "next"))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
    assert Learner(task, people).backend.name in ("native", "fused")
