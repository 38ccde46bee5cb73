"""What data sets of images have in common: the scale of pixels, and checks that files hold what they should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.values import Array, shown

Pixels = Literal["signed", "unit"]
GREY = (28, 28)  # height and width of MNIST's images, and of all data sets made after it


def affine(pixels: str, largest: int = 255) -> tuple[float, float]:
    """Return the scale and the shift that turn pixels of 0..largest into features."""
    if isinstance(pixels, str) and pixels in ("signed", "unit"):
        return (2 / largest, -1.0) if pixels == "signed" else (1 / largest, 0.0)
    raise BadInput(f"pixels = {shown(pixels)} must be 'signed' (features in -1..1) or 'unit' (0..1)")


def check(name: str, where: str, image: Array, label: Array, classes: int = 10, shape: Sequence[int] = GREY) -> None:
    """Refuse images and labels that are not what a file should hold."""
    if image.shape[1:] != tuple(shape) or image.dtype != np.uint8 or label.shape != image.shape[:1]:
        raise BadInput(f"{where}: {name} has images of {image.shape} and labels of {label.shape}; get it again")
    if len(label) and not 0 <= int(label.min()) <= int(label.max()) < classes:
        raise BadInput(f"{where}: {name} has labels outside 0..{classes - 1}; get it again")


def pooled(
    name: str,
    where: str,
    images: list[Array],
    labels: list[Array],
    pixels: str,
    *,
    classes: int = 10,
    shape: Sequence[int] = GREY,
) -> Pool:
    """Pool the images of several files after checking that they are what they say; grey ones get their channel."""
    scale = affine(pixels)
    for image, label in zip(images, labels, strict=True):
        check(name, where, image, label, classes, shape)
    x = np.empty((sum(map(len, images)), *shape), dtype=np.uint8)
    np.concatenate(images, out=x)  # which would keep the order in memory of images that were turned
    y = np.concatenate(labels).astype(np.int64)
    return Pool(x if len(shape) == 3 else x[:, None], y, classes, scale, name=name)
