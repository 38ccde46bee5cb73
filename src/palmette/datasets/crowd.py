"""Very many devices with few samples each, generated block by block straight into packed arrays.

Device u draws n samples x ~ N(0, diag(k^-1.2)) of 60 features and labels them argmax(x W_u + b_u) of 10 classes. What is true
for a device is the sum of what is true for everybody, for its teams and for itself,

    W_u = G + spread (T_1 + ... + T_u),    b_u likewise,

all N(0, 1). So a device has too few samples to learn alone, its team knows more than everybody together, and it knows best
what is its own.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from palmette import address
from palmette.datasets.dataset import Dataset
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.tree import Ints, Tree
from palmette.values import real, refuse_larger_than_memory, whole

_FEATURES, _CLASSES = 60, 10
_SPREAD = 1e15  # beyond it, weights leave the range of 32-bit numbers
_BLOCK = 2048  # devices generated at once; it belongs to the data's definition
_TRUTH = (_FEATURES + 1) * _CLASSES  # weights and, as the last line, biases

Floats = NDArray[np.float32]


def crowd(tree: Tree | str, *, samples: int = 16, test_samples: int = 4, spread: float = 0.5, seed: int = 0) -> Pool:
    """Return the samples of all devices of a tree, already split.

    Args:
        tree: The tree, or what `Tree.parse` reads; every team has its own truth.
        samples: Training samples of every device.
        test_samples: Test samples of every device.
        spread: How far teams and devices differ from what is above them.
        seed: Decides everything.
    """
    samples, test_samples = whole("samples", samples, 1), whole("test_samples", test_samples, 1)
    if not 0 <= real("spread", spread) <= _SPREAD:
        raise BadInput(f"spread = {spread} must be from 0 to {_SPREAD:.0e}: it is a standard deviation")
    tree = Tree.parse(tree)
    each = samples + test_samples
    room = 4 * _FEATURES * each * tree.devices
    refuse_larger_than_memory(
        f"crowd samples of {tree.devices:,} devices", room, "lower tree=, data.samples or data.test_samples"
    )
    x = np.empty((tree.devices * each, _FEATURES), dtype=np.float32)
    y = np.empty(tree.devices * each, dtype=np.int64)
    deviation = (np.arange(1, _FEATURES + 1) ** -0.6).astype(np.float32)
    for number, first in enumerate(range(0, tree.devices, _BLOCK)):
        last = min(first + _BLOCK, tree.devices)
        random = address.numpy_generator(seed, "crowd", number)
        truth = spread * random.standard_normal((last - first, _TRUTH), dtype=np.float32)
        truth += _above(tree, np.arange(first, last), spread, seed)
        part = x[first * each : last * each].reshape(last - first, each, _FEATURES)
        random.standard_normal(dtype=np.float32, out=part)
        part *= deviation
        lines = truth.reshape(last - first, _FEATURES + 1, _CLASSES)
        scores = part @ lines[:, :-1] + lines[:, -1:]
        y[first * each : last * each] = scores.argmax(2).ravel()
    start: Ints = np.arange(tree.devices + 1, dtype=np.int64) * each
    train: Ints = np.full(tree.devices, samples, dtype=np.int64)
    return Pool(x, y, _CLASSES, start=start, name="crowd", train=train)


def _above(tree: Tree, nodes: Ints, spread: float, seed: int) -> Floats:
    """Return what is true for some neighbouring devices, their own part left out."""
    truth: Floats = np.zeros((len(nodes), _TRUTH), dtype=np.float32)
    for tier in range(1, tree.tiers):
        nodes = tree.parents[tier - 1][nodes]
        # Each is addressed by itself, so that no tier of any size need lie in memory.
        some, place = np.unique(nodes, return_inverse=True)
        truth += ((spread if tier < tree.top else 1.0) * _normal(seed, tier, some))[place]
    return truth


def _normal(seed: int, tier: int, nodes: Ints) -> Floats:
    """Return addressed normal numbers, one line per node."""
    base = address.mix(address.key(seed, "crowd truth", tier), torch.from_numpy(nodes))
    normal: Floats = address.normal_rows(base, _TRUTH).numpy()
    return normal


CROWD = Dataset(
    "Very many devices with few samples each, generated: 60 features, 10 classes, a linear model for every team and device",
    crowd,
)
