"""The models of the papers, each made from the shape of a sample and the number of classes.

Initial weights are drawn from an addressed generator, so a model depends on the run's seed and on nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from palmette.address import torch_generator
from palmette.errors import BadInput
from palmette.values import refuse_larger_than_memory, shown, whole


def mclr(shape: Sequence[int], outputs: int, *, seed: int = 0, start: str = "zero") -> nn.Module:
    """Softmax (multinomial logistic) regression: one linear layer with a bias.

    Args:
        shape: Shape of one sample.
        outputs: Number of classes.
        seed: Seed of random weights.
        start: Initial weights: ``"zero"``, or ``"random"`` as torch initialises a linear layer.
    """
    if start not in ("zero", "random"):
        raise BadInput(f"start must be 'zero' or 'random', not {shown(start)}")
    module = nn.Sequential(nn.Flatten(), _bare(nn.Linear, math.prod(shape), outputs))
    return _draw(module, seed) if start == "random" else _zero(module)


def dnn(shape: Sequence[int], outputs: int, *, seed: int = 0, hidden: Sequence[int] | int = (100,)) -> nn.Module:
    """Fully connected network with ReLU and hidden layers of any sizes; for MNIST it is 784-100-10 by default.

    Args:
        shape: Shape of one sample.
        outputs: Number of classes.
        seed: Seed of the initial weights.
        hidden: Sizes of the hidden layers, as a list, or one number for one layer.
    """
    inner = hidden if isinstance(hidden, Sequence) and not isinstance(hidden, str) else [hidden]
    sizes = [math.prod(shape), *(whole("hidden size", size, 1) for size in inner), outputs]
    for pair in itertools.pairwise(sizes):  # of all layers before the first is made
        _check_room(*pair)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [_bare(nn.Linear, before, after), nn.ReLU()]
    return _draw(nn.Sequential(*layers[:-1]), seed)


def cnn(shape: Sequence[int], outputs: int, *, seed: int = 0) -> nn.Module:
    """Convolutional network of PerMFL for images: two 3x3 convolutions (32, 64 channels) with pooling, 128 hidden units."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise BadInput(f"cnn needs images of channels x height x width with sides of at least 4, not {tuple(shape)}")
    channels, height, width = shape
    module = nn.Sequential(
        *(_bare(nn.Conv2d, channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(_bare(nn.Conv2d, 32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(_bare(nn.Linear, 64 * (height // 4) * (width // 4), 128), nn.ReLU(), _bare(nn.Linear, 128, outputs)),
    )
    return _draw(module, seed)


def linear(shape: Sequence[int], outputs: int, *, seed: int = 0) -> nn.Module:
    """Linear regression without a bias, with initial weights of zero; the model that the theory is easiest to check on."""
    return _zero(nn.Sequential(nn.Flatten(), _bare(nn.Linear, math.prod(shape), outputs, bias=False)))


_COPIES = 4  # of a model at the same time: the server's, a device's, its gradient and its update

MODELS: dict[str, Callable[..., nn.Module]] = {"mclr": mclr, "dnn": dnn, "cnn": cnn, "linear": linear}


def _bare(layer: Callable[..., nn.Module], *sizes: int, **options: object) -> nn.Module:
    """Make a layer and leave torch's global random numbers as they were; its weights are set afterwards."""
    _check_room(*sizes)
    with torch.random.fork_rng(devices=[]):
        return layer(*sizes, **options)


def _check_room(*sizes: int) -> None:
    """Refuse a layer that is larger than the machine's memory."""
    room = _COPIES * 4 * math.prod(sizes)
    what = f"{_COPIES} copies of a layer of {' x '.join(map(str, sizes))}, as training needs at least,"
    refuse_larger_than_memory(what, room, "use a smaller model or fewer classes")


def _zero(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


def _draw(module: nn.Module, seed: int) -> nn.Module:
    """Draw weights and biases as torch's layers do by default: uniform within 1 / sqrt(fan in)."""
    generator = torch_generator(seed, "initial weights")
    with torch.no_grad():
        for layer in module:  # type: ignore[attr-defined]
            own = list(layer.parameters(recurse=False))
            for parameter in own:
                bound = 1 / math.sqrt(own[0][0].numel())
                parameter.uniform_(-bound, bound, generator=generator)
    return module
