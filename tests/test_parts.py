"""Parts of a model: named by patterns, trained alone, cut out of rows and joined again, alike on every backend."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import palmette as pm
from palmette.algorithms import FedRep
from palmette.errors import BadInput
from palmette.learner import Learner
from palmette.learner.backends import Feed, VmapBackend, task_loss
from palmette.learner.fused import FusedBackend
from palmette.learner.loop import LoopBackend
from palmette.task import Task, make_task
from test_backends import SETTINGS, close, population, rows, work
from test_fused import CPU, MODELS, drawn, samples

HEAD = {"head": "last(1)"}


def dnn(backend: str = "auto", parts: Mapping[str, Any] = HEAD, **options: Any) -> Learner:
    people = population()
    task = make_task("dnn", people.shape, people.classes, seed=1, hidden=(9, 5), l2=0.01, parts=parts, **options)
    return Learner(task, people, seed=3, batch_size=8, backend=backend, dtype=torch.float64)


# -- naming ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("4.*", ["4.weight", "4.bias"]),
        ("4", ["4.weight", "4.bias"]),
        ("last(1)", ["4.weight", "4.bias"]),
        ("first(1)", ["0.weight", "0.bias"]),
        ("last(9)", ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]),
        ("*.bias", ["0.bias", "2.bias", "4.bias"]),
        (["0.weight", "4"], ["0.weight", "4.weight", "4.bias"]),
        ([], []),
    ],
)
def test_patterns_name_parameters(patterns: Any, found: list[str]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    layout = Task(module, parts={"head": patterns}).layout
    assert list(layout.parts["head"]) == found
    rest = [name for name in layout.names if name not in found]
    assert list(layout.parts.get("body", ())) == rest


def test_layers_are_counted_with_those_that_are_frozen() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    layout = Task(module, freeze="0", parts=HEAD).layout
    assert layout.parts == {"body": ("2.weight", "2.bias"), "head": ("4.weight", "4.bias")}


def test_layers_are_there_for_programs_and_people() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 5))
    layers = Task(module, parts=HEAD).layout.layers
    assert [(layer.name, layer.part, layer.shapes, layer.size) for layer in layers] == [
        ("0", "body", {"weight": (2, 3), "bias": (2,)}, 8),
        ("2", "head", {"weight": (5, 2), "bias": (5,)}, 15),
    ]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"head": "9.*"}, r"parts.head = '9.\*' names no parameter of the model. Its layers are: 0, 2"),
        ({"head": "2", "neck": "last(1)"}, "'2.weight' is in two parts, 'head' and 'neck'"),
        ({"body": "2"}, "'body' is a name that Palmette gives"),
        ({"the head": "2"}, "a part's name must be a plain word"),
        ({"head": 2.5}, "parts.head must be a pattern"),
        ("last(1)", "parts must be patterns by name"),
    ],
)
def test_wrong_parts_are_refused_with_the_way_out(parts: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 5)), parts=parts)


def test_a_part_that_is_not_there_is_refused_with_the_layers() -> None:
    of = dnn(parts={})
    with pytest.raises(BadInput, match=r"no part 'head'.*--set model.parts.head='last\(1\)'; its layers are: 1, 3, 5"):
        work(of).descend(rows(of), steps=1, lr=0.1, only="head")


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [HEAD, {"biases": "*.bias"}, {"a": "3", "b": "1.bias"}])
def test_what_is_cut_and_joined_is_as_it_was(parts: dict[str, str]) -> None:
    layout = dnn(parts=parts).task.layout
    whole = drawn((4, layout.width))
    pieces = {part: layout.cut(whole, part) for part in layout.parts}
    assert sum(piece.shape[1] for piece in pieces.values()) == layout.width
    assert torch.equal(layout.joined(None, pieces), whole)
    other = {part: piece + 1 for part, piece in pieces.items() if part != "body"}
    joined = layout.joined(whole, other)
    for name, tensor in layout.unflatten(joined).items():
        shift = 0.0 if name in layout.parts["body"] else 1.0
        torch.testing.assert_close(tensor, layout.unflatten(whole)[name] + shift)
    assert torch.equal(layout.cut(whole, list(layout.parts)), whole)


def test_join_needs_every_part_or_whole_rows() -> None:
    layout = dnn().task.layout
    with pytest.raises(BadInput, match="join needs every part of the model, and body is missing"):
        layout.joined(None, {"head": torch.zeros(2, 18)})
    with pytest.raises(BadInput, match="rows of 17 numbers do not fit the part 'head', which has 18"):
        layout.joined(torch.zeros(2, layout.width), {"head": torch.zeros(2, 17)})


# -- steps on a part ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", ["head", "body", ("body", "head"), "biases"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_descents_of_a_part_agree_and_leave_the_rest_alone(setting: str, only: Any) -> None:
    parts = {"biases": "*.bias"} if only == "biases" else HEAD
    expected = None
    for backend in ("loop", "vmap", "fused"):
        of = dnn(backend, parts)
        options = dict(SETTINGS[setting])
        if "pull" in options:
            options["centre"] = rows(of, 7)
        start = rows(of)
        found = work(of).descend(start, **options, only=only)
        stays = 1 - of.task.layout.mask(only, start)
        assert torch.equal(found * stays, start * stays)
        expected = found if expected is None else expected
        close(found, expected)
    assert expected is not None
    assert not torch.equal(expected, rows(dnn("loop", parts)))


def test_a_step_of_a_part_is_that_part_of_the_whole_step() -> None:
    of = dnn("loop")
    whole, head = (work(of).descend(rows(of), steps=1, lr=0.1, only=only) for only in (None, "head"))
    layout = of.task.layout
    assert torch.equal(layout.cut(head, "head"), layout.cut(whole, "head"))
    gradient = work(of).gradient(rows(of), "next", only="body")
    torch.testing.assert_close(layout.cut(rows(of) - 0.1 * gradient, "body"), layout.cut(whole, "body"))
    assert not layout.cut(gradient, "head").any()


def module_of(name: str) -> nn.Module:
    module = MODELS[name][1]
    return nn.Sequential(*module) if isinstance(module, list) else module


def biased(name: str) -> bool:
    return any("bias" in own for own, _ in module_of(name).named_parameters())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, part) for name in MODELS for part in ("first(1)", "last(1)")),
        *((name, "*bias*") for name in MODELS if biased(name)),
    ],
)
def test_every_layer_can_stay_as_it_is(name: str, part: str) -> None:
    task = Task(module_of(name), parts={"some": part})
    x, y = samples(name, 3, 6)
    stack, address = {"model": 0.3 * drawn((3, task.layout.width), 1)}, torch.arange(3) * 7919
    with torch.no_grad():
        found = [
            kind(task, torch.float64, CPU).gradient(task_loss, stack, Feed(x, y, None, address, only=("some",)))[0][
                "model"
            ]
            for kind in (LoopBackend, FusedBackend)
        ]
        whole = LoopBackend(task, torch.float64, CPU).gradient(task_loss, stack, Feed(x, y, None, address))[0]["model"]
    close(found[1], found[0])
    close(found[0], whole * task.layout.mask("some", whole))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=5),
    learned=st.sets(st.integers(0, 3), min_size=1),
    frozen=st.sets(st.integers(0, 3)),
    bias=st.booleans(),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid]),
)
def test_chains_of_any_shape_agree_whatever_is_learned_or_frozen(
    sizes: list[int], learned: set[int], frozen: set[int], bias: bool, activation: Any
) -> None:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), activation()]
    numbers = [2 * i for i in range(len(sizes) - 1)]
    learned = {2 * i for i in learned if 2 * i in numbers} or {0}
    frozen = {2 * i for i in frozen if 2 * i in numbers} - learned
    task = Task(
        nn.Sequential(*layers[:-1]),
        parts={"some": [str(i) for i in sorted(learned)]},
        freeze=[str(i) for i in sorted(frozen)],
    )
    x, y = drawn((3, 4, sizes[0])), torch.arange(12).reshape(3, 4) % sizes[-1]
    stack, address = {"model": drawn((3, task.layout.width), 1)}, torch.arange(3)
    with torch.no_grad():
        found = [
            kind(task, torch.float64, CPU).gradient(task_loss, stack, Feed(x, y, None, address, only=("some",)))[0][
                "model"
            ]
            for kind in (LoopBackend, VmapBackend, FusedBackend)
        ]
        fused = FusedBackend(task, torch.float64, CPU)
        space = fused.space(3, 4, fold=True, only=("some",))
        space.load(stack["model"])
        space.step(x, y, None, address, 0.9, -0.1 / 4, 0.0)
    close(found[1], found[0])
    close(found[2], found[0])
    mask = task.layout.mask("some", stack["model"])
    close(space.store(), torch.where(mask > 0, 0.9 * stack["model"] - 0.1 * found[0], stack["model"]))


# -- programs ----------------------------------------------------------------------------------------------------------


def test_parts_are_written_down_and_run_again(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    task = make_task("dnn", people.shape, people.classes, hidden=[6], parts={"head": ["last(1)"]}, freeze="1.bias")
    with pytest.warns(UserWarning, match="names head, and permfl makes no difference between parts"):
        first = pm.run("permfl", people, task, rounds=2, out=tmp_path / "a")
    assert first.config.model.parts == {"head": ["last(1)"]}
    assert first.config.model.freeze == "1.bias"
    with pytest.warns(UserWarning, match="makes no difference between parts"):
        again = pm.rerun(tmp_path / "a", tmp_path / "b")
    for name in ("devices.safetensors", "global.safetensors", "frozen.safetensors", "config.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.config == first.config


def test_a_method_that_uses_parts_is_not_warned_of(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    task = make_task("dnn", people.shape, people.classes, hidden=[6], parts=HEAD)
    result = pm.run(FedRep(), people, task, rounds=1, out=tmp_path / "a")
    assert result.kinds == ["PM"]


def test_a_method_takes_the_part_it_needs_and_the_user_may_name_another() -> None:
    people = pm.make_population("digits", tree="1x3")
    for parts, head in (({}, ("3.weight", "3.bias")), ({"head": "1"}, ("1.weight", "1.bias"))):
        task = make_task("dnn", people.shape, people.classes, hidden=[6], parts=parts)
        assert pm.Simulation(FedRep(), people, task, rounds=1).task.layout.parts["head"] == head
