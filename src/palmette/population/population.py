"""The samples of every device, packed, with their train/test split, and the tree over the devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette import values
from palmette.errors import BadInput, PalmetteWarning
from palmette.guards.visible import visible
from palmette.population import columns, packing
from palmette.population.encoding import Encoding
from palmette.population.recipe import Recipe
from palmette.population.scores import Found
from palmette.tree import Tree


@dataclass(frozen=True, eq=False)
class Population:
    """The data: the samples of every device, split into training and test samples, and the tree over the devices.

    Make one with `palmette.make_population` (a named data set) or `from_arrays` (your own samples), not by hand.

    Attributes:
        tree: Who reports to whom; the population's devices are its tier 0, in its numbering.
        x: Features ``(total, *shape)``, device after device; within a device the training samples first, then the test
            samples. Bytes, floats, or int64 for tokens.
        y: Class labels (int64) or targets (floats), one row per sample.
        start: The samples of device ``i`` are ``start[i]:start[i + 1]``; ``(devices + 1,)``.
        train: The first ``train[i]`` samples of device ``i`` are for training; ``(devices,)``.
        affine: A scale and a shift: features are ``x * scale + shift``.
        classes: Number of classes; ``None`` for regression.
        source: Where the samples came from.
        encoding: How a table's columns became features, and the names of its classes; of text, the vocabulary. ``None`` where
            there was neither.
        unseen: Which devices are kept out of training (bool); ``None`` for none of them.
        found: How the teams were found and how good they are; ``None`` where they were given.
        notes: Sentences about what was left out of the data; the log of a run and ``palmette data info`` tell them.
    """

    tree: Tree
    x: Tensor
    y: Tensor
    start: Tensor
    train: Tensor
    affine: tuple[float, float] | None = None
    classes: int | None = None
    source: str = "arrays"
    encoding: Encoding | None = None
    unseen: Tensor | None = None
    found: Found | None = None
    notes: tuple[str, ...] = ()
    # Not copied by `dataclasses.replace`: another population has another recipe.
    _made: tuple[Recipe, tuple[int, ...]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.start) != self.tree.devices + 1 or len(self.train) != self.tree.devices:
            raise BadInput(f"start and train must tell of the tree's {self.tree.devices} devices; use from_arrays")
        sizes = self.start.diff()
        if self.start[0] != 0 or not len(self.x) == len(self.y) == int(self.start[-1]):
            raise BadInput(f"start must run from 0 to the number of samples, {len(self.x)} in x and {len(self.y)} in y")
        wrong = (self.train < 1) | (self.train > sizes)
        if bool(wrong.any()):
            number = int(wrong.long().argmax())
            raise BadInput(
                f"device {self.tree.name(0, number)!r} has {int(self.train[number])} training samples of "
                f"{int(sizes[number])}; it needs at least 1"
            )

    @property
    def recipe(self) -> Recipe | None:
        """How `make_population` made it, for a config; ``None`` for a user's own arrays and once its tensors were changed.

        A change made through a numpy view of the tensors goes unnoticed.
        """
        if self._made is None or self._made[1] != self._versions():
            return None
        return self._made[0]

    def made_by(self, recipe: Recipe) -> Population:
        """Note how the population was made, and return it."""
        object.__setattr__(self, "_made", (recipe, self._versions()))
        return self

    def _versions(self) -> tuple[int, ...]:
        """Return how often torch wrote into each of the tensors."""
        kept = (self.x, self.y, self.start, self.train)
        return tuple(-1 if tensor.is_inference() else tensor._version for tensor in kept)

    def __repr__(self) -> str:
        teams = f" in {self.tree.size(1)} teams" if self.tree.top > 1 else ""
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        return (
            f"Population {self.source!r}: {self.devices} devices{teams} (tree {self.tree}), {len(self.x)} samples of shape "
            f"{self.shape}, {kind}\n  training samples per device: {_spread(self.train)}; test: {_spread(self.tests)}"
        )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.tree.devices

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return tuple(self.x.shape[1:])

    @property
    def words(self) -> tuple[str, ...] | None:
        """The vocabulary of text: what each token stands for; ``None`` where samples are no text."""
        return None if self.encoding is None else self.encoding.words

    @property
    def samples(self) -> Tensor:
        """Number of training samples of every device."""
        return self.train

    @property
    def tests(self) -> Tensor:
        """Number of test samples of every device."""
        return self.start.diff() - self.train

    def features(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Gather samples by their position and convert them to what a model takes; tokens stay int64.

        Args:
            index: Positions of samples in `x`.
            dtype: The type of the numbers.
        """
        rows = self.x[index]
        if rows.dtype == torch.int64:
            return rows
        rows = rows.to(dtype, copy=index.dim() == 0)  # one sample alone is a view, which must not be written to
        if self.affine is None:
            return rows
        scale, shift = self.affine
        return rows.mul_(scale).add_(shift)

    def held_out(self, fraction: float) -> Tensor:
        """Return how many of each device's last training samples to hold out.

        It is the fraction rounded down, but at least one where a device has two, and never all.

        Args:
            fraction: The part of each device's training samples.
        """
        if not 0 < fraction < 1:
            raise BadInput(f"the held-out fraction {fraction} is not in 0 < fraction < 1")
        wanted = torch.floor(fraction * self.train.double() + 1e-9).long()
        return wanted.clamp_min(1).minimum(self.train - 1)

    def save(self, path: str | Path) -> None:
        """Write the population to a new folder, from which `palmette.load_population` opens it at once.

        Args:
            path: The folder.
        """
        from palmette.population.saved import save  # it knows populations

        save(self, path)

    def summary(self) -> str:
        """Describe the population in a few lines of plain text."""
        teams = f" in {self.tree.size(1)} teams" if self.tree.top > 1 else ""
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        lines = [
            f"{self.source}: {self.devices} devices{teams} (tree {self.tree}), {len(self.x)} samples of shape "
            f"{self.shape}, {kind}",
            f"training samples per device: {_spread(self.train)}",
            f"test samples per device: {_spread(self.tests)}",
        ]
        if self.classes is not None and self.y.dim() == 1:
            owner = torch.arange(self.devices).repeat_interleave(self.start.diff())
            pairs = torch.unique(owner * self.classes + self.y)
            lines.append(
                f"classes per device: {_spread(torch.bincount(pairs // self.classes, minlength=self.devices))}"
            )
        return visible("\n".join([*lines, *([] if self.found is None else [str(self.found)]), *self.notes]), lines=True)

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        *,
        tree: Tree | str | int | Sequence[int] | Mapping[str, Any] | None = None,
        device: Any = None,
        team: Any = None,
        test: Any = 0.25,
        seed: int = 0,
        classes: int | None = None,
        affine: tuple[float, float] | None = None,
        source: str = "arrays",
    ) -> Population:
        """Make a population from a user's own samples.

        Args:
            x: Features, one row per sample (numpy or torch), or a list with one array per device. Whole numbers wider
                than a byte are tokens; give floats for anything else.
            y: Labels (whole numbers) or targets (floats), laid out like ``x``.
            tree: The tree, or what `Tree.parse` reads; without it one is made from ``device`` and ``team``.
            device: The device's number or name of every sample (of every array, when ``x`` is a list).
            team: The team of every sample (or array), or a mapping from device to team; not with ``tree``.
            test: The part of each device's samples kept for testing, or a flag per sample: your own split.
            seed: Seed of the split.
            classes: Number of classes; the largest label plus one when not given. Give floats in ``y`` for regression.
            affine: A scale and a shift: features are ``x * scale + shift``.
            source: A word for reports.
        """
        seed, affine = values.seed(seed), check_affine(affine)
        if isinstance(x, list | tuple):
            x, y, device, team, test = _from_lists(x, y, tree, device, team, test)
        else:
            x, y = columns.numeric(x, "x", device), columns.numeric(y, "y", device)
        features, targets = packing.as_tensor(x, "x"), packing.as_tensor(y, "y")
        if not targets.is_floating_point():
            targets = targets.long()
        if isinstance(device, _Numbers):
            tree, number = Tree.parse(tree if tree is not None else device.count), device.column
        else:
            tree, number = columns.resolve(len(features), tree, device, team)
        packed = packing.pack(
            tree, features, targets, torch.from_numpy(number), test=_split(test), seed=seed, classes=classes
        )
        packing.refuse_large(tree, packed.x, packed.start, affine)
        if told := packing.understood(packed.y, packed.classes, classes is not None):
            warnings.warn(told, PalmetteWarning, stacklevel=2)
        return Population(tree, *packed[:4], affine=affine, classes=packed.classes, source=str(source))


def check_affine(given: Any) -> tuple[float, float] | None:
    """Return a scale and a shift of features, or refuse what is none."""
    if given is None:
        return None
    both = values.plain(given)
    if not isinstance(both, list) or len(both) != 2:
        raise BadInput(f"affine must be two numbers, a scale and a shift, not {values.shown(given)}")
    return values.real("affine's scale", both[0]), values.real("affine's shift", both[1])


def _split(test: Any) -> float | Tensor:
    """Return the part of the samples that is for testing, or a flag per sample."""
    flags = columns.as_numpy(test, "test")
    if flags.ndim == 0:
        return values.fraction("test", values.plain(test))
    if flags.dtype != bool or flags.ndim != 1:
        raise BadInput(
            f"test must be a fraction or one true/false per sample, not {flags.dtype} of shape {flags.shape}"
        )
    return torch.from_numpy(flags.copy())


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Device numbers that come from the order of a list, not from a user's column."""

    count: int
    column: Any


def _from_lists(x: Any, y: Any, tree: Any, device: Any, team: Any, test: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Join the arrays of a list and repeat the per-device columns for every sample."""
    if not isinstance(y, list | tuple) or len(x) != len(y):
        raise BadInput(f"x is a list of {len(x)} devices; y must be a list of as many arrays")
    joined_x, sizes = columns.join(x, "x")
    joined_y, lengths = columns.join(y, "y")
    if (sizes != lengths).any():
        number = int((sizes != lengths).argmax())
        raise BadInput(f"device {number}: x has {sizes[number]} samples, y has {lengths[number]}; they must be equal")
    if isinstance(test, list | tuple):
        test = columns.join(test, "test")[0]
    if device is None and team is None:
        count = len(sizes)
        if tree is not None and Tree.parse(tree).devices != count:
            raise BadInput(f"the tree has {Tree.parse(tree).devices} devices, x has {count} arrays; they must be equal")
        return joined_x, joined_y, _Numbers(count, np.repeat(np.arange(count, dtype=np.int64), sizes)), None, test
    device = np.arange(len(sizes)) if device is None else device
    repeated = {
        what: column if column is None or isinstance(column, Mapping) else columns.per_array(column, sizes, what)
        for what, column in (("device", device), ("team", team))
    }
    return joined_x, joined_y, repeated["device"], repeated["team"], test


def _spread(counts: Tensor) -> str:
    """Write the least, the median and the largest of some counts."""
    return f"{int(counts.min())} to {int(counts.max())}, median {np.median(counts.numpy()):g}"
