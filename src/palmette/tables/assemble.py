"""A population from samples that are in memory already, each with the path of its device."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from palmette.errors import BadInput, PalmetteWarning
from palmette.population import Encoding, Population, packing
from palmette.population.population import check_affine
from palmette.population.unseen import keep_out
from palmette.tables.places import Path, plant
from palmette.tables.problems import Findings
from palmette.values import Array, fraction, shown


def assemble(
    x: Any,
    labels: Sequence[Any] | Array,
    paths: Sequence[Path],
    *,
    source: str,
    seed: int,
    test: float | Array = 0.25,
    unseen: float = 0.0,
    affine: tuple[float, float] | None = None,
    image: tuple[int, ...] | None = None,
) -> Population:
    """Make a population.

    Args:
        x: Features, one row per sample.
        labels: Names or whole numbers for classes, numbers with fractions for regression.
        paths: The path of every sample's device, from the top team down.
        source: What to call the data.
        seed: Seed of the split and of the devices kept out.
        test: The part of each device's samples kept for testing, or a flag per sample.
        unseen: Part of the devices that is kept out of training.
        affine: A scale and a shift of the features.
        image: Channels, height and width of images.
    """
    findings = Findings()
    different = list(dict.fromkeys(paths))
    if len({len(path) for path in different}) > 1:
        raise BadInput(f"{source}: all devices must lie at the same depth; some have more teams above them than others")
    tree, number = plant(different, findings, refuse_repeats=False)
    place = dict(zip(different, number.tolist(), strict=True))
    device = torch.tensor([place[path] for path in paths], dtype=torch.int64)
    y, classes = number_labels(labels, source)
    if classes is not None and len(classes) < 2:
        raise BadInput(f"{source}: the label is {shown(classes[0])} in all samples; there is nothing to learn")
    flags = torch.from_numpy(test) if isinstance(test, np.ndarray) else fraction("data.test", test)
    packed = packing.pack(
        tree,
        packing.as_tensor(x, "x"),
        torch.from_numpy(y),
        device,
        test=flags,
        seed=seed,
        classes=None if classes is None else len(classes),
    )
    packing.refuse_large(tree, packed.x, packed.start, affine)
    for warning in findings.warnings:
        warnings.warn(f"{source}: {warning}", PalmetteWarning, stacklevel=3)
    return Population(
        tree,
        *packed[:4],
        affine=check_affine(affine),
        classes=packed.classes,
        source=source,
        encoding=Encoding((), classes=classes, image=image, affine=check_affine(affine)),
        unseen=keep_out(tree, fraction("data.unseen", unseen), seed),
    )


def number_labels(labels: Sequence[Any] | Array, source: str) -> tuple[Array, tuple[str, ...] | None]:
    """Return labels as whole numbers with the names of the classes, or as targets."""
    column = np.asarray(labels)
    if column.dtype.kind == "f":
        return column.astype(np.float32), None
    if column.dtype.kind == "O" and not all(isinstance(one, str) for one in column.reshape(-1)):
        raise BadInput(f"{source}: labels must be names or numbers, not a mixture of them")
    if column.dtype.kind not in "iubUSO" or column.ndim != 1:
        raise BadInput(f"{source}: labels must be one name or number per sample, not {column.dtype} of {column.shape}")
    found, y = np.unique(column, return_inverse=True)
    return y.reshape(-1).astype(np.int64), tuple(str(name) for name in found.tolist())


def digest(population: Population) -> str:
    """Return what a population is known by: a digest of its samples, its split and its tree."""
    about = (population.affine, population.classes, population.tree.spec(), population.encoding)
    known = hashlib.sha256(repr(about).encode())
    for tensor in (population.x, population.y, population.start, population.train, population.unseen):
        if tensor is not None:
            known.update(np.ascontiguousarray(tensor.numpy()).data)
    return known.hexdigest()[:32]
