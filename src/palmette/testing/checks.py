"""What every algorithm must keep, one function each: it raises `ContractBroken` with what went wrong and what to change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from palmette.engines.evaluation import evaluate
from palmette.engines.separate import Machine, Separate, ordered
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.learner import kernel
from palmette.links import Faults, Link, Participation
from palmette.links.amounts import Amount
from palmette.links.clock import Line, Pace
from palmette.links.codecs import Codec
from palmette.links.ledger import COLUMNS, Traffic
from palmette.links.record import replay
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.testing.problems import regression, simulate, task_for
from palmette.tree import Tree

_LINE = Line(Amount.parse("lognormal 0.05 0.5 each", "latency"), Amount.parse(1000, "bandwidth"))
_PACE = Pace(0.01, Amount.parse("lognormal 1 0.5", "speeds"))
_ROUNDED, _CHANGES = Codec.parse("int8"), Codec.parse("delta+int8")
STORM = {
    0: Link(
        Participation("fraction", 0.8),
        loss=0.1,
        faults=Faults(lost=0.1, late=0.1, corrupt=0.1, repeated=0.2, deadline=0.4),
        down=_CHANGES,
        up=_ROUNDED,
        line=_LINE,
    ),
    1: Link(
        Participation("count", 2),
        faults=Faults(lost=0.2, late=0.1, corrupt=0.1, repeated=0.2),
        down=_ROUNDED,
        up=_CHANGES,
        line=_LINE,
    ),
}
"""Links on which everything goes wrong that can."""
_MARGIN = {torch.float32: 1e-5, torch.float64: 1e-9}


class ContractBroken(PalmetteError):  # noqa: N818 - reads as what it is
    """An algorithm does not keep the contract; the message says which part, where, and what to change."""


# -- the checks ------------------------------------------------------------------------------------------------------------


def deterministic(method: Algorithm) -> None:
    """The same seed gives the same bits."""
    one, other = (simulate(method, _people(method), 3, dtype=torch.float32, seed=5) for _ in range(2))
    same_bits(one, other, "two runs with the same seed differ", "take random numbers from node.uniform(...) alone")


def thread_invariant(method: Algorithm) -> None:
    """The number of threads changes no bit."""
    one, other = (_threaded(method, threads) for threads in (1, 5))
    same_bits(one, other, "a run with five threads differs from one with one", "keep nothing on self between messages")


def chunk_invariant(method: Algorithm) -> None:
    """Another number of devices computed together changes round-off only."""
    one, other = (simulate(method, _people(method), 3, dtype=torch.float32, chunk=chunk) for chunk in (1, 9))
    _close(
        *(one, other, torch.float32, "the number of devices that are computed together changes the result"),
        "never look across rows: each row is another device's",
    )


def backends_agree(method: Algorithm) -> None:
    """The ways to compute gradients agree."""
    first, *others = (simulate(method, _people(method), 2, backend=name) for name in ("loop", "vmap", "fused"))
    for other in others:
        _close(
            *(first, other, torch.float64, f"the backends loop and {other.learner.backend.name} differ"),
            "take gradients from node.descend, node.gradient, node.minimise or node.oracle alone",
        )
    if isinstance(kernel.find(), str):
        return  # the native kernel is not there
    one, other = (
        simulate(method, _people(method), 2, backend=name, dtype=torch.float32) for name in ("loop", "native")
    )
    _close(
        *(one, other, torch.float32, "the backends loop and native differ"),
        "take gradients from node.descend, node.gradient, node.minimise or node.oracle alone",
    )


def separate_nodes(method: Algorithm) -> None:
    """Separate nodes that talk in bytes are the simulation, bit for bit."""
    _separate_is_stacked(method, {})


def unreliable_links(method: Algorithm) -> None:
    """What did not enter did not happen, on separate nodes as in the simulation, and a replay of who was absent is the same."""
    people = _people(method)
    stacked, record = _separate_is_stacked(method, STORM)
    again = {
        tier: Link(link.participation, absences=replay(record), down=link.down, up=link.up)
        for tier, link in STORM.items()
    }
    other = simulate(method, people, 3, dtype=torch.float32, chunk=1, links=again)
    mine, theirs = _everything(stacked), _everything(other)
    for name in mine.keys() - {"the traffic"}:
        same = torch.equal(mine[name], theirs[name])
        _require(same, f"a reply that did not enter left a trace in {name}", "keep nothing on self between messages")


def nobody_answers(method: Algorithm) -> None:
    """A round in which nobody answers breaks nothing."""
    silent = Link(absences=lambda round_, tier, exchange, children: torch.full((len(children),), round_ == 1))
    people = _people(method, unequal=False)
    simulation = simulate(method, people, 3, links=dict.fromkeys(range(people.tree.top), silent))
    for name, rows in _everything(simulation).items():
        _require(
            bool(rows.isfinite().all()), f"{name} is not finite after a round without answers", "say Ask(otherwise=...)"
        )
    sent = [entry.bytes_up for (round_, _), entry in simulation.ledger.entries.items() if round_ == 1]
    _require(not any(sent), "bytes went up in a round in which nobody answered", "let only devices and teams reply")


def lost_devices(method: Algorithm) -> None:
    """Devices that are lost keep their state, and the others go on."""
    people = _people(method, unequal=False)
    gone = Link(absences=lambda round_, tier, exchange, children: children == 4)
    whole, simulation = simulate(method, people, 2), simulate(method, people, 2, links={0: gone})
    last, expected = simulation.stores[0].last.tolist(), whole.stores[0].last.tolist()
    expected[4] = -1
    _require(
        last == expected,
        f"with device 4 lost, devices last took part in rounds {last}, not {expected}",
        "let the others go on when one does not answer",
    )


def one_device(method: Algorithm) -> None:
    """A tree with one device works."""
    tree = "1" if method.tiers == (2,) else "x".join("1" * (min(method.tiers or (3,)) - 1))
    simulation = simulate(method, regression(tree), 2)
    counts = {kind: scores.count.tolist() for kind, scores in evaluate(simulation).items()}
    expected = {kind: [1.0] for kind in method.models if kind != "TM" or simulation.team_models() is not None}
    above = {kind for kind in counts if kind.startswith("TM") and kind != "TM"}  # of deeper trees; "TM" stands for them
    _require(
        {kind: count for kind, count in counts.items() if kind not in above} == expected,
        f"on a tree with one device the models {counts} were measured, not {expected}",
        "let models name the models that there are",
    )


def resume_equal(method: Algorithm) -> None:
    """A run that is stopped between two rounds and goes on gives the bits of one that was not."""
    people = _people(method)
    links = {0: Link(down=_CHANGES, up=_ROUNDED), 1: Link(down=_ROUNDED, up=_CHANGES)}
    links = {tier: link for tier, link in links.items() if tier < people.tree.top}
    whole = simulate(method, people, 4, dtype=torch.float32, links=links, pace=_PACE)
    stopped, resumed = (
        Simulation(method, people, task_for(method, people), rounds=4, links=links, pace=_PACE) for _ in range(2)
    )
    for _ in range(2):
        stopped.step()
    resumed.restore(stopped.state())
    for _ in range(2):
        resumed.step()
    same_bits(
        *(whole, resumed, "a run that was stopped and went on differs from one that was not"),
        "keep what the next round needs in the state that keeps declares, not on self",
    )


def inputs_unchanged(method: Algorithm) -> None:
    """Programs do not write into their inputs."""
    watched, seen = _watched(method)
    simulation = simulate(watched, _people(method, unequal=False), 2)
    simulation.device_models(torch.arange(simulation.population.devices))
    written = sorted({word for word, clean in seen if not clean})
    _require(
        not written,
        f"{' and '.join(f'{type(method).__name__}.{word}' for word in written)} wrote into what it was given",
        "make new rows (w = w - step) in place of changing old ones (w -= step)",
    )
    _require(len(seen) > 3, "hardly any program ran", "let the server ask in every round")


def stable_nodes(method: Algorithm) -> None:
    """Another order of the named nodes changes round-off only."""
    people = _people(method)
    orders = list(range(people.devices)), _turned(people.tree, people.tree.top, 0)
    one, other = (simulate(method, _ordered(people, order), 3) for order in orders)
    fix = "never make numbers from node.ids or node.child_ids; node.uniform(...) and node.addresses belong to the node itself"
    theirs = _by_node(other)
    for name, (tier, rows) in _by_node(one).items():
        order = [one.tree.find(tier, node) for node in other.tree.names(tier)]
        alike = _alike(rows[order], theirs[name][1], _MARGIN[torch.float64])
        _require(alike, f"the order in which nodes are listed changes {name}", fix)


CHECKS: dict[str, Callable[[Algorithm], None]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        *(deterministic, thread_invariant, chunk_invariant, backends_agree),
        *(separate_nodes, unreliable_links, nobody_answers, lost_devices),
        *(one_device, resume_equal, inputs_unchanged, stable_nodes),
    )
}
LOSSY = ("unreliable-links", "nobody-answers", "lost-devices")
"""The checks that lose nodes: for methods that are defined for full participation only, they may be left out."""


# -- how they look -----------------------------------------------------------------------------------------------------------


def _people(method: Algorithm, *, unequal: bool = True) -> Population:
    """Return nine devices (in deeper trees more) in teams of different sizes, where the method allows teams."""
    if method.tiers is None or 3 in method.tiers or method.flat:
        return regression([3, 2, 4], unequal=unequal)
    tiers = min(method.tiers)
    return regression("9" if tiers == 2 else "x".join(["2"] * (tiers - 2) + ["3"]), unequal=unequal)


def _everything(simulation: Simulation) -> dict[str, Tensor]:
    """Return all that a run leaves behind, by a name for people."""
    tiers = ["devices", *(["teams"] * (simulation.tree.tiers - 2)), "the server"]
    kept = {
        f"{name!r} of {tiers[tier]} (tier {tier})": rows
        for tier, store in enumerate(simulation.stores)
        for name, rows in store.rows.items()
    }
    kept |= {f"who of tier {tier} took part": store.last for tier, store in enumerate(simulation.stores)}
    ids = torch.arange(simulation.population.devices)
    traffic = torch.tensor([list(row.values()) for row in simulation.ledger.rows()])
    return {**kept, "the devices' own models": simulation.device_models(ids), "the traffic": traffic}


def _by_node(simulation: Simulation) -> dict[str, tuple[int, Tensor]]:
    """Return what belongs to a node whatever the order of the nodes, by a name for people: its tier and the rows.

    Above the devices that is the model alone: other rows may have a part for every child, in the children's order.
    """
    devices, *above = simulation.stores
    found = {f"{name!r} of devices (tier 0)": (0, rows) for name, rows in devices.rows.items()}
    for tier, store in enumerate(above, 1):
        if "model" in store.rows:
            found[f"'model' of tier {tier}"] = tier, store.rows["model"]
    ids = torch.arange(simulation.population.devices)
    return {**found, "the devices' own models": (0, simulation.device_models(ids))}


def _require(kept: bool, what: str, fix: str) -> None:
    if not kept:
        raise ContractBroken(f"{what}; {fix}")


def same_bits(one: Simulation, other: Simulation, what: str = "two runs differ", fix: str = "they must not") -> None:
    """Refuse two runs that left anything different behind."""
    mine, theirs = _everything(one), _everything(other)
    _require(mine.keys() == theirs.keys(), what, fix)
    for name, value in mine.items():
        _require(torch.equal(value, theirs[name]), f"{what} in {name}", fix)


def _close(one: Simulation, other: Simulation, dtype: torch.dtype, what: str, fix: str) -> None:
    mine, theirs = _everything(one), _everything(other)
    for name, value in mine.items():
        _require(_alike(value, theirs[name], _MARGIN[dtype]), f"{what} in {name}", fix)


def _alike(one: Tensor, other: Tensor, margin: float) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=margin, atol=margin)


def _turned(tree: Tree, tier: int, node: int) -> list[int]:
    """Return the devices under a node in another order: the first child of every node comes last."""
    first, *others = tree.children(tier, node)
    children = [*others, first]
    return children if tier == 1 else [device for child in children for device in _turned(tree, tier - 1, child)]


def _ordered(people: Population, order: list[int]) -> Population:
    """Return the same devices, with names, in another order."""
    tree = people.tree
    columns = [[tree.name(tier, node) for node in tree.ancestors(tier)[order].tolist()] for tier in range(tree.top)]
    kept = torch.cat([torch.arange(*people.start[device : device + 2].tolist()) for device in order])
    start = torch.cat([people.start[:1], people.start.diff()[order].cumsum(0)])
    return replace(
        people,
        tree=Tree.from_table(*columns),
        x=people.x[kept],
        y=people.y[kept],
        start=start,
        train=people.train[order],
    )


def _threaded(method: Algorithm, threads: int) -> Simulation:
    people = _people(method)
    simulation = Simulation(method, people, task_for(method, people), rounds=3, threads=threads, chunk=2)
    simulation.learner.worth_a_thread = lambda devices: True  # type: ignore[method-assign]  # these steps are too small
    for _ in range(3):
        simulation.step()
    return simulation


def _separate_is_stacked(method: Algorithm, links: dict[int, Link]) -> tuple[Simulation, Tensor]:
    """Refuse separate nodes that differ from the simulation; return that, and the record of absences."""
    people = _people(method)
    links = {tier: link for tier, link in links.items() if tier < people.tree.top}
    given: dict[str, Any] = {"links": links, "pace": _PACE if links else None}
    stacked = simulate(method, people, 3, dtype=torch.float32, chunk=1, **given)
    with Separate(Simulation(method, people, task_for(method, people), rounds=3, **given)) as federation:
        for _ in range(3):
            federation.step()
        scores = federation.evaluate()
    same_as_separate(federation.machines, stacked)
    fix = "never look across rows, and keep nothing on self between messages"
    record = ordered(stacked.record.table())
    _require(
        torch.equal(record, federation.record), "separate nodes wrote down other absences than the simulation", fix
    )
    for kind, score in evaluate(stacked).items():
        for metric, sums in score.sums.items():
            alike = _alike(sums, scores[kind].sums[metric], _MARGIN[torch.float32])
            _require(alike, f"{metric} of {kind} differs between separate nodes and the simulation", fix)
    return stacked, record


def same_as_separate(machines: list[list[Machine]], stacked: Simulation) -> None:
    """Refuse machines that did not keep, compute or send what the simulation did."""
    fix = "never look across rows, and keep nothing on self between messages"
    for tier, (row, store) in enumerate(zip(machines, stacked.stores, strict=True)):
        for machine in row:
            seen = machine.took_part or tier == stacked.tree.top
            who = repr(stacked.tree.name(tier, machine.number))
            took = bool(store.last[machine.number] >= 0)
            _require(seen == took, f"{who} took part as a separate node or in the simulation, but not in both", fix)
            for name, value in machine.state.items() if seen else ():
                equal = torch.equal(value[0], store.rows[name][machine.number])
                _require(equal, f"{name!r} of {who} differs between a separate node and the simulation", fix)
    steps = sum(machine.device_steps for machine in machines[0])
    _require(steps == stacked.device_steps, "separate nodes took another number of gradient steps", fix)
    for tier in range(1, stacked.tree.tiers):
        link = stacked.link_tier(tier)
        apart, together = Traffic(), stacked.ledger.totals().get(link, Traffic())
        for machine in machines[tier]:
            apart.join(machine.ledger.totals().get(link, Traffic()))
        for count in COLUMNS[2:]:
            one, other = getattr(apart, count), getattr(together, count)
            _require(one == other, f"separate nodes counted {one} {count}, the simulation {other}", fix)


def _watched(method: Algorithm) -> tuple[Algorithm, list[tuple[str, bool]]]:
    """Return a copy of an algorithm that notes, for every call of a program, whether its inputs were left as they were."""
    kind, seen = type(method), list[tuple[str, bool]]()

    def plain(word: str) -> Any:
        def call(self: Any, node: Any, *given: Any) -> Any:
            before = [_copied(value) for value in given]
            result = getattr(kind, word)(self, node, *given)
            seen.append((word, all(map(_unchanged, given, before))))
            return result

        return call

    def generator(word: str) -> Any:
        def call(self: Any, node: Any, *given: Any) -> Generator[Any, Any, Any]:
            before = [_copied(value) for value in given]
            result = yield from getattr(kind, word)(self, node, *given)
            seen.append((word, all(map(_unchanged, given, before))))
            return result

        return call

    programs = {"device": plain("device"), "adapt": plain("adapt"), "server": generator("server")}
    if kind.team is not Algorithm.team:
        programs["team"] = generator("team")
    watched = copy.copy(method)
    object.__setattr__(watched, "__class__", type(kind.__name__, (kind,), programs))
    return watched, seen


def _copied(value: Any) -> Any:
    """Copy what a program is given, however it is nested."""
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _unchanged(value: Any, before: Any) -> bool:
    if isinstance(value, Mapping):
        return value.keys() == before.keys() and all(_unchanged(value[name], before[name]) for name in value)
    return torch.equal(value, before) if isinstance(value, Tensor) else True
