"""What an advice consists of, and the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from palmette.population import Population
from palmette.studies.advising.calibrating import Prediction
from palmette.studies.advising.recipes import Cost, Recipe
from palmette.theory.components import Components


@dataclass(frozen=True)
class Choice:
    """A method for one kind of model.

    Attributes:
        what: ``"personal"``, ``"team"`` or ``"global"`` models.
        family: The family of methods.
        label: What people call it.
        recipe: The algorithm with settings and rounds that can be run.
        prediction: What it is predicted to score; ``None`` where nothing is predicted (`Advice.unforeseen`).
        why: The reason, in a sentence.
        reason: Its name.
        costs: What it costs on every link.
    """

    what: str
    family: str
    label: str
    recipe: Recipe
    prediction: Prediction | None
    why: str
    reason: str
    costs: tuple[Cost, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        made = self.recipe
        return {
            "family": self.family,
            "label": self.label,
            "method": made.algorithm,
            "model": made.model,
            "settings": _written(dict(made.settings)),
            "rounds": made.rounds,
            "predicted": None if self.prediction is None else asdict(self.prediction),
            "why": self.why,
            "costs": [asdict(cost) for cost in self.costs],
        }


@dataclass(frozen=True, eq=False)
class Advice:
    """Which method with which settings to use on a population.

    Attributes:
        population: The population.
        model: What is trained on it.
        score: What predictions are about: ``"accuracy"`` or ``"R2"``.
        steps: Gradient steps of every device.
        components: How much teams and devices differ, and how noisy samples are.
        personal: How to make a model for every device.
        team: How to make a model for every team; ``None`` where there are no teams.
        everybody: How to make one model for everybody.
        predictions: What each family is predicted to score with settings that suit it; nothing where no score is predicted.
        ranked: All families, the one that is predicted to score best with a budget like the study's first.
        unforeseen: Why no score is predicted, in a sentence; empty where one is.
        losers: Names of the devices that are predicted to be better off alone than with the advised personal models.
        doubts: Sentences where the advice does not know.
        seconds: CPU seconds that it took.
    """

    population: Population
    model: str
    score: str
    steps: int
    components: Components
    personal: Choice
    team: Choice | None
    everybody: Choice
    predictions: Mapping[str, Prediction]
    ranked: tuple[str, ...]
    unforeseen: str
    losers: tuple[str, ...]
    doubts: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "population": self.population.source,
            "tree": str(self.population.tree),
            "devices": self.population.devices,
            "model": self.model,
            "score": self.score,
            "steps": self.steps,
            "components": _written(self.components.as_dict()),
            "personal": self.personal.as_dict(),
            "team": None if self.team is None else self.team.as_dict(),
            "global": self.everybody.as_dict(),
            "predictions": {family: asdict(one) for family, one in self.predictions.items()},
            "ranked": list(self.ranked),
            "unforeseen": self.unforeseen,
            "losers": list(self.losers),
            "doubts": list(self.doubts),
            "seconds": self.seconds,
        }


def _written(value: Any) -> Any:
    """Return plain data in which what is infinite is the word that settings take for it, since JSON has no such number."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, list | tuple) else value
