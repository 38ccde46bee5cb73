"""Methods of the study that search for nothing: ladder and PerMFL with automatic pulls, and PerMFL with its defaults."""

from __future__ import annotations

from typing import Any

from palmette.algorithms import algorithm
from palmette.studies.advising.advisor import advise
from palmette.studies.advising.families import LOCAL_STEPS, STEPS
from palmette.studies.advising.populations import Case
from palmette.studies.advising.predicting import LADDER
from palmette.studies.advising.recipes import recipe
from palmette.studies.advising.search import known, task_for
from palmette.studies.advising.training import train

OTHERS = "others"
"""The name that these results lie under, see `palmette.studies.advising.study.run_each`."""
_AUTO = {"lam": "auto", "gamma": "auto"}
_TEAM_STEPS = 4  # PerMFL's averages in a round, as in the search


def others(case: Case, seed: int) -> dict[str, Any]:
    """Return what these methods score in truth, by name under ``tests``.

    Learning rate and steps of fine-tuning are those of the advice; pulls, and how rounds are split, are found by exchanges of
    the method itself. All have the same number of gradient steps on each device as every other method of the study.

    Args:
        case: The population.
        seed: Decides the population and the trainings.
    """
    population = case.make(seed)
    task = task_for(population, case.model, case.options, seed)
    found = advise(population, task, seed=seed)
    alpha = found.personal.recipe.settings["alpha"]
    made = recipe(LADDER, found.components, alpha=alpha, steps=STEPS, local_steps=LOCAL_STEPS)
    ladder = {**made.settings, **_AUTO, "share": "auto"}
    permfl = {"team_steps": _TEAM_STEPS, "local_steps": LOCAL_STEPS}
    rounds = STEPS // (_TEAM_STEPS * LOCAL_STEPS)
    tried: dict[str, tuple[str, dict[str, Any], int]] = {
        "ladder": ("ladder", ladder, made.rounds),
        "permfl-auto": ("permfl", {**permfl, **_AUTO, "alpha": alpha}, rounds),
        "permfl-default": ("permfl", permfl, rounds),
    }
    if found.components.directions is not None:
        tried["ladder-directions"] = ("ladder", {**ladder, "directions": True}, made.rounds)
    tests, steps = {}, {}
    for name, (kind, settings, count) in tried.items():
        done = train(population, task, algorithm(kind, **settings), rounds=count, model="PM", seed=seed)
        tests[name], steps[name] = known(done.score), done.steps
    return {"tests": tests, "steps": steps}
