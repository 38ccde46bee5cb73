"""Advice put to the test on held-out training samples: the advised method and the next best, by successive halving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from palmette.algorithms import algorithm
from palmette.population.validation import for_choosing
from palmette.studies.advising.advice import Advice, Choice
from palmette.studies.advising.recipes import Recipe, costs, recipe, rounded
from palmette.studies.advising.search import HELD_OUT
from palmette.studies.advising.telling import LABELS
from palmette.studies.advising.training import Trained, score_of, train
from palmette.task import Task

_RATES = (1.0, 0.5)  # times the advised learning rate
_KEPT = ((4, 4), (2, 3), (1, 2))  # the steps are divided by so much, and so many candidates are tried with them
_RUNNABLE = ("ladder", "ladder-directions", "local", "fedavg", "teams", "fedavg-tuned", "teams-tuned")


@dataclass(frozen=True)
class Candidate:
    """A method that is tried.

    Attributes:
        family: Its family.
        alpha: Its learning rate.
        score: The last score on held-out samples.
        steps: The steps that it was measured with.
    """

    family: str
    alpha: float
    score: float = float("-inf")
    steps: int = 0

    @property
    def told(self) -> str:
        """The candidate in words."""
        return f"{LABELS[self.family]} with learning rate {self.alpha:g}: {self.score:.3f} after {self.steps} steps"


@dataclass(frozen=True)
class Tried:
    """What was found on held-out samples.

    Attributes:
        candidates: All that were tried, the best first.
        advice: The advice, with the best of them for personal models.
        sentence: What was found, in a sentence.
    """

    candidates: tuple[Candidate, ...]
    advice: Advice
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        known = [
            {"family": one.family, "alpha": one.alpha, "score": one.score, "steps": one.steps}
            for one in self.candidates
        ]
        return {"candidates": known, "found": self.sentence}


def confirm(advice: Advice, task: Task, *, local_steps: int, seed: int, told: Callable[[str], None]) -> Tried:
    """Try the advised personal models and the next best family, each with two learning rates.

    A part of every device's training samples is held out. All four train with a quarter of the steps, the best three with half
    of them, and the best two with all.

    Args:
        advice: The advice.
        task: What is learned.
        local_steps: Gradient steps between two exchanges.
        seed: Decides batches.
        told: Is told a line after every training.
    """
    people = for_choosing(advice.population, HELD_OUT)

    def trained(one: Candidate, steps: int) -> Candidate:
        made = _made(advice, one, steps, local_steps)
        method = algorithm(made.algorithm, **made.settings)
        done: Trained = train(people, task, method, rounds=made.rounds, model=made.model, seed=seed)
        score = done.score if done.sums is None else score_of(people, done.sums)
        found = replace(one, score=score, steps=steps)
        told(found.told)
        return found

    rate = float(advice.personal.recipe.settings["alpha"])
    left = [Candidate(family, rounded(rate * times)) for family in _best_two(advice) for times in _RATES]
    out = list[Candidate]()
    for part, count in _KEPT:
        steps = max(advice.steps // part // local_steps, 2) * local_steps
        left, gone = left[:count], left[count:]
        out = gone + out
        left = sorted((trained(one, steps) for one in left), key=lambda one: -one.score)
    best = left[0]
    return Tried((*left, *out), _with(advice, best, local_steps, task), _sentence(advice, best, left[-1]))


def _best_two(advice: Advice) -> tuple[str, str]:
    """Return the advised family and the one that is predicted to be the next best."""
    mine = advice.personal.family
    others = (
        family
        for family in advice.ranked
        if family in _RUNNABLE and family != mine and not (family.startswith("ladder") and mine.startswith("ladder"))
    )
    return mine, next(others)


def _made(advice: Advice, one: Candidate, steps: int, local_steps: int) -> Recipe:
    return recipe(one.family, advice.components, alpha=one.alpha, steps=steps, local_steps=local_steps)


def _with(advice: Advice, best: Candidate, local_steps: int, task: Task) -> Advice:
    """Return the advice with the best candidate for personal models."""
    if best.family == advice.personal.family and best.alpha == advice.personal.recipe.settings["alpha"]:
        return advice
    made = _made(advice, best, advice.steps, local_steps)
    why = f"{advice.personal.why} It was the best of those tried on held-out training samples."
    if best.family != advice.personal.family:
        why = "It was the best of those tried on held-out training samples."
    cost = tuple(costs(made, advice.population.tree, task.layout))
    told = advice.predictions.get(best.family)
    chosen = Choice("personal", best.family, LABELS[best.family], made, told, why, "tried", cost)
    return replace(advice, personal=chosen, losers=() if best.family == "local" else advice.losers)


def _sentence(advice: Advice, best: Candidate, second: Candidate) -> str:
    """Say whether the advice was confirmed."""
    found = f"{best.told}; second is {second.told}."
    if best.family != advice.personal.family:
        return f"On held-out training samples another method did better: {found}"
    if best.alpha != advice.personal.recipe.settings["alpha"]:
        return f"Held-out training samples confirm the method, with half the learning rate: {found}"
    return f"Held-out training samples confirm the advice: {found}"
