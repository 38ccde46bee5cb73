"""Equal work: how many rounds of a method give each device a number of gradient steps, fine-tuning counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from palmette.errors import BadInput, Diverged
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs import RunConfig, prepare
from palmette.task import Task

_STILL = 10**15  # rounds of warm-up that leave nothing of a learning rate
_DEVICES = 256  # devices whose own models are made at once


@dataclass(frozen=True)
class Objects:
    """What a config cannot hold and the caller handed over; see `palmette.runs.execute`."""

    method: Algorithm | None = None
    population: Population | None = None
    task: nn.Module | Task | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(one is not None for one in (self.method, self.population, self.task))


NOTHING = Objects()


def rounds_for(config: RunConfig, steps: int, population: Population, objects: Objects, name: str) -> int:
    """Return the most rounds after which no more than so many mini-batch gradients were taken, per device on average.

    Devices that are kept out of training (`Population.unseen`) do not count.

    Three rounds are run to count their gradients: the first, one in the middle and the last. What making the devices' own
    models takes is counted as well (fine-tuning, `Algorithm.adapt`). Where rounds differ in their steps (stages, coins,
    participation) the number of rounds is an estimate, and the study tells what a run really took.

    Args:
        config: The run; its rounds do not matter.
        steps: Gradient steps of each device.
        population: Its population.
        objects: What the config cannot hold.
        name: What to call the method in an error.
    """
    try:
        return _rounds(config, steps, population, objects, name)
    except Diverged:
        # A round of a run that diverges has as many steps as any other: count them with steps of no length.
        return _rounds(config, steps, population, objects, name, still=True)


def _rounds(
    config: RunConfig, steps: int, population: Population, objects: Objects, name: str, *, still: bool = False
) -> int:
    (first,), tuning = _counted(config, 1, [0], population, objects, still)
    rounds = _fitting(steps, first, first, tuning, name)
    if rounds > 1:
        (first, *later), tuning = _counted(
            config, rounds, sorted({0, rounds // 2, rounds - 1}), population, objects, still
        )
        rounds = _fitting(steps, first, sum(later) / len(later), tuning, name)
    return rounds


def _fitting(steps: int, first: float, later: float, tuning: float, name: str) -> int:
    if first + tuning > steps:
        fine = f" and {tuning:g} of fine-tuning" if tuning else ""
        raise BadInput(
            f"{name} takes {first:g} gradient steps on each device in its first round{fine}, more than the {steps} steps "
            f"wanted; lower its steps, as with --set {name}.local_steps=5, or give more --steps"
        )
    return 1 + int((steps - tuning - first + 1e-9) // later) if later else 1


def _counted(
    config: RunConfig, rounds: int, which: list[int], population: Population, objects: Objects, still: bool
) -> tuple[list[float], float]:
    """Return the steps of some rounds, and those of making the devices' models; both per device that trains, on average."""
    out = population.unseen
    trains = torch.arange(population.devices) if out is None else (~out).nonzero().squeeze(1)
    simulation = prepare(config.model_copy(update={"rounds": rounds}), objects.method, population, objects.task)
    if still:
        simulation.learner.optimiser = simulation.learner.optimiser.model_copy(update={"warmup": _STILL})
    taken = []
    try:
        for round_ in which:
            before, simulation.round = simulation.device_steps, round_
            simulation.step()
            taken.append((simulation.device_steps - before) / len(trains))
        before = simulation.adapt_steps
        for ids in trains.split(_DEVICES):
            simulation.device_models(ids)
        return taken, (simulation.adapt_steps - before) / len(trains)
    finally:
        for store in simulation.stores:
            store.remove()
