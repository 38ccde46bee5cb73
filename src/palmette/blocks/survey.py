"""A survey: the exchanges in which a federation finds its variance components, and the pulls that follow from them.

The server asks, teams add up, devices answer from their training samples (`palmette.blocks.variances` has the mathematics):

1. *pool*: the number of samples, the mean square of the features and a sketch of their second moments, all sums;
2. *look*, several times: how likely the samples are under some ratios of variances. With the first goes the frame, in which
   features are scaled and turned to their principal directions. A device keeps its own moments in that frame;
3. *settle*: everybody's parameters under the ratios found, for the training accuracy and, where every direction gets a pull
   of its own, for a step of the EM algorithm each.

What leaves a device in *look* is a choice. ``"moments"``: its ``Z'Z`` and ``Z'Y`` in the frame, **which its team then sees**.
``"sums"``: the same with the device's own parameters integrated out, at ratios that the server chooses and that are the same
for everybody; the team needs only their sum over its devices, so that a secure sum could stand in its place.

A survey asks everybody, whatever the links' participation: its exchanges build on each other, so those that answer must be the
same. Who is away all the same, or whose reply is lost, does not count. On a tree without teams the server stands in a team's
place, and sees the moments.

The features are those that enter the model's last layer: the samples' own where the model is one linear layer; of a network
those of the initial model. A pull follows from a ratio ``D``, the scale ``c`` of the features and the flatness ``h`` of the
loss where the model fits: ``h c^2 / (D n)`` for a node with n training samples. Of a network it is that in proportion to the
mean curvature of its loss.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from palmette.blocks import seen, survey_costs, variances
from palmette.blocks.seen import Shape
from palmette.blocks.surveyed import (
    Below,
    Told,
    bare,
    different,
    everybody,
    half,
    means,
    own_moments,
    own_settled,
    place_of,
    summed,
    unfolded,
)
from palmette.protocol import Ask, Device, Inner, Node, Replies, State
from palmette.task.layout import Layout
from palmette.tree import Tree

Way = Literal["moments", "sums"]
ENDLESS = 1e30  # stands for an infinite pull in states and messages, which must be finite
STEPS = 8  # of the EM algorithm, where every direction gets a pull of its own
WORD = "survey"  # the name of the number in a message that tells what is asked
_POOL, _LOOK, _SETTLE = 1, 2, 3

Asking = Generator[Any, Replies, Any]


class Found(NamedTuple):
    """What a survey found.

    Attributes:
        pulls: For every tier below the server, the devices' first, its pull times the training samples of a node: one number
            for all directions ``(tiers,)``; `ENDLESS` where nodes are like their parents.
        turned: The same by direction ``(tiers, size)``; the constant feature is the last.
        share: The share of the rounds that go to the global model.
        basis: The principal directions ``(features, kept)``.
    """

    pulls: Tensor
    turned: Tensor
    share: float
    basis: Tensor


@dataclass(frozen=True)
class Survey:
    """How a survey is done.

    Attributes:
        way: What leaves a device.
        turned: Whether every direction gets a pull of its own.
    """

    way: Way = "moments"
    turned: bool = False

    def keeps(self, node: Node, initial: Tensor) -> dict[str, Tensor]:
        """Return what a device keeps: its moments, and the directions where each has a pull of its own."""
        shape = Shape.of(node.layout)
        kept = {"moments": initial.new_zeros(shape.moments + 2)}
        return {**kept, "basis": initial.new_zeros(shape.features * shape.kept)} if self.turned else kept

    def exchanges(self, tree: Tree) -> tuple[int, int]:
        """Return how many exchanges the server makes, and how many a team makes with its devices."""
        return survey_costs.exchanges(self.settled, tree)

    @property
    def settled(self) -> int:
        """How often everybody settles its own parameters."""
        return 1 + (STEPS if self.turned else 0)

    def carried(self, tree: Tree, layout: Layout) -> list[tuple[int, int]]:
        """Return what a survey costs on every link, the devices' first: exchanges, and bytes both ways.

        Args:
            tree: The tree.
            layout: The model's.
        """
        return survey_costs.carried(tree, layout, settled=self.settled, moments=self.way == "moments")

    def outline(self, tree: Tree) -> dict[str, Any]:
        """Tell what it costs and whom it asks, for the outline of a run."""
        above, below = self.exchanges(tree)
        told: dict[str, Any] = {"survey_exchanges_with_the_server": above}
        if tree.top > 1:
            told["survey_exchanges_in_each_team"] = below
        return {**told, "survey_asks": "the survey asks every device, whatever the participation"}

    # -- the server ----------------------------------------------------------------------------------------------------

    def ask(self, node: Node, model: Tensor) -> Generator[Any, Replies, Found | None]:
        """Survey the population: a part of the server's program; ``None`` where nobody answered."""
        shape = Shape.of(node.layout)
        beginning = {} if shape.alone else {"model": model}
        still = model.new_zeros((1, 2 + shape.features * shape.sketch))
        pooled = yield from summed(node, {WORD: _POOL, **beginning}, still)
        samples, size = float(pooled[0, 0]), float(pooled[0, 1])
        if not samples or not size > 0:
            return None
        scale = (size / samples) ** 0.5
        sketch = pooled[0, 2:].view(shape.features, shape.sketch)
        basis, bends = seen.principal(sketch, seen.drawn_for(node.seed, shape), shape.kept)
        frame = {**beginning, "basis": bare(basis.reshape(1, -1).to(model)), "scale": scale}
        base = yield from self._likeliest(node, frame, pooled)
        if base is None:
            return None
        ratios, told = yield from self._by_direction(node, base, frame)
        if told is None:
            return None
        flat = told.flatness
        # A network's mean curvature at its beginning stands for that of a linear model, h0 c^2 / features.
        weight = flat * scale**2 if shape.alone else told.bend * shape.features * flat / told.first
        pulls = pulls_of(base, weight)
        rest = bends.new_full((shape.features - shape.kept,), seen.rest(size, bends, shape))
        own = torch.cat([bends, rest]) / samples * weight / scale**2  # how curved the loss is in each direction
        team = float(pulls[-1]) * node.tree.size(node.tree.top - 1) / samples
        return Found(pulls, pulls_of(ratios, weight), float((team / (own + team)).mean()), basis)

    def _likeliest(self, node: Node, frame: Mapping[str, Any], like: Tensor) -> Generator[Any, Replies, Tensor | None]:
        """Return the likeliest ratios, one for each tier; with the first look goes the frame."""
        free = variances.told_apart(node.tree)
        hunt, more = variances.search(len(free)), frame
        points = next(hunt)
        while True:
            ratios = like.new_zeros((len(points), node.tree.top))
            ratios[:, free] = like.new_tensor(points)
            fits = yield from self._fits(node, ratios[:, :, None], more)
            if fits is None:
                return None
            try:
                points, more = hunt.send([fit.evidence for fit in fits]), {}
            except StopIteration as end:
                best = like.new_zeros(node.tree.top)
                best[free] = like.new_tensor(end.value)
                return best

    def _by_direction(
        self, node: Node, base: Tensor, frame: Mapping[str, Any]
    ) -> Generator[Any, Replies, tuple[Tensor, Told | None]]:
        """Return the ratios of all tiers by direction, and what everybody tells of their parameters then."""
        shape = Shape.of(node.layout)
        ratios = base[:, None].expand(-1, shape.size)
        for _ in range(STEPS if self.turned else 0):
            fits, told = yield from self._settled(node, ratios, {})
            if fits is None:
                return ratios, None
            ratios = torch.stack(
                [
                    variances.renewed(ratio, told.squares[tier], float(told.nodes[tier]), shape.columns, float(one))
                    for tier, (ratio, one) in enumerate(zip(ratios, base, strict=True))
                ]
            )
        fits, told = yield from self._settled(node, ratios, frame)
        return ratios, None if fits is None else told

    def _fits(
        self, node: Node, ratios: Tensor, more: Mapping[str, Any]
    ) -> Generator[Any, Replies, list[variances.Fit] | None]:
        """Return what follows from some ratios ``(points, tiers, size or 1)``; ``None`` where nobody answered."""
        message = {WORD: _LOOK, "points": len(ratios), "ratios": bare(ratios.reshape(1, -1)), **more}
        below = yield from self._below(node, message)
        if not float(below.samples[0]) > 0:
            return None
        return [
            variances.concluded(known, float(fit[0]), float(cost[0]), float(below.squares[0]), float(below.samples[0]))
            for known, fit, cost in zip(below.known, below.fit, below.cost, strict=True)
        ]

    def _settled(
        self, node: Node, ratios: Tensor, frame: Mapping[str, Any]
    ) -> Generator[Any, Replies, tuple[list[variances.Fit] | None, Told]]:
        """Return what follows from ratios ``(tiers, size)``, and what everybody tells of their parameters then.

        Only with the frame devices can look at their samples again and say how many are classified rightly.
        """
        shape, tiers = Shape.of(node.layout), node.tree.top
        fits = yield from self._fits(node, ratios[None], {})
        nothing = ratios.new_zeros((1, Told.width(tiers, shape)))
        if fits is None:
            return None, Told(nothing[0], tiers, shape)
        message = {WORD: _SETTLE, "ratios": bare(ratios.reshape(1, -1)), "noise": fits[0].noise}
        message |= {"mean": bare(fits[0].mean.reshape(1, -1)), "spread": bare(half(fits[0].spread[None])), **frame}
        told = yield from summed(node, message, nothing)
        return fits, Told(told[0], tiers, shape)

    # -- teams ---------------------------------------------------------------------------------------------------------

    def pass_on(self, node: Node, message: Any, state: State) -> Inner:
        """Answer the survey at inner nodes: a part of their program."""
        shape, tiers = Shape.of(node.layout), node.tree.top
        match message[WORD]:
            case 1:
                still = state["model"].new_zeros((len(node), 2 + shape.features * shape.sketch))
                return bare((yield from summed(node, message, still)).to(still)), state
            case 2:
                below = yield from self._below(node, message)
                ratios = unfolded(message, tiers)
                return bare(below.lifted([one[node.tier] for one in ratios], shape)), state
        # Settle one's own parameters, then let the children settle theirs.
        ratios = message["ratios"].double()[0, 0].view(tiers, -1)
        look = {WORD: _LOOK, "points": 1, "ratios": message["ratios"]}
        below = yield from self._below(node, look)
        mean, spread = means(message, shape)
        own = variances.settle(below.known[0], ratios[node.tier], mean, spread, float(message["noise"]))
        passed = {**message, "mean": bare(own.mean.flatten(1)), "spread": bare(half(own.spread))}
        told = yield from summed(node, passed, ratios.new_zeros((len(node), Told.width(tiers, shape))))
        known = (below.samples > 0).double()
        told[:, node.tier * (shape.size + 1) : (node.tier + 1) * (shape.size + 1)] += torch.cat(
            [known * own.squares, known], 1
        )
        return bare(told), state

    def _below(self, node: Node, message: Mapping[str, Any]) -> Generator[Any, Replies, Below]:
        """Ask the children for what they know with their own parameters integrated out, and add it up."""
        shape, ratios = Shape.of(node.layout), unfolded(message, node.tree.top)
        if node.tier > 1 or self.way == "sums":
            mine = different(ratios) if node.tier == 1 else ratios
            still = mine.new_zeros((len(node), len(mine) * (shape.moments + 2) + 2))
            told = yield from summed(node, message, still)
            below = Below.read(told, len(mine), shape)
            return below if node.tier > 1 else below.spread_out([place_of(mine, one[0]) for one in ratios])
        got = yield Ask(message, reduce="stack", **everybody(node))
        rows = got[""][:, 0] if len(got.positions) else message["ratios"].new_zeros((0, shape.moments + 2))
        return Below.of_moments(
            rows.double(), got.parents.to(rows.device), len(node), [one[0] for one in ratios], shape
        )

    # -- devices -------------------------------------------------------------------------------------------------------

    def answer(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Answer the survey at devices: a part of their program."""
        shape = Shape.of(node.layout)
        match message[WORD]:
            case 1:
                rows = [seen.pooled(node, shape, x) for x, _ in seen.samples(node, message, shape)]
                return bare(torch.stack(rows).to(state["moments"])), state
            case 2:
                if "basis" in message:
                    state = {**state, "moments": own_moments(node, message, shape).to(state["moments"])}
                    state |= {"basis": message["basis"][:, 0].to(state["basis"])} if "basis" in state else {}
                if self.way == "moments":
                    return bare(state["moments"]), state
                mine = state["moments"].double()
                parents = torch.arange(len(mine), device=mine.device)
                ratios = list(different(unfolded(message, node.tree.top)))
                below = Below.of_moments(mine, parents, len(mine), ratios, shape)
                return bare(below.packed(shape)), state
        return bare(own_settled(node, message, state, shape)), state


def pulls_of(ratios: Tensor, weight: float) -> Tensor:
    """Return pulls times samples from ratios."""
    some = ratios > 0
    return torch.where(some, weight / torch.where(some, ratios, 1.0), ENDLESS).double().clamp(max=ENDLESS)
