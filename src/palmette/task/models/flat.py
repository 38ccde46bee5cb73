"""Models of features in a row: linear ones and fully connected networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from palmette.errors import BadInput
from palmette.task.models.layers import bare, check_choice, check_room, draw, sizes, zero
from palmette.values import shown


def mclr(shape: Sequence[int], outputs: int, *, seed: int = 0, start: str = "zero") -> nn.Module:
    """Softmax (multinomial logistic) regression: one linear layer with a bias.

    Args:
        shape: Shape of one sample.
        outputs: Number of classes.
        seed: Seed of random weights.
        start: Initial weights: ``"zero"``, or ``"random"`` as torch initialises a linear layer.
    """
    check_choice("start", start, ("zero", "random"))
    module = nn.Sequential(nn.Flatten(), bare(nn.Linear, math.prod(shape), outputs))
    return draw(module, seed) if start == "random" else zero(module)


def dnn(shape: Sequence[int], outputs: int, *, seed: int = 0, hidden: int | Sequence[int] = (100,)) -> nn.Module:
    """Fully connected network with ReLU and hidden layers of any sizes; for MNIST it is 784-100-10 by default.

    Args:
        shape: Shape of one sample.
        outputs: Number of classes.
        seed: Seed of the initial weights.
        hidden: Sizes of the hidden layers, as a list, or one number for one layer.
    """
    widths = [math.prod(shape), *sizes("hidden", hidden), outputs]
    for pair in itertools.pairwise(widths):  # of all layers before the first is made
        check_room(*pair)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [bare(nn.Linear, before, after), nn.ReLU()]
    return draw(nn.Sequential(*layers[:-1]), seed)


def linear(shape: Sequence[int], outputs: int, *, seed: int = 0, bias: bool = False) -> nn.Module:
    """Linear regression with initial weights of zero; the model that the theory is easiest to check on.

    Args:
        shape: Shape of one sample.
        outputs: Number of targets, or of classes.
        seed: Not used: the initial weights are zero.
        bias: Whether it has a bias (intercept); leave it out where a column of the data is one everywhere.
    """
    return _one_layer(shape, outputs, bias)


def logistic(shape: Sequence[int], outputs: int, *, seed: int = 0, bias: bool = True) -> nn.Module:
    """Logistic regression for two classes: one output, positive for the second class, with initial weights of zero.

    Its loss is ``"logistic"`` where none is named. Labels are the classes 0 and 1, or the targets -1 and 1.

    Args:
        shape: Shape of one sample.
        outputs: Number of classes, which must be 2; 1 for targets of -1 and 1.
        seed: Not used: the initial weights are zero.
        bias: Whether it has a bias (intercept); leave it out where a column of the data is one everywhere.
    """
    if outputs > 2:
        raise BadInput(f"logistic is for 2 classes, and the data have {outputs}; choose mclr, which takes any number")
    return _one_layer(shape, 1, bias)


def _one_layer(shape: Sequence[int], outputs: int, bias: bool) -> nn.Module:
    if not isinstance(bias, bool):
        raise BadInput(f"bias must be true or false, not {shown(bias)}")
    return zero(nn.Sequential(nn.Flatten(), bare(nn.Linear, math.prod(shape), outputs, bias=bias)))
