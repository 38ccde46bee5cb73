"""A run goes on only with what it began with: every sample, label, setting, model, loss and metric."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
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


OUTSIDE = """
import logging
import math
import torch
from torch import nn

factor, helper_factor = {value}, {value}
weight = torch.ones(3) * {value}
table = {{"k": [{value}]}}
log = logging.getLogger("mine")

class Holder:
    def __init__(self):
        self.inner = [{value}]

class Settings:
    rate = factor

holder = Holder()

def helper(x):
    return log and x * helper_factor

def reads_number(output, target): return output * factor
def reads_tensor(output, target): return output * weight
def reads_table(output, target): return math.exp(output * table["k"][0])
def reads_object(output, target): return output * holder.inner[0]
def reads_class(output, target): return output * Settings.rate
def reads_in_a_nested_function(output, target): return [(lambda x: x * weight)(x) for x in output]
def reads_in_a_helper(output, target): return round_about(helper(output))
def round_about(output): return output if output is not None else reads_in_a_helper(output, 0)

class Reader(nn.Module):
    def forward(self, x): return x * factor

class Property:
    @property
    def rate(self): return weight
    def __call__(self, output, target): return output * self.rate

made = [Reader(), Property()]
"""
READERS = [
    "reads_number",
    "reads_tensor",
    "reads_table",
    "reads_object",
    "reads_class",
    "reads_in_a_nested_function",
    "reads_in_a_helper",
    "Reader",
    "Property",
    "made",
]


@pytest.mark.parametrize("name", READERS)
def test_what_code_reads_from_outside_is_a_part_of_it(name: str) -> None:
    spaces: list[dict[str, Any]] = [{"__name__": "mine"} for _ in range(3)]
    for space, value in zip(spaces, (1.0, 1.0, 5.0), strict=True):
        exec(OUTSIDE.format(value=value), space)
    one, same, other = (described(space[name]) for space in spaces)
    assert one == same
    assert one != other


@pytest.mark.slow
def test_what_code_reads_is_the_same_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OUTSIDE.format(value=1.0))
    (tmp_path / "through.py").write_text("import mine\ndef loss(output, target): return output * mine.factor\n")
    code = (
        "import mine, through; from palmette.runs.digests import described\n"
        "for mine.factor in (1.0, 2.0):\n"
        f"    print([described(vars(mine)[name]) for name in {READERS!r}]); print([described(through.loss)])\n"
        "    print([described(mine.Reader())])"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # sets have another order there
    places = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": other}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **places}, capture_output=True, text=True, check=True
    )
    monkeypatch.syspath_prepend(tmp_path)
    with redirect_stdout(io.StringIO()) as told:
        exec(code, {})
    for name in ("mine", "through"):
        del sys.modules[name]
    assert told.getvalue() == done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert lines[1] != lines[4]  # a value of a module of the user's
    assert lines[2] != lines[5]  # a value that a method reads, in a class with a source


class Private(Net):
    def __init__(self, k: float) -> None:
        super().__init__()
        self._k = k


class Slotted:
    __slots__ = ("__hidden", "unset", "weight")

    def __init__(self, weight: float, hidden: float = 0.0) -> None:
        self.weight, self.__hidden = weight, hidden

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return output * self.weight + self.__hidden


class Listed(list[float]):
    rate = 1.0


def hooked(factor: float) -> Net:
    module = net()
    module.layer.register_forward_hook(lambda layer, given, output: factor * output)
    return module


def with_rate(rate: float) -> Listed:
    made = Listed([1.0])
    made.rate = rate
    return made


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Private(1.0), Private(1.0), Private(2.0)),
        (hooked(1.0), hooked(1.0), hooked(2.0)),
        (hooked(1.0), hooked(1.0), net()),
        (Slotted(1.0), Slotted(1.0), Slotted(2.0)),
        (Slotted(1.0, 1.0), Slotted(1.0, 1.0), Slotted(1.0, 2.0)),
        (with_rate(1.0), with_rate(1.0), with_rate(2.0)),
        (np.array([{"k": 1}]), np.array([{"k": 1}]), np.array([{"k": 2}])),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), torch.eye(3).to_sparse()),
        ({"text": "a" * 10_000}, {"text": "a" * 10_000}, {"text": "a" * 9_999 + "b"}),
        (nn.LSTM(2, 2), nn.LSTM(2, 2), nn.LSTM(2, 2, bias=False)),
    ],
)
def test_objects_are_told_apart_by_all_they_hold(one: Any, same: Any, other: Any) -> None:
    assert described(one) == described(same)
    assert described(one) != described(other)


def test_circles_and_shared_and_deep_objects_come_to_an_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]  # written out, 2 ** 60 ones
    assert all(len(described(value)) < 5_000 for value in (circle, deep, shared))


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


@pytest.mark.parametrize("name", ["palmette", "torch", "Python", "CPU", "kernel"])
def test_another_environment_is_said_aloud_and_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(2))
    now = palmette.runs.fingerprint.environment()
    assert set(Files(tmp_path / "cut").read_sealed(IDENTITY)["environment"]) == set(now)
    assert name in now
    monkeypatch.setattr(palmette.runs.fingerprint, "environment", lambda: {**now, name: "0.0"})
    with pytest.warns(UserWarning, match=rf"began with {name} \S+ \(now 0\.0\): its last bits may differ"):
        resume(tmp_path / "cut")
    assert "its last bits may differ" in (tmp_path / "cut" / "log.txt").read_text()
