"""Hold the predictions of ``palmette advise`` against trainings with other budgets than the study's 400 steps in 40 exchanges.

Populations of the *fixed* half with one seed; some six minutes:

    python proofs/advise_steps.py

Every line is a population with a budget: for each method what it scored, what was predicted, and a star where the interval of
90 % does not hold it. `palmette.studies.advising.calibrating.unforeseen` follows from the sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from palmette.algorithms import algorithm
from palmette.studies.advising import calibrating
from palmette.studies.advising.advisor import advise
from palmette.studies.advising.populations import case_of
from palmette.studies.advising.recipes import recipe
from palmette.studies.advising.search import task_for
from palmette.studies.advising.training import train

CASES = (
    "digits-alike",
    "digits-turned",
    "crowd",
    "linear-devices",
    "radon",
    "synthetic",
    "mnist-writers",
    "school-maths",
    "fashion-low",
    "linear-mixed",
)
STEPS = tuple((steps, 10) for steps in (20, 50, 100, 200, 400, 1000, 4000))
EXCHANGES = tuple((400, local_steps) for local_steps in (1, 2, 40, 80, 200))
METHODS = ("ladder", "fedavg", "teams", "local", "fedavg-tuned")


def held(name: str, steps: int, local_steps: int, methods: Sequence[str]) -> tuple[int, str]:
    """Return how many scores left their intervals, and a line about all of them."""
    case = case_of(name)
    people = case.make(0)
    task = task_for(people, case.model, case.options, 0)
    # The budgets are those for which nothing may be predicted: what would be predicted is asked for all the same.
    calibrating.FEWEST_STEPS, calibrating.MOST_STEPS, calibrating.FEWEST_EXCHANGES = 0, 10**9, 0
    found = advise(people, task, steps=steps, local_steps=local_steps)
    alpha, told, out = found.personal.recipe.settings["alpha"], list[str](), 0
    for family in methods:
        made = recipe(family, found.components, alpha=alpha, steps=steps, local_steps=local_steps)
        method = algorithm(made.algorithm, **made.settings)
        score = train(people, task, method, rounds=made.rounds, model=made.model, seed=0).score
        one = found.predictions[family]
        left = not one.low <= score <= one.high
        out += left
        told.append(f"{family} {score:.3f} / {one.score:.3f}{'*' if left else ''}")
    return out, f"{name}, {steps} steps, {local_steps} between two exchanges: {', '.join(told)}"


def main() -> None:
    """Print every training and the sums."""
    torch.set_num_threads(1)
    for budgets, cases, methods in ((STEPS, CASES, METHODS), (EXCHANGES, CASES[:8], METHODS[:3])):
        missed = Counter[tuple[int, int]]()
        for name in cases:
            for budget in budgets:
                out, line = held(name, *budget, methods)
                missed[budget] += out
                print(line, flush=True)
        for (steps, local_steps), out in missed.items():
            print(
                f"{steps} steps, {local_steps} between two exchanges: {out} of {len(cases) * len(methods)} left their intervals"
            )


if __name__ == "__main__":
    main()
