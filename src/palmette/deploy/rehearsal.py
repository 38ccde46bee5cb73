"""A rehearsal before kits are made: some rounds of the same training on made-up samples, to learn what will cross the links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from palmette.deploy.kit import shape_of, stand_in
from palmette.engines.channel import Mail, Queues
from palmette.engines.separate import Separate
from palmette.engines.setup import known_settings
from palmette.engines.simulate import Simulation
from palmette.links.forms import Forms, forms_of, merged
from palmette.links.wire import decode
from palmette.runs.config import RunConfig
from palmette.tree import Tree

_ROUNDS = 3
_LEAST, _MARGIN = 1 << 20, 8  # bytes of the largest message at least; how much larger than any seen it may be


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal found.

    Attributes:
        asks: For each tier of parents, the most exchanges with their children within one exchange of their own parent's.
        limit: Bytes of the largest message that is taken.
        forms: For each tier of parents, what the messages to and from their children are like, by their kind.
    """

    asks: dict[int, int]
    limit: int
    forms: dict[int, dict[str, Forms]]


class _Heard(Queues):
    """Queues that note what goes through them."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0
        self.forms: dict[str, Forms] = {}

    def send(self, child: int, data: bytes) -> bool:
        """Note a message to a child."""
        self._note(data)
        return super().send(child, data)

    def receive(self, seconds: float | None) -> Mail | None:
        """Note what a child says."""
        mail = super().receive(seconds)
        if mail is not None and isinstance(mail[1], bytes):
            self._note(mail[1])
        return mail

    def _note(self, data: bytes) -> None:
        self.widest, word = max(self.widest, len(data)), decode(data)
        known = self.forms.setdefault(word.kind, {})
        for name, form in forms_of(word.body).items():
            found = known.setdefault(name, [])
            if form not in found:
                found.append(form)


def rehearse(whole: Simulation, config: RunConfig) -> Rehearsed:
    """Run some rounds with few nodes, each a machine of its own, on samples that are nobody's.

    It is done twice, with one and with two children of every parent: what differs depends on how many there are.
    """
    (asks, one), (_, two) = (_listened(whole, config, width) for width in (1, 2))
    forms = {}
    for tier in range(1, whole.tree.tiers):
        here = [_union(way.forms for way in heard[tier]) for heard in (one, two)]
        kinds = {kind for told in here for kind in told}
        forms[tier] = {kind: merged(here[0].get(kind, {}), here[1].get(kind, {})) for kind in sorted(kinds)}
    widest = max(way.widest for heard in (one, two) for ways in heard for way in ways)
    return Rehearsed(asks, max(_LEAST, _MARGIN * widest), forms)


def _listened(whole: Simulation, config: RunConfig, width: int) -> tuple[dict[int, int], list[list[_Heard]]]:
    """Return the most exchanges of each tier's parents within one of their own parents', and what was heard, tier by tier."""
    tree = _narrow(whole.tree, width)
    trial = Simulation(
        known_settings(whole.algorithm, tree),
        stand_in(shape_of(whole.population), tree),
        whole.task,
        rounds=_ROUNDS,
        seed=config.seed,
        dtype=config.dtype(),
        backend=whole.learner.backend.name,
        threads=1,
        optimiser=config.optimiser,
        held_out=whole.held_out,
    )
    heard: list[list[_Heard]] = [[] for _ in range(tree.tiers)]

    def listening(tier: int) -> _Heard:
        heard[tier].append(_Heard())
        return heard[tier][-1]

    with Separate(trial, listening) as federation:
        federation.evaluate()
        for _ in range(_ROUNDS):
            federation.step()
        federation.evaluate()
    most = dict.fromkeys(range(tree.tiers), 1)
    for tier, machines in enumerate(federation.machines):
        for entry in (entry for machine in machines for entry in machine.ledger.entries.values()):
            most[tier] = max(most[tier], entry.exchanges)
    asks = {tier: math.ceil(most[tier - 1] / most[tier]) for tier in range(2, tree.tiers)}
    return {1: 1, **asks}, heard


def _union(told: Iterable[Mapping[str, Forms]]) -> dict[str, Forms]:
    """Return all forms that several nodes have heard, by the kind of message."""
    found: dict[str, Forms] = {}
    for kind, forms in (pair for one in told for pair in one.items()):
        known = found.setdefault(kind, {})
        for name, each in forms.items():
            known[name] = list(dict.fromkeys([*known.get(name, []), *each]))
    return found


def _narrow(tree: Tree, width: int) -> Tree:
    """Return a tree of as many tiers in which every parent has the same number of children."""
    sizes = [width ** (tree.top - tier) for tier in range(tree.tiers)]
    labels = tuple(
        tuple(tree.names(tier)[:1]) if size == 1 else tuple(f"{tier}.{number}" for number in range(size))
        for tier, size in enumerate(sizes)
    )
    return Tree(tuple(np.arange(size) // width for size in sizes[:-1]), labels)
