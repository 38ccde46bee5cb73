"""What devices see of their samples in a survey: features in a common frame, targets as numbers, and how curved the loss is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.learner.steps import Some
from palmette.protocol import Device
from palmette.task.layout import Layout

MOST = 30  # principal directions of the features that are looked at
_MORE = 10  # columns of a sketch beyond the directions wanted
_PROBED = 64  # samples on which the curvature of a network is probed
_PURPOSE = "survey"


class Shape(NamedTuple):
    """What the last layer of a model says of the survey.

    Attributes:
        features: Features that enter it.
        columns: Its outputs.
        bias: Whether it has a bias, and so a constant feature.
        alone: Whether it is all of the model.
    """

    features: int
    columns: int
    bias: bool
    alone: bool

    @staticmethod
    def of(layout: Layout) -> Shape:
        """Read it off a model's layout."""
        last = layout.layers[-1]
        shape = last.shapes.get("weight", ())
        if len(shape) != 2 or set(last.shapes) - {"weight", "bias"}:
            raise BadInput(
                f"'auto' pulls are found from what enters the model's last layer, which must be linear; here it is "
                f"{last.name or 'the only layer'} with {', '.join(f'{name} {size}' for name, size in last.shapes.items())}. "
                "Give the pulls as numbers"
            )
        return Shape(shape[1], shape[0], "bias" in last.shapes, len(layout.layers) == 1)

    @property
    def kept(self) -> int:
        """Principal directions that are looked at."""
        return min(MOST, self.features)

    @property
    def size(self) -> int:
        """Parameters of each output in the frame."""
        return self.kept + self.bias

    @property
    def sketch(self) -> int:
        """Columns of the sketch of the second moments: all features, where they are not many."""
        return self.features if self.features <= 2 * MOST else MOST + _MORE

    @property
    def moments(self) -> int:
        """Numbers of a gram, of which half is enough, and a moment."""
        return self.size * (self.size + 1) // 2 + self.size * self.columns


def flatness(accuracy: float, columns: int) -> float:
    """Return how curved a classification loss is in its outputs, against the squared loss, at some accuracy.

    Args:
        accuracy: The share of samples that are classified rightly; not counted beyond 0.99, where nothing would be left.
        columns: Outputs of the model; 1 for the logistic loss.
    """
    a = min(max(accuracy, 1 / max(2, columns)), 0.99)
    if columns == 1:
        return a * (1 - a)
    return (1 - a**2 - (1 - a) ** 2 / (columns - 1)) / (columns - 1)


def samples(node: Device, message: Any, shape: Shape) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the devices' training samples: features and targets, device after device."""
    kind_of(node)
    return node.training(None if shape.alone else message["model"])


def kind_of(node: Device) -> str:
    """Return the name of the loss, or refuse one that no survey understands."""
    name = node.loss_name
    if name not in ("cross-entropy", "logistic", "squared"):
        raise BadInput(
            f"'auto' pulls are for the losses cross-entropy, logistic and squared, not for {name or 'a loss of your own'}; "
            "give the pulls as numbers"
        )
    return name


def targets(node: Device, y: Tensor, shape: Shape) -> Tensor:
    """Return targets as numbers, a column for each output."""
    kind = kind_of(node)
    if kind == "cross-entropy":
        if y.dim() != 1:
            raise BadInput(
                "'auto' pulls are for samples with one label each, and these have several; give them as numbers"
            )
        return torch.nn.functional.one_hot(y, shape.columns).double() - 1 / shape.columns
    values = y.double().reshape(len(y), -1)
    if kind == "logistic":
        return (values > 0).double() - 0.5
    return values.expand(-1, shape.columns)


def right(outputs: Tensor, targets: Tensor) -> float:
    """Return how many samples are classified rightly."""
    if outputs.shape[1] == 1:
        return float(((outputs > 0) == (targets > 0)).sum())
    return float((outputs.argmax(1) == targets.argmax(1)).sum())


def framed(x: Tensor, basis: Tensor, scale: float, shape: Shape) -> Tensor:
    """Return features in the frame: turned and scaled, with a constant at the end where there is a bias."""
    z = x @ basis / scale
    return torch.cat([z, z.new_full((len(z), 1), 1 / scale)], 1) if shape.bias else z


def drawn_for(seed: int, shape: Shape) -> Tensor:
    """Return the matrix that sketches are made with ``(features, sketch)``, the same everywhere."""
    if shape.sketch == shape.features:
        return torch.eye(shape.features, dtype=torch.float64)
    base = address.mix(address.key(seed, _PURPOSE), torch.arange(shape.features))
    return address.normal_rows(base, shape.sketch).double()


def pooled(node: Device, shape: Shape, x: Tensor) -> Tensor:
    """Return a device's samples, their squares and the sketch of their second moments."""
    sketch = x.mT @ (x @ drawn_for(node.seed, shape).to(x.device))
    ends = torch.stack([x.new_tensor(float(len(x))), x.square().sum()])
    return torch.cat([ends, sketch.flatten()])


def principal(sketch: Tensor, drawn: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return the principal directions of the features from a sketch, and their squares summed over all samples."""
    inner = drawn.to(sketch.device).mT @ sketch
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    seen = values > 1e-10 * values[-1]
    root = sketch @ (vectors[:, seen] / values[seen].sqrt())
    left, sizes, _ = torch.linalg.svd(root, full_matrices=False)
    # A direction may point either way, and round-off would decide which: all point to one side of an irregular vector.
    side = torch.cos(torch.arange(len(left), dtype=left.dtype, device=left.device)) @ left
    left = torch.where(side < 0, -left, left)
    missing = max(0, kept - left.shape[1])  # features that nobody has: their directions do not matter
    left = torch.nn.functional.pad(left[:, :kept], (0, missing))
    return left, torch.nn.functional.pad(sizes.square()[:kept], (0, missing))


def rest(size: float, bends: Tensor, shape: Shape) -> float:
    """Return the squares in each of the directions that are not looked at."""
    return max(0.0, size - float(bends.sum())) / max(1, shape.features - shape.kept)


def bend(node: Device, at: Tensor) -> Tensor:
    """Return the mean curvature of each device's loss at some rows, probed in one direction of signs."""
    gradient = node.oracle(Some(_PROBED))
    base = address.mix(address.key(node.seed, _PURPOSE, 1), torch.arange(1))
    signs = torch.sign(address.normal_rows(base, at.shape[1])).to(at)
    step = 1e-3 * at.norm(dim=1, keepdim=True).clamp(min=1.0) / at.shape[1] ** 0.5
    found: Tensor = ((gradient(at + step * signs) - gradient(at - step * signs)) * signs).sum(1) / (
        2 * step[:, 0] * at.shape[1]
    )
    return found.clamp(min=0.0).double()
