"""The loop backend, and which backend is taken: by a rule on the size of layers, written down, kept by a run that goes on."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palmette as pm
from palmette.learner import Learner, LocalWork, survey
from palmette.learner.backends import VmapBackend
from palmette.learner.loop import LoopBackend
from palmette.learner.normalising import ChannelsLastGroupNorm, rectify_in_place
from palmette.runs.folder import CONFIG
from palmette.task import Task
from test_runs import contents
from zoo import Attention, Recurrent, Transformer, resnet

CPU = torch.device("cpu")


def people(shape: tuple[int, ...], sizes: tuple[int, ...] = (12, 5, 9, 3)) -> pm.Population:
    random = np.random.default_rng(1)
    x = [random.normal(size=(size, *shape)).astype(np.float32) for size in sizes]
    y = [random.integers(0, 3, size) for size in sizes]
    return pm.Population.from_arrays(x, y, tree=f"1x{len(sizes)}", test=0.25, classes=3)


def learner(shape: tuple[int, ...], module: nn.Module, backend: str = "auto", **options: Any) -> Learner:
    options = {"batch_size": 20, "people": people(shape), **options}
    return Learner(Task(module), options.pop("people"), backend=backend, **options)


def descended(of: Learner, ids: Tensor, **options: Any) -> Tensor:
    work = LocalWork(of, ids, 2, torch.full_like(ids, 4))
    rows = of.initial().repeat(of.population.devices, 1)[ids]
    return work.descend(rows, **{"steps": 3, "lr": 0.1, "pull": 0.3, "centre": rows + 0.1, **options})


class Views(nn.Module):
    """A module that joins channels and pixels by a view, which asks for them in the usual order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(x.view(len(x), -1))


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)),
        *(nn.Flatten(), nn.Linear(64, 3)),
    )


IMAGE = (2, 8, 8)


@pytest.mark.parametrize("make", [images, Views])
@pytest.mark.parametrize("only", [None, "head"])
def test_orders_of_memory_give_one_result(make: Callable[[], nn.Module], only: str | None) -> None:
    torch.manual_seed(0)
    task, ids = Task(make(), parts={"head": "last(1)"}), torch.arange(4)
    found = [
        descended(Learner(task, people(IMAGE), batch_size=4, backend=name), ids, only=only) for name in ("loop", "vmap")
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_device_has_the_same_bits_whoever_is_beside_it() -> None:
    torch.manual_seed(0)
    of = learner(IMAGE, images(), "loop", batch_size=4)
    together = descended(of, torch.arange(4))
    assert torch.equal(descended(of, torch.tensor([2, 0])), together[[2, 0]])


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_group_normalisation_with_channels_last_is_torchs(far: float) -> None:
    torch.manual_seed(0)
    layer = nn.GroupNorm(3, 6)
    layer.load_state_dict({"weight": torch.randn(6), "bias": torch.randn(6)})
    x = (torch.randn(5, 6, 4, 3) + far).contiguous(memory_format=torch.channels_last)
    found = []
    for one, type_ in ((copy.deepcopy(layer).double(), torch.float64), (ChannelsLastGroupNorm(layer), torch.float32)):
        leaf = x.to(type_).detach().requires_grad_(True)
        value = one(leaf)
        gradients = torch.autograd.grad((value * torch.arange(72.0).view(6, 4, 3)).sum(), [leaf, *one.parameters()])
        found.append([value, *gradients])
    for ours, theirs in zip(found[1], found[0], strict=True):
        # A mean far from zero leaves a float fewer digits for what is around it.
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=(1e-3 if far else 1e-5) * scale)


def test_what_is_rectified_in_place_is_read_by_nobody_else() -> None:
    shared = nn.ReLU()
    row = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Tanh(), nn.ReLU(), nn.Linear(3, 3), shared, shared)
    rectify_in_place(row)
    assert [layer.inplace for layer in row if isinstance(layer, nn.ReLU)] == [True, False, False, False]


class Scored(nn.Module):
    """Attention whose scores are written by hand, which has no fused form."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.query(x) @ self.key(x).mT, -1)
        return self.last((shares @ self.value(x)).mean(1))


TAKEN: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module], str]] = {
    "small LSTM": ((20, 16), lambda: Recurrent(nn.LSTM, 16, 32, 3), "fused"),
    "long LSTM": ((80, 8), lambda: Recurrent(nn.LSTM, 8, 64, 3), "loop"),
    "LSTM without a fused form": ((5, 4), lambda: Recurrent(nn.LSTM, 4, 6, 3, bidirectional=True), "loop"),
    "GRU": ((20, 16), lambda: Recurrent(nn.GRU, 16, 32, 3), "fused"),
    "large GRU": ((20, 8), lambda: Recurrent(nn.GRU, 8, 128, 3, num_layers=2), "fused"),
    "RNN": ((20, 16), lambda: Recurrent(nn.RNN, 16, 32, 3), "vmap"),
    "large RNN": ((20, 8), lambda: Recurrent(nn.RNN, 8, 512, 3), "loop"),
    "attention": ((16, 32), lambda: Attention(32, 4, 3), "fused"),
    "transformer": ((32, 64), lambda: Transformer(64, 4, 3), "fused"),
    "small scores": ((16, 32), lambda: Scored(32), "vmap"),
    "scores": ((64, 128), lambda: Scored(128), "loop"),
    "signals": ((8, 64), lambda: nn.Sequential(nn.Conv1d(8, 64, 5), nn.Flatten(), nn.Linear(3840, 3)), "fused"),
    "ResNet": ((3, 32, 32), lambda: resnet(3, inputs=3, width=16, norm=nn.Identity), "fused"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_size_of_layers_decides(name: str) -> None:
    shape, make, backend = TAKEN[name]
    of = learner(shape, make())
    assert of.backend.name == backend
    assert ("one device after the other is faster" in of.reason) == (backend == "loop")
    assert "fastest" not in of.reason


@pytest.mark.parametrize("batch_size", [1, 20, "full"])
def test_the_choice_does_not_depend_on_who_is_there(batch_size: Any) -> None:
    shape, make, _ = TAKEN["scores"]
    found = {
        learner(shape, make(), batch_size=batch_size, people=people(shape, sizes)).reason
        for sizes in ((4,), (12, 40, 7), (400, 3))
    }
    assert len(found) == 1


def test_smaller_batches_are_less_work() -> None:
    shape, make, _ = TAKEN["scores"]
    assert learner(shape, make(), batch_size=2).backend.name == "vmap"


def test_work_is_counted_as_multiplications() -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 3))
    loop = LoopBackend(Task(module), torch.float32, CPU)
    each = survey.survey(loop, torch.zeros(2, 2, 8, 8), 10).each
    assert each == 10 * (64 * 4 * 2 * 9 + 4 * 64 * 3) / 2
    lstm = LoopBackend(Task(Recurrent(nn.LSTM, 4, 6, 3)), torch.float32, CPU)
    assert survey.survey(lstm, torch.zeros(2, 5, 4), 10).lstm == 10 * 5 * 4 * 6 * (4 + 6)


# -- the choice is written down ----------------------------------------------------------------------------------------


def run(folder: str, rounds: int, **options: Any) -> pm.Result:
    torch.manual_seed(3)
    shape, make, _ = TAKEN["small scores"]
    settings = {"team_steps": 2, "local_steps": 2, "alpha": 0.1}
    return pm.run("permfl", people(shape), make(), rounds=rounds, settings=settings, out=folder, **options)


def given() -> dict[str, Any]:
    torch.manual_seed(3)
    shape, make, _ = TAKEN["small scores"]
    return {"population": people(shape), "model": make()}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def engine(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(Path(folder, CONFIG).read_text())["engine"]
    return found


def test_a_config_says_which_backend_was_taken_and_runs_again_with_it() -> None:
    run("one", 1)
    assert (engine("one")["backend"], engine("one")["took"]) == ("auto", "vmap")
    pm.rerun("one", "again", **given())
    assert engine("again") == engine("one")
    assert contents(Path("again")) == contents(Path("one"))
    run("named", 1, backend="loop")
    assert (engine("named")["backend"], engine("named")["took"]) == ("loop", "loop")


def test_a_run_goes_on_with_the_backend_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    run("whole", 3)
    run("one", 2)
    monkeypatch.setattr(survey, "LARGE", 0)  # another version may draw the line elsewhere
    pm.resume("one", rounds=3, **given())
    assert engine("one")["took"] == "vmap"
    assert contents(Path("one")) == contents(Path("whole"))


def test_a_run_that_cannot_go_on_with_its_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run("one", 1)

    def refuse(*_: Any) -> None:
        raise RuntimeError("not here")

    monkeypatch.setattr(VmapBackend, "__init__", refuse)
    with pytest.warns(UserWarning, match="began with the backend vmap, which cannot run here, and goes on with loop"):
        pm.resume("one", rounds=2, **given())
