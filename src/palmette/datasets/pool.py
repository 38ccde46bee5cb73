"""Samples that are not yet split and packed: what a data set gives."""

from __future__ import annotations

from dataclasses import dataclass

from palmette.tree import Ints, Tree
from palmette.values import Array


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples that are not yet split and packed.

    Attributes:
        x: Features, one row per sample: bytes, floats, or whole numbers for tokens.
        y: Class labels, or targets as floats.
        classes: Number of classes; ``None`` for regression.
        affine: A scale and a shift: features are ``x * scale + shift``.
        start: Where the source comes by device, the samples of unit ``u`` are ``start[u]:start[u + 1]``.
        name: Where the samples came from.
        train: Where it is also split, the first ``train[u]`` samples of unit ``u`` are for training; unit u is leaf u then.
        tree: Where devices and teams are the data's own, their tree; unit u is leaf u then.
        unseen: Which of its units are kept out of training (bool).
        words: Where samples are tokens of text, the vocabulary: what each of them stands for.
        notes: Sentences about what was left out.
    """

    x: Array
    y: Array
    classes: int | None
    affine: tuple[float, float] | None = None
    start: Ints | None = None
    name: str = "pool"
    train: Ints | None = None
    tree: Tree | None = None
    unseen: Array | None = None
    words: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
