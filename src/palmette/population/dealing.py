"""Which partition a population is dealt out by, and the samples of every unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from palmette.datasets import Dataset, Pool
from palmette.errors import BadInput, nearest
from palmette.population import teams
from palmette.population.partition import Partition, Parts, make_partition, option_names
from palmette.population.selection import Selection
from palmette.tree import Tree


def dealing_of(
    source: str | Pool, entry: Dataset, natural: bool, options: Mapping[str, Any], partition: str | Partition | None
) -> Partition | Selection | None:
    """Return the partition that is meant, or the choice of devices where they are the data's own; ``None`` for neither.

    Args:
        source: The source.
        entry: Its row in the table of sources.
        natural: Whether devices and teams are the data's own.
        options: Options that are not the source's.
        partition: The partition that was named or given.
    """
    name = name_of(source)
    by_device = source.start is not None if isinstance(source, Pool) else entry.partition is None
    if by_device:
        if partition is not None:
            raise BadInput(f"{name} is made device by device and takes no partition; leave data.partition out")
        own = list(entry.own)
        if natural:
            _refuse(options, [*own, *(one.name for one in fields(Selection))], name)
            return Selection(**{**dict(entry.options), **options})
        _refuse(options, own, name)
        return None
    if isinstance(partition, Partition):
        _refuse(options, [], f"{name} with a ready-made partition")
        return partition
    if partition is None:
        assert entry.partition is not None
        return make_partition(entry.partition, {**dict(entry.options), **options})
    option_names(partition)  # refuses an unknown name before anything is said of its options
    return make_partition(partition, options)


def units_of(pool: Pool, tree: Tree, seed: int, partition: Partition | None, formation: str) -> Parts:
    """Return the pool's samples unit by unit."""
    labels = np.asarray(pool.y)
    if len(labels) != len(pool.x) or (pool.classes is not None and labels.dtype.kind not in "iu"):
        raise BadInput(
            f"{pool.name} needs a whole label for each of {len(pool.x)} samples, not {len(labels)} {labels.dtype}"
        )
    if partition is None:
        assert pool.start is not None
        if len(pool.start) != tree.devices + 1:
            raise BadInput(
                f"{pool.name} has the samples of {len(pool.start) - 1} devices, but tree = {tree} has {tree.devices}; "
                "make them equal"
            )
        return Parts(np.arange(pool.start[-1]), pool.start)
    if labels.ndim != 1 or pool.classes is None:
        raise BadInput(
            f"a partition needs one label per sample, a whole number, not {labels.dtype} of shape {labels.shape}"
        )
    if len(labels) == 0 or not 0 <= int(labels.min()) <= int(labels.max()) < pool.classes:
        raise BadInput(f"{pool.name} needs samples with labels in 0..{pool.classes - 1} (classes = {pool.classes})")
    each = partition.by_label
    owned = None if each is None else teams.owned_labels(formation, tree, pool.classes, each)
    return partition.assign(labels.astype(np.int64), tree, pool.classes, seed, owned)


def name_of(source: str | Pool) -> str:
    """Return what a source is called."""
    return source.name if isinstance(source, Pool) else source


def _refuse(options: Mapping[str, Any], known: list[str], what: str) -> None:
    for option in options:
        if option not in known:
            raise BadInput(f"{what} has no option {option!r}{nearest(option, known) if known else '; it has none'}")
