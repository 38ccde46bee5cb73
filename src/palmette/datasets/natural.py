"""Data whose devices and teams are their own: samples with the names of both, put in the order of their tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.tree import Ints, Tree
from palmette.values import Array


def by_device(
    name: str,
    x: Array,
    y: Array,
    device: Array,
    team: Array | None = None,
    *,
    classes: int | None,
    affine: tuple[float, float] | None = None,
    unseen: Array | None = None,
) -> Pool:
    """Make the pool of samples that name their device and its team.

    Teams and devices come in the order of their names; the samples of a device keep their order.

    Args:
        name: What the data are called.
        x: Features, one row per sample.
        y: Labels or targets.
        device: The name of every sample's device.
        team: The name of its team; without it the devices are all the server's.
        classes: Number of classes; ``None`` for regression.
        affine: A scale and a shift of the features.
        unseen: Whether a sample belongs to a device that is kept out of training.
    """
    names, number = np.unique(device, return_inverse=True)
    number = number.reshape(-1)
    first = np.unique(number, return_index=True)[1]  # a sample of every device
    teams = np.array(["all"] * len(names)) if team is None else np.asarray(team)[first]
    if team is not None and (np.asarray(team) != teams[number]).any():
        wrong = names[number[int((np.asarray(team) != teams[number]).argmax())]]
        raise BadInput(f"{name}: the device {wrong!r} is in two teams")
    order = np.lexsort((np.arange(len(names)), teams))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names))
    leaf = place[number]
    samples = np.argsort(leaf, kind="stable")
    start: Ints = np.concatenate([[0], np.cumsum(np.bincount(leaf, minlength=len(names)))]).astype(np.int64)
    new = None if unseen is None else np.asarray(unseen)[first][order]
    tree = plant(names[order].tolist(), None if team is None else teams[order].tolist())
    return Pool(x[samples], y[samples], classes, affine, start, name, tree=tree, unseen=new)


def plant(devices: Sequence[str], teams: Sequence[str] | None) -> Tree:
    """Make the tree of devices that come team after team."""
    if teams is None:
        return Tree((np.zeros(len(devices), dtype=np.int64),), (tuple(devices), None))
    known, parent = np.unique(teams, return_inverse=True)
    above: Ints = np.zeros(len(known), dtype=np.int64)
    return Tree((parent.reshape(-1).astype(np.int64), above), (tuple(devices), tuple(known.tolist()), None))


def smaller(pool: Pool, keep: Array) -> Pool:
    """Return the pool with some of its devices only; teams that lose all of theirs go with them.

    Args:
        pool: A pool with a tree of its own.
        keep: Whether to keep each device (bool).
    """
    assert pool.tree is not None
    assert pool.start is not None
    sizes = np.diff(pool.start)
    samples = np.repeat(keep, sizes)
    start: Ints = np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64)
    return Pool(
        pool.x[samples],
        pool.y[samples],
        pool.classes,
        pool.affine,
        start,
        pool.name,
        train=None if pool.train is None else pool.train[keep],
        tree=pruned(pool.tree, keep),
        unseen=None if pool.unseen is None else pool.unseen[keep],
        words=pool.words,
        notes=pool.notes,
    )


def left_out(sizes: Array, why: str, what: str = "sample", setting: str = "") -> tuple[str, ...]:
    """Say how many devices were left out and why; nothing where there are none.

    Args:
        sizes: What each of them has.
        why: What they have too little of, as in ``"fewer than 2 samples"``.
        what: What is counted.
        setting: The setting that decides, with its value.
    """
    if not len(sizes):
        return ()
    total = int(sizes.sum())
    devices = f"{len(sizes):,} device{'s have' if len(sizes) > 1 else ' has'}"
    lost = f"{total:,} {what}{'' if total == 1 else 's'} in all"
    return (
        f"{devices} {why} and {'are' if len(sizes) > 1 else 'is'} left out, {lost}{f' ({setting})' if setting else ''}",
    )


def pruned(tree: Tree, keep: Array) -> Tree:
    """Return a tree with some of its devices only, without teams that have none left."""
    parents: list[Ints] = []
    labels: list[tuple[str, ...] | None] = []
    for tier in range(tree.top):
        labels.append(_some(tree.labels[tier], keep))
        above, parent = np.unique(tree.parents[tier][keep], return_inverse=True)
        parents.append(parent.reshape(-1).astype(np.int64))
        keep = np.isin(np.arange(tree.size(tier + 1)), above)
    return Tree(tuple(parents), (*labels, tree.labels[-1]))


def _some(names: tuple[str, ...] | None, keep: Array) -> tuple[str, ...] | None:
    return None if names is None else tuple(name for name, kept in zip(names, keep.tolist(), strict=True) if kept)
