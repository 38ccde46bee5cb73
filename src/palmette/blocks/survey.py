"""A survey: the exchanges in which a federation finds its variance components, and the pulls that follow from them.

The server asks, teams add up, devices answer from their training samples (`palmette.blocks.variances` has the mathematics):

1. *pool*: the number of samples, the mean square of the features and a sketch of their second moments, all sums;
2. *look*, several times: how likely the samples are under some ratios of variances. With the first goes the frame, in which
   features are scaled and turned to their principal directions. A device keeps its own moments in that frame;
3. *settle*: everybody's parameters under the ratios found, for the training accuracy and, where every direction gets a pull
   of its own, for a step of the EM algorithm each.

What leaves a device in *look* is a choice. ``"moments"``: its ``Z'Z`` and ``Z'Y`` in the frame, **which its team then sees**.
``"sums"``: the same with the device's own parameters integrated out, at a few fixed ratios; the team needs only their sum over
its devices, so that a secure sum could stand in its place.

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

from palmette import address
from palmette.blocks import variances
from palmette.blocks.variances import Known
from palmette.errors import BadInput
from palmette.learner.steps import Some
from palmette.protocol import Ask, Device, Inner, Node, Replies, State
from palmette.task.layout import Layout

Way = Literal["moments", "sums"]
MOST = 30  # principal directions of the features that are looked at
ENDLESS = 1e30  # stands for an infinite pull in states and messages, which must be finite
STEPS = 8  # of the EM algorithm, where every direction gets a pull of its own
_MORE = 10  # columns of a sketch beyond the directions wanted
_PROBED = 64  # samples on which the curvature of a network is probed
WORD = "survey"  # the name of the number in a message that tells what is asked
_POOL, _LOOK, _SETTLE = 1, 2, 3

Asking = Generator[Any, Replies, Any]


class Shape(NamedTuple):
    """What the last layer of a model says of the survey.

    Attributes:
        features: Features that enter it.
        columns: Its outputs.
        bias: Whether it has a bias, and so a constant feature.
        alone: Whether it is all of the model.
    """

    features: int
    columns: int
    bias: bool
    alone: bool

    @staticmethod
    def of(layout: Layout) -> Shape:
        """Read it off a model's layout."""
        last = layout.layers[-1]
        shape = last.shapes.get("weight", ())
        if len(shape) != 2 or set(last.shapes) - {"weight", "bias"}:
            raise BadInput(
                f"'auto' pulls are found from what enters the model's last layer, which must be linear; here it is "
                f"{last.name or 'the only layer'} with {', '.join(f'{name} {size}' for name, size in last.shapes.items())}. "
                "Give the pulls as numbers"
            )
        return Shape(shape[1], shape[0], "bias" in last.shapes, len(layout.layers) == 1)

    @property
    def kept(self) -> int:
        """Principal directions that are looked at."""
        return min(MOST, self.features)

    @property
    def size(self) -> int:
        """Parameters of each output in the frame."""
        return self.kept + self.bias

    @property
    def sketch(self) -> int:
        """Columns of the sketch of the second moments: all features, where they are not many."""
        return self.features if self.features <= 2 * MOST else MOST + _MORE

    @property
    def moments(self) -> int:
        """Numbers of a gram, of which half is enough, and a moment."""
        return self.size * (self.size + 1) // 2 + self.size * self.columns


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

    def exchanges(self, tiers: int) -> tuple[int, int]:
        """Return how many exchanges the server makes, and how many a team makes with its devices."""
        looks = 4 * max(1, tiers - 1)
        em = STEPS if self.turned else 0
        return 3 + looks + 2 * em, 3 + looks + 2 * em + (em + 1 if tiers > 1 else 0)

    def outline(self, tiers: int) -> dict[str, Any]:
        """Tell what it costs, for the outline of a run."""
        above, below = self.exchanges(tiers)
        told = {"survey_exchanges_of_the_server": above}
        return told if tiers == 1 else {**told, "survey_exchanges_of_a_lowest_team": below}

    # -- the server ----------------------------------------------------------------------------------------------------

    def ask(self, node: Node, model: Tensor) -> Generator[Any, Replies, Found | None]:
        """Survey the population: a part of the server's program; ``None`` where nobody answered."""
        shape, tiers = Shape.of(node.layout), node.tree.top
        beginning = {} if shape.alone else {"model": model}
        still = model.new_zeros((1, 2 + shape.features * shape.sketch), dtype=torch.float64)
        seen = yield from _summed({WORD: _POOL, **beginning}, still)
        samples, size = float(seen[0, 0]), float(seen[0, 1])
        if not samples or not size > 0:
            return None
        scale = (size / samples) ** 0.5
        sketch = seen[0, 2:].view(shape.features, shape.sketch)
        basis, bends = _principal(sketch, _draw(node.seed, shape), shape.kept)
        frame = {**beginning, "basis": bare(basis.reshape(1, -1).to(model)), "scale": scale}
        hunt, more = variances.search(tiers), frame
        points = next(hunt)
        while True:
            fits = yield from self._fits(node, torch.tensor(points, dtype=torch.float64)[:, :, None], more)
            if fits is None:
                return None
            try:
                points, more = hunt.send([fit.evidence for fit in fits]), {}
            except StopIteration as end:
                base = end.value
                break
        ratios = torch.tensor(base, dtype=torch.float64)[:, None].expand(tiers, shape.size)
        for _ in range(STEPS if self.turned else 0):
            fits, told = yield from self._settled(node, ratios, {})
            if fits is None:
                return None
            ratios = torch.stack(
                [
                    variances.renewed(ratios[tier], told.squares[tier], float(told.nodes[tier]), shape.columns, base[tier])
                    for tier in range(tiers)
                ]
            )
        fits, told = yield from self._settled(node, ratios, frame)
        if fits is None:
            return None
        flat = told.flatness
        # A network's mean curvature at its beginning stands for that of a linear model, h0 c^2 / features.
        weight = flat * scale**2 if shape.alone else told.bend * shape.features * flat / told.first
        pulls, turned = _pulls(torch.tensor(base), weight), _pulls(ratios, weight)
        whole = torch.cat([bends, bends.new_full((shape.features - shape.kept,), _rest(size, bends, shape))]) / samples
        team = float(pulls[-1]) * node.tree.size(tiers - 1) / samples
        own = whole * weight / scale**2  # how curved the loss is in each direction
        return Found(pulls, turned, float((team / (own + team)).mean()), basis)

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
    ) -> Generator[Any, Replies, tuple[list[variances.Fit] | None, _Told]]:
        """Return what follows from ratios ``(tiers, size)``, and what everybody tells of their parameters then.

        Only with the frame devices can look at their samples again and say how many are classified rightly.
        """
        shape, tiers = Shape.of(node.layout), node.tree.top
        fits = yield from self._fits(node, ratios[None], {})
        nothing = ratios.new_zeros((1, _Told.width(tiers, shape)))
        if fits is None:
            return None, _Told(nothing[0], tiers, shape)
        message = {WORD: _SETTLE, "ratios": bare(ratios.reshape(1, -1)), "noise": fits[0].noise}
        message |= {"mean": bare(fits[0].mean.reshape(1, -1)), "spread": bare(_half(fits[0].spread[None])), **frame}
        told = yield from _summed(message, nothing)
        return fits, _Told(told[0], tiers, shape)

    # -- teams ---------------------------------------------------------------------------------------------------------

    def pass_on(self, node: Node, message: Any, state: State) -> Inner:
        """Answer the survey at inner nodes: a part of their program."""
        shape, tiers = Shape.of(node.layout), node.tree.top
        match message[WORD]:
            case 1:
                like = message.get("model", torch.zeros(0))
                still = like.new_zeros((len(node), 2 + shape.features * shape.sketch), dtype=torch.float64)
                return bare((yield from _summed(message, still))), state
            case 2:
                below = yield from self._below(node, message)
                ratios = _unfolded(message, tiers)
                return bare(below.lifted([one[node.tier] for one in ratios], shape)), state
        # Settle one's own parameters, then let the children settle theirs.
        ratios = message["ratios"].double()[0, 0].view(tiers, -1)
        look = {WORD: _LOOK, "points": 1, "ratios": message["ratios"]}
        below = yield from self._below(node, look)
        mean, spread = _means(message, shape)
        own = variances.settle(below.known[0], ratios[node.tier], mean, spread, float(message["noise"]))
        passed = {**message, "mean": bare(own.mean.flatten(1)), "spread": bare(_half(own.spread))}
        told = yield from _summed(passed, ratios.new_zeros((len(node), _Told.width(tiers, shape))))
        known = (below.samples > 0).double()
        told[:, node.tier * (shape.size + 1) : (node.tier + 1) * (shape.size + 1)] += torch.cat(
            [known * own.squares, known], 1
        )
        return bare(told), state

    def _below(self, node: Node, message: Mapping[str, Any]) -> Generator[Any, Replies, _Below]:
        """Ask the children for what they know with their own parameters integrated out, and add it up."""
        shape, ratios = Shape.of(node.layout), _unfolded(message, node.tree.top)
        if node.tier > 1 or self.way == "sums":
            mine = _different(ratios) if node.tier == 1 else ratios
            still = mine.new_zeros((len(node), len(mine) * (shape.moments + 2) + 2))
            told = yield from _summed(message, still)
            below = _Below.read(told, len(mine), shape)
            return below if node.tier > 1 else below.spread_out([_place(mine, one[0]) for one in ratios])
        got = yield Ask(message, reduce="stack")
        rows = got[""][:, 0] if len(got.positions) else torch.zeros((0, shape.moments + 2))
        return _Below.of_moments(rows.double(), got.parents.to(rows.device), len(node), [one[0] for one in ratios], shape)

    # -- devices -------------------------------------------------------------------------------------------------------

    def answer(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Answer the survey at devices: a part of their program."""
        shape = Shape.of(node.layout)
        match message[WORD]:
            case 1:
                rows = [_pooled(node, shape, x) for x, _ in _samples(node, message, shape)]
                return bare(torch.stack(rows)), state
            case 2:
                if "basis" in message:
                    state = {**state, "moments": self._moments(node, message, shape).to(state["moments"])}
                    state |= {"basis": message["basis"][:, 0].to(state["basis"])} if "basis" in state else {}
                if self.way == "moments":
                    return bare(state["moments"]), state
                mine = state["moments"].double()
                parents = torch.arange(len(mine), device=mine.device)
                ratios = list(_different(_unfolded(message, node.tree.top)))
                below = _Below.of_moments(mine, parents, len(mine), ratios, shape)
                return bare(below.packed(shape)), state
        return bare(self._settle(node, message, state, shape)), state

    def _moments(self, node: Device, message: Any, shape: Shape) -> Tensor:
        """Return the devices' moments in the frame, with the squares of their targets and their samples at the end."""
        rows = []
        bases = message["basis"].double().view(-1, shape.features, shape.kept)
        for (x, y), basis in zip(_samples(node, message, shape), bases, strict=True):
            z = _framed(x, basis, float(message["scale"]), shape)
            t = _targets(node, y, shape)
            known = Known((z.mT @ z)[None], (z.mT @ t)[None])
            ends = torch.stack([t.square().sum(), t.new_tensor(float(len(t)))])
            rows.append(torch.cat([_half(known.gram)[0], known.moment.flatten(), ends]))
        return torch.stack(rows)

    def _settle(self, node: Device, message: Any, state: State, shape: Shape) -> Tensor:
        """Return the squares of the devices' differences to their teams, and how well they fit their own samples."""
        tiers, mine = node.tree.top, state["moments"].double()
        ratios = message["ratios"].double()[0, 0].view(tiers, -1)
        mean, spread = _means(message, shape)
        known = _known(mine[:, : shape.moments], shape)
        own = variances.settle(known, ratios[0], mean, spread, float(message["noise"]))
        seen = (mine[:, -1:] > 0).double()
        told = mine.new_zeros((len(mine), _Told.width(tiers, shape)))
        told[:, : shape.size + 1] = torch.cat([seen * own.squares, seen], 1)
        if "basis" in message and _kind(node) != "squared":
            bases = message["basis"].double().view(-1, shape.features, shape.kept)
            for line, (x, y), basis, theta in zip(told, _samples(node, message, shape), bases, own.mean, strict=True):
                z = _framed(x, basis, float(message["scale"]), shape)
                line[-4] = _right(z @ theta, _targets(node, y, shape))
                line[-3] = len(y)
        if "model" in message:
            told[:, -2] = _bend(node, message["model"])
            told[:, -1] = 1
        return told


# -- what crosses links ------------------------------------------------------------------------------------------------


class _Below(NamedTuple):
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
    def of_moments(rows: Tensor, parents: Tensor, count: int, ratios: list[Tensor], shape: Shape) -> _Below:
        """Integrate out the devices' parameters at each of their ratios, and add up team by team."""
        known = _known(rows[:, : shape.moments], shape)
        made = {}
        for ratio in ratios:
            key = tuple(ratio.tolist())
            if key not in made:
                up = variances.lift(known, ratio.expand(shape.size))
                ends = [rows.new_zeros(count).index_add_(0, parents, one) for one in (up.fit, up.cost)]
                made[key] = (up.known.added(parents, count), *ends)
        each = [made[tuple(ratio.tolist())] for ratio in ratios]
        ends = rows.new_zeros(count, 2).index_add_(0, parents, rows[:, -2:])
        return _Below(*(list(part) for part in zip(*each, strict=True)), ends[:, :1], ends[:, 1:])

    @staticmethod
    def read(rows: Tensor, points: int, shape: Shape) -> _Below:
        """Undo `packed`."""
        parts = rows[:, :-2].unflatten(1, (points, shape.moments + 2)).unbind(1)
        known = [_known(part[:, : shape.moments], shape) for part in parts]
        return _Below(known, [p[:, -2] for p in parts], [p[:, -1] for p in parts], rows[:, -2:-1], rows[:, -1:])

    def packed(self, shape: Shape) -> Tensor:
        """Return it as one row for each node."""
        parts = [
            torch.cat([_half(known.gram), known.moment.flatten(1), fit[:, None], cost[:, None]], 1)
            for known, fit, cost in zip(self.known, self.fit, self.cost, strict=True)
        ]
        return torch.cat([*parts, self.squares, self.samples], 1)

    def spread_out(self, places: list[int]) -> _Below:
        """Return it with a point for each place among those it has."""
        known, fit, cost = ([part[place] for place in places] for part in self[:3])
        return _Below(known, fit, cost, self.squares, self.samples)

    def lifted(self, ratios: list[Tensor], shape: Shape) -> Tensor:
        """Return what the nodes tell their parents: their own parameters integrated out at each point, packed."""
        ups = [variances.lift(known, ratio.expand(shape.size)) for known, ratio in zip(self.known, ratios, strict=True)]
        fit = [up.fit + one for up, one in zip(ups, self.fit, strict=True)]
        cost = [up.cost + one for up, one in zip(ups, self.cost, strict=True)]
        return _Below([up.known for up in ups], fit, cost, self.squares, self.samples).packed(shape)


class _Told:
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


def flatness(accuracy: float, columns: int) -> float:
    """Return how curved a classification loss is in its outputs, against the squared loss, at some accuracy.

    Args:
        accuracy: The share of samples that are classified rightly; not counted beyond 0.99, where nothing would be left.
        columns: Outputs of the model; 1 for the logistic loss.
    """
    a = min(max(accuracy, 1 / max(2, columns)), 0.99)
    if columns == 1:
        return a * (1 - a)
    return (1 - a**2 - (1 - a) ** 2 / (columns - 1)) / (columns - 1)


def _summed(message: Any, still: Tensor) -> Generator[Any, Replies, Tensor]:
    """Ask the children and return the sums of their replies; ``still`` (zeros) where nobody answered."""
    got = yield Ask(message, otherwise=bare(still))
    return got.rows[:, 0].double() * got.count.to(got.rows.device)[:, None]


def bare(rows: Tensor) -> Tensor:
    """Return rows in a shape that tells links that they are no models, so that no codec rounds them; ``[:, 0]`` undoes it."""
    return rows[:, None]


def _half(square: Tensor) -> Tensor:
    """Return the lower halves of symmetric matrices as rows."""
    row, column = torch.tril_indices(square.shape[1], square.shape[1])
    return square[:, row, column]


def _known(rows: Tensor, shape: Shape) -> Known:
    """Return grams and moments from rows."""
    half, moment = rows.split([shape.size * (shape.size + 1) // 2, shape.size * shape.columns], 1)
    return Known(_whole(half, shape.size), moment.unflatten(1, (shape.size, shape.columns)))


def _whole(half: Tensor, size: int) -> Tensor:
    """Undo `_half`."""
    row, column = torch.tril_indices(size, size)
    made = half.new_zeros(len(half), size, size)
    made[:, row, column] = made[:, column, row] = half
    return made


def _means(message: Any, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the parents' parameters and their covariances from a message."""
    mean = message["mean"][:, 0].double().unflatten(1, (shape.size, shape.columns))
    return mean, _whole(message["spread"][:, 0].double(), shape.size)


def _unfolded(message: Any, tiers: int) -> Tensor:
    """Return the ratios that are asked about ``(points, tiers, size or 1)``."""
    return message["ratios"][0, 0].double().view(int(message["points"]), tiers, -1)


def _different(ratios: Tensor) -> Tensor:
    """Return the devices' ratios that differ ``(points, size or 1)``, in a fixed order."""
    return torch.unique(ratios[:, 0], dim=0)


def _place(among: Tensor, one: Tensor) -> int:
    return int((among == one).all(1).nonzero()[0])


# -- samples -----------------------------------------------------------------------------------------------------------


def _samples(node: Device, message: Any, shape: Shape) -> Any:
    """Return the devices' training samples: features and targets, device after device."""
    _kind(node)
    return node.training(None if shape.alone else message["model"])


def _kind(node: Device) -> str:
    name = node.loss_name
    if name not in ("cross-entropy", "logistic", "squared"):
        raise BadInput(
            f"'auto' pulls are for the losses cross-entropy, logistic and squared, not for {name or 'a loss of your own'}; "
            "give the pulls as numbers"
        )
    return name


def _targets(node: Device, y: Tensor, shape: Shape) -> Tensor:
    """Return targets as numbers, a column for each output."""
    kind = _kind(node)
    if kind == "cross-entropy":
        if y.dim() != 1:
            raise BadInput("'auto' pulls are for samples with one label each, and these have several; give them as numbers")
        return torch.nn.functional.one_hot(y, shape.columns).double() - 1 / shape.columns
    values = y.double().reshape(len(y), -1)
    if kind == "logistic":
        return (values > 0).double() - 0.5
    return values.expand(-1, shape.columns)


def _right(outputs: Tensor, targets: Tensor) -> float:
    """Return how many samples are classified rightly."""
    if outputs.shape[1] == 1:
        return float(((outputs > 0) == (targets > 0)).sum())
    return float((outputs.argmax(1) == targets.argmax(1)).sum())


def _framed(x: Tensor, basis: Tensor, scale: float, shape: Shape) -> Tensor:
    """Return features in the frame: turned and scaled, with a constant at the end where there is a bias."""
    z = x @ basis / scale
    return torch.cat([z, z.new_full((len(z), 1), 1 / scale)], 1) if shape.bias else z


def _draw(seed: int, shape: Shape) -> Tensor:
    """Return the matrix that sketches are made with ``(features, sketch)``, the same everywhere."""
    if shape.sketch == shape.features:
        return torch.eye(shape.features, dtype=torch.float64)
    base = address.mix(address.key(seed, WORD), torch.arange(shape.features))
    return address.normal_rows(base, shape.sketch).double()


def _pooled(node: Device, shape: Shape, x: Tensor) -> Tensor:
    """Return a device's samples, their squares and the sketch of their second moments."""
    sketch = x.mT @ (x @ _draw(node.seed, shape).to(x.device))
    ends = torch.stack([x.new_tensor(float(len(x))), x.square().sum()])
    return torch.cat([ends, sketch.flatten()])


def _principal(sketch: Tensor, drawn: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return the principal directions of the features from a sketch, and their squares summed over all samples."""
    inner = drawn.to(sketch.device).mT @ sketch
    values, vectors = torch.linalg.eigh((inner + inner.mT) / 2)
    seen = values > 1e-10 * values[-1]
    root = sketch @ (vectors[:, seen] / values[seen].sqrt())
    left, sizes, _ = torch.linalg.svd(root, full_matrices=False)
    missing = max(0, kept - left.shape[1])  # features that nobody has: their directions do not matter
    left = torch.nn.functional.pad(left[:, :kept], (0, missing))
    return left, torch.nn.functional.pad(sizes.square()[:kept], (0, missing))


def _rest(size: float, bends: Tensor, shape: Shape) -> float:
    """Return the squares in each of the directions that are not looked at."""
    return max(0.0, size - float(bends.sum())) / max(1, shape.features - shape.kept)


def _pulls(ratios: Tensor, weight: float) -> Tensor:
    """Return pulls times samples from ratios."""
    some = ratios > 0
    return torch.where(some, weight / torch.where(some, ratios, 1.0), ENDLESS).double().clamp(max=ENDLESS)


def _bend(node: Device, at: Tensor) -> Tensor:
    """Return the mean curvature of each device's loss at some rows, probed in one direction of signs."""
    gradient = node.oracle(Some(_PROBED))
    base = address.mix(address.key(node.seed, WORD, 1), torch.arange(1))
    signs = torch.sign(address.normal_rows(base, at.shape[1])).to(at)
    step = 1e-3 * at.norm(dim=1, keepdim=True).clamp(min=1.0) / at.shape[1] ** 0.5
    found = ((gradient(at + step * signs) - gradient(at - step * signs)) * signs).sum(1) / (2 * step[:, 0] * at.shape[1])
    return found.clamp(min=0.0).double()
