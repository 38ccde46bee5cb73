"""What a federation came to, held against the simulation of the same training, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from palmette.deploy.keeping import Disk, unpack
from palmette.deploy.kit import RUN, STATE, Kit
from palmette.deploy.kits import Kits
from palmette.engines.machine import Machine
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.links import Link
from palmette.runs.absences import ABSENCES, read_absences


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


def parity(kits: Kits) -> Parity:
    """Simulate a federation's training, with the absences that it recorded, and compare what every node keeps."""
    tree, path = kits.whole.tree, kits.nodes[kits.whole.tree.top, 0] / RUN / ABSENCES
    absences = read_absences(path, tree) if path.exists() else None
    links = {tier: kits.whole.links.get(tier, Link()) for tier in range(tree.top)}
    if absences is not None:
        links = {tier: replace(link, absences=absences) for tier, link in links.items()}
    whole = kits.whole
    simulation = Simulation(
        whole.algorithm,
        whole.population,
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
    for _ in range(whole.rounds):
        simulation.step()
    machines = settled(kits)
    wrong, states = [], 0
    for (tier, number), machine in machines.items():
        store, name = simulation.stores[tier], tree.name(tier, number)
        took = bool(store.last[number] >= 0)
        if machine.took_part != took and tier < tree.top:
            wrong.append(f"{name} took part {'here' if machine.took_part else 'in the simulation'} only")
        for key, rows in machine.state.items() if took else ():
            states += 1
            if not torch.equal(rows[0], store.rows[key][number]):
                wrong.append(f"{key!r} of {name}")
    upper = simulation.ledger.totals()[simulation.link_tier(tree.top)]
    missing = len(simulation.record.table())
    return Parity(simulation, states, tuple(wrong), missing, upper.bytes_up, upper.bytes_down)


def settled(kits: Kits) -> dict[tuple[int, int], Machine]:
    """Return the machines of all nodes from their disks, each at the state that its parent has of it."""
    tree = kits.whole.tree
    machines: dict[tuple[int, int], Machine] = {}
    for place, folder in kits.nodes.items():
        machines[place] = _machine(folder)
    for tier in range(tree.top, 0, -1):
        for number in range(tree.size(tier)):
            parent = machines[tier, number]
            for at, child in enumerate(tree.children(tier, number)):
                machines[tier - 1, child].settle(parent.now.entered.get(at, -1))
    return machines


def _machine(folder: Path) -> Machine:
    kit = Kit(folder)
    machine, data = Machine(kit.setup()), Disk(folder / STATE).read()
    if data is None:
        raise PalmetteError(f"the node {kit.node.name!r} never ran")
    unpack(machine, data)
    return machine
