"""One row of numbers for every device that says what its data are like: its label histogram, its gradient or its update.

Gradients and updates are those of a linear model on the features: softmax regression for classes, least squares for
regression. It starts at zero, and the features come less their mean (the mean over the devices that train of each one's
mean), because what all devices have in common tells none of them apart. A gradient is the full-batch gradient at the start, an
update what ten full-batch gradient steps change. Only training samples are used.

Token samples become the shares of 256 groups of tokens (the token modulo 256), and more than 256 classes become 64 groups.
Where the rows of all devices together would be large, they are projected at random to 256 numbers, which nearly keeps their
distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from palmette import address
from palmette.errors import BadInput, nearest
from palmette.tree import Ints
from palmette.values import shown

if TYPE_CHECKING:
    from palmette.population.population import Population

KINDS = {
    "labels": "the share of each label among the training samples",
    "gradients": "the gradient of a linear model at the start of training",
    "updates": "what ten gradient steps change in a linear model",
}
Rows = NDArray[np.float32]
Floats = NDArray[np.float64]

_STEPS = 10  # of an update
_CLASSES, _LABEL_GROUPS, _TOKEN_GROUPS = 256, 64, 256
_NUMBERS = 1 << 22  # features that are held at once, as floats
_ROWS = 1 << 26  # numbers of all rows together that are kept as they are; larger ones are projected
_WIDTH = 256  # of a projected row


def check_kind(by: object) -> str:
    """Return a kind of signature, or refuse what is none."""
    if not isinstance(by, str) or by not in KINDS:
        raise BadInput(f"found_by = {shown(by)} must be one of {', '.join(KINDS)}{nearest(shown(by), KINDS)}")
    return by


def signatures(population: Population, by: str, devices: Ints | None = None, *, seed: int = 0) -> Rows:
    """Return a row for each of some devices, of length 1 each.

    Args:
        population: The population.
        by: One of `KINDS`.
        devices: The numbers of the devices, ascending; all of them by default.
        seed: Seed of the random projection, where there is one.
    """
    if check_kind(by) == "labels" and population.classes is None:
        raise BadInput(
            "found_by = 'labels' needs classes, and these are targets of a regression; use gradients or updates"
        )
    wanted = np.arange(population.devices) if devices is None else devices
    with threadpool_limits(1):  # so that the order of every sum is the same on every machine
        measured = Samples(population)
        width = measured.outputs * (1 if by == "labels" else measured.inputs + 1)
        project = _projection(width, seed) if width * len(wanted) > _ROWS else None
        made: Rows = np.empty((len(wanted), width if project is None else _WIDTH), dtype=np.float32)
        for first, last in measured.blocks(wanted, width):
            rows = measured.rows(wanted[first:last], by)
            rows = rows if project is None else project.transform(rows)
            made[first:last] = rows / np.maximum(np.sqrt((rows**2).sum(1, keepdims=True)), 1e-12)
    return made


class Samples:
    """The training samples of a population as features and targets of a linear model.

    Args:
        population: The population.

    Attributes:
        inputs: Number of features.
        outputs: Number of classes, of groups of classes where there are very many, or of targets.
        grouped: Whether classes were put into groups.
        labels: Number of labels of a sample; more than one where each position of a text has its own.
        trains: The numbers of the devices that are not kept out of training.
    """

    def __init__(self, population: Population) -> None:
        self._population = population
        self._tokens = population.x.dtype == torch.int64
        self.inputs = _TOKEN_GROUPS if self._tokens else int(np.prod(population.shape, dtype=np.int64))
        classes = population.classes
        if classes is None:
            self.outputs = int(population.y[0].numel())  # of a regression, its targets
        else:
            self.outputs = classes if classes <= _CLASSES else _LABEL_GROUPS
        self.labels = int(population.y[0].numel())
        self.grouped = classes is not None and classes > _CLASSES
        unseen = population.unseen
        self.trains = np.arange(population.devices) if unseen is None else np.flatnonzero(~unseen.numpy())
        self._centre: tuple[Floats, Floats, float] | None = None

    def blocks(self, devices: Ints, width: int) -> Iterator[tuple[int, int]]:
        """Cut devices into groups whose features and rows of a given width are not too many."""
        ends = np.cumsum(self._population.train.numpy()[devices])
        most = max(1, 4 * _NUMBERS // width)
        first = 0
        while first < len(devices):
            before = ends[first - 1] if first else 0
            last = int(np.searchsorted(ends, before + max(1, _NUMBERS // self.inputs), side="right"))
            yield first, (last := min(max(last, first + 1), first + most, len(devices)))
            first = last

    def rows(self, devices: Ints, by: str) -> Floats:
        """Return the rows of neighbouring devices."""
        x, y, size = self.read(devices)
        first = np.cumsum(size) - size
        if by == "labels":
            shares: Floats = np.add.reduceat(y, first) / size[:, None]
            return shares
        centre, middle, length = self._means()
        x = np.concatenate([x - centre, np.ones((len(x), 1))], axis=1)
        y = y - middle if self._population.classes is None else y
        found: Floats = np.empty((len(devices), (self.inputs + 1) * self.outputs))
        for count in np.unique(size).tolist():  # devices of one size at once
            which = np.flatnonzero(size == count)
            take = first[which][:, None] + np.arange(count)
            steps = 1 if by == "gradients" else _STEPS
            found[which] = self._descend(x[take], y[take], steps, 1.0 / (1.0 + length)).reshape(len(which), -1)
        return found

    def _descend(self, x: Floats, y: Floats, steps: int, rate: float) -> Floats:
        """Return what gradient steps on some devices of one size change in a model that starts at zero."""
        model: Floats = np.zeros((len(x), x.shape[2], y.shape[2]))
        for _ in range(steps):
            score = x @ model
            if self._population.classes is not None:
                score = np.exp(score - score.max(2, keepdims=True))
                score /= score.sum(2, keepdims=True)
            model -= rate / x.shape[1] * (x.transpose(0, 2, 1) @ (score - y))
        return model

    def _means(self) -> tuple[Floats, Floats, float]:
        """Return the mean features and targets of the devices that train, and the mean squared length of the features."""
        if self._centre is None:
            trains = self.trains
            total, targets, squares = np.zeros(self.inputs), np.zeros(self.outputs), 0.0
            for first, last in self.blocks(trains, self.outputs):
                x, y, size = self.read(trains[first:last])
                share = np.repeat(1.0 / size, size)[:, None]
                total, targets = total + (x * share).sum(0), targets + (y * share).sum(0)
                squares += float(((x**2).sum(1) * share[:, 0]).sum())
            centre = total / len(trains)
            self._centre = centre, targets / len(trains), max(squares / len(trains) - float((centre**2).sum()), 0.0)
        return self._centre

    def read(self, devices: Ints) -> tuple[Floats, Floats, Ints]:
        """Return the features and targets of the devices' training samples, and how many each has."""
        population = self._population
        size: Ints = population.train.numpy()[devices]
        start = population.start.numpy()[devices]
        place = np.repeat(start - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
        rows = torch.from_numpy(place)
        if self._tokens:
            x = _shares(population.x[rows].reshape(len(place), -1).numpy(), _TOKEN_GROUPS)
        else:
            x = population.features(rows, torch.float64).reshape(len(place), -1).numpy()
        y = population.y[rows].reshape(len(place), -1).numpy()
        if population.classes is None:
            return x, y.astype(np.float64), size
        return x, _shares(y, self.outputs), size


def _shares(numbers: Any, groups: int) -> Floats:
    """Return the share of each group of numbers in every line, a number's group being its remainder."""
    lines, length = numbers.shape
    at = np.arange(lines)[:, None] * groups + numbers % groups
    counts = np.bincount(at.reshape(-1), minlength=lines * groups).reshape(lines, groups)
    shares: Floats = counts / length
    return shares


def _projection(width: int, seed: int) -> Any:
    """Return a random projection of rows, drawn from the seed."""
    from sklearn.random_projection import SparseRandomProjection  # a second to import

    chosen = address.key(seed, "projection") % 2**32
    return SparseRandomProjection(_WIDTH, dense_output=True, random_state=chosen).fit(np.zeros((1, width)))
