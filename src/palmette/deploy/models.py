"""The models that nodes keep for themselves, as safetensors: a device's own, a team's, the global one."""

from __future__ import annotations

import json
import os

import safetensors.torch
import torch
from torch import Tensor

from palmette.deploy.kit import MODELS, Kit
from palmette.engines.alone import personal_rows
from palmette.engines.machine import Machine
from palmette.engines.models import ASIDE
from palmette.links.wire import Envelope
from palmette.protocol.node import model_kind

PERSONAL, SHARED = "personal.safetensors", "model.safetensors"


def save_personal(kit: Kit, machine: Machine, word: Envelope) -> None:
    """Save a device's own model after a round: what it predicts with, by the names of the module's parameters.

    Args:
        kit: The device's kit, which it is kept in.
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
    _save(kit, PERSONAL, {**tensors, **others}, word)


def save_team(kit: Kit, machine: Machine, word: Envelope) -> None:
    """Save the model of a team, or the global one."""
    row = machine.state["model"]
    _save(kit, SHARED, {name: part[0] for name, part in machine.setup.layout.unflatten(row).items()}, word)


def _save(kit: Kit, name: str, tensors: dict[str, Tensor], word: Envelope) -> None:
    """Write tensors as a whole or not at all, with what an exported model has beside them, and the round."""
    node = kit.node
    told = kit.config.about_model(node.name, model_kind(node.tier, node.top), node.data.encoding)
    data = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        {"node": node.name, "palmette": json.dumps({**told, "round": word.round, "rounds": word.rounds})},
    )
    path = kit.folder / MODELS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
