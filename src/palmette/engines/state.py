"""A simulation between two rounds as named tensors, to be kept and gone on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.engines.store import Pieces, Store
from palmette.links import Ledger
from palmette.links.ledger import ledger_of, table_of

if TYPE_CHECKING:
    from palmette.engines.simulate import Simulation

LINK = "link"  # how the names begin of what codecs of links remember


def state(simulation: Simulation, since: int = 0) -> dict[str, Tensor | Pieces]:
    """Return by name what the next rounds depend on, as far as it changed in round ``since`` or later; by default all."""
    traffic = table_of(simulation.ledger)
    tensors: dict[str, Tensor | Pieces] = {
        "ledger": traffic[traffic[:, 0] >= since],
        "record": simulation.record.since(since),
        "progress": torch.tensor([simulation.round, simulation.device_steps, since]),
    }
    for name, store in simulation.kept.items():
        ids = store.changed(since)
        tensors |= {f"ids/{name}": ids, f"last/{name}": store.last[ids]}
        tensors |= {f"rows/{name}/{kind}": store.written(kind, ids) for kind in store.initial}
    for tier, counter in enumerate(simulation.counters):
        counts = counter.table[1:]  # exchanges within a round are over
        tensors[f"counts/{tier}"] = counts if bool(counts.any()) else counts[:, :0]
    return tensors


def restore(simulation: Simulation, tensors: Mapping[str, Any]) -> None:
    """Go on from a state: the next rounds come out as if there had been no stop.

    A state since the first round is whole. One since a later round is what changed after the one that was restored last.
    """
    simulation.round, simulation.device_steps, since = tensors["progress"].tolist()
    if since == 0:
        simulation.ledger = Ledger()
        for store in simulation.kept.values():
            store.forget()
    for name in (key.removeprefix("last/") for key in tensors if key.startswith("last/")):
        prefix = f"rows/{name}/"
        rows = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
        store = simulation.kept.get(name) or _link_store(simulation, name, rows)
        store.restore(tensors[f"ids/{name}"], tensors[f"last/{name}"], rows)
    for tier, counter in enumerate(simulation.counters):
        given = tensors[f"counts/{tier}"]
        counter.table[1:] = given if given.shape[1] else 0
    simulation.ledger.entries |= ledger_of(tensors["ledger"]).entries
    simulation.record.restore(tensors["record"], since)


def _link_store(simulation: Simulation, name: str, rows: Mapping[str, Any]) -> Store:
    """Make room for what the codecs of a link remembered when a state was kept."""
    _, tier, key = name.split("/", 2)
    return simulation.memories[int(tier)].add(
        key, {kind: torch.zeros(like.shape[1:], dtype=like.dtype) for kind, like in rows.items()}
    )
