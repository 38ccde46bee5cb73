"""One training in this process, without a folder, and how well it serves each device on that device's own test samples."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.engines.simulate import Simulation
from palmette.errors import Diverged
from palmette.learner.scores import model_output
from palmette.population import Population
from palmette.protocol import Algorithm, ModelKind
from palmette.task import Task

FAILED = -math.inf
"""The score of a training that diverged."""
_DEVICES = 256  # devices whose personal models are measured at once


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of one training.

    Attributes:
        score: How good the served models are: the share of all test samples that are classified rightly, or the R2 of all
            test samples together; `FAILED` where the training diverged.
        sums: Of every device, the test samples that are classified rightly, or the sum of squared errors; ``None`` where the
            training diverged.
        steps: Gradient steps of all devices, fine-tuning counted.
        seconds: Seconds of CPU time, measuring counted.
    """

    score: float
    sums: Tensor | None
    steps: int
    seconds: float


def train(
    population: Population, task: Task, method: Algorithm, *, rounds: int, model: ModelKind, seed: int
) -> Trained:
    """Train once on one thread and measure the model that is served to each device; divergence is a score, not an error.

    Args:
        population: The samples of all devices; what counts as test samples is what is measured on.
        task: The model, with its loss.
        method: The algorithm with its settings.
        rounds: Rounds of training.
        model: Which model a device is served: its own, its team's or the global one.
        seed: Decides batches and whatever else is drawn.
    """
    began = time.process_time()
    simulation = Simulation(method, population, task, rounds=rounds, seed=seed, threads=1)
    try:
        for _ in range(rounds):
            simulation.step()
        found = served(simulation, model)
    except Diverged:
        found = None
    score = FAILED if found is None else score_of(population, found)
    steps = simulation.device_steps + simulation.adapt_steps
    return Trained(score, found, steps, time.process_time() - began)


def served(simulation: Simulation, model: ModelKind) -> Tensor | None:
    """Return, for every device, how many test samples its served model has right, or its sum of squared errors.

    It is ``None`` where a model or a loss is not finite. Only the served model is made: where that is no personal one, nothing
    is fine-tuned.

    Args:
        simulation: A simulation after its last round.
        model: Which model a device is served.
    """
    scorer, everybody = simulation.learner.scorer, torch.arange(simulation.population.devices)
    if model == "PM":
        predict = simulation.algorithm.predict if simulation.predicts else model_output
        parts = []
        for ids in everybody.split(_DEVICES):
            rows, running = simulation.personal(ids)
            parts.append(scorer.sums(rows, torch.arange(len(ids)), ids, "test", running, predict))
        sums = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    else:
        tier = simulation.kinds[model]
        models = simulation.models_of(tier, torch.arange(simulation.tree.size(tier)))
        sums = scorer.sums(models, torch.from_numpy(simulation.tree.ancestors(tier)), everybody, "test")
    if not bool(sums["loss"].isfinite().all()):
        return None
    return sums["accuracy"] if "accuracy" in sums else 2 * sums["loss"]  # the squared loss is half the square


def score_of(population: Population, sums: Tensor) -> float:
    """Return the share of test samples that are right, or R2 = 1 - (squared errors) / (squares around the training mean).

    Args:
        population: Whose test samples were measured.
        sums: What `served` returned.
    """
    if population.classes is not None:
        return float(sums.sum() / population.tests.sum())
    return float(1 - sums.sum() / around_mean(population).sum())


def around_mean(population: Population) -> Tensor:
    """Return, for every device, the squares of its test targets around the mean of all training targets, added up.

    Args:
        population: A population of numbers.
    """
    size = population.start.diff()
    place = torch.arange(len(population.y)) - population.start[:-1].repeat_interleave(size)
    trains = place < population.train.repeat_interleave(size)
    targets = population.y.double().reshape(len(population.y))
    squares = (targets - targets[trains].mean()).square() * ~trains
    owner = torch.arange(population.devices).repeat_interleave(size)
    return torch.zeros(population.devices, dtype=torch.float64).index_add_(0, owner, squares)
