"""What every algorithm must keep, one function each: it raises `ContractBroken` with what went wrong and what to change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from palmette.engines.evaluation import evaluate
from palmette.engines.separate import Separate, ordered
from palmette.engines.simulate import Simulation
from palmette.learner import kernel
from palmette.links import Link
from palmette.links.record import replay
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.testing.compared import MARGIN, alike, by_node, close, everything, require, same_as_separate, same_bits
from palmette.testing.problems import regression, simulate, task_for
from palmette.testing.storm import CHANGES, PACE, ROUNDED, STORM
from palmette.tree import Tree

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
    close(
        *(one, other, torch.float32, "the number of devices that are computed together changes the result"),
        "never look across rows: each row is another device's",
    )


def backends_agree(method: Algorithm) -> None:
    """The ways to compute gradients agree."""
    first, *others = (simulate(method, _people(method), 2, backend=name) for name in ("loop", "vmap", "fused"))
    for other in others:
        close(
            *(first, other, torch.float64, f"the backends loop and {other.learner.backend.name} differ"),
            "take gradients from node.descend, node.gradient, node.minimise or node.oracle alone",
        )
    if isinstance(kernel.find(), str):
        return  # the native kernel is not there
    one, other = (
        simulate(method, _people(method), 2, backend=name, dtype=torch.float32) for name in ("loop", "native")
    )
    close(
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
    mine, theirs = everything(stacked), everything(other)
    for name in mine.keys() - {"the traffic"}:
        same = torch.equal(mine[name], theirs[name])
        require(same, f"a reply that did not enter left a trace in {name}", "keep nothing on self between messages")


def nobody_answers(method: Algorithm) -> None:
    """A round in which nobody answers breaks nothing."""
    silent = Link(absences=lambda round_, tier, exchange, children: torch.full((len(children),), round_ == 1))
    people = _people(method, unequal=False)
    simulation = simulate(method, people, 3, links=dict.fromkeys(range(people.tree.top), silent))
    for name, rows in everything(simulation).items():
        require(
            bool(rows.isfinite().all()), f"{name} is not finite after a round without answers", "say Ask(otherwise=...)"
        )
    sent = [entry.bytes_up for (round_, _), entry in simulation.ledger.entries.items() if round_ == 1]
    require(not any(sent), "bytes went up in a round in which nobody answered", "let only devices and teams reply")


def lost_devices(method: Algorithm) -> None:
    """Devices that are lost keep their state, and the others go on."""
    people = _people(method, unequal=False)
    gone = Link(absences=lambda round_, tier, exchange, children: children == 4)
    whole, simulation = simulate(method, people, 2), simulate(method, people, 2, links={0: gone})
    last, expected = simulation.stores[0].last.tolist(), whole.stores[0].last.tolist()
    expected[4] = -1
    require(
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
    require(
        {kind: count for kind, count in counts.items() if kind not in above} == expected,
        f"on a tree with one device the models {counts} were measured, not {expected}",
        "let models name the models that there are",
    )


def resume_equal(method: Algorithm) -> None:
    """A run that is stopped between two rounds and goes on gives the bits of one that was not."""
    people = _people(method)
    links = {0: Link(down=CHANGES, up=ROUNDED), 1: Link(down=ROUNDED, up=CHANGES)}
    links = {tier: link for tier, link in links.items() if tier < people.tree.top}
    whole = simulate(method, people, 4, dtype=torch.float32, links=links, pace=PACE)
    stopped, resumed = (
        Simulation(method, people, task_for(method, people), rounds=4, links=links, pace=PACE) for _ in range(2)
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
    require(
        not written,
        f"{' and '.join(f'{type(method).__name__}.{word}' for word in written)} wrote into what it was given",
        "make new rows (w = w - step) in place of changing old ones (w -= step)",
    )
    require(len(seen) > 3, "hardly any program ran", "let the server ask in every round")


def stable_nodes(method: Algorithm) -> None:
    """Another order of the named nodes changes round-off only."""
    people = _people(method)
    orders = list(range(people.devices)), _turned(people.tree, people.tree.top, 0)
    one, other = (simulate(method, _ordered(people, order), 3) for order in orders)
    fix = "never make numbers from node.ids or node.child_ids; node.uniform(...) and node.addresses belong to the node itself"
    theirs = by_node(other)
    for name, (tier, rows) in by_node(one).items():
        order = [one.tree.find(tier, node) for node in other.tree.names(tier)]
        same = alike(rows[order], theirs[name][1], MARGIN[torch.float64])
        require(same, f"the order in which nodes are listed changes {name}", fix)


CHECKS: dict[str, Callable[[Algorithm], None]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        *(deterministic, thread_invariant, chunk_invariant, backends_agree),
        *(inputs_unchanged, separate_nodes, unreliable_links, nobody_answers, lost_devices),
        *(one_device, resume_equal, stable_nodes),
    )
}
"""Every check by its name: a function that takes an algorithm and raises `ContractBroken`."""
LOSSY = ("unreliable-links", "nobody-answers", "lost-devices")
"""The checks that lose nodes: for methods that are defined for full participation only, they may be left out."""


# -- how they look -----------------------------------------------------------------------------------------------------------


def _people(method: Algorithm, *, unequal: bool = True) -> Population:
    """Return nine devices (in deeper trees more) in teams of different sizes, where the method allows teams."""
    if method.tiers is None or 3 in method.tiers or method.flat:
        return regression([3, 2, 4], unequal=unequal)
    tiers = min(method.tiers)
    return regression("9" if tiers == 2 else "x".join(["2"] * (tiers - 2) + ["3"]), unequal=unequal)


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
    given: dict[str, Any] = {"links": links, "pace": PACE if links else None}
    stacked = simulate(method, people, 3, dtype=torch.float32, chunk=1, **given)
    with Separate(Simulation(method, people, task_for(method, people), rounds=3, **given)) as federation:
        for _ in range(3):
            federation.step()
        scores = federation.evaluate()
    same_as_separate(federation.machines, stacked)
    fix = "never look across rows, and keep nothing on self between messages"
    record = ordered(stacked.record.table())
    require(torch.equal(record, federation.record), "separate nodes wrote down other absences than the simulation", fix)
    for kind, score in evaluate(stacked).items():
        for metric, sums in score.sums.items():
            same = alike(sums, scores[kind].sums[metric], MARGIN[torch.float32])
            require(same, f"{metric} of {kind} differs between separate nodes and the simulation", fix)
    return stacked, record


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
