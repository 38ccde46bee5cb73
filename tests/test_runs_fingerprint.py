"""A run goes on only with what it began with: every sample, label, setting, model, loss and metric."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palmette.runs.fingerprint
from palmette.algorithms import PerMFL
from palmette.errors import BadInput
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs import execute, make_config, resume, run
from palmette.runs.digests import described, digest_of
from palmette.runs.files import Files
from palmette.runs.fingerprint import Fingerprint
from palmette.runs.folder import IDENTITY
from palmette.task import Task
from palmette.tree import Tree
from test_runs import DIGITS, Killer

METHOD = PerMFL(team_steps=2, local_steps=2, alpha=0.1)
SAMPLES = 600


def people(**changes: Any) -> Population:
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(SAMPLES, 4)).astype(np.float32), numbers.integers(0, 3, SAMPLES)
    tree = Tree.parse({"north": ["a", "b"], "south": ["c", "d"]})
    made = Population.from_arrays(x, y, device=np.repeat(["a", "b", "c", "d"], SAMPLES // 4), tree=tree)
    return dataclasses.replace(made, **changes)


class Net(nn.Module):
    """A model with a setting that is no parameter."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), scale
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


class Other(Net):
    """A model with the same shapes that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x).tanh()


def net(change: Callable[[Net], None] = lambda module: None, kind: type[Net] = Net, **given: Any) -> Net:
    module = kind(**given)
    with torch.no_grad():
        change(module)
    return module


def gentle(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * nn.functional.cross_entropy(output, target, reduction="none")


def hits(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).to(output.dtype)


def misses(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) != target).to(output.dtype)


def started(out: Path, population: Population, task: Task, method: Algorithm = METHOD) -> None:
    with pytest.raises(ZeroDivisionError):
        run(method, population, task, rounds=3, out=out, evaluate_every=1, observer=Killer(1))


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cut"
    started(folder, people(), Task(net(), metrics={"hits": hits}))
    return folder


@pytest.mark.parametrize("number", [0, SAMPLES // 2 + 1, SAMPLES - 1])
def test_one_other_label_is_another_run(number: int, cut: Path) -> None:
    y = people().y.clone()
    y[number] = (y[number] + 1) % 3
    with pytest.raises(BadInput, match=r"not the run that was stopped.*differs: the labels"):
        resume(cut, method=METHOD, population=people(y=y), model=Task(net(), metrics={"hits": hits}))


@pytest.mark.parametrize("number", [0, SAMPLES // 2 + 1, SAMPLES - 1])
def test_one_other_feature_is_another_run(number: int, cut: Path) -> None:
    x = people().x.clone()
    x[number, 3] += 1e-3
    with pytest.raises(BadInput, match=r"differs: the samples\."):
        resume(cut, method=METHOD, population=people(x=x), model=Task(net(), metrics={"hits": hits}))


def test_all_of_many_samples_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.runs.digests._BLOCK", 1000)
    x = torch.zeros(20_000, 3, dtype=torch.uint8)
    seen = {digest_of(x)}
    for line in (0, 332, 333, 334, 7_777, 19_999):
        changed = x.clone()
        changed[line, 1] = 1
        seen.add(digest_of(changed))
    assert len(seen) == 7
    monkeypatch.undo()
    assert digest_of(x) in seen  # the size of a block does not show
    assert digest_of(x.view(3, -1)) not in seen
    assert digest_of(x.to(torch.int8)) not in seen


TASK = {"metrics": {"hits": hits}}
TREE = Tree.parse({"north": ["a", "b"], "south": ["c", "d"]})
LIMIT = people().train.clone()
LIMIT[1] -= 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": dataclasses.replace(METHOD, alpha=0.2)}, r"the setting alpha \(was 0\.1, is 0\.2\)\."),
        ({"population": people(train=LIMIT)}, r"differs: the split into devices, training and test samples\."),
        ({"population": people(affine=(2.0, 0.0))}, r"differs: the samples\."),
        (
            {"population": people(tree=Tree(TREE.parents, (("a", "b", "c", "e"), *TREE.labels[1:])))},
            r"differs: the tree\.",
        ),
        ({"model": Task(net(kind=Other), **TASK)}, r"differs: the model\."),
        ({"model": Task(net(scale=2.0), **TASK)}, r"differs: the model\."),
        (
            {"model": Task(net(lambda module: module.layer.bias.fill_(0.1)), **TASK)},
            r"differs: the model's initial weights\.",
        ),
        ({"model": Task(net(), gentle, **TASK)}, r"differs: the loss\."),
        ({"model": Task(net(), l2=0.1, **TASK)}, r"the setting model\.l2 \(was 0, is 0\.1\)\."),
        ({"model": Task(net(), metrics={"hits": misses})}, r"differs: the metrics\."),
        ({"model": Task(net(kind=Other), gentle, **TASK)}, r"differs: the loss; the model"),
    ],
)
def test_a_resume_with_something_else_is_refused_with_what_differs(
    given: dict[str, Any], words: str, cut: Path
) -> None:
    rest = {"method": METHOD, "population": people(), "model": Task(net(), **TASK)}
    with pytest.raises(BadInput, match=words):
        resume(cut, **{**rest, **given})


def test_equal_objects_made_anew_go_on(tmp_path: Path) -> None:
    started(tmp_path / "cut", people(), Task(net(), functools.partial(scaled, factor=2.0), **TASK))
    task = Task(net(), functools.partial(scaled, factor=2.0), **TASK)
    assert resume(tmp_path / "cut", method=dataclasses.replace(METHOD), population=people(), model=task).kinds


def scaled(output: Tensor, target: Tensor, factor: float) -> Tensor:
    return factor * gentle(output, target)


def made(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: factor * gentle(output, target)


def twins() -> list[Callable[[float], float]]:
    return [lambda value: 2 * value, lambda value: 3 * value]


def test_code_is_told_apart_by_its_text_and_the_values_it_carries() -> None:
    namespaces: list[dict[str, Any]] = [{}, {}, {}]
    for space, text in zip(namespaces, ("output", "output", "2 * output"), strict=True):
        exec(f"def loss(output, target):\n    return {text}", space)  # what is typed at a prompt has no source
    same = [
        (made(1.0), made(1.0)),
        (functools.partial(scaled, factor=1.0), functools.partial(scaled, factor=1.0)),
        (nn.CrossEntropyLoss(reduction="none"), nn.CrossEntropyLoss(reduction="none")),
        (namespaces[0]["loss"], namespaces[1]["loss"]),
    ]
    other = [
        (made(1.0), made(2.0)),
        (functools.partial(scaled, factor=1.0), functools.partial(scaled, factor=2.0)),
        (nn.CrossEntropyLoss(reduction="none"), nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)),
        (namespaces[0]["loss"], namespaces[2]["loss"]),
        tuple(twins()),
        (nn.functional.mse_loss, nn.functional.l1_loss),
        (net(), net(lambda module: module.register_buffer("mean", torch.ones(1)))),
        (Net, Other),
    ]
    assert all(described(one) == described(two) for one, two in same)
    assert [described(one) != described(two) for one, two in other] == [True] * len(other)


def test_a_changed_config_file_is_refused_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(2))
    path = tmp_path / "cut" / "config.toml"
    whole = path.read_text()
    for old, new, words in (
        ("seed = 0", "seed = 1", r"seed \(was 0, is 1\)"),
        ("alpha = 0.3", "alpha = 0.4", r"the setting alpha \(was 0\.3, is 0\.4\)"),
        ("devices = 0.5", "devices = 0.25", r"participation\.devices \(was 0\.5, is 0\.25\)"),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new))
        with pytest.raises(BadInput, match=words):
            resume(tmp_path / "cut")
    path.write_text(whole.replace('store = "auto"', 'store = "disk"'))  # where rows lie changes nothing
    assert resume(tmp_path / "cut").config.engine.store == "disk"


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_taken_over_by_another(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(0))
    for name in ("checkpoint.bin", "checkpoint.previous.bin"):
        (tmp_path / "cut" / name).unlink(missing_ok=True)
    path = tmp_path / "cut" / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(BadInput, match=r"not the run that was stopped.*the setting seed \(was 0, is 1\)"):
        resume(tmp_path / "cut")


def test_many_differences_are_told_in_short() -> None:
    settings = {f"settings.a{number}": "1" for number in range(9)}
    began = Fingerprint({}, settings, {})
    told = began.differences(Fingerprint({}, dict.fromkeys(settings, "2"), {}))
    assert told == ["the settings " + ", ".join(f"a{number} (was 1, is 2)" for number in range(5)) + " and 4 more"]


@pytest.mark.parametrize("name", ["palmette", "torch", "Python", "CPU"])
def test_another_environment_is_said_aloud_and_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(2))
    now = palmette.runs.fingerprint.environment()
    assert set(Files(tmp_path / "cut").read_sealed(IDENTITY)["environment"]) == {"palmette", "torch", "Python", "CPU"}
    monkeypatch.setattr(palmette.runs.fingerprint, "environment", lambda: {**now, name: "0.0"})
    with pytest.warns(UserWarning, match=rf"began with {name} \S+ \(now 0\.0\): its last bits may differ"):
        resume(tmp_path / "cut")
    assert "its last bits may differ" in (tmp_path / "cut" / "log.txt").read_text()
