"""What a run leaves: the models of every tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.runs.folder import FROZEN, ROWS, Folder, model_file
from palmette.runs.tensors import Chunk, whole

_BLOCK = 256  # devices whose models are gathered at once


def save_models(simulation: Simulation, name: str, folder: Folder) -> None:
    """Write the models of every kind there is, each kind to a file of its own; what is frozen is written once.

    Args:
        simulation: Whose models.
        name: What the model is called in the config.
        folder: Where to.
    """
    population = simulation.population
    model: dict[str, object] = {"name": name, "shape": list(population.shape), "classes": population.classes}
    if simulation.task.tied:
        model["tied"] = simulation.task.tied
    for kind, tier in simulation.kinds.items():
        names = simulation.tree.names(tier)
        ids = torch.arange(len(names))
        blocks: Iterable[Tensor] = (_personal(simulation, some) for some in ids.split(_BLOCK))
        if tier > 0:
            blocks = [_shared(simulation, simulation.models_of(tier, ids))]
        _write(simulation, folder, model_file(kind), blocks, {"nodes": names, "model": model})
    if simulation.predicts:
        _write_rows(simulation, folder)
    if frozen := simulation.task.frozen:
        folder.write_tensors(FROZEN, frozen, whole(frozen), {"model": model})


def _personal(simulation: Simulation, ids: Tensor) -> Tensor:
    """Return the models of some devices, with their own running statistics at the end of the rows where they keep some."""
    rows, running = simulation.personal(ids)
    return rows["model"] if running is None else torch.cat([rows["model"], running], 1)


def _shared(simulation: Simulation, rows: Tensor) -> Tensor:
    """Return models above the devices as rows of the same width; running statistics of others are not theirs to know."""
    task = simulation.task
    if not task.own_running:
        return rows
    return torch.cat([rows, task.initial_running(rows.dtype).to(rows.device).expand(len(rows), -1)], 1)


def _write(
    simulation: Simulation, folder: Folder, file: str, blocks: Iterable[Tensor], about: dict[str, object]
) -> None:
    """Write models whose rows come block by block and are never all in memory."""
    task, names = simulation.task, about["nodes"]
    layout = task.layout + task.running if task.own_running and task.running is not None else task.layout
    assert isinstance(names, list)

    def chunks() -> Iterator[Chunk]:
        first = 0
        for rows in blocks:
            yield from ((name, first, part) for name, part in layout.unflatten(rows).items())
            first += len(rows)

    like = torch.empty((len(names), layout.width), dtype=simulation.learner.dtype, device="meta")
    folder.write_tensors(file, layout.unflatten(like), chunks(), about)


def _write_rows(simulation: Simulation, folder: Folder) -> None:
    """Write all that the devices keep, for an algorithm that predicts from more than a model."""
    names, blocks = simulation.tree.names(0), torch.arange(simulation.tree.devices).split(_BLOCK)
    first = simulation.personal(blocks[0])[0]
    like = {
        name: torch.empty((len(names), *rows.shape[1:]), dtype=rows.dtype, device="meta")
        for name, rows in first.items()
    }

    def chunks() -> Iterator[Chunk]:
        for ids in blocks:
            yield from ((name, int(ids[0]), rows) for name, rows in simulation.personal(ids)[0].items())

    folder.write_tensors(ROWS, like, chunks(), {"nodes": names})
