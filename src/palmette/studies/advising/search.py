"""The full search on held-out data: every configuration of every family is trained, and the best is taken.

It is what advice must be measured against: nothing that looks at training data alone can be asked to do much better, and it
costs as many trainings as there are configurations. No test sample is looked at before everything is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from palmette.algorithms import algorithm
from palmette.learner import Learner, curvature
from palmette.population import Population
from palmette.population.validation import for_choosing
from palmette.studies.advising.families import FAMILIES, NETWORK, Configuration, Kind, configurations
from palmette.studies.advising.training import Trained, around_mean, train
from palmette.task import Task, make_task

HELD_OUT = 0.25  # the part of each device's training samples that is held out for choosing


def kind_of(population: Population, model: str) -> Kind:
    """Return what is learned, which decides the learning rates that are tried.

    Args:
        population: The population.
        model: The model's name.
    """
    if model not in ("mclr", "linear"):
        return "network"
    return "numbers" if population.classes is None else "classes"


def smoothness_of(population: Population, task: Task, kind: Kind) -> float:
    """Return L, the largest curvature of the devices' training losses; of networks `NETWORK`.

    Args:
        population: The population, of which only training samples are looked at.
        task: The model, with its loss.
        kind: What is learned.
    """
    if kind == "network":
        return NETWORK
    return curvature(Learner(task, population)).smoothness


def task_for(population: Population, model: str, options: Mapping[str, Any], seed: int) -> Task:
    """Return the model to train, with its loss.

    Args:
        population: Whose samples it is for.
        model: The model's name.
        options: Its settings.
        seed: Draws its initial weights.
    """
    return make_task(model, population.shape, population.classes, seed=seed, **options)


def run(configuration: Configuration, population: Population, task: Task, seed: int) -> Trained:
    """Train one configuration.

    Args:
        configuration: The family and its settings.
        population: The population.
        task: The model.
        seed: The seed of the training.
    """
    family = configuration.family
    method = algorithm(family.algorithm, **configuration.settings)
    return train(population, task, method, rounds=configuration.rounds, model=family.model, seed=seed)


def search(population: Population, model: str, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Choose the best configuration of every family, and the best family, on held-out training samples; then test each.

    The result is plain data, with ``None`` for the score of a training that diverged:

    - ``score``: ``"accuracy"`` or ``"R2"``; ``smoothness``: L;
    - ``families``: for each, its chosen ``settings`` and ``rounds``, its ``held_out`` and its ``test`` score, and ``sums``:
      every device's test samples that are right, or its squared errors;
    - ``picked``: the family with the best held-out score; ``tried``: all held-out scores;
    - ``tests``: every device's number of test samples; ``around_mean``: of numbers, every device's squares around the mean;
    - ``seconds`` and ``steps``: CPU time and gradient steps of the search alone, without the tests.

    Args:
        population: The population.
        model: The model to train.
        options: Settings of the model.
        seed: The seed of all trainings.
    """
    kind, task = kind_of(population, model), task_for(population, model, options, seed)
    smoothness = smoothness_of(population, task, kind)
    choosing = for_choosing(population, HELD_OUT)
    tried = [(one, run(one, choosing, task, seed)) for one in configurations(kind, smoothness)]
    best = {
        family.key: max((pair for pair in tried if pair[0].family == family), key=lambda pair: pair[1].score)
        for family in FAMILIES
    }
    picked = max(best, key=lambda key: best[key][1].score)
    families = {key: _tested(one, held, run(one, population, task, seed)) for key, (one, held) in best.items()}
    return {
        "score": "R2" if population.classes is None else "accuracy",
        "smoothness": smoothness,
        "picked": picked,
        "seconds": sum(held.seconds for _, held in tried),
        "steps": sum(held.steps for _, held in tried),
        "families": families,
        "tests": population.tests.tolist(),
        "around_mean": around_mean(population).tolist() if population.classes is None else None,
        "tried": [
            {"family": one.family.key, "settings": dict(one.settings), "held_out": known(held.score)}
            for one, held in tried
        ],
    }


def _tested(one: Configuration, held: Trained, test: Trained) -> dict[str, Any]:
    """Return what is to be known of a family's best configuration."""
    return {
        "settings": dict(one.settings),
        "rounds": one.rounds,
        "held_out": known(held.score),
        "test": known(test.score),
        "sums": None if test.sums is None else test.sums.tolist(),
        "seconds": test.seconds,
        "steps": test.steps,
    }


def known(score: float) -> float | None:
    """Return a score as JSON can have it: ``None`` where the training diverged.

    Args:
        score: The score.
    """
    return score if math.isfinite(score) else None
