"""Make a population from a named source: load, partition, form teams, split, shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.errors import BadInput, nearest
from palmette.population import packing, teams
from palmette.population.partition import Partition, Parts, make_partition, option_names
from palmette.population.population import Population
from palmette.population.recipe import SET_ELSEWHERE, write_down
from palmette.population.sources import Pixels, Pool, Source, load, source_of
from palmette.population.unseen import keep_out
from palmette.tree import Tree
from palmette.values import fraction, plain, shown
from palmette.values import seed as checked

# A user's own pool is dealt out like the digits.
_POOL = Source("a user's own pool", Pool, (), "dirichlet", (("within", "team"),))
_TEST = 0.25  # the part of each device's samples kept for testing


def make_population(
    source: str | Pool = "digits",
    *,
    tree: Tree | str | int | Sequence[Any] | Mapping[str, Any] = "4x10",
    seed: int = 0,
    partition: str | Partition | None = None,
    teams: str = "random",
    shift: str | None = None,
    folder: str | Path | None = None,
    test: float = _TEST,
    pixels: Pixels = "signed",
    unseen: float = 0.0,
    **options: Any,
) -> Population:
    """Make the population of a named data set on a tree.

    Args:
        source: ``"digits"``, ``"mnist"``, ``"fashion-mnist"``, ``"synthetic"``, ``"crowd"``, or a `Pool` of your own samples.
        tree: The tree, or what `Tree.parse` reads.
        seed: Decides the partition, the teams and the split, and with ``synthetic`` the samples.
        partition: Partition of the samples over devices: ``"labels"``, ``"dirichlet"``, ``"iid"``, ``"few"``, in Python also
            an object; each data set has its own default. ``synthetic`` takes none, its samples come by device.
        teams: Forming of teams: ``"random"``, ``"given"``, ``"worst"`` or ``"average"``; see ``palmette list datasets``.
        shift: Shift between teams: ``"rotate"`` turns the images of team i by i * 90 degrees.
        folder: Folder with the files of data sets; else ``PALMETTE_DATA``, else the user's cache folder.
        test: Test share: the part of each device's samples kept for testing.
        pixels: Scale of image features: ``"signed"`` for -1..1, ``"unit"`` for 0..1.
        unseen: Part of the devices that is kept out of training, to see how models do on new devices.
        **options: Options of the source (``alpha``, ``beta``) or of the partition (``classes_per_device``, ...).
    """
    part, options = fraction("test", plain(test)), {name: _plain(value) for name, value in options.items()}
    made = _build(source, Tree.parse(tree), checked(seed), partition, teams, shift, folder, part, pixels, options)
    kept_out = keep_out(made.tree, fraction("unseen", plain(unseen)), seed)
    if kept_out is None or made.recipe is None:
        return made
    recipe = replace(made.recipe, values={**made.recipe.values, "unseen": float(unseen)})
    return replace(made, unseen=kept_out).made_by(recipe)


def _build(
    source: str | Pool,
    tree: Tree,
    seed: int,
    partition: str | Partition | None,
    formation: str,
    shift: str | None,
    folder: str | Path | None,
    test: float,
    pixels: Pixels,
    options: Mapping[str, Any],
) -> Population:
    entry = _POOL if isinstance(source, Pool) else source_of(source)
    own = {name: value for name, value in options.items() if name in entry.takes and name not in SET_ELSEWHERE}
    rest = {name: value for name, value in options.items() if name not in own}
    chosen, given_options = _partition(source, entry, partition, rest), dict(own)
    teams.check_formation(formation, chosen)
    if "pixels" not in entry.takes and not (isinstance(pixels, str) and pixels == "signed"):
        raise BadInput(f"pixels = {shown(pixels)} is for images that Palmette loads; leave it out here")
    if "folder" not in entry.takes and folder is not None:
        raise BadInput(f"{_name(source)} reads no files; leave folder = {shown(plain(folder))} out")
    if isinstance(source, Pool):
        pool = source
    else:
        given = {"folder": folder, "pixels": pixels, "devices": tree.devices, "tree": tree, "seed": seed}
        own.update({name: value for name, value in given.items() if name in entry.takes})
        pool = load(source, **own)
    teams.check_shift(shift, tree, pool.x.shape[1:])
    recipe = write_down(
        source,
        entry,
        chosen,
        given_options,
        seed=seed,
        teams=formation,
        shift=shift,
        folder=folder,
        test=test,
        pixels=pixels,
        split=pool.train is not None,
    )
    if pool.train is not None:
        if test != _TEST:
            raise BadInput(f"{pool.name} comes with its own test samples; leave test = {test} out")
        return _split(pool, tree, shift).made_by(recipe)
    parts = _units(pool, tree, seed, chosen, formation)
    leaf = teams.leaf_of_unit(formation, tree, seed, chosen)
    packed = packing.pack(
        tree,
        packing.as_tensor(pool.x[parts.index], "x"),
        packing.as_tensor(pool.y[parts.index], "y").long(),
        torch.from_numpy(np.repeat(leaf, np.diff(parts.start))),
        test=test,
        seed=seed,
        classes=pool.classes,
        limit=chosen.train_limit if chosen is not None else None,
    )
    x = packed.x if shift is None else teams.rotate(packed.x, packed.start, tree)
    made = Population(tree, x, packed.y, packed.start, packed.train, pool.affine, pool.classes, pool.name)
    return made.made_by(recipe)


def _split(pool: Pool, tree: Tree, shift: str | None) -> Population:
    """Put a pool that is split already on the tree, unit u on leaf u, without a copy of its samples."""
    assert pool.start is not None
    assert pool.train is not None
    x, y = packing.as_tensor(pool.x, "x"), packing.as_tensor(pool.y, "y")
    start = torch.from_numpy(pool.start)
    if shift is not None:
        x = teams.rotate(x, start, tree)
    return Population(tree, x, y, start, torch.from_numpy(pool.train), pool.affine, pool.classes, pool.name)


def _units(pool: Pool, tree: Tree, seed: int, partition: Partition | None, formation: str) -> Parts:
    """Return the pool's samples unit by unit."""
    labels = np.asarray(pool.y)
    if labels.dtype.kind not in "iu" or len(labels) != len(pool.x):
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
    if labels.ndim != 1:
        raise BadInput(f"a partition needs one label per sample, not labels of shape {labels.shape}")
    if len(labels) == 0 or not 0 <= int(labels.min()) <= int(labels.max()) < pool.classes:
        raise BadInput(f"{pool.name} needs samples with labels in 0..{pool.classes - 1} (classes = {pool.classes})")
    each = partition.by_label
    owned = None if each is None else teams.owned_labels(formation, tree, pool.classes, each)
    return partition.assign(labels.astype(np.int64), tree, pool.classes, seed, owned)


def _partition(
    source: str | Pool, entry: Source, partition: str | Partition | None, options: Mapping[str, Any]
) -> Partition | None:
    """Return the partition that is meant, ``None`` for samples that come by device."""
    by_device = source.start is not None if isinstance(source, Pool) else entry.partition is None
    if by_device:
        if partition is not None:
            raise BadInput(f"{_name(source)} is made device by device and takes no partition; leave data.partition out")
        _refuse(options, [name for name in entry.takes if name not in SET_ELSEWHERE], _name(source))
        return None
    if isinstance(partition, Partition):
        _refuse(options, [], f"{_name(source)} with a ready-made partition")
        return partition
    if partition is None:
        assert entry.partition is not None
        return make_partition(entry.partition, {**dict(entry.options), **options})
    option_names(partition)  # refuses an unknown name before anything is said of its options
    return make_partition(partition, options)


def _plain(value: Any) -> Any:
    return value if isinstance(value, Partition) else plain(value)


def _name(source: str | Pool) -> str:
    return source.name if isinstance(source, Pool) else source


def _refuse(options: Mapping[str, Any], known: list[str], what: str) -> None:
    for option in options:
        raise BadInput(f"{what} has no option {option!r}{nearest(option, known) if known else '; it has none'}")
