"""Samples that are not yet on a tree: what a source gives."""

from __future__ import annotations

from dataclasses import dataclass

from palmette.population.files import Array
from palmette.tree import Ints


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples that are not yet on a tree.

    Attributes:
        x: Features, one row per sample.
        y: Class labels.
        classes: Number of classes.
        affine: A scale and a shift: features are ``x * scale + shift``.
        start: Where the source comes by device, the samples of unit ``u`` are ``start[u]:start[u + 1]``.
        name: Where the samples came from.
        train: Where it is also split, the first ``train[u]`` samples of unit ``u`` are for training; unit u is leaf u then.
    """

    x: Array
    y: Array
    classes: int
    affine: tuple[float, float] | None = None
    start: Ints | None = None
    name: str = "pool"
    train: Ints | None = None
