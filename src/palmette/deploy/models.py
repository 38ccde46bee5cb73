"""The models that nodes keep for themselves, as safetensors: a device's own, a team's, the global one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from palmette.engines.alone import personal_rows
from palmette.engines.machine import Machine
from palmette.engines.models import ASIDE
from palmette.links.wire import Envelope

PERSONAL, SHARED = "personal.safetensors", "model.safetensors"


def save_personal(folder: Path, machine: Machine, word: Envelope) -> None:
    """Save a device's own model after a round: what it predicts with, by the names of the module's parameters.

    Args:
        folder: Where to.
        machine: The device's machine, at the state that entered.
        word: The message that brought the models above.
    """
    setup = machine.setup
    assert setup.learner is not None
    models = dict(word.body)
    with torch.no_grad():
        device = machine.device(word, torch.tensor([ASIDE]))
        kept = (machine.state, machine.declared, machine.took_part)
        rows, running = personal_rows(setup.algorithm, device, *kept, next(reversed(models.values())))
    row = rows["model"]
    layout = setup.layout
    task = setup.learner.task
    if running is not None and task.running is not None:
        row, layout = torch.cat([row, running], 1), layout + task.running
    tensors = {name: part[0] for name, part in layout.unflatten(row).items()}
    others = {f"~{name}": value[0] for name, value in rows.items() if name != "model"}
    save(folder / PERSONAL, {**tensors, **others}, machine, word)


def save_team(folder: Path, machine: Machine, word: Envelope) -> None:
    """Save the model of a team, or the global one."""
    row = machine.state["model"]
    save(folder / SHARED, {name: part[0] for name, part in machine.setup.layout.unflatten(row).items()}, machine, word)


def save(path: Path, tensors: dict[str, Tensor], machine: Machine, word: Envelope) -> None:
    """Write tensors as a whole or not at all."""
    about = {"node": machine.setup.name, "round": word.round, "rounds": word.rounds}
    data = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        {"about": json.dumps(about)},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
