"""Advice: which method with which settings serves a population best, what it would score and cost, without training anything.

The variance components of the population (`palmette.theory.components`) say how much teams and devices differ against how noisy
their samples are. Ladder with the pulls that follow from them is the usual advice; a simpler method takes its place where the
components leave nothing for ladder to do, or where cross-validation of closed forms says that it scores better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import BadInput
from palmette.learner import Learner, curvature
from palmette.learner.threads import one_thread_inside
from palmette.population import Population
from palmette.protocol import ModelKind
from palmette.studies.advising import calibrating
from palmette.studies.advising.advice import Advice, Choice
from palmette.studies.advising.calibrating import Prediction
from palmette.studies.advising.families import LOCAL_STEPS, STEPS, Kind
from palmette.studies.advising.predicting import DIRECTIONS, LADDER, SURROGATES, Foreseen, Held, foresee
from palmette.studies.advising.recipes import costs, recipe, rounded
from palmette.studies.advising.sampling import for_everybody, sampled
from palmette.studies.advising.telling import LABELS, doubts_of, why
from palmette.task import Task, make_task
from palmette.task.layout import Layout
from palmette.theory.components import Components, components_of
from palmette.theory.surrogate import refuse, seen
from palmette.values import whole

SIMPLER = ("local", "fedavg", "teams", "fedavg-tuned", "teams-tuned")
"""Families that may take the place of ladder, the simplest first."""
# Fixed on the study's fixed half: ladder is never behind by more than .013 there, so only the very corners are cut. At .94 of a
# model being its own (linear-devices) ladder is still .025 ahead of local training, at .87 (synthetic) it is .005 behind.
_ALL_OWN, _NONE = 0.97, 0.02
_OF_TEAMS = ("teams", "teams-tuned", "hierfavg-tuned", "permfl")  # families that are nothing without teams
_SURE = 2.0  # standard errors: the variances by direction were found with the samples that they are judged on


def advise(
    population: Population,
    model: str | nn.Module | Task | Mapping[str, Any] | None = None,
    *,
    steps: int = STEPS,
    local_steps: int = LOCAL_STEPS,
    seed: int = 0,
) -> Advice:
    """Advise on a method and its settings for a population. Nothing is trained and no test sample is looked at.

    Args:
        population: The samples of all devices.
        model: The name of a model, a mapping with its name and options, a module, or a task; by default ``"mclr"``, one
            linear layer with an intercept.
        steps: Gradient steps that every device may take, fine-tuning counted.
        local_steps: Gradient steps between two exchanges.
        seed: Draws the initial weights of a named model.
    """
    began = time.process_time()
    whole("local_steps", local_steps, 1)
    if whole("steps", steps, 2) < 2 * local_steps:
        raise BadInput(
            f"{steps} steps are too few with {local_steps} steps between two exchanges; give at least twice as many"
        )
    refuse(population)
    task = _task(population, model, seed)
    with (
        one_thread_inside(),
        torch.no_grad(),
    ):  # many small products, for which more threads are only in each other's way
        learner = Learner(task, population)
        linear = learner.spectrum is not None
        bias = any(name.endswith("bias") for name in task.layout.names) or not linear
        looked, ids = sampled(population, seed)
        people = seen(looked, constant=bias)
        known = people.moments()
        found, evidence = components_of(people, known, per_direction=linear)
        held = foresee(people, known, found, evidence, steps)
        found = found if looked is population else for_everybody(found, population)
        alpha = rounded(1 / curvature(learner).start)
    kind: Kind = "network" if not linear else "numbers" if population.classes is None else "classes"
    chance = -math.inf if population.classes is None else 1 / population.classes
    sizes = float(len(people.z)), float(population.tests.sum()), chance
    predictions = {
        family: calibrating.predict(kind, family, held.family(family), *sizes)
        for family, form in SURROGATES.items()
        if form in held.held and family != DIRECTIONS and not (family in _OF_TEAMS and looked.tree.top < 2)
    }
    if linear and _by_direction(held):
        predictions[DIRECTIONS] = calibrating.predict(kind, DIRECTIONS, held.family(DIRECTIONS), *sizes)
    made = _Maker(found, held, predictions, alpha, steps, local_steps, task.layout)
    personal = made.choice("personal", *_personal(found, held, predictions))
    return Advice(
        population=population,
        model=task.name,
        score="R2" if population.classes is None else "accuracy",
        steps=steps,
        components=found,
        personal=personal,
        team=made.team(kind, sizes),
        everybody=made.choice("global", "fedavg", "common"),
        predictions={} if made.unforeseen else predictions,
        ranked=tuple(sorted(predictions, key=lambda family: -predictions[family].score)),
        unforeseen=made.unforeseen,
        losers=_losers(population, ids, held, personal.family, predictions),
        doubts=doubts_of(population, found, kind, predictions, looked.devices),
        seconds=time.process_time() - began,
    )


def _task(population: Population, model: Any, seed: int) -> Task:
    """Return what is to be learned."""
    if isinstance(model, Task):
        return model
    if isinstance(model, Mapping):
        options = dict(model)
        name = options.pop("name", None)
    else:
        options, name = {}, model
    if name is None:
        name = "mclr"  # for numbers, too: one layer with an intercept
    return make_task(name, population.shape, population.classes, **{"seed": seed, "words": population.words, **options})


def _by_direction(held: Foreseen) -> bool:
    """Return whether variances by direction are better for sure."""
    ahead, error = held.ahead(DIRECTIONS, LADDER)
    return ahead > _SURE * error and ahead > 0


def _personal(found: Components, held: Foreseen, predictions: Mapping[str, Prediction]) -> tuple[str, str]:
    """Return the family to make personal models with, and the reason's name."""
    ladder = DIRECTIONS if DIRECTIONS in predictions else LADDER
    if found.own_df > _ALL_OWN:
        return "local", "all own"
    if found.own < _NONE and found.up > 1 - _NONE:
        return "fedavg", "nobody differs"
    if found.own < _NONE and found.up < _NONE and len(found.ratios) == 2:
        return "teams", "only teams differ"
    for family in SIMPLER:
        if family in predictions:
            error = math.hypot(held.ahead(family, ladder)[1], predictions[family].error)
            if predictions[family].score - predictions[ladder].score > error:
                return family, "predicted"
    return ladder, "by direction" if ladder == DIRECTIONS else "both"


class _Maker:
    """Makes the parts of an advice."""

    def __init__(
        self,
        found: Components,
        held: Foreseen,
        predictions: Mapping[str, Prediction],
        alpha: float,
        steps: int,
        local_steps: int,
        layout: Layout,
    ) -> None:
        self.found, self.held, self.predictions, self.layout = found, held, predictions, layout
        self.unforeseen = calibrating.unforeseen(steps, local_steps)
        self.given: dict[str, Any] = {"alpha": alpha, "steps": steps, "local_steps": local_steps}

    def choice(
        self, what: str, family: str, reason: str, model: ModelKind = "PM", prediction: Prediction | None = None
    ) -> Choice:
        """Return one choice with its settings, its prediction and its cost."""
        made = recipe(family, self.found, model=model, **self.given)
        told = None if self.unforeseen else prediction or self.predictions[family]
        return Choice(
            what,
            family,
            LABELS[family],
            made,
            told,
            why(reason, self.found),
            reason,
            tuple(costs(made, self.found.tree, self.layout)),
        )

    def team(self, kind: Kind, sizes: tuple[float, float, float]) -> Choice | None:
        """Return how to make a model for every team; ``None`` where there are no teams."""
        if len(self.found.ratios) < 2:
            return None
        held: Held = self.held.held["pulled"]
        prediction = calibrating.predict(kind, "teams", held, *sizes)
        alone, common = self.predictions["teams"], self.predictions["fedavg"]
        best = common if self.found.up > 1 - _NONE else prediction
        if alone.score - best.score > alone.error:
            return self.choice("team", "teams", "teams predicted")
        if best is common:
            return self.choice("team", "fedavg", "teams alike", "GM")
        return self.choice("team", LADDER, "teams", "TM", prediction)


def _losers(
    population: Population, ids: Tensor, held: Foreseen, family: str, predictions: Mapping[str, Prediction]
) -> tuple[str, ...]:
    """Return the devices that are predicted to be better off alone, by more than the standard error of that.

    On average over devices, it is what is predicted for the two families. What cross-validation says of single devices is
    shrunk towards that, as far as chance explains how they differ.
    """
    if family == "local":
        return ()
    gained, error = held.each_ahead("local", family)
    judged = held.counts > 0
    scale = 1.0 if held.around is None else float(held.around.sum() / held.counts.sum())
    found = float((gained * held.counts).sum() / held.counts.sum())
    middle = scale * (predictions["local"].score - predictions[family].score)
    spread = max(float(((gained - found).square() - error.square())[judged].mean()), 0.0)
    part = spread / (spread + error.square()).clamp(min=1e-30)
    better = middle + part * (gained - found)
    unsure = (part * error.square() + (scale * held.ahead("local", family)[1]) ** 2).sqrt()
    lost: Tensor = (better > unsure) & judged
    return tuple(population.tree.name(0, int(device)) for device in ids[lost])
