"""A model of one's own by import path or file is used like one of Palmette's, and every mistake is told in one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import palmette as pm
from own_files import done, folder_with, palmette
from palmette.errors import BadInput

MODELS = '''
import math
import random

from torch import nn


def make(shape, outputs, hidden=6, *, act: str = "ReLU"):
    """A small network.

    Args:
        hidden: Units of its hidden layer.
    """
    print("made")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), getattr(nn, act)(), nn.Linear(hidden, outputs))


class Net(nn.Module):
    def __init__(self, outputs, seed, **rest):
        super().__init__()
        self.seed, self.last = seed, nn.Linear(rest.get("width", 64), outputs)

    def forward(self, x):
        return self.last(x.flatten(1))


ready = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
number = 3


def thing(shape):
    return {"weights": shape}


def needs(inputs, outputs):
    return nn.Linear(inputs, outputs)


def raises(shape):
    return shape["a"]


def ends():
    raise SystemExit


def unseeded(shape):
    layer = nn.Linear(64, 10)
    nn.init.constant_(layer.bias, random.random())
    return nn.Sequential(nn.Flatten(), layer)
'''
SMALL = ("--tree", "2x2", "--rounds", "1", "--set", "local_steps=1", "--quiet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with folder_with(MODELS, tmp_path, monkeypatch) as folder:
        yield folder


def refused(*words: str) -> str:
    result = palmette(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line != "made" and "is code, which is run:" not in line]
    assert len(lines) == 1, result.stderr
    return lines[0]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_run_by_file_is_resumed_and_run_again_from_another_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = done("run", "fedavg", "--model", "./mine.py:make", "--set", "model.hidden=4", *SMALL, "--out", "a")
    assert "model mine.py:make," in told
    assert "made" not in told  # what a function prints is no result
    kept = tomllib.loads((here / "a/config.toml").read_text())
    assert (kept["model"]["name"], kept["model"]["hidden"]) == (f"{here}/mine.py:make", 4)
    assert kept["given"]["model"]["object"] == f"{here}/mine.py:make"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    done("resume", "../a", "--rounds", "2", "--quiet")
    done("run", "--config", "../a/config.toml", "--out", "../b", "--quiet")
    one, other = ((here / name / "devices.safetensors").read_bytes() for name in "ab")
    assert one == other
    with pytest.raises(BadInput, match=r"is code, .*/mine.py:make, which would have to be run. If you trust who made"):
        pm.load(here / "a").module("PM", "device-0")
    module = pm.load(here / "a", trust=True).module("PM", "device-0")
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_changed_code_is_noticed_and_a_moved_file_is_found_again(here: Path) -> None:
    done("run", "fedavg", "--model", "mine.py:make", *SMALL, "--out", "a")
    edit(here / "mine.py", "nn.Flatten(), nn.Linear(math", "nn.Flatten(), nn.Identity(), nn.Linear(math")
    assert "what differs: the model" in refused("resume", "a", "--rounds", "2", "--quiet")
    with pytest.warns(UserWarning, match="the model is not the one this config was made with .*/mine.py:make"):
        pm.rerun("a", "b")
    with (
        pytest.warns(UserWarning, match="mine.py:make is not what it was when this run was made"),
        pytest.raises(BadInput),
    ):
        pm.load("a", trust=True).module("GM")
    (here / "mine.py").unlink()
    line = refused("resume", "a", "--rounds", "2", "--quiet")
    assert f"the model of this run is {here}/mine.py:make, and there is no file mine.py" in line
    assert "cannot take the place of" in refused("resume", "a", "--rounds", "2", "--model", "dnn", "--quiet")
    (here / "new").mkdir()
    (here / "new/mine.py").write_text(MODELS, encoding="utf-8")
    done("resume", "a", "--rounds", "2", "--model", "new/mine.py:make", "--quiet")
    assert tomllib.loads((here / "a/config.toml").read_text())["model"]["name"] == f"{here}/new/mine.py:make"


def test_studies_and_check_take_it(here: Path) -> None:
    words = ("--model", "mine.py:make", "--tree", "2x2", "--rounds", "1", "--seeds", "1", "--jobs", "1", "--quiet")
    words += ("--set", "local_steps=1")
    done("compare", "fedavg", "--no-local", *words, "--out", "study")
    done("resume", "study", "--quiet")
    done("sweep", "fedavg", "--grid", "model.hidden=3,5", *words, "--out", "swept")
    done("check", "permfl", "--model", "mine.py:make", "--tree", "2x2")
    edit(here / "mine.py", "nn.Flatten()", "nn.Flatten(1)")
    line = refused("resume", "study", "--quiet")
    assert f"the code of {here}/mine.py:make is not what it was when the study in study began" in line
    line = refused("compare", "fedavg", "--no-local", *words, "--out", "study")
    assert f"fedavg has other code of {here}/mine.py:make than it has now" in line


def test_a_class_and_a_module_serve_too(here: Path) -> None:
    net = pm.make_task("mine:Net", (1, 8, 8), 10, seed=5)
    assert (net.name, net.module.seed, net.layout.width) == ("mine:Net", 5, 650)
    assert pm.make_task("mine:Net", (30,), 10, width=30).layout.width == 310
    ready = [pm.make_task("mine:ready", (1, 8, 8), 10, seed=seed).initial() for seed in (0, 1)]
    assert torch.equal(*ready)
    people = pm.make_population("digits", tree="2x2")
    result = pm.run("fedavg", people, "mine:Net", rounds=1, settings={"local_steps": 1})
    again = pm.rerun(result.folder)
    assert torch.equal(result.tensors("GM")["last.weight"], again.tensors("GM")["last.weight"])


def test_initial_weights_depend_on_the_seed_alone_as_after_manual_seed(here: Path) -> None:
    torch.rand(3)
    before = torch.get_rng_state()
    rows = [pm.make_task("./mine.py:make", (4,), 3, seed=seed).initial() for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = nn.Linear(4, 6).weight
    assert torch.equal(rows[2][:24], first.flatten())


def test_list_models_shows_its_settings(here: Path) -> None:
    told = done("list", "models", "./mine.py:make")
    for words in ("A small network.", "model.hidden=6", "Units of its hidden layer.", "model.act=ReLU"):
        assert words in told


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        ("mine.py", "say which function or class of mine.py makes the model, as in mine.py:Net"),
        ("mine.py:mak", "mine.py has no 'mak'; did you mean 'make'?"),
        ("mine:mak", "the module mine has no 'mak'; did you mean 'make'?"),
        ("none.py:make", "there is no file none.py"),
        ("none:make", "there is no module 'none' for the model 'none:make'"),
        ("mine.make", "unknown model 'mine.make'.* Write a model of your own as its import path, my_module:make"),
        ("mine.py:number", "mine.py:number is 3; it must be a function that returns a torch.nn.Module"),
        ("mine.py:thing", r"mine.py:thing returned \{'weights': .* it must return a torch.nn.Module"),
        ("mine.py:needs", "mine.py:needs needs 'inputs', which it is not given: Palmette gives shape"),
        (
            "mine.py:raises",
            r"mine.py:raises makes no model for samples of shape \(1, 8, 8\): TypeError: .*line 40 of mine",
        ),
        ("mine.py:ends", "mine.py:ends makes no model for samples .*: SystemExit"),
        ("mine.py:unseeded", "makes another model when it is called again with the same seed"),
        (
            "mine.py:make --set model.hiden=3",
            r"unknown setting 'model.hiden'; did you mean 'model.hidden' \(units of its",
        ),
        ("mine.py:ready --set model.hidden=3", "unknown setting 'model.hidden'"),
        ("mine.py:make --set model.hidden=x", r"TypeError: .*line 15 of mine.py"),
        ("mine.py:Net --set model.width=9", "model 'mine.py:Net' cannot take samples"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(here: Path, words: str, culprit: str) -> None:
    assert re.search(culprit, refused("run", "fedavg", *SMALL, "--model", *words.split()))
    assert not (here / "runs").exists()


def test_python_is_told_of_settings_that_there_are_not(here: Path) -> None:
    with pytest.raises(BadInput, match="mine:make takes no setting 'hiden'; did you mean 'hidden'"):
        pm.make_task("mine:make", (4,), 3, hiden=5)
    with pytest.raises(BadInput, match=r"mine:ready is a module, which takes no settings, but model\.hidden was given"):
        pm.make_task("mine:ready", (4,), 3, hidden=5)
