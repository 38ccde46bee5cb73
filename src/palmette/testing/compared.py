"""What runs left behind, held against each other; the first difference is told in a sentence, with what to change."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.engines.separate import Machine
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.links.ledger import COLUMNS, Traffic

MARGIN = {torch.float32: 1e-5, torch.float64: 1e-9}


class ContractBroken(PalmetteError):  # noqa: N818 - reads as what it is
    """An algorithm does not keep the contract; the message says which part, where, and what to change."""


def everything(simulation: Simulation) -> dict[str, Tensor]:
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


def by_node(simulation: Simulation) -> dict[str, tuple[int, Tensor]]:
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


def require(kept: bool, what: str, fix: str) -> None:
    """Refuse what the contract does not allow, with what to change."""
    if not kept:
        raise ContractBroken(f"{what}; {fix}")


def same_bits(one: Simulation, other: Simulation, what: str = "two runs differ", fix: str = "they must not") -> None:
    """Refuse two runs that left anything different behind."""
    mine, theirs = everything(one), everything(other)
    require(mine.keys() == theirs.keys(), what, fix)
    for name, value in mine.items():
        require(torch.equal(value, theirs[name]), f"{what} in {name}", fix)


def close(one: Simulation, other: Simulation, dtype: torch.dtype, what: str, fix: str) -> None:
    """Refuse two runs that differ by more than round-off."""
    mine, theirs = everything(one), everything(other)
    for name, value in mine.items():
        require(alike(value, theirs[name], MARGIN[dtype]), f"{what} in {name}", fix)


def alike(one: Tensor, other: Tensor, margin: float) -> bool:
    """Return whether two tensors differ by round-off at most."""
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=margin, atol=margin)


def same_as_separate(machines: list[list[Machine]], stacked: Simulation) -> None:
    """Refuse machines that did not keep, compute or send what the simulation did."""
    fix = (
        "a node knows itself, those above it and its children alone: never look across rows, never make numbers from node.ids "
        "(node.addresses belong to the node itself), and keep nothing on self between messages"
    )
    for tier, (row, store) in enumerate(zip(machines, stacked.stores, strict=True)):
        for number, machine in enumerate(row):
            seen = machine.took_part or tier == stacked.tree.top
            who = repr(stacked.tree.name(tier, number))
            took = bool(store.last[number] >= 0)
            require(seen == took, f"{who} took part as a separate node or in the simulation, but not in both", fix)
            for name, value in machine.state.items() if seen else ():
                equal = torch.equal(value[0], store.rows[name][number])
                require(equal, f"{name!r} of {who} differs between a separate node and the simulation", fix)
    steps = sum(machine.device_steps for machine in machines[0])
    require(steps == stacked.device_steps, "separate nodes took another number of gradient steps", fix)
    for tier in range(1, stacked.tree.tiers):
        link = stacked.link_tier(tier)
        apart, together = Traffic(), stacked.ledger.totals().get(link, Traffic())
        for machine in machines[tier]:
            apart.join(machine.ledger.totals().get(link, Traffic()))
        for count in COLUMNS[2:]:
            one, other = getattr(apart, count), getattr(together, count)
            require(one == other, f"separate nodes counted {one} {count}, the simulation {other}", fix)
