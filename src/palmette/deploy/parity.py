"""What a federation came to, held against the simulation of the same training, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from palmette.deploy.keeping import Disk, unpack
from palmette.deploy.kit import DATA, RUN, STATE, Kit
from palmette.deploy.kits import Kits
from palmette.deploy.newcomers import read_newcomers
from palmette.engines.growing import grown_state
from palmette.engines.machine import Machine
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.links import Link
from palmette.links.record import Absences
from palmette.population import Population, load_population
from palmette.runs.absences import ABSENCES, read_absences
from palmette.tree import Tree
from palmette.tree.joining import joined, places


@dataclass(frozen=True)
class Parity:
    """How a federation and the simulation of it compare.

    Attributes:
        simulation: The simulation, which lost whom the federation lost.
        states: Rows of nodes that were compared.
        wrong: Those that differ, in words.
        absences: How many replies were missing.
        bytes_up: What crossed the upper link, by the simulation's ledger; and ...
        bytes_down: ... in the other direction.
    """

    simulation: Simulation
    states: int
    wrong: tuple[str, ...]
    absences: int
    bytes_up: int
    bytes_down: int

    @property
    def same(self) -> bool:
        """Whether every bit is the same."""
        return self.states > 0 and not self.wrong


def parity(kits: Kits, added: Sequence[Path] = ()) -> Parity:
    """Simulate a federation's training, with the absences that it recorded, and compare what every node keeps.

    Args:
        kits: The federation, all of its kits on this machine.
        added: The kits of devices that were added while it trained, their samples in them, in the order of their coming.
    """
    server = kits.nodes[kits.whole.tree.top, 0]
    counted = read_newcomers(server).joined
    if len(counted) != len(added):
        raise PalmetteError(
            f"{len(counted)} devices were added to this federation, and {len(added)} of their kits are given"
        )
    people = [replace(kits.whole.population, tree=kits.whole.tree)]  # without teams where the method knows none
    for one, kit in zip(counted, added, strict=True):
        people.append(_with(people[-1], one.name, one.parent, load_population(kit / DATA)))
    last = people[-1].tree
    simulation = _simulated(kits, people[0], last)
    for one, more in zip(counted, people[1:], strict=True):
        while simulation.round < one.round:
            simulation.step()
        before, simulation = simulation, _simulated(kits, more, last)
        simulation.restore(grown_state(before.state(), before.tree, simulation.tree))
    while simulation.round < simulation.rounds:
        simulation.step()
    folders = {(tier, last.find(tier, kits.whole.tree.name(tier, n))): path for (tier, n), path in kits.nodes.items()}
    folders |= {(0, last.find(0, one.name)): kit for one, kit in zip(counted, added, strict=True)}
    wrong, states = [], 0
    for (tier, number), machine in settled(last, folders).items():
        store, name = simulation.stores[tier], last.name(tier, number)
        took = bool(store.last[number] >= 0)
        if machine.took_part != took and tier < last.top:
            wrong.append(f"{name} took part {'here' if machine.took_part else 'in the simulation'} only")
        for key, rows in machine.state.items() if took else ():
            states += 1
            if not torch.equal(rows[0], store.rows[key][number]):
                wrong.append(f"{key!r} of {name}")
    upper = simulation.ledger.totals()[simulation.link_tier(last.top)]
    missing = len(simulation.record.table())
    return Parity(simulation, states, tuple(wrong), missing, upper.bytes_up, upper.bytes_down)


def _simulated(kits: Kits, people: Population, last: Tree) -> Simulation:
    """Return the simulation of a federation on some population; its tree may be smaller than the one that it ended with."""
    whole, path = kits.whole, kits.nodes[kits.whole.tree.top, 0] / RUN / ABSENCES
    tree = people.tree
    links = {tier: whole.links.get(tier, Link()) for tier in range(tree.top)}
    if path.exists():
        absences = read_absences(path, last, grown=True)
        here = [torch.tensor(one) for one in places(tree, last)]
        links = {tier: replace(link, absences=_of(absences, here)) for tier, link in links.items()}
    return Simulation(
        whole.algorithm,
        people,
        whole.task,
        rounds=whole.rounds,
        seed=whole.seed,
        links=links,
        dtype=whole.learner.dtype,
        backend=whole.learner.backend.name,
        chunk=1,
        optimiser=whole.learner.optimiser,
        held_out=whole.held_out,
    )


def _of(absences: Absences, here: list[Tensor]) -> Absences:
    """Return who is absent for a tree whose nodes have other numbers in the tree of the record."""
    return lambda round_, tier, exchange, children: absences(round_, tier, exchange, here[tier - 1][children])


def _with(people: Population, name: str, parent: str, own: Population) -> Population:
    """Return a population with one more device, the last one of its parent."""
    above = people.tree.find(1, parent)
    place = people.tree.children(1, above).stop
    cut = int(people.start[place])
    sizes = people.start.diff().tolist()
    sizes.insert(place, len(own.x))
    train = people.train.tolist()
    train.insert(place, int(own.train[0]))
    x, y = (torch.cat([all_[:cut], new, all_[cut:]]) for all_, new in ((people.x, own.x), (people.y, own.y)))
    start = torch.tensor([0, *itertools.accumulate(sizes)])
    tree = joined(people.tree, above, name)
    return Population(tree, x, y, start, torch.tensor(train), affine=people.affine, classes=people.classes)


def settled(tree: Tree, folders: Mapping[tuple[int, int], Path]) -> dict[tuple[int, int], Machine]:
    """Return the machines of all nodes from their disks, each at the state that its parent has of it."""
    machines = {place: _machine(folder) for place, folder in folders.items()}
    for tier in range(tree.top, 0, -1):
        for number in range(tree.size(tier)):
            parent = machines[tier, number]
            for at, child in enumerate(tree.children(tier, number)):
                machines[tier - 1, child].settle(parent.now.entered.get(at, -1))
    return machines


def _machine(folder: Path) -> Machine:
    kit = Kit(folder)
    if kit.node.tier == 0 and not kit.node.dealt:
        kit = Kit(folder, folder / DATA)
    machine, data = Machine(kit.setup()), Disk(folder / STATE).read()
    if data is None:
        raise PalmetteError(f"the node {kit.node.name!r} never ran")
    unpack(machine, data)
    return machine
