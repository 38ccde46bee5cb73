"""A population as a linear model sees it: training samples in few directions, and everybody's parameters in closed form.

Features are divided by ``c``, the root of the mean of ``|x|^2``, and turned to their principal directions; classes become
numbers (one-hot, minus the chance of guessing). What is known of a device are then two small matrices (its *moments*,
`palmette.blocks.variances.Known`), and the parameters of all devices, teams and the server under any ratios of variances follow
in one pass up the tree and one down (`solved`). Test samples are never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.blocks.variances import Known, lift
from palmette.errors import BadInput
from palmette.population import Population
from palmette.tree import Tree

REAL = torch.float64
_WIDE = 1500  # features beyond which only the leading directions are looked for
_NUMBERS = 4_000_000  # of features that are taken together at once
_MOST = 100_000_000  # numbers that the moments of all devices may have


@dataclass(frozen=True, eq=False)
class Frame:
    """How raw features become a few directions.

    Attributes:
        scale: ``c``, the root of the mean squared length of a sample.
        directions: The principal directions of the features, the strongest first ``(d, k)``.
        spectrum: The mean square of the raw features in every direction, the strongest first ``(d,)``.
        constant: Whether a constant feature ``1/c`` comes last, for the model's bias.
    """

    scale: float
    directions: Tensor
    spectrum: Tensor
    constant: bool

    @property
    def width(self) -> int:
        """Number of directions, the constant counted."""
        return self.directions.shape[1] + self.constant

    def turned(self, x: Tensor) -> Tensor:
        """Return raw features in these directions ``(n, width)``.

        Args:
            x: The features, one row per sample.
        """
        z = (x @ self.directions.to(x)).to(REAL) / self.scale
        return torch.cat([z, z.new_full((len(z), 1), 1 / self.scale)], 1) if self.constant else z


@dataclass(frozen=True, eq=False)
class Seen:
    """The training samples of a population in few directions.

    Attributes:
        tree: The tree over the devices.
        frame: How features were turned.
        z: The features ``(n, p)``.
        targets: One column for each class, or for each number that is learned ``(n, c)``.
        labels: The classes (int64); ``None`` for numbers.
        owner: The device of each sample, never descending.
    """

    tree: Tree
    frame: Frame
    z: Tensor
    targets: Tensor
    labels: Tensor | None
    owner: Tensor

    @property
    def squares(self) -> float:
        """The sum of the squared targets."""
        return float(self.targets.square().sum())

    @property
    def parents(self) -> list[Tensor]:
        """The parent of every node, tier by tier from the devices up."""
        return [torch.from_numpy(parent).long() for parent in self.tree.parents]

    def counts(self, tier: int = 0) -> Tensor:
        """Return the number of samples under every node of a tier."""
        above = torch.from_numpy(self.tree.ancestors(tier)).long()
        return torch.bincount(above[self.owner], minlength=self.tree.size(tier)).to(REAL)

    def moments(self, part: Tensor | None = None, parts: int = 1) -> Known:
        """Return what is known of every device, or of every part of its samples, the parts of a device one after the other.

        Args:
            part: The part of each sample, from 0.
            parts: How many parts there are.
        """
        groups = self.tree.devices * parts
        group = self.owner if part is None else self.owner * parts + part
        order = group.argsort(stable=True)
        both = torch.cat([self.z, self.targets], 1)[order]
        sizes = torch.bincount(group, minlength=groups)
        begins = sizes.cumsum(0) - sizes
        width = self.z.shape[1]
        made = both.new_zeros(groups, width, both.shape[1])
        by_size = sizes.argsort(descending=True, stable=True)
        first = 0
        while first < groups and (most := int(sizes[by_size[first]])):
            some = by_size[first : first + max(1, _NUMBERS // (most * both.shape[1]))]
            place = torch.arange(most)
            inside = place < sizes[some][:, None]
            rows = both[(begins[some][:, None] + place).clamp(max=len(both) - 1)] * inside[:, :, None]
            made[some] = rows[:, :, :width].mT @ rows
            first += len(some)
        return Known(made[:, :, :width], made[:, :, width:])


def seen(population: Population, *, directions: int = 30, constant: bool | None = None) -> Seen:
    """Return the training samples of a population in few directions.

    Args:
        population: The population.
        directions: How many principal directions of the features are kept; all where there are no more features.
        constant: Whether the model has a bias; by default where there are classes.
    """
    refuse(population)
    size = population.start.diff()
    owner = torch.arange(population.devices).repeat_interleave(size)
    used = torch.arange(len(owner)) - population.start[owner] < population.train[owner]
    if population.unseen is not None:
        used &= ~population.unseen[owner]
    index = used.nonzero().squeeze(1)
    x = population.features(index).flatten(1)
    bias = population.classes is not None if constant is None else constant
    frame = _frame(x, directions, bias)
    columns = population.classes or population.y[0].numel()
    if population.devices * frame.width * (frame.width + columns) > _MOST:
        raise BadInput(
            f"{population.devices} devices with {frame.width} directions and {columns} outputs are too many to be looked at "
            f"together; give fewer directions than {directions}, or a part of the devices"
        )
    return Seen(population.tree, frame, frame.turned(x), *_targets(population, index), owner[index])


def refuse(population: Population) -> None:
    """Refuse samples that no linear model of numbers can take.

    Args:
        population: The population.
    """
    if not (population.x.is_floating_point() or population.x.dtype == torch.uint8):
        raise BadInput(
            "the samples are tokens of text, and variance components are those of linear models of numbers; compare methods "
            "on held-out samples instead, as with palmette compare --tune"
        )
    if population.classes is not None and population.y.dim() > 1:
        raise BadInput("every sample has several labels, and variance components need one label or number per sample")


def _targets(population: Population, index: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the columns that are to be predicted, and the labels where there are classes."""
    given = population.y[index]
    if not bool(given.isfinite().all()):
        raise BadInput("a training sample has a target that is not a finite number")
    if bool((given == given[:1]).all()):
        raise BadInput("all training samples have the same label or target; there is nothing to learn")
    if population.classes is None:
        return given.to(REAL).reshape(len(index), -1), None
    return torch.nn.functional.one_hot(given, population.classes).to(REAL) - 1 / population.classes, given


def _frame(x: Tensor, directions: int, constant: bool) -> Frame:
    """Find the principal directions of some features."""
    samples, features = x.shape
    if not bool(x.isfinite().all()):
        raise BadInput("a training sample has a feature that is not a finite number")
    square = float(x.double().square().sum()) / samples
    if square <= 0:
        raise BadInput("all features of all training samples are 0; there is nothing to learn from")
    keep = min(directions, features)
    if min(samples, features) > _WIDE:
        return _leading(x, square, keep, constant)
    if samples < features:  # the smaller of the two products has the same eigenvalues
        values, vectors = torch.linalg.eigh((x @ x.mT).double())
        lead = values.flip(0).clamp(min=0.0)
        found = (
            x.double().mT
            @ vectors.flip(1)[:, : min(keep, samples)]
            / lead[: min(keep, samples)].clamp(min=1e-30).sqrt()
        )
        found = torch.linalg.qr(found)[0]
        spectrum = torch.cat([lead, lead.new_zeros(features - samples)]) / samples
    else:
        gram = x.mT @ x if features > 2 * directions else x.double().mT @ x.double()
        values, vectors = torch.linalg.eigh(gram.double())
        found, spectrum = vectors.flip(1)[:, :keep], values.flip(0).clamp(min=0.0) / samples
    return Frame(square**0.5, found, spectrum, constant)


def _leading(x: Tensor, square: float, keep: int, constant: bool) -> Frame:
    """Find only the strongest directions of very many features; what is left is shared out evenly over all others."""
    samples, features = x.shape
    basis = x[torch.linspace(0, samples - 1, min(2 * keep, samples)).long()].mT
    for _ in range(3):
        basis = torch.linalg.qr(x.mT @ (x @ torch.linalg.qr(basis)[0]))[0]
    values, turn = torch.linalg.eigh((x @ basis).double().mT @ (x @ basis).double())
    lead = values.flip(0)[:keep].clamp(min=0.0) / samples
    rest = max(square - float(lead.sum()), 0.0) / (features - keep)
    spectrum = torch.cat([lead, lead.new_full((features - keep,), rest)])
    return Frame(square**0.5, (basis.double() @ turn.flip(1)[:, :keep]), spectrum, constant)


def solved(
    known: Known, parents: Sequence[Tensor], ratios: Sequence[Tensor | float], *, zero: bool = False
) -> list[Tensor]:
    """Return the parameters of the nodes of every tier, the devices' first, the best under some ratios of variances.

    There may be several trees side by side: the last entry of ``parents`` then names the server of each.

    Args:
        known: What is known of the devices.
        parents: The parent of every node, tier by tier from the devices up.
        ratios: The ratios of every tier below the server, one number or one for each direction.
        zero: Whether the servers' parameters are held at 0.
    """
    width = known.gram.shape[1]
    wide = [torch.as_tensor(ratio, dtype=REAL).expand(width) for ratio in ratios]
    levels = [known]
    for parent, ratio in zip(parents, wide, strict=True):
        up = lift(levels[-1], ratio).known if bool((ratio > 0).any()) and not zero else levels[-1]
        levels.append(up.added(parent, int(parent[-1]) + 1))
    mean = torch.zeros_like(levels[-1].moment) if zero else least_squares(levels[-1])
    found = [mean]
    for level, parent, ratio in zip(levels[-2::-1], reversed(parents), reversed(wide), strict=True):
        mean = mean[parent]
        if bool((ratio > 0).any()):
            root = ratio.sqrt()[:, None]
            inner = root * level.gram * root.mT + torch.eye(width, dtype=REAL)
            left = root * (level.moment - level.gram @ mean)
            mean = mean + root * torch.cholesky_solve(left, torch.linalg.cholesky(inner))
        found.append(mean)
    return found[::-1]


def least_squares(known: Known) -> Tensor:
    """Return the parameters that fit best, the shortest where several do ``(n, p, c)``."""
    values, vectors = torch.linalg.eigh(known.gram)
    seen_ = values > 1e-9 * values[:, -1:].clamp(min=1e-300)
    inverse = torch.where(seen_, 1 / torch.where(seen_, values, 1.0), 0.0)
    found: Tensor = vectors @ (inverse[:, :, None] * (vectors.mT @ known.moment))
    return found


def predicted(z: Tensor, parameters: Tensor, whose: Tensor) -> Tensor:
    """Return what models say of samples ``(n, c)``.

    Args:
        z: The features of the samples.
        parameters: The parameters of some models ``(m, p, c)``.
        whose: The model of each sample.
    """
    each = max(1, _NUMBERS // (parameters.shape[1] * parameters.shape[2]))
    parts = [
        torch.bmm(some[:, None], parameters[which])[:, 0]
        for some, which in zip(z.split(each), whose.split(each), strict=True)
    ]
    return torch.cat(parts)
