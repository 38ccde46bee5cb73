"""The advice on the study's populations: what it advises, what that scores in truth, and whether its intervals hold."""

from __future__ import annotations

import time
from typing import Any

from palmette.algorithms import algorithm
from palmette.studies.advising.advisor import advise
from palmette.studies.advising.populations import Case
from palmette.studies.advising.predicting import DIRECTIONS, LADDER
from palmette.studies.advising.recipes import Recipe, recipe
from palmette.studies.advising.search import known, task_for
from palmette.studies.advising.training import train

ADVISED = "advised"
"""The name that these results lie under, see `palmette.studies.advising.study.run_each`."""


def advised(case: Case, seed: int) -> dict[str, Any]:
    """Return an advice for a population, and what the advised method and ladder score in truth.

    The result is plain data:

    - ``advice``, and ``advice_seconds``: the CPU time that it took, without any training;
    - ``test``: the score of the advised personal models, and ``sums`` of them by device;
    - ``ladder``: the score of ladder with one pull per tier, ``directions`` with one per direction where the model is linear;
    - ``team`` and ``global``: the scores of the other advised models.

    Args:
        case: The population.
        seed: Decides the population and the trainings.
    """
    population = case.make(seed)
    task = task_for(population, case.model, case.options, seed)
    began = time.process_time()
    found = advise(population, task, seed=seed)
    seconds = time.process_time() - began
    given: dict[str, Any] = {"alpha": found.personal.recipe.settings["alpha"], "steps": found.steps, "local_steps": 10}

    def score(made: Recipe) -> tuple[float | None, list[float] | None]:
        method = algorithm(made.algorithm, **made.settings)
        done = train(population, task, method, rounds=made.rounds, model=made.model, seed=seed)
        return known(done.score), None if done.sums is None else done.sums.tolist()

    test, sums = score(found.personal.recipe)
    plain = test if found.personal.family == LADDER else score(recipe(LADDER, found.components, **given))[0]
    turned = None
    if found.components.directions is not None:
        same = found.personal.family == DIRECTIONS
        turned = test if same else score(recipe(DIRECTIONS, found.components, **given))[0]
    return {
        "advice": found.as_dict() | {"doubts": list(found.doubts)},
        "test": test,
        "ladder": plain,
        "directions": turned,
        "team": None if found.team is None else score(found.team.recipe)[0],
        "global": score(found.everybody.recipe)[0],
        "sums": sums,
        "advice_seconds": seconds,
    }
