"""Whether a checkpoint fits the run that is to go on from it: a right checksum does not say that it is this run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.guards.parquet import read as read_parquet
from palmette.protocol import Algorithm
from palmette.runs.metrics import SCHEMA

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


def unfit(simulation: Simulation, run: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str | None:
    """Return why a run cannot go on from a checkpoint, or ``None`` when it can.

    Args:
        simulation: What is to go on.
        run: The digest of its fingerprint.
        tensors: The checkpoint's tensors.
        about: What else it holds.
    """
    try:
        if Memory.model_validate(about).run != run:
            return "it belongs to another run"
        _check_names(simulation, tensors)
        _check_progress(simulation, tensors)
        history(tensors["metrics"])
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
    except pa.ArrowException as error:
        raise BadInput(f"its metrics cannot be read: {error}") from None
    if not table.schema.equals(SCHEMA):
        raise BadInput(f"its metrics have the columns {table.schema.names}, not {SCHEMA.names}")
    return table


def _check_names(simulation: Simulation, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, types or shapes than the simulation's; how many rows were kept is not yet asked."""
    wanted = {name: (like.dtype, tuple(like.shape)) for name, like in simulation.state().items()}
    wanted["metrics"] = (torch.uint8, (0,))
    if tensors.keys() != wanted.keys():
        raise BadInput(f"it holds {sorted(tensors)} and should hold {sorted(wanted)}")
    for name, (kind, shape) in wanted.items():
        given = tensors[name]
        free = name in ("ledger", "metrics") or name.startswith("rows/")  # of any length
        same = given.dim() == len(shape) and tuple(given.shape[free:]) == shape[free:]
        if given.dtype != kind or not same:
            raise BadInput(f"{name} is {given.dtype} of shape {tuple(given.shape)}, not {kind} of {shape}")


def _check_progress(simulation: Simulation, tensors: Mapping[str, Tensor]) -> None:
    """Refuse numbers that no run of these rounds and this tree can have come to."""
    done, steps = tensors["progress"].tolist()
    if not 0 <= done <= simulation.rounds or steps < 0:
        raise BadInput(f"it is after round {done} of {simulation.rounds}, with {steps} device-steps")
    ledger = tensors["ledger"]
    tiers, rounds = ledger[:, 1], ledger[:, 0]
    top = simulation.population.tree.top
    if bool((ledger < 0).any() or (tiers < 1).any() or (tiers > top).any() or (rounds >= done).any()):
        raise BadInput("its ledger, the record of traffic, does not fit this tree and number of rounds")
    for tier, store in enumerate(simulation.stores):
        last = tensors[f"last/{tier}"]
        if bool((last < -1).any() or (last >= done).any() or (tensors[f"turn/{tier}"] < 0).any()):
            raise BadInput(f"last/{tier} or turn/{tier} names rounds that have not been run yet")
        kept = int((last >= 0).sum())
        for name in store.initial:
            if len(tensors[f"rows/{tier}/{name}"]) != kept:
                raise BadInput(f"rows/{tier}/{name} are {len(tensors[f'rows/{tier}/{name}'])} rows, not {kept}")
