"""Find the constants of the advice's predictions again: how trainings differ from the closed forms that stand for them.

It reads the classic families' test scores from the study's results and trains ladder by itself, on the *fixed* half of the
populations alone; about a minute. Run it after `palmette.studies.advising.study.run_classic`:

    python proofs/advise_constants.py FOLDER

What it prints is `CONSTANTS` of `palmette.studies.advising.calibrating`. For every family the difference between test score
and cross-validation, on the scale of that module, has a mean over populations (``bias``, each weighted by how surely it is
known) and a variance beyond what chance in the samples explains. As there are few populations, the latter is half that of the
family and half that of all families; ``spread`` is its root, enlarged since it and the bias are themselves known from few
populations only (Student's t).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit

from palmette.algorithms import algorithm
from palmette.learner import Learner, curvature
from palmette.studies.advising.calibrating import NORMAL, Constant, moved, sampling
from palmette.studies.advising.families import LOCAL_STEPS, STEPS, Kind
from palmette.studies.advising.populations import CASES, Case
from palmette.studies.advising.predicting import DIRECTIONS, LADDER, SURROGATES, foresee
from palmette.studies.advising.recipes import recipe
from palmette.studies.advising.search import kind_of, task_for
from palmette.studies.advising.study import results
from palmette.studies.advising.training import train
from palmette.theory.components import components_of
from palmette.theory.surrogate import seen


class Difference(NamedTuple):
    """Test score against cross-validation, of one population, seed and family."""

    case: str
    value: float
    chance: float


def differences(case: Case, seed: int, found: dict) -> tuple[Kind, dict[str, Difference]]:
    """Return by how much each family's test score differs from its closed form's, and the variance of that by chance."""
    population = case.make(seed)
    task = task_for(population, case.model, case.options, seed)
    kind = kind_of(population, case.model)
    learner = Learner(task, population)
    people = seen(population, constant=any(name.endswith("bias") for name in task.layout.names))
    known = people.moments()
    components, evidence = components_of(people, known, per_direction=kind != "network")
    held = foresee(people, known, components, evidence)
    truth = {family: one["test"] for family, one in found["families"].items()}
    for family in (LADDER, DIRECTIONS) if kind != "network" else (LADDER,):
        rate = 1 / curvature(learner).start
        made = recipe(family, components, alpha=rate, steps=STEPS, local_steps=LOCAL_STEPS)
        method = algorithm(made.algorithm, **made.settings)
        truth[family] = train(population, task, method, rounds=made.rounds, model="PM", seed=seed).score
    samples, tests = len(people.z), int(population.tests.sum())
    made_of = {}
    for family, score in truth.items():
        if score is not None and math.isfinite(score):
            one = held.family(family)
            value = moved(kind, 1 - score, tests) - moved(kind, 1 - one.score, samples)
            made_of[family] = Difference(case.name, value, sampling(kind, one, samples, tests))
    return kind, made_of


def constants(found: dict[str, list[Difference]]) -> dict[str, Constant]:
    """Return the constants of the families of one kind."""
    fits = {family: _fit(values) for family, values in found.items()}
    common = float(np.mean([variance for _, variance in fits.values()]))
    made = {}
    for family, (bias, variance) in fits.items():
        cases = len({one.case for one in found[family]})
        wider = stdtrit(cases - 1, 0.95) / NORMAL * math.sqrt(1 + 1 / cases)
        made[family] = Constant(round(bias, 3), round(wider * math.sqrt((variance + common) / 2), 3))
    return made


def _fit(values: list[Difference]) -> tuple[float, float]:
    """Return the mean and the variance beyond chance, by turns: each weighs the differences as the other says."""
    value = np.array([one.value for one in values])
    chance = np.array([one.chance for one in values])
    variance = float(value.var())
    for _ in range(50):
        weight = 1 / (variance + chance)
        bias = float(weight @ value / weight.sum())
        variance = max(float(weight @ ((value - bias) ** 2 - chance) / weight.sum()), 0.0)
    return bias, variance


def for_networks(found: dict[str, list[Difference]]) -> dict[str, Constant]:
    """Return the constants of networks: there is one population only, so all families have the same."""
    bias, variance = _fit([one for values in found.values() for one in values])
    one = Constant(round(bias, 3), round(math.sqrt(2 * variance), 3))
    return dict.fromkeys(SURROGATES, one)


def main(folder: Path) -> None:
    """Print the constants."""
    torch.set_num_threads(1)
    found: dict[Kind, dict[str, list[Difference]]] = defaultdict(lambda: defaultdict(list))
    for case, seed, one in results(folder, cases=[case for case in CASES if case.half == "fixed"]):
        kind, made = differences(case, seed, one)
        for family, difference in made.items():
            found[kind][family].append(difference)
    for kind, families in found.items():
        print(f'    "{kind}": {{')
        for family, constant in (for_networks if kind == "network" else constants)(families).items():
            print(f'        "{family}": Constant({constant.bias}, {constant.spread}),')
        print("    },")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
