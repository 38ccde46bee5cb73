"""Variance components: how different the nodes of every tier are, against how noisy their samples are.

The population is seen as a mixed (multilevel) linear model on a tree of any depth. With x the parameters for everybody,

    theta_node ~ N(theta_parent, s2 D_tier)   for every node below the server,      y = Z theta_device + N(0, s2),

every ``D`` a diagonal of ratios: the variance of a tier in each direction of the features, over that of the noise. All that is
ever needed of a node are a *gram* ``G`` and a *moment* ``M``: ``Z'Z`` and ``Z'Y`` of a device; a parent's are the sums of what
its children send up, which is their own ``G`` and ``M`` with their own parameters integrated out (`lift`)

    (I + G D)^-1 G    and    (I + G D)^-1 M.

The server, whose parameters have no prior (they are fixed effects, so the likelihood is the restricted one, REML), then knows
how likely the samples are under the ratios (`evidence`); the noise follows in closed form. Going down again (`settle`) gives
what every node's parameters are, how sure that is, and by how much nodes differ from their parents: one step of the EM
algorithm for the ratios (`renewed`).

Nothing here needs samples: it is the mathematics of `palmette.blocks.survey`, which asks for what it needs, and of
`palmette.theory.components`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from palmette.tree import Tree

LEAST, MOST = 1e-4, 1e3
"""The ratios that are told apart: below there is no difference between nodes that one could see, above nothing in common."""
_COARSE = tuple(10.0**power for power in range(-3, 2))
_FINER = (10**0.5, 10**0.25, 10**0.125)
PRIOR = 20.0
"""How many nodes' worth of belief there is that a tier differs equally in all directions."""


class Known(NamedTuple):
    """What is known of some nodes.

    Attributes:
        gram: ``G`` of each ``(n, p, p)``.
        moment: ``M`` of each ``(n, p, c)``, a column for each class or target.
    """

    gram: Tensor
    moment: Tensor

    def added(self, parents: Tensor, count: int) -> Known:
        """Return what the parents know: the sums over their children."""
        gram = self.gram.new_zeros(count, *self.gram.shape[1:]).index_add_(0, parents, self.gram)
        return Known(gram, self.moment.new_zeros(count, *self.moment.shape[1:]).index_add_(0, parents, self.moment))


class Lifted(NamedTuple):
    """What nodes tell their parents.

    Attributes:
        known: Their ``G`` and ``M`` with their own parameters integrated out.
        fit: By how much the squared sum of the targets is explained by the nodes' own differences ``(n,)``.
        cost: The logarithm of the determinant that pays for it ``(n,)``.
    """

    known: Known
    fit: Tensor
    cost: Tensor


def lift(known: Known, ratio: Tensor) -> Lifted:
    """Integrate out the parameters of some nodes.

    Args:
        known: What is known of them.
        ratio: The ratios of their tier, one per direction ``(p,)``; 0 where nodes are like their parents.
    """
    root, inner = _factor(known, ratio)
    right = torch.cat([known.gram, known.moment], 2) * root[:, None]
    solved = torch.linalg.solve_triangular(inner, right, upper=False)
    mine, told = solved.split([known.gram.shape[2], known.moment.shape[2]], 2)
    up = Known(known.gram - mine.mT @ mine, known.moment - mine.mT @ told)
    return Lifted(up, told.square().sum((1, 2)), 2 * inner.diagonal(dim1=1, dim2=2).log().sum(1))


def _factor(known: Known, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return the roots of the ratios, and the Cholesky factor of ``I + D^1/2 G D^1/2``."""
    root = ratio.to(known.gram).clamp(min=0.0).sqrt()
    inner = root[:, None] * known.gram * root
    size = len(root)
    inner = (inner + inner.mT) / 2 + torch.eye(size, dtype=inner.dtype, device=inner.device)
    factor, failed = torch.linalg.cholesky_ex(inner)
    if bool(failed.any()):  # a gram that a link rounded need not be one any more: take the nearest that is
        values, vectors = torch.linalg.eigh(inner)
        factor = torch.linalg.cholesky((vectors * values.clamp(min=1.0)[:, None]) @ vectors.mT)
    return root, factor


class Fit(NamedTuple):
    """What the server finds under some ratios.

    Attributes:
        evidence: How likely the samples are: the logarithm of the restricted likelihood, but for a constant.
        noise: The variance ``s2`` of the noise.
        mean: The parameters for everybody ``(p, c)``.
        spread: Their covariance over ``s2`` ``(p, p)``.
    """

    evidence: float
    noise: float
    mean: Tensor
    spread: Tensor


def concluded(known: Known, fit: float, cost: float, squares: float, samples: float) -> Fit:
    """Return what follows at the server from all that came up.

    Args:
        known: The sums over the server's children ``(1, p, p)`` and ``(1, p, c)``.
        fit: The sum of what all nodes below explained.
        cost: The sum of all nodes' costs.
        squares: The sum of the squared targets.
        samples: The number of samples.
    """
    gram, moment = known.gram[0], known.moment[0]
    columns = moment.shape[1]
    values, vectors = torch.linalg.eigh(gram)
    seen = values > 1e-9 * values[-1].clamp(min=1e-300)  # a direction that nobody has samples in says nothing
    inverse = torch.where(seen, 1 / torch.where(seen, values, 1.0), 0.0)
    turned = vectors.mT @ moment
    spread = (vectors * inverse) @ vectors.mT
    freedom = max(samples - int(seen.sum()), 1.0) * columns
    rest = max(squares - fit - float((inverse[:, None] * turned.square()).sum()), 1e-12 * max(squares, 1e-300))
    noise = rest / freedom
    logs = cost + float(values[seen].log().sum())
    evidence = -0.5 * (freedom * math.log(noise) + columns * logs + freedom)
    return Fit(evidence, noise, spread @ moment, spread)


class Settled(NamedTuple):
    """What is known of nodes once everybody's samples are taken into account.

    Attributes:
        mean: Their parameters ``(n, p, c)``.
        spread: Their covariance over the noise ``(n, p, p)``.
        squares: For each direction, the expected square of their differences to their parents over the noise ``(n, p)``, a
            mean over columns.
    """

    mean: Tensor
    spread: Tensor
    squares: Tensor


def settle(known: Known, ratio: Tensor, mean: Tensor, spread: Tensor, noise: float) -> Settled:
    """Return the parameters of some nodes, given those of their parents.

    Args:
        known: What is known of the nodes themselves.
        ratio: The ratios of their tier ``(p,)``.
        mean: The parameters of each one's parent ``(n, p, c)`` ...
        spread: ... and their covariance over the noise ``(n, p, p)``.
        noise: The variance of the noise.
    """
    root, inner = _factor(known, ratio)
    own = torch.cholesky_inverse(inner) * root[:, None] * root  # covariance given the parent
    moved = -own @ known.gram  # what a change of the parent's changes of the difference
    apart = moved @ mean + own @ known.moment
    free = own + moved @ spread @ moved.mT
    squares = apart.square().mean(2) / noise + free.diagonal(dim1=1, dim2=2)
    shift = moved + torch.eye(len(root), dtype=own.dtype, device=own.device)
    return Settled(mean + apart, own + shift @ spread @ shift.mT, squares)


def renewed(ratio: Tensor, squares: Tensor, nodes: float, columns: int, base: float) -> Tensor:
    """Return the ratios of a tier after one step of the EM algorithm, kept near one number for all directions.

    Args:
        ratio: The ratios now ``(p,)``.
        squares: The sums over all nodes of `Settled.squares` ``(p,)``.
        nodes: The number of nodes.
        columns: Columns of the parameters, each of which is seen separately.
        base: The ratio that is the same for all directions.
    """
    found = (PRIOR * base + columns * squares) / (PRIOR + columns * nodes)
    return torch.where(ratio > 0, found, ratio).clamp(max=MOST)


Points = list[tuple[float, ...]]
"""Ratios to be tried, each one for every tier that is looked for, the devices' first."""


def told_apart(tree: Tree) -> list[int]:
    """Return the tiers below the server whose variances can be told apart from each other.

    Where a tier has one node only, nothing shows how nodes of it differ; where every node of it has one child, nothing shows
    whether the two tiers' nodes differ. What there is of differences then counts as the lower tier's.

    Args:
        tree: The tree.
    """
    return [0, *(tier for tier in range(1, tree.top) if 1 < tree.size(tier) < tree.size(tier - 1))]


class Tried(NamedTuple):
    """How much is tried at once in a search.

    Attributes:
        points: Points.
        devices: Different ratios of devices among them.
    """

    points: int
    devices: int


def tried(tree: Tree) -> list[Tried]:
    """Return how much is tried in every step of a search on a tree.

    Args:
        tree: The tree.
    """
    found = []
    for pair, step in _steps(len(told_apart(tree))):
        many = len(_COARSE) if step is None else 3
        found.append(Tried(many ** len(pair), many if 0 in pair else 1))
    return found


def _steps(tiers: int) -> list[tuple[tuple[int, ...], float | None]]:
    """Return which tiers' ratios are looked for in every step of a search, and how far apart; ``None`` for the coarse grid."""
    pairs: list[tuple[int, ...]] = [(tier, tier + 1) for tier in range(tiers - 1)] or [(0,)]
    return [(pair, step) for step in (None, *_FINER) for pair in pairs]


def search(tiers: int) -> Generator[Points, Sequence[float], tuple[float, ...]]:
    """Look for the likeliest ratios: yield points to be tried, get how likely they are, and return the best.

    A coarse grid, then ever finer ones around the best so far; of more than two tiers two neighbours at a time.

    Args:
        tiers: How many tiers' ratios are looked for.
    """
    best = (0.1,) * tiers
    for pair, step in _steps(tiers):
        around = [_COARSE if step is None else _near(best[tier], step) for tier in pair]
        points = []
        for values in product(*around):
            point = list(best)
            for tier, value in zip(pair, values, strict=True):
                point[tier] = value
            points.append(tuple(point))
        points = list(dict.fromkeys(points))
        # The best so far is among those tried: where not everybody answers, only points of one exchange can be compared.
        found = dict(zip(points, (yield points), strict=True))
        best = max(found, key=lambda point: found[point])
    return tuple(0.0 if value <= LEAST * 2 else value for value in best)


def _near(value: float, step: float) -> tuple[float, ...]:
    """Return a ratio, one below and one above it; at the ends of the grid the whole range beyond is looked at."""
    low = value / step if value > 1.5e-3 else LEAST
    return low, value, min(value * step, MOST)
