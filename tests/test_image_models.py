"""Models of images: their published sizes, their initial weights, and that each of them learns."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from palmette.errors import BadInput
from palmette.learner import Learner, LocalWork
from palmette.population import Population
from palmette.task import make_task

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("cnn", GREY, 10, {"kind": "fashion-mnist"}, 421_642),
        ("cnn", GREY, 10, {"kind": "mnist"}, 2_362_874),
        ("cnn", GREY, 62, {"kind": "mnist"}, 2_369_582),
        ("cnn", COLOUR, 10, {"kind": "cifar10"}, 581_866),
        ("cnn", COLOUR, 100, {"kind": "cifar100"}, 2_519_780),
        ("vgg", COLOUR, 10, {"norm": "none"}, 246_314),
        ("vgg", COLOUR, 10, {"norm": "group"}, 247_050),
        ("vgg", GREY, 10, {"norm": "none"}, 246_314 - 2 * 16 * 9),
        ("resnet", COLOUR, 10, {"blocks": 3}, 269_722 + 2_560 + 192),  # ResNet-20 and its two 1x1 convolutions
    ],
)
def test_image_models_have_the_published_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], parameters: int
) -> None:
    assert make_task(name, shape, classes, **options).learned.width == parameters


@pytest.mark.parametrize(
    ("name", "shape", "options", "digest"),
    [
        ("mclr", (784,), {"start": "random"}, "01ec105a6e8db3f8"),
        ("dnn", (60,), {"hidden": [20, 30]}, "4d3d97377d7c8cfd"),
        ("cnn", GREY, {}, "0737311ab027f0e9"),
        ("vgg", COLOUR, {}, "9c30152db95aebe9"),
        ("resnet", COLOUR, {"width": 4}, "93eb01de3723d3f7"),
    ],
)
def test_initial_weights_are_the_same_in_every_version(
    name: str, shape: tuple[int, ...], options: dict[str, Any], digest: str
) -> None:
    row = make_task(name, shape, 10, seed=3, **options).initial()
    assert hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_normalisation_is_of_the_kind_asked_for_and_begins_as_torch_has_it(name: str, norm: str) -> None:
    kind = {"group": nn.GroupNorm, "batch": nn.BatchNorm2d}
    layers = list(make_task(name, COLOUR, 10, norm=norm).module.modules())
    found = [layer for layer in layers if isinstance(layer, nn.GroupNorm | nn.BatchNorm2d)]
    assert found
    assert {type(layer) for layer in found} == {kind[norm]}
    for layer in found:
        assert layer.weight.eq(1).all()
        assert layer.bias.eq(0).all()


def test_statistics_of_a_named_model_are_averaged_unless_said_otherwise_and_the_run_says_where_they_are() -> None:
    people = population(1)
    made = make_task("vgg", people.shape, 2, norm="batch", channels=[4])
    assert made.buffers == "averaged"
    assert "are averaged with the models" in Learner(made, people, backend="loop").told[0]
    own = make_task("vgg", people.shape, 2, norm="batch", channels=[4], buffers="own")
    assert "stay with each device" in Learner(own, people, backend="loop").told[0]
    assert make_task("vgg", people.shape, 2, channels=[4]).buffers is None


def population(channels: int) -> Population:
    """Two devices; one class is brighter on the left, the other on the right."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 24, channels, 8, 8)).astype(np.float32), random.integers(0, 2, (2, 24))
    x[y == 0, :, :, :4] += 1
    x[y == 1, :, :, 4:] += 1
    return Population.from_arrays(list(x), list(y))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("cnn", {"kind": kind}) for kind in ("fashion-mnist", "mnist", "cifar10", "cifar100")),
        *(("vgg", {"norm": norm, "channels": [4, 8, 8]}) for norm in ("group", "batch", "none")),
        *(("resnet", {"norm": norm, "width": 4}) for norm in ("group", "batch")),
    ],
)
def test_every_image_model_learns(name: str, options: dict[str, Any]) -> None:
    people = population(1 if name == "cnn" else 3)
    learner = Learner(make_task(name, people.shape, 2, **options), people, batch_size=10)
    work = LocalWork(learner, torch.arange(2), 0, torch.zeros(2, dtype=torch.int64))
    start = learner.initial().repeat(2, 1)
    after = work.descend(start, steps=15, lr=0.2 if name == "cnn" else 0.1)
    assert (work.loss(after) < 0.9 * work.loss(start)).all(), (work.loss(start), work.loss(after))


@pytest.mark.parametrize(
    ("name", "shape", "options", "culprit"),
    [
        ("vgg", (784,), {}, r"vgg needs images of channels x height x width, not \(784,\)"),
        ("resnet", (1, 28, 3), {}, r"resnet needs images .* with sides of at least 4, not \(1, 28, 3\)"),
        ("cnn", (1, 4, 4), {"kind": "mnist"}, "sides of at least 5"),
        ("cnn", (3, 7, 32), {"kind": "cifar10"}, "sides of at least 8"),
        ("cnn", GREY, {"kind": "lenet"}, "kind must be 'fashion-mnist' or 'mnist' or .*, not 'lenet'"),
        ("vgg", COLOUR, {"norm": "layer"}, "norm must be 'group' or 'batch' or 'none', not 'layer'"),
        ("resnet", COLOUR, {"norm": "none"}, "norm must be 'group' or 'batch', not 'none'"),
        ("vgg", COLOUR, {"channels": []}, "channels must be a list of at least one size"),
        ("vgg", COLOUR, {"channels": [16, 0]}, "channels size = 0 must be a whole number of at least 1"),
        ("resnet", COLOUR, {"blocks": 1_000_000}, "blocks = 1000000 must be a whole number from 1 to 200"),
        ("resnet", COLOUR, {"width": 1 << 40}, "use a smaller model"),
    ],
)
def test_an_image_model_that_cannot_be_made_is_refused_with_the_reason(
    name: str, shape: tuple[int, ...], options: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(BadInput, match=culprit):
        make_task(name, shape, 10, **options)
