"""Make a population from a named source: load, partition, form teams, split, shift, find teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.datasets import Dataset, Pool, dataset_of, load
from palmette.datasets.images import Pixels
from palmette.errors import BadInput
from palmette.population import packing, teams
from palmette.population.dealing import dealing_of, name_of, units_of
from palmette.population.encoding import Encoding
from palmette.population.found import found_again
from palmette.population.partition import Partition
from palmette.population.population import Population
from palmette.population.recipe import write_down
from palmette.population.selection import Selection
from palmette.population.shifts import Shift, make_shift
from palmette.population.unseen import keep_out
from palmette.tree import Tree
from palmette.values import fraction, plain, shown
from palmette.values import seed as checked

_TREE = "4x10"
_TEST = 0.25  # the part of each device's samples kept for testing
# A user's own pool is dealt out like the digits.
_POOL = Dataset("a user's own pool", lambda: Pool(np.zeros(0), np.zeros(0), None), "dirichlet", (("within", "team"),))


def make_population(
    source: str | Pool = "digits",
    *,
    tree: Tree | str | int | Sequence[Any] | Mapping[str, Any] | None = None,
    seed: int = 0,
    partition: str | Partition | None = None,
    teams: str | None = None,
    found_by: str | None = None,
    found_teams: int | None = None,
    given_teams: str | None = None,
    shift: str | None = None,
    shift_teams: float | None = None,
    shift_devices: float | None = None,
    folder: str | Path | None = None,
    test: float = _TEST,
    pixels: Pixels = "signed",
    unseen: float = 0.0,
    **options: Any,
) -> Population:
    """Make the population of a named data set on a tree.

    Args:
        source: The name of a data set, as in ``palmette list datasets``, or a `Pool` of your own samples.
        tree: The tree, or what `Tree.parse` reads; ``"4x10"`` by default. Data with devices and teams of their own take none.
        seed: Decides the partition, the teams and the split, and with generated data the samples.
        partition: Partition of the samples over devices: ``"labels"``, ``"dirichlet"``, ``"two-level"``, ``"iid"``,
            ``"per-class"``, ``"few"``, in Python also an object; each data set has its own default. Data that come by device
            take none.
        teams: Forming of teams: ``"random"``, ``"given"``, ``"worst"``, ``"average"`` or ``"found"``; see ``palmette list
            datasets``. By default ``"random"``, and ``"given"`` where data have teams of their own.
        found_by: What devices are compared by where teams are found: ``"updates"`` (the default) or ``"gradients"`` of a linear
            model, or the histograms of their ``"labels"``. Only training samples are used.
        found_teams: Number of teams to find; by default as many as the tree has.
        given_teams: Forming of the teams before teams are found, by which a shift goes: ``"random"``, ``"given"``, ``"worst"``
            or ``"average"``, with the same default as teams.
        shift: Shift of the features by team and by device: ``"rotate"`` turns the images of team i by i * 90 degrees,
            ``"offset"`` adds numbers, ``"scale"`` multiplies by a number and ``"noise"`` adds noise of a strength that is
            drawn for the team and for the device.
        shift_teams: Size of the shift between teams, in standard deviations of the features; for scale, of the logarithm. By
            default 1; 0 for none.
        shift_devices: Size of the shift between the devices of a team, counted in the same way. By default 0.
        folder: Folder with the files of data sets; else ``PALMETTE_DATA``, else the user's cache folder.
        test: Test share: the part of each device's samples kept for testing.
        pixels: Scale of image features: ``"signed"`` for -1..1, ``"unit"`` for 0..1.
        unseen: Part of the devices that is kept out of training, to see how models do on new devices.
        **options: Options of the data set (``alpha``, ``beta``), of the partition (``classes_per_device``, ...), or of the
            choice of devices where they are the data's own (``least``, ``per_team``).
    """
    entry = _POOL if isinstance(source, Pool) else dataset_of(source)
    natural = source.tree is not None if isinstance(source, Pool) else entry.natural
    if natural and tree is not None:
        raise BadInput(
            f"{name_of(source)} has devices and teams of its own; leave tree = {shown(tree)} out. data.per_team = 10 keeps ten "
            "devices of each team"
        )
    found = isinstance(teams, str) and teams == "found"
    for word, value in (("found_by", found_by), ("found_teams", found_teams), ("given_teams", given_teams)):
        if value is not None and not found:
            raise BadInput(f"{word} = {shown(plain(value))} is for teams = 'found'; set that too, or leave it out")
    formation = given_teams if found else teams
    wanted = _Wanted(
        source,
        entry,
        None if natural else Tree.parse(_TREE if tree is None else tree),
        checked(seed),
        formation=formation if formation is not None else "given" if natural else "random",
        shift=shift,
        shift_sizes=(shift_teams, shift_devices),
        folder=folder,
        test=fraction("test", plain(test)),
        pixels=pixels,
        options={name: _plain(value) for name, value in options.items()},
    )
    made = _with_unseen(_build(wanted, partition), fraction("unseen", plain(unseen)), wanted.seed)
    if not found:
        return made
    assert made.recipe is not None
    recipe = made.recipe.dealt_on(None if natural else made.tree)
    return found_again(made, found_by, found_teams, recipe)


def _with_unseen(made: Population, unseen: float, seed: int) -> Population:
    """Keep a part of the devices out of training."""
    if not unseen:
        return made
    if made.unseen is not None:
        raise BadInput(f"{made.source} has unseen devices of its own; leave unseen = {unseen} out")
    assert made.recipe is not None
    recipe = replace(made.recipe, values={**made.recipe.values, "unseen": float(unseen)})
    return replace(made, unseen=keep_out(made.tree, float(unseen), seed)).made_by(recipe)


@dataclass(frozen=True)
class _Wanted:
    """What a population is to be made of; see `make_population`.

    Attributes:
        tree: The tree; ``None`` where the data have one of their own.
    """

    source: str | Pool
    entry: Dataset
    tree: Tree | None
    seed: int
    formation: str
    shift: str | None
    shift_sizes: tuple[float | None, float | None]
    folder: str | Path | None
    test: float
    pixels: Pixels
    options: Mapping[str, Any]

    @property
    def own(self) -> dict[str, Any]:
        """The options of the data set itself."""
        return {name: value for name, value in self.options.items() if name in self.entry.own}

    @property
    def rest(self) -> dict[str, Any]:
        """The other options."""
        return {name: value for name, value in self.options.items() if name not in self.entry.own}

    def check(self) -> None:
        """Refuse what does not go with the data set."""
        if "pixels" not in self.entry.takes and not (isinstance(self.pixels, str) and self.pixels == "signed"):
            raise BadInput(f"pixels = {shown(self.pixels)} is for images that Palmette loads; leave it out here")
        if "folder" not in self.entry.takes and self.folder is not None:
            raise BadInput(f"{name_of(self.source)} reads no files; leave folder = {shown(plain(self.folder))} out")

    def load(self) -> Pool:
        """Load the samples."""
        if isinstance(self.source, Pool):
            return self.source
        given = {"folder": self.folder, "pixels": self.pixels, "tree": self.tree, "seed": self.seed}
        given |= {} if self.tree is None else {"devices": self.tree.devices}
        takes = self.entry.takes
        return load(self.source, **self.own, **{name: value for name, value in given.items() if name in takes})


def _build(wanted: _Wanted, partition: str | Partition | None) -> Population:
    chosen = dealing_of(wanted.source, wanted.entry, wanted.tree is None, wanted.rest, partition)
    dealt = chosen if isinstance(chosen, Partition) else None
    teams.check_formation(wanted.formation, dealt)
    wanted.check()
    pool = wanted.load()
    if isinstance(chosen, Selection):
        pool = chosen.apply(pool, wanted.seed)
    tree = wanted.tree if wanted.tree is not None else pool.tree
    assert tree is not None
    tokens = pool.x.dtype.kind in "iu" and pool.x.dtype.itemsize > 1
    shift = make_shift(wanted.shift, *wanted.shift_sizes, tree, tuple(pool.x.shape[1:]), tokens)
    recipe = write_down(
        wanted.source,
        wanted.entry,
        chosen,
        wanted.own,
        seed=wanted.seed,
        teams=wanted.formation,
        shift={} if shift is None else shift.values,
        folder=wanted.folder,
        test=wanted.test,
        pixels=wanted.pixels,
        split=pool.train is not None or (dealt is not None and dealt.splits),
    )
    if dealt is not None and dealt.splits and wanted.test != _TEST:
        raise BadInput(f"the partition per-class says which samples are for testing; leave test = {wanted.test} out")
    if pool.train is not None:
        if wanted.test != _TEST:
            raise BadInput(f"{pool.name} comes with its own test samples; leave test = {wanted.test} out")
        return _split(pool, tree, shift, wanted.seed).made_by(recipe)
    parts = units_of(pool, tree, wanted.seed, dealt, wanted.formation)
    leaf = teams.leaf_of_unit(wanted.formation, tree, wanted.seed, dealt)
    targets = packing.as_tensor(pool.y[parts.index], "y")
    packed = packing.pack(
        tree,
        packing.as_tensor(pool.x[parts.index], "x"),
        targets if targets.is_floating_point() else targets.long(),
        torch.from_numpy(np.repeat(leaf, np.diff(parts.start))),
        test=wanted.test if parts.test is None else torch.from_numpy(parts.test),
        seed=wanted.seed,
        classes=pool.classes,
        limit=dealt.train_limit if dealt is not None else None,
    )
    x = packed.x if shift is None else shift.apply(packed.x, packed.start, tree, wanted.seed)
    if shift is not None:
        packing.refuse_large(tree, x, packed.start, pool.affine)
    arrays = x, packed.y, packed.start, packed.train
    text = None if pool.words is None else Encoding((), "next token", pool.words, tokens=True)
    made = Population(tree, *arrays, pool.affine, pool.classes, pool.name, encoding=text, notes=pool.notes)
    if pool.unseen is not None:
        new = torch.zeros(tree.devices, dtype=torch.bool)
        new[torch.from_numpy(leaf)] = torch.from_numpy(np.asarray(pool.unseen, dtype=bool))
        made = replace(made, unseen=new if bool(new.any()) else None)
    return made.made_by(recipe)


def _split(pool: Pool, tree: Tree, shift: Shift | None, seed: int) -> Population:
    """Put a pool that is split already on the tree, unit u on leaf u, without a copy of its samples."""
    assert pool.start is not None
    assert pool.train is not None
    x, y = packing.as_tensor(pool.x, "x"), packing.as_tensor(pool.y, "y")
    start = torch.from_numpy(pool.start)
    if shift is not None:
        x = shift.apply(x, start, tree, seed)
        packing.refuse_large(tree, x, start, pool.affine)
    new = None if pool.unseen is None else torch.from_numpy(pool.unseen)
    train = torch.from_numpy(pool.train)
    return Population(tree, x, y, start, train, pool.affine, pool.classes, pool.name, unseen=new, notes=pool.notes)


def _plain(value: Any) -> Any:
    return value if isinstance(value, Partition) else plain(value)
