"""What a run leaves: the models of every tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.runs.folder import FROZEN, Folder, model_file
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
    model = {"name": name, "shape": list(population.shape), "classes": population.classes}
    for kind, tier in simulation.kinds.items():
        names = simulation.tree.names(tier)
        blocks: Iterable[Tensor] = (simulation.device_models(ids) for ids in torch.arange(len(names)).split(_BLOCK))
        if tier > 0:
            blocks = [simulation.models_of(tier, torch.arange(len(names)))]
        _write(simulation, folder, model_file(kind), blocks, {"nodes": names, "model": model})
    if frozen := simulation.task.frozen:
        folder.write_tensors(FROZEN, frozen, whole(frozen), {"model": model})


def _write(
    simulation: Simulation, folder: Folder, file: str, blocks: Iterable[Tensor], about: dict[str, object]
) -> None:
    """Write models whose rows come block by block and are never all in memory."""
    layout, names = simulation.task.layout, about["nodes"]
    assert isinstance(names, list)

    def chunks() -> Iterator[Chunk]:
        first = 0
        for rows in blocks:
            yield from ((name, first, part) for name, part in layout.unflatten(rows).items())
            first += len(rows)

    like = torch.empty((len(names), layout.width), dtype=simulation.learner.dtype, device="meta")
    folder.write_tensors(file, layout.unflatten(like), chunks(), about)
