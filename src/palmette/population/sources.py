"""Where samples come from: public data sets and the published synthetic generator.

A source gives a `Pool`. Most pools are one heap of samples for a partition to deal out; those that are generated come already
by device.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from palmette.errors import BadInput, nearest
from palmette.population import files
from palmette.population.crowd import crowd
from palmette.population.files import Array
from palmette.population.pool import Pool as Pool
from palmette.tree import Ints
from palmette.values import real, refuse_larger_than_memory, shown

Pixels = Literal["signed", "unit"]


def digits(*, pixels: Pixels = "signed") -> Pool:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; no file is needed."""
    # Read from the file scikit-learn ships: importing the package takes a second, as long as all the rest of a start.
    home = find_spec("sklearn")
    places = home.submodule_search_locations if home is not None else None
    if not places:
        raise BadInput("digits come with scikit-learn, which is not installed; run: pip install scikit-learn")
    with gzip.open(Path(next(iter(places))) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",").astype(np.uint8)
    return Pool(
        table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].astype(np.int64), 10, _affine(pixels, 16), name="digits"
    )


def mnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 70,000 MNIST digits, training and test images pooled in the data set's order."""
    path = files.find("mnist", "mnist.npz", ("mnist", ""), folder)
    x_train, x_test, y_train, y_test = files.read_npz(path, ["x_train", "x_test", "y_train", "y_test"])
    return _images("mnist", str(path), [x_train, x_test], [y_train, y_test], pixels)


def fashion_mnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 70,000 Fashion-MNIST images, training and test images pooled in the data set's order."""
    places = ("fashion_mnist", "fashion-mnist", "")
    parts = ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")
    paths = [files.find("fashion-mnist", f"{part}-ubyte.gz", places, folder) for part in parts]
    x_train, x_test, y_train, y_test = map(files.read_idx, paths)
    return _images("fashion-mnist", str(paths[0].parent), [x_train, x_test], [y_train, y_test], pixels)


def synthetic(devices: int, *, alpha: float = 0.5, beta: float = 0.5, seed: int = 0) -> Pool:
    """Return the Synthetic(alpha, beta) data of pFedMe and PerMFL, by device, drawn in the published order.

    Device u has n_u = 5 (int(lognormal(4, 2)) + 50) samples x ~ N(v_u, diag(k^-1.2)) of 60 features with labels
    argmax(x W_u + b_u) of 10 classes, where v_u ~ N(B_u, 1), W_u and b_u ~ N(u_u, 1), u_u ~ N(0, alpha) and
    B_u ~ N(0, beta). As in the published code, alpha and beta are standard deviations. Seed 0 is the published one.
    Because u_u is added to every class's weights alike, alpha changes no label: the generator is published so.

    The generator is numpy's legacy one because its stream, unlike the new one's, is promised never to change.

    Args:
        devices: Number of devices.
        alpha: Spread (standard deviation) of the devices' true weights.
        beta: Spread (standard deviation) of the devices' features.
        seed: Seed of the generator.
    """
    if devices < 1:
        raise BadInput(f"synthetic needs at least 1 device, not {devices}; check tree=")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if real(name, value) < 0:
            raise BadInput(f"{name} = {value} must be at least 0: it is a standard deviation")
    if not 0 <= seed < 2**32:
        raise BadInput(f"seed = {seed} must be in 0..2**32 - 1 for the synthetic source")
    random = np.random.RandomState(seed)
    refuse_larger_than_memory(f"synthetic samples of {devices:,} devices", devices * 2000 * 60 * 4, "lower tree=")
    sizes = (random.lognormal(4, 2, devices).astype(np.int64) + 50) * 5
    mean_w = random.normal(0, alpha, devices)
    mean_b = mean_w
    centre = random.normal(0, beta, devices)
    mean_x = np.stack([random.normal(centre[unit], 1, 60) for unit in range(devices)])
    deviation = np.sqrt(np.arange(1, 61) ** -1.2)
    start: Ints = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    features = np.empty((start[-1], 60), dtype=np.float32)
    labels = np.empty(start[-1], dtype=np.int64)
    for unit in range(devices):
        weights = random.normal(mean_w[unit], 1, (60, 10))
        bias = random.normal(mean_b[unit], 1, 10)
        # These are the very numbers of multivariate_normal, without its decomposition of a matrix that is diagonal.
        x = random.standard_normal((sizes[unit], 60)) * deviation + mean_x[unit]
        features[start[unit] : start[unit + 1]] = x
        labels[start[unit] : start[unit + 1]] = np.argmax(x @ weights + bias, axis=1)
    return Pool(features, labels, 10, None, start, name="synthetic")


@dataclass(frozen=True)
class Source:
    """One row of the table of sources.

    Attributes:
        description: One line for people.
        read: Makes the pool.
        takes: The keywords of ``read``.
        partition: Name of the partition used when the user names none; ``None`` where samples come by device.
        options: Options of that partition.
    """

    description: str
    read: Callable[..., Pool]
    takes: tuple[str, ...]
    partition: str | None = None
    options: tuple[tuple[str, Any], ...] = ()


SOURCES: dict[str, Source] = {
    "digits": Source(
        "1,797 handwritten digits of 8x8 pixels, 10 classes; comes with scikit-learn",
        digits,
        ("pixels",),
        "dirichlet",
        (("within", "team"),),
    ),
    "mnist": Source(
        "70,000 handwritten digits of 28x28 pixels, 10 classes; needs the file mnist.npz",
        mnist,
        ("folder", "pixels"),
        "labels",
    ),
    "fashion-mnist": Source(
        "70,000 pictures of clothes of 28x28 pixels, 10 classes; needs the four idx files",
        fashion_mnist,
        ("folder", "pixels"),
        "labels",
    ),
    "synthetic": Source(
        "Synthetic(alpha, beta) of FedProx, generated: 60 features, 10 classes, a different linear model on every device",
        synthetic,
        ("devices", "alpha", "beta", "seed"),
    ),
    "crowd": Source(
        "Very many devices with few samples each, generated: 60 features, 10 classes, a linear model for every team and device",
        crowd,
        ("tree", "samples", "test_samples", "spread", "seed"),
    ),
}


def source_of(name: str) -> Source:
    """Return the source of this name."""
    if not isinstance(name, str) or name not in SOURCES:
        raise BadInput(f"there is no data set {shown(name)}{nearest(shown(name), SOURCES)}")
    return SOURCES[name]


def load(name: str, **options: Any) -> Pool:
    """Load a source by name; options are those of its function (``folder``, ``pixels``, ``devices``, ...)."""
    source = source_of(name)
    for option in options:
        if option not in source.takes:
            raise BadInput(f"{name} has no option {option!r}{nearest(option, source.takes)}")
    return source.read(**options)


def _affine(pixels: str, largest: int) -> tuple[float, float]:
    if isinstance(pixels, str) and pixels in ("signed", "unit"):
        return (2 / largest, -1.0) if pixels == "signed" else (1 / largest, 0.0)
    raise BadInput(f"pixels = {shown(pixels)} must be 'signed' (features in -1..1) or 'unit' (0..1)")


def _images(name: str, where: str, images: list[Array], labels: list[Array], pixels: str) -> Pool:
    """Pool image files after checking that they are what they say."""
    affine = _affine(pixels, 255)
    for image, label in zip(images, labels, strict=True):
        if image.shape[1:] != (28, 28) or image.dtype != np.uint8 or label.shape != image.shape[:1]:
            raise BadInput(f"{where}: {name} has images of {image.shape} and labels of {label.shape}; get it again")
        if len(label) and not 0 <= int(label.min()) <= int(label.max()) <= 9:
            raise BadInput(f"{where}: {name} has labels outside 0..9; get it again")
    return Pool(np.concatenate(images)[:, None], np.concatenate(labels).astype(np.int64), 10, affine, name=name)
