"""What crosses links in a survey: sums of what nodes know, packed into rows that no codec rounds."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palmette.blocks import seen, variances
from palmette.blocks.seen import Shape, flatness
from palmette.blocks.variances import Known
from palmette.protocol import Ask, Device, Node, Replies, State


class Below(NamedTuple):
    """What nodes know from below, for several points: the sums over their children, and over all that is under them.

    Attributes:
        known: Grams and moments, for each point.
        fit: What all nodes below explained ``(n,)``, for each point.
        cost: The costs of all nodes below ``(n,)``, for each point.
        squares: The sum of the squared targets ``(n, 1)``.
        samples: The number of samples ``(n, 1)``.
    """

    known: list[Known]
    fit: list[Tensor]
    cost: list[Tensor]
    squares: Tensor
    samples: Tensor

    @staticmethod
    def of_moments(rows: Tensor, parents: Tensor, count: int, ratios: list[Tensor], shape: Shape) -> Below:
        """Integrate out the devices' parameters at each of their ratios, and add up team by team."""
        known = read_known(rows[:, : shape.moments], shape)
        made = {}
        for ratio in ratios:
            key = tuple(ratio.tolist())
            if key not in made:
                up = variances.lift(known, ratio.expand(shape.size))
                fit, cost = (rows.new_zeros(count).index_add_(0, parents, one) for one in (up.fit, up.cost))
                made[key] = up.known.added(parents, count), fit, cost
        each = [made[tuple(ratio.tolist())] for ratio in ratios]
        sums, fits, costs = [one[0] for one in each], [one[1] for one in each], [one[2] for one in each]
        ends = rows.new_zeros(count, 2).index_add_(0, parents, rows[:, -2:])
        return Below(sums, fits, costs, ends[:, :1], ends[:, 1:])

    @staticmethod
    def read(rows: Tensor, points: int, shape: Shape) -> Below:
        """Undo `packed`."""
        parts = rows[:, :-2].unflatten(1, (points, shape.moments + 2)).unbind(1)
        known = [read_known(part[:, : shape.moments], shape) for part in parts]
        return Below(known, [p[:, -2] for p in parts], [p[:, -1] for p in parts], rows[:, -2:-1], rows[:, -1:])

    def packed(self, shape: Shape) -> Tensor:
        """Return it as one row for each node."""
        parts = [
            torch.cat([half(known.gram), known.moment.flatten(1), fit[:, None], cost[:, None]], 1)
            for known, fit, cost in zip(self.known, self.fit, self.cost, strict=True)
        ]
        return torch.cat([*parts, self.squares, self.samples], 1)

    def spread_out(self, places: list[int]) -> Below:
        """Return it with a point for each place among those it has."""
        return Below(
            [self.known[place] for place in places],
            [self.fit[place] for place in places],
            [self.cost[place] for place in places],
            self.squares,
            self.samples,
        )

    def lifted(self, ratios: list[Tensor], shape: Shape) -> Tensor:
        """Return what the nodes tell their parents: their own parameters integrated out at each point, packed."""
        ups = [variances.lift(known, ratio.expand(shape.size)) for known, ratio in zip(self.known, ratios, strict=True)]
        fit = [up.fit + one for up, one in zip(ups, self.fit, strict=True)]
        cost = [up.cost + one for up, one in zip(ups, self.cost, strict=True)]
        return Below([up.known for up in ups], fit, cost, self.squares, self.samples).packed(shape)


class Told:
    """What everybody told of their parameters, added up.

    Args:
        row: The sums.
        tiers: Tiers below the server.
        shape: The last layer's.
    """

    def __init__(self, row: Tensor, tiers: int, shape: Shape) -> None:
        parts = row[: tiers * (shape.size + 1)].view(tiers, shape.size + 1)
        self.squares, self.nodes = parts[:, :-1], parts[:, -1]
        self._ends, self._columns = row[-4:].tolist(), shape.columns

    @staticmethod
    def width(tiers: int, shape: Shape) -> int:
        """Return how many numbers there are."""
        return tiers * (shape.size + 1) + 4

    @property
    def flatness(self) -> float:
        """How curved the loss is in the outputs where the model fits, against the squared loss."""
        right, seen = self._ends[:2]
        return 1.0 if not seen else flatness(right / seen, self._columns)

    @property
    def first(self) -> float:
        """The same where the model begins and knows nothing."""
        return 1.0 if not self._ends[1] else flatness(1 / max(2, self._columns), self._columns)

    @property
    def bend(self) -> float:
        """The mean curvature of a network's loss where it begins."""
        total, devices = self._ends[2:]
        return total / devices if devices else 0.0


def everybody(node: Node) -> dict[str, Any]:
    """Return how a survey asks: all children, whatever the link's participation, since its exchanges build on each other."""
    return {"only": torch.ones(len(node.child_ids), dtype=torch.bool), "again": True}


def summed(node: Node, message: Any, still: Tensor) -> Generator[Any, Replies, Tensor]:
    """Ask the children and return the sums of their replies; ``still`` (zeros) where nobody answered."""
    got = yield Ask(message, otherwise=bare(still), **everybody(node))
    return got.rows[:, 0].double() * got.count.to(got.rows.device)[:, None]


def bare(rows: Tensor) -> Tensor:
    """Return rows in a shape that tells links that they are no models, so that no codec rounds them; ``[:, 0]`` undoes it."""
    return rows[:, None]


def half(square: Tensor) -> Tensor:
    """Return the lower halves of symmetric matrices as rows."""
    row, column = torch.tril_indices(square.shape[1], square.shape[1])
    return square[:, row, column]


def read_known(rows: Tensor, shape: Shape) -> Known:
    """Return grams and moments from rows."""
    half, moment = rows.split([shape.size * (shape.size + 1) // 2, shape.size * shape.columns], 1)
    return Known(whole(half, shape.size), moment.unflatten(1, (shape.size, shape.columns)))


def whole(half: Tensor, size: int) -> Tensor:
    """Undo `half`."""
    row, column = torch.tril_indices(size, size)
    made = half.new_zeros(len(half), size, size)
    made[:, row, column] = made[:, column, row] = half
    return made


def means(message: Any, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the parents' parameters and their covariances from a message."""
    mean = message["mean"][:, 0].double().unflatten(1, (shape.size, shape.columns))
    return mean, whole(message["spread"][:, 0].double(), shape.size)


def unfolded(message: Any, tiers: int) -> Tensor:
    """Return the ratios that are asked about ``(points, tiers, size or 1)``."""
    asked: Tensor = message["ratios"][0, 0]
    return asked.double().view(int(message["points"]), tiers, -1)


def different(ratios: Tensor) -> Tensor:
    """Return the devices' ratios that differ ``(points, size or 1)``, in a fixed order."""
    found: Tensor = torch.unique(ratios[:, 0], dim=0)
    return found


def place_of(among: Tensor, one: Tensor) -> int:
    """Return the place of a device's ratio among those that differ."""
    return int((among == one).all(1).nonzero()[0])


def own_moments(node: Device, message: Any, shape: Shape) -> Tensor:
    """Return devices' moments in the frame of a message, with the squares of their targets and their samples at the end."""
    rows = []
    bases = message["basis"].double().view(-1, shape.features, shape.kept)
    for (x, y), basis in zip(seen.samples(node, message, shape), bases, strict=True):
        z = seen.framed(x, basis, float(message["scale"]), shape)
        t = seen.targets(node, y, shape)
        known = Known((z.mT @ z)[None], (z.mT @ t)[None])
        ends = torch.stack([t.square().sum(), t.new_tensor(float(len(t)))])
        rows.append(torch.cat([half(known.gram)[0], known.moment.flatten(), ends]))
    return torch.stack(rows)


def own_settled(node: Device, message: Any, state: State, shape: Shape) -> Tensor:
    """Return the squares of devices' differences to their teams, and how well they fit their own samples."""
    tiers, mine = node.tree.top, state["moments"].double()
    ratios = message["ratios"].double()[0, 0].view(tiers, -1)
    mean, spread = means(message, shape)
    known = read_known(mine[:, : shape.moments], shape)
    own = variances.settle(known, ratios[0], mean, spread, float(message["noise"]))
    there = (mine[:, -1:] > 0).double()
    told = mine.new_zeros((len(mine), Told.width(tiers, shape)))
    told[:, : shape.size + 1] = torch.cat([there * own.squares, there], 1)
    if "basis" in message and seen.kind_of(node) != "squared":
        bases = message["basis"].double().view(-1, shape.features, shape.kept)
        for line, (x, y), basis, theta in zip(told, seen.samples(node, message, shape), bases, own.mean, strict=True):
            z = seen.framed(x, basis, float(message["scale"]), shape)
            known_here = float(line[shape.size])  # one without moments has nothing of its own to fit
            line[-4] = known_here * seen.right(z @ theta, seen.targets(node, y, shape))
            line[-3] = known_here * len(y)
    if "model" in message:
        told[:, -2] = seen.bend(node, message["model"])
        told[:, -1] = 1
    return told
