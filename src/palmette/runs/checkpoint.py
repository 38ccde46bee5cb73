"""Whether a checkpoint fits the run that is to go on from it: a right checksum does not say that it is this run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.engines.store import Store, kept_rows
from palmette.errors import BadInput
from palmette.protocol import Algorithm
from palmette.runs.metrics import SCHEMA
from palmette.runs.opening import read_parquet
from palmette.runs.records import Record
from palmette.values import shown

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
        stores = _check_names(simulation, record.tensors)
        _check_progress(simulation, stores, record.tensors, before)
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


def _check_names(simulation: Simulation, tensors: Mapping[str, Tensor]) -> dict[str, Store]:
    """Refuse tensors of other names, types or shapes than the simulation's; return whose the rows are, by their name."""
    wanted = {name: (like.dtype, tuple(like.shape)) for name, like in simulation.state().items()}
    wanted["metrics"] = (torch.uint8, (0,))
    stores = {}
    for name, rows in kept_rows(tensors).items():
        if (store := simulation.memory(name, rows)) is not None:
            stores[name] = store
            wanted |= {f"ids/{name}": (torch.int64, (0,)), f"last/{name}": (torch.int64, (0,))}
            wanted |= {f"rows/{name}/{kind}": (row.dtype, (0, *row.shape)) for kind, row in store.initial.items()}
    if tensors.keys() != wanted.keys():
        raise BadInput(f"it holds {shown(sorted(tensors))} and should hold {shown(sorted(wanted))}")
    for name, (dtype, shape) in wanted.items():
        given = tensors[name]
        free = name in ("ledger", "metrics") or name.startswith(("ids/", "last/", "rows/"))  # of any length
        same = given.dim() == len(shape) and tuple(given.shape[free:]) == shape[free:]
        if given.dtype != dtype or not same:
            raise BadInput(f"{name} is {given.dtype} of shape {tuple(given.shape)}, not {dtype} of {shape}")
    return stores


def _check_progress(
    simulation: Simulation, stores: Mapping[str, Store], tensors: Mapping[str, Tensor], before: int | None
) -> None:
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
    for name, store in stores.items():
        ids, last = tensors[f"ids/{name}"], tensors[f"last/{name}"]
        if len(last) != len(ids) or _outside(last, since, done):
            raise BadInput(f"last/{name} names other rounds than those from {since} to {done}")
        if _outside(ids, 0, store.size) or bool((ids[1:] <= ids[:-1]).any()):
            raise BadInput(f"ids/{name} are not some of {store.size} nodes in order")
        for kind in store.initial:
            if (given := len(tensors[f"rows/{name}/{kind}"])) != len(ids):
                raise BadInput(f"rows/{name}/{kind} are {given} rows, not {len(ids)}")
    for name, turn in tensors.items():
        if name.startswith("turn/") and bool((turn < 0).any()):
            raise BadInput(f"{name} counts exchanges below 0")


def _outside(numbers: Tensor, low: int, high: int) -> bool:
    """Return whether one of some numbers is below the first or not below the second."""
    return bool((numbers < low).any() or (numbers >= high).any())
