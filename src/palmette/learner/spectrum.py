"""How curved the losses of linear models are, in closed form.

Behind one linear layer the Hessian of a device's mean loss is between ``least`` and ``most`` times ``X'X / n``, plus l2, where
X has a column of ones if the layer has a bias. For squared errors both are 1, for a softmax they are 0 and 1/2, for the
logistic loss of labels -1 and 1 they are 0 and 1/4. So L_f and mu_f follow from the eigenvalues of X'X / n of every device.

A matrix G = X'X / n whose shorter side is small is solved exactly, many devices at once. For a larger one the largest
eigenvalue is enclosed. With orthonormal Q, ``A = Q'GQ``, ``R = GQ - QA`` and ``c = tr(G) - tr(A)``, which bounds what G does
outside of Q, it is at least that of A, say a, and at most that of ``[[a, |R|], [|R|, c]]``. Where this leaves more than a
thousandth open, it is solved exactly too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from palmette.address import torch_generator
from palmette.learner.links import Link, NotFused
from palmette.learner.lowering import lower
from palmette.learner.samples import Samples
from palmette.task import Task, signs

_SMALL = 160  # shorter side of X up to which eigenvalues are solved for exactly at once
_NUMBERS = 1 << 22  # numbers in the features taken at once
_TRIES = (1, 4), (6, 6)  # vectors in a Krylov block, and how often they are multiplied: a quick try and a thorough one
_OPEN = 1e-3  # how far apart the two bounds of an eigenvalue may be, relatively
_ROUND = 1e-12  # what rounding may change, relative to the largest eigenvalue
_EXACT = 1 << 12  # shorter side of X up to which an eigenvalue that stays open is solved for exactly


class Bend(NamedTuple):
    """The second derivative of a loss in the outputs of the model.

    Attributes:
        least: The smallest it can be.
        most: The largest it can be.
        start: What it is while all classes are equally likely.
    """

    least: float
    most: float
    start: float


class Spectrum:
    """The curvature of every device's loss behind one linear layer.

    Args:
        bend: The loss.
        bias: Whether the layer has one.
        l2: Weight of the squared norm in the loss.
        data: The samples of all devices.
        first: Each device's first sample.
        count: Each device's number of training samples.
    """

    def __init__(self, bend: Bend, bias: bool, l2: float, data: Samples, first: Tensor, count: Tensor) -> None:
        self.bend, self.l2 = bend, l2
        self._bias, self._data, self._first, self._count = bias, data, first, count
        self._width = data.width + bias

    @staticmethod
    def of(
        task: Task, data: Samples, first: Tensor, count: Tensor, links: Sequence[Link] | None = None
    ) -> Spectrum | None:
        """Return the closed form of a task, or nothing where the model is not one linear layer or the loss one's own.

        Args:
            task: What is learned.
            data: The samples of all devices.
            first: Each device's first sample.
            count: Each device's number of training samples.
            links: The model as a chain, where somebody knows it already.
        """
        layer = _linear_layer(task, links)
        if layer is None or data.dtype == torch.int64 or layer.in_features != data.width:
            return None
        bend = _bend_of(task.loss, layer.out_features, data.y)
        return None if bend is None else Spectrum(bend, layer.bias is not None, task.l2, data, first, count)

    def smoothness(self, ids: Tensor) -> Tensor:
        """Return L of some devices' losses: no curvature anywhere is above it (float64)."""
        return self.bend.most * self._eigenvalues(ids)[0] + self.l2

    def convexity(self, ids: Tensor) -> Tensor:
        """Return mu of some devices' losses: no curvature anywhere is below it (float64)."""
        if not self.bend.least:
            return torch.full((len(ids),), self.l2, dtype=torch.float64)
        return self.bend.least * self._eigenvalues(ids, smallest=True)[1] + self.l2

    def batch_smoothness(self, ids: Tensor, size: int | str) -> Tensor:
        """Return the L that no batch of so many samples is above: of the most curved sample, or of all where they are fewer."""
        found = self.smoothness(ids)
        if size == "full":
            return found
        norms, owner = self._norms(ids)
        sample = torch.zeros(len(ids), dtype=torch.float64).scatter_reduce_(0, owner, norms, "amax")
        return torch.where(self._count[ids] > int(size), self.bend.most * sample + self.l2, found)

    @cached_property
    def largest(self) -> float:
        """L_f, the largest over all devices; those that their mean squared norm rules out are not solved for."""
        bounds, best = self.traces, 0.0
        order = bounds.argsort(descending=True, stable=True)
        for ids in order.split(max(1, len(order) // 64)):
            if float(bounds[ids[0]]) <= best:
                break
            best = max(best, float(self._eigenvalues(ids)[0].max()))
        return self.bend.most * best + self.l2

    @cached_property
    def smallest(self) -> float:
        """mu_f, the smallest over all devices."""
        if self.bend.least and bool((self._count < self._width).any()):
            return self.l2
        return float(self.convexity(torch.arange(len(self._count))).min())

    @property
    def at_start(self) -> float:
        """The largest curvature over all devices while all classes are equally likely."""
        return self.bend.start / self.bend.most * (self.largest - self.l2) + self.l2

    @property
    def start_above(self) -> float:
        """A number that `at_start` is not above, from one look at the samples."""
        return self.bend.start * float(self.traces.max()) + self.l2

    @cached_property
    def traces(self) -> Tensor:
        """The mean squared norm of every device's samples, which no eigenvalue of it is above."""
        norms, owner = self._norms(torch.arange(len(self._count)))
        total = torch.zeros(len(self._count), dtype=torch.float64).index_add_(0, owner, norms)
        return total / self._count.clamp(min=1)

    # -- eigenvalues ---------------------------------------------------------------------------------------------------

    def _eigenvalues(self, ids: Tensor, *, smallest: bool = False) -> tuple[Tensor, Tensor]:
        """Return the largest eigenvalue of X'X / n of some devices and, where asked, the smallest."""
        high, low = torch.zeros(2, len(ids), dtype=torch.float64)
        count = self._count[ids]
        large = (count.clamp(max=self._width) > _SMALL) | (count * self._width > _NUMBERS)
        for i in large.nonzero().flatten().tolist():
            high[i], low[i] = self._one(int(ids[i]), smallest=smallest)
        rest = (~large).nonzero().flatten()
        rest = rest[count[rest].argsort(descending=True, stable=True)]  # so that a chunk has few rows of zeros
        while len(rest):
            many = max(1, _NUMBERS // (max(1, int(count[rest[0]])) * self._width))
            some, rest = rest[:many], rest[many:]
            gram = _gram(self._rows(ids[some]))
            finite = gram.isfinite().flatten(1).all(1)  # squares of very large features are beyond all numbers
            values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], gram, 0.0))
            high[some] = torch.where(finite, values[:, -1], math.inf)
            low[some] = torch.where(finite, values[:, 0], 0.0)
        low = torch.where(count >= self._width, low - _ROUND * high, 0.0)
        return high * (1 + _ROUND), low.clamp(min=0.0)

    def _one(self, device: int, *, smallest: bool) -> tuple[float, float]:
        """Return the same for one device with a large X."""
        count = int(self._count[device])
        fits = count * self._width <= _NUMBERS
        kept = list(self._blocks(device)) if fits else None  # else they are gathered again for every product

        def blocks() -> Iterable[Tensor]:
            return self._blocks(device) if kept is None else kept

        if not smallest and min(count, self._width) > _SMALL:
            for many, depth in _TRIES:
                low, high = _enclosed(blocks, self._width, many, depth)
                if high <= (1 + _OPEN) * low:
                    return high, 0.0
            if min(count, self._width) > _EXACT or (count < self._width and not fits):
                return high, 0.0
        if count < self._width:
            gram = _gram(self._rows(torch.tensor([device])))[0]
        else:
            gram = torch.zeros(self._width, self._width, dtype=torch.float64)
            for rows in blocks():
                gram += rows.mT @ rows
        values = torch.linalg.eigvalsh(gram)
        return float(values[-1]), float(values[0])

    # -- samples -------------------------------------------------------------------------------------------------------

    def _rows(self, ids: Tensor) -> Tensor:
        """Return X / sqrt(n) of some devices, with rows of zeros after those that have fewer samples."""
        count = self._count[ids][:, None]
        position = torch.arange(max(1, int(count.max())))
        index = self._first[ids][:, None] + torch.minimum(position, (count - 1).clamp(min=0))
        scale = torch.where(position < count, count.clamp(min=1).double() ** -0.5, 0.0)
        rows = self._wide(index.flatten()).view(*index.shape, self._width)
        return rows.mul_(scale[:, :, None])

    def _blocks(self, device: int) -> Iterator[Tensor]:
        """Return X / sqrt(n) of one device, some rows at a time."""
        first, count = int(self._first[device]), int(self._count[device])
        for index in torch.arange(first, first + count).split(max(1, _NUMBERS // self._width)):
            yield self._wide(index).mul_(count**-0.5)

    def _norms(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squared norm of every training sample of some devices, and the position of its device among them."""
        count = self._count[ids]
        owner = torch.repeat_interleave(torch.arange(len(ids)), count)
        begin = self._first[ids] - (count.cumsum(0) - count)
        index, parts = torch.arange(len(owner)) + begin[owner], [torch.zeros(0, dtype=torch.float64)]
        for some in index.split(max(1, _NUMBERS // self._width)):
            rows = self._data.features(some.to(self._data.device)).flatten(1)
            parts.append(torch.linalg.vector_norm(rows, dim=1).to("cpu", torch.float64).square())
        slack = 1 if self._data.dtype == torch.float64 else 1 + 1e-6  # a sum in single precision may fall short
        return torch.cat(parts) * slack + self._bias, owner

    def _wide(self, index: Tensor) -> Tensor:
        """Gather samples in double precision, with a one at the end where there is a bias."""
        rows = self._data.features(index.to(self._data.device)).flatten(1)
        wide = torch.ones(len(rows), self._width, dtype=torch.float64)
        wide[:, : rows.shape[1]] = rows
        return wide


def _enclosed(blocks: Callable[[], Iterable[Tensor]], width: int, many: int, depth: int) -> tuple[float, float]:
    """Return two numbers that the largest eigenvalue of X'X lies between.

    Args:
        blocks: X, some rows at a time.
        width: Its columns.
        many: Vectors that the subspace Q is made from ...
        depth: ... by multiplying them with X'X so many times.
    """

    def times(vectors: Tensor) -> Tensor:
        total = torch.zeros_like(vectors)
        for rows in blocks():
            total += rows.mT @ (rows @ vectors)
        return total

    last = torch.randn(width, many, dtype=torch.float64, generator=torch_generator(0, "spectrum"))
    basis = []
    for _ in range(depth):
        last = torch.linalg.qr(times(last))[0]
        basis.append(last)
    q = torch.linalg.qr(torch.cat(basis, 1))[0]
    image = times(q)
    inside = q.mT @ image
    values = torch.linalg.eigvalsh((inside + inside.mT) / 2)
    trace = sum(float(rows.square().sum()) for rows in blocks())
    low, outside = float(values[-1]), max(0.0, trace - float(values.sum()))
    rest = float(torch.linalg.matrix_norm(image - q @ inside))  # at least its largest singular value
    return low, (low + outside) / 2 + (((low - outside) / 2) ** 2 + rest**2) ** 0.5


def _gram(rows: Tensor) -> Tensor:
    """Return X'X or XX', whichever is smaller, of a stack."""
    return rows.mT @ rows if rows.shape[1] >= rows.shape[2] else rows @ rows.mT


def _bend_of(loss: object, outputs: int, targets: Tensor) -> Bend | None:
    """Return the second derivative of a named loss."""
    match loss:
        case "squared":
            return Bend(1.0, 1.0, 1.0)
        case "cross-entropy":
            return Bend(0.0, 0.5, min(0.5, 1 / outputs))
        case "logistic":
            largest = float(signs(targets).abs().max()) ** 2  # 1 for labels -1 and 1
            return Bend(0.0, 0.25 * largest, 0.25 * largest)
    return None


def _linear_layer(task: Task, links: Sequence[Link] | None) -> nn.Linear | None:
    """Return the layer of a model that flattens its samples and is linear, without any parameter besides."""
    if links is None:
        try:
            links = lower(task.replica(training=False, dtype=torch.float32, device=torch.device("cpu")))
        except NotFused:
            return None
    layers = [link.layer for link in links if not isinstance(link.layer, nn.Flatten)]
    if len(layers) != 1 or not isinstance(layer := layers[0], nn.Linear):
        return None
    return layer if sum(part.numel() for part in layer.parameters()) == task.layout.width else None
