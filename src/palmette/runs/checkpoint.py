"""Whether a checkpoint fits the run that is to go on from it: a right checksum does not say that it is this run's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from palmette.engines.simulate import LINK, Simulation
from palmette.errors import BadInput
from palmette.links.record import REASONS
from palmette.protocol import Algorithm
from palmette.runs.files import read_parquet
from palmette.runs.metrics import SCHEMA
from palmette.runs.records import Record

# What a codec remembers: tier, direction, part of a message, width and type, and its kind.
_ROWS = re.compile(
    rf"rows/(?P<name>{LINK}/(?P<tier>[0-9]{{1,2}})/(up|down)/.*/(?P<width>[0-9]{{1,12}})/(?P<type>float32|float64))"
    r"/(reference|residual)",
    re.DOTALL,
)
Span = Literal["estimate", "rounds", "evaluation", "checkpoints", "progress"]
Seconds = dict[Span, Annotated[float, Field(ge=0)]]
"""Time spent on each of what a run does."""


class Memory(BaseModel):
    """What a run remembers besides the simulation's state.

    Attributes:
        run: The digest of the run's fingerprint.
        every: Rounds between evaluations.
        initial_loss: The loss before the first round, which a blow-up is measured by.
        sane: The last round whose loss was measured and found sane.
        rounds: Rounds the run was to have when it was kept.
        looked_at_rounds: Whether a program looked at that number.
        seconds: Time spent so far.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str
    every: int = Field(ge=1)
    initial_loss: float | None
    sane: int = Field(ge=0)
    rounds: int = Field(ge=1)
    looked_at_rounds: bool
    seconds: Seconds


def unfit(simulation: Simulation, run: str, record: Record, before: int | None) -> str | None:
    """Return why a run cannot go on from a record of a checkpoint, or ``None`` when it can.

    Args:
        simulation: What is to go on.
        run: The digest of its fingerprint.
        record: The record.
        before: The round of the record that it follows; ``None`` for the first.
    """
    try:
        if Memory.model_validate(record.about).run != run:
            return "it belongs to another run"
        _check_names(simulation, record.tensors)
        _check_progress(simulation, record.tensors, before)
        history(record.tensors["metrics"])
    except ValidationError as error:
        wrong = error.errors()[0]
        return f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
    except BadInput as error:
        return str(error)
    return None


def check_rounds(simulation: Simulation, done: int, memory: Memory) -> None:
    """Refuse another number of rounds than the run began with where what was done so far depends on it."""
    method, tree = simulation.algorithm, simulation.tree
    before, now = memory.rounds, simulation.rounds
    if before == now:
        return
    staged = type(method).stage is not Algorithm.stage and any(
        method.stage(tree, round_, before) != method.stage(tree, round_, now) for round_ in range(done)
    )
    if staged or memory.looked_at_rounds:
        schedule = simulation.learner.optimiser.schedule
        planner = f"optimiser.schedule = {schedule}" if schedule in ("linear", "cosine") else method.name
        raise BadInput(
            f"{planner} plans by the number of rounds, and the {done} rounds done were planned for {before} in all; "
            f"for {now} start a new run with rounds = {now}"
        )


def history(packed: Tensor) -> pa.Table:
    """Unpack the metrics that a checkpoint holds."""
    try:
        table = read_parquet(packed.numpy().tobytes())
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"its metrics cannot be read: {error}") from None
    except BadInput as error:
        raise BadInput(f"its metrics cannot be used: {error}") from None
    if not table.schema.equals(SCHEMA):
        raise BadInput(f"its metrics have the columns {table.schema.names}, not {SCHEMA.names}")
    return table


def _check_names(simulation: Simulation, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, types or shapes than the simulation's; how many rows were kept is not yet asked."""
    wanted = {name: (like.dtype, tuple(like.shape)) for name, like in simulation.state().items() if not _of_link(name)}
    wanted["metrics"] = (torch.uint8, (0,))
    mine = {name for name in tensors if not _of_link(name)}
    if mine != wanted.keys():
        raise BadInput(f"it holds {sorted(mine)} and should hold {sorted(wanted)}")
    _check_links(simulation, {name: value for name, value in tensors.items() if name not in mine})
    for name, (kind, shape) in wanted.items():
        given = tensors[name]
        free = name in ("ledger", "metrics", "record") or name.startswith(("ids/", "last/", "rows/"))  # of any length
        if name.startswith("counts/"):  # of all nodes of a tier, or of none where nothing was counted
            shape = (shape[0], simulation.tree.size(int(name.removeprefix("counts/"))) if given.numel() else 0)
        same = given.dim() == len(shape) and tuple(given.shape[free:]) == shape[free:]
        if given.dtype != kind or not same:
            raise BadInput(f"{name} is {given.dtype} of shape {tuple(given.shape)}, not {kind} of {shape}")


def _check_progress(simulation: Simulation, tensors: Mapping[str, Tensor], before: int | None) -> None:
    """Refuse numbers that no run of these rounds and this tree can have come to."""
    done, steps, since = tensors["progress"].tolist()
    if not 0 <= done <= simulation.rounds or steps < 0:
        raise BadInput(f"it is after round {done} of {simulation.rounds}, with {steps} device-steps")
    if since != (before or 0) or (before is not None and done <= since):
        raise BadInput(f"it tells what changed from round {since} to round {done}, and follows round {before or 0}")
    ledger = tensors["ledger"]
    tiers, rounds = ledger[:, 1], ledger[:, 0]
    top = simulation.population.tree.top
    if bool((ledger < 0).any() or (tiers < 1).any() or (tiers > top).any() or _outside(rounds, since, done)):
        raise BadInput("its ledger, the record of traffic, does not fit this tree and number of rounds")
    record, tree = tensors["record"], simulation.tree
    if bool((record < 0).any()) or _outside(record[:, 0], since, done) or _outside(record[:, 1], 1, tree.tiers):
        raise BadInput("its record of absences does not fit this tree and number of rounds")
    sizes = torch.tensor([tree.size(tier) for tier in range(tree.tiers)])
    if bool((record[:, 3] >= sizes[record[:, 1] - 1]).any() or (record[:, 4] >= len(REASONS)).any()):
        raise BadInput("its record of absences names nodes or reasons that there are not")
    for name in (key.removeprefix("last/") for key in tensors if key.startswith("last/")):
        ids, last = tensors[f"ids/{name}"], tensors[f"last/{name}"]
        nodes = tree.size(int(name.split("/")[1] if name.startswith(LINK) else name))
        if len(last) != len(ids) or _outside(last, since, done):
            raise BadInput(f"last/{name} names other rounds than those from {since} to {done}")
        if _outside(ids, 0, nodes) or bool((ids[1:] <= ids[:-1]).any()):
            raise BadInput(f"ids/{name} are not some of {nodes} nodes in order")
        for key in tensors:
            if key.startswith(f"rows/{name}/") and len(tensors[key]) != len(ids):
                raise BadInput(f"{key} are {len(tensors[key])} rows, not {len(ids)}")
    for name, counts in tensors.items():
        if name.startswith("counts/") and bool((counts < 0).any()):
            raise BadInput(f"{name} has counts below 0")


def _of_link(name: str) -> bool:
    """Return whether a tensor is something that the codecs of a link remember."""
    return name.partition("/")[2].startswith(f"{LINK}/")


def _check_links(simulation: Simulation, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what no codec of this simulation's links can remember."""
    names = {name.removeprefix("last/") for name in tensors if name.startswith("last/")}
    rows = {name: found for name in tensors if (found := _ROWS.fullmatch(name))}
    if tensors.keys() - rows.keys() != {f"{word}/{name}" for name in names for word in ("ids", "last")}:
        raise BadInput(f"it holds {sorted(tensors)[:6]}, which do not belong together")
    for name, found in rows.items():
        tier, given = int(found["tier"]), tensors[name]
        link = simulation.links.get(tier)
        if found["name"] not in names or tier >= simulation.tree.top or link is None or not link.encodes:
            raise BadInput(f"it holds {name}, and there is no codec that remembers it")
        if given.dim() != 2 or given.shape[1] != int(found["width"]) or str(given.dtype) != f"torch.{found['type']}":
            raise BadInput(f"{name} is {given.dtype} of shape {tuple(given.shape)}")
    for name in names:
        for word in ("ids", "last"):
            one = tensors[f"{word}/{name}"]
            if one.dtype != torch.int64 or one.dim() != 1:
                raise BadInput(f"{word}/{name} is {one.dtype} of shape {tuple(one.shape)}, not a row of whole numbers")


def _outside(numbers: Tensor, low: int, high: int) -> bool:
    """Return whether one of some numbers is below the first or not below the second."""
    return bool((numbers < low).any() or (numbers >= high).any())
