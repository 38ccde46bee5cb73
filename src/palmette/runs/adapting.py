"""Personal models for devices that never trained, made from a finished run by the algorithm's own rule."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import BadInput
from palmette.learner.scores import model_output
from palmette.protocol import model_kind
from palmette.runs.exporting import about
from palmette.runs.models import check_shapes
from palmette.runs.nodes import Chosen, Nodes, plain_paths
from palmette.runs.predicting import table_of
from palmette.runs.reading import code_of
from palmette.runs.result import Result
from palmette.runs.written import file_names, save_tensors
from palmette.tables.again import read_again
from palmette.values import fraction


@dataclass
class Adapted:
    """Personal models of new devices.

    Attributes:
        devices: One entry per device: its name, whose model it began ``from``, its training and test rows, and every metric on
            its test rows ``before`` and ``after``.
        models: The models by device, as `torch.nn.Module.load_state_dict` takes them.
        notes: What was guessed or left out, in sentences.
        result: The run.
    """

    devices: list[dict[str, Any]]
    models: dict[str, dict[str, Tensor]]
    result: Result
    notes: list[str] = field(default_factory=list)

    def save(self, folder: str | Path) -> list[Path]:
        """Write every model to a safetensors file like those of `palmette.export`, and return their paths."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        written = []
        for name, file in zip(self.models, file_names(list(self.models)), strict=True):
            path = place / f"{file}.safetensors"
            if path.exists():
                raise BadInput(f"{path} is there already; choose another place or remove it first")
            told = json.dumps(about(self.result, Chosen("PM", name)))
            save_tensors(self.models[name], path, {"node": name, "palmette": told})
            written.append(path)
        return written


def adapt(run: Result | str | Path, data: Any, *, test: float = 0.25, trust: bool = False) -> Adapted:
    """Make personal models for the devices of a table that did not take part in a run.

    A device begins from its team's model, or from the global one where its team is not known, and takes the steps that the
    algorithm takes for a new device.

    Args:
        run: The run, or its folder.
        data: A CSV or Parquet file, a folder of them, or a pandas or Arrow table, with labels.
        test: The part of each device's rows kept to measure the models.
        trust: Whether code that the run names may be run, where ``run`` is a folder; see `palmette.load`.
    """
    result = run if isinstance(run, Result) else Result(Path(run), trust=trust)
    known, config = table_of(result), result.config
    if "GM" not in result.kinds:
        raise BadInput(f"{config.title} has no global model from which a new device could begin")
    for role, path in code_of(config).items():
        if role in ("algorithm", "model"):
            result.refuse_code(role, path)
    people, notes = read_again(data, known, test=fraction("test", test), seed=config.seed)
    if changed := config.changed_code():
        notes.append(f"{changed} when the run was made; the models are adapted by what it is now")
    simulation = Simulation(
        config.method(),
        people,
        config.task(people),
        rounds=config.rounds,
        seed=config.seed,
        dtype=config.dtype(),
        backend=config.engine.backend,
        device=config.engine.device,
        chunk=config.engine.chunk,
        held_out=config.engine.held_out,
        optimiser=config.optimiser,
    )
    begun = _take_over(simulation, result)
    notes += begun.notes
    ids = torch.arange(people.devices)
    scorer = simulation.learner.scorer
    with one_thread_inside():
        above = torch.from_numpy(simulation.tree.parents[0])
        before = scorer.sums(simulation.models_of(1, torch.arange(simulation.tree.size(1))), above, ids, "test")
        rows, running = simulation.personal(ids)
        predict = simulation.algorithm.predict if simulation.predicts else model_output
        after = scorer.sums(rows, ids, ids, "test", running, predict)
    names = simulation.tree.names(0)
    taken = set(result.names("PM")) & set(names)
    if taken:
        notes.append(
            f"devices of this name are in the run already, and are new ones here: {', '.join(sorted(taken)[:5])}"
        )
    if simulation.predicts:
        notes.append(
            f"devices of {config.title} predict in a way of its own, from several rows; it was measured with all of "
            "them, and the models kept are one of them"
        )
    told = [
        {
            "device": name,
            "from": begun.whose[int(above[number])],
            "train": int(people.train[number]),
            "test": int(people.tests[number]),
            "before": _means(before, number),
            "after": _means(after, number),
        }
        for number, name in enumerate(names)
    ]
    return Adapted(told, _models(simulation, rows["model"], running, result), result, notes)


@dataclass
class _Begun:
    """Whose model the children of every node of tier 1 begin from, and what to say about it."""

    whose: list[str]
    notes: list[str]


def _take_over(simulation: Simulation, result: Result) -> _Begun:
    """Give the teams and the server of a simulation the models of a run."""
    tree, top = simulation.tree, simulation.tree.top
    simulation.round = simulation.rounds
    known: dict[int, list[str | None]] = {}
    nodes, paths = Nodes(result), plain_paths(tree)
    for tier in range(1, top + 1):
        store, kind = simulation.stores[tier], model_kind(tier, top)
        kept = set(result.names(kind)) if kind in result.kinds and "model" in store.initial else set()
        names = result.names(kind) if tier == top else [nodes.name_of(tier, path) for path in paths[tier]]
        known[tier] = [name if name in kept else None for name in names]
        ids = torch.tensor([name is not None for name in known[tier]]).nonzero().squeeze(1)
        if len(ids):
            rows = torch.stack([_flat(simulation, result, kind, name) for name in known[tier] if name is not None])
            store.write(ids, {**store.read(ids), "model": rows}, simulation.rounds - 1)
    whose, lost = [], []
    for team in range(tree.size(1)):
        number, tier = team, 1
        while tier < top and known[tier][number] is None:
            number, tier = int(tree.parents[tier][number]), tier + 1
        kind = model_kind(tier, top)
        whose.append(f"{kind} of {known[tier][number]}")
        if tier == top and top > 1 and "TM" in result.kinds:
            lost.append(tree.name(1, team))
    some = ", ".join(map(repr, lost[:5])) + (" and others" if len(lost) > 5 else "")
    return _Begun(
        whose, [f"teams that the run does not know: {some}; their devices begin from the global model"] if lost else []
    )


def _flat(simulation: Simulation, result: Result, kind: str, name: str) -> Tensor:
    """Return a node's model as a row."""
    values, layout = result.state_dict(kind, name), simulation.task.layout
    check_shapes(simulation.task.module, values, f"the model {result.config.model.title!r}")
    dtype = simulation.learner.dtype
    return layout.flatten({one: values[one].to(dtype) for one in layout.names}).to(simulation.learner.device)


def _models(
    simulation: Simulation, rows: Tensor, running: Tensor | None, result: Result
) -> dict[str, dict[str, Tensor]]:
    """Return every device's model by the names of its parameters."""
    task = simulation.task
    layout = task.layout
    if running is not None and task.running is not None:
        rows, layout = torch.cat([rows, running], 1), task.layout + task.running
    parts = layout.unflatten(rows.cpu())
    tied = simulation.task.tied
    made: dict[str, dict[str, Tensor]] = {}
    for number, name in enumerate(simulation.tree.names(0)):
        values = {key: part[number].clone() for key, part in parts.items()} | result.frozen
        made[name] = {**values, **{other: values[own].clone() for other, own in tied.items()}}
    return made


def _means(sums: dict[str, Tensor], number: int) -> dict[str, float]:
    count = float(sums["count"][number])
    return {name: float(value[number]) / count for name, value in sums.items() if name != "count" and count}
