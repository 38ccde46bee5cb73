"""What an advice consists of, and the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from palmette.guards.visible import visible
from palmette.population import Population
from palmette.runs.notebook import html_page, html_table
from palmette.runs.wording import many
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

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The methods for a model for every device, for every team, where there are teams, and for everybody."""
        return tuple(one for one in (self.personal, self.team, self.everybody) if one is not None)

    def __repr__(self) -> str:
        """Return one line about each kind of models."""
        lines = [f"Advice for {self._about()}"]
        for one in self.choices:
            told = "" if one.prediction is None else f", predicted {self.score} {_written_out(one.prediction)}"
            lines.append(
                f"  {one.what} models: {one.label} ({one.recipe.algorithm}, {many(one.recipe.rounds, 'round')}){told}"
            )
        return visible("\n".join(lines), lines=True)

    def _repr_html_(self) -> str:
        """Return the advice as a notebook shows it: what to use for which models, and what each family would score."""
        from palmette.studies.advising.telling import LABELS

        chosen = [
            (one.what, one.label, one.recipe.algorithm, str(one.recipe.rounds), *_cells(one.prediction))
            for one in self.choices
        ]
        scores = sorted(self.predictions.items(), key=lambda item: -item[1].score)
        tables = [
            html_table(("models", "advised", "method", "rounds", f"predicted {self.score}", "90 % interval"), chosen)
        ]
        if scores:
            rows = [(LABELS[family], *_cells(one)) for family, one in scores]
            tables.append(html_table(("personal models", f"predicted {self.score}", "90 % interval"), rows))
        notes = [self.personal.why, *([self.unforeseen] if self.unforeseen else []), *self.doubts]
        return html_page("Advice", f"for {self._about()}.", tables, notes)

    def _about(self) -> str:
        devices = many(self.population.devices, "device")
        return f"{self.population.source}: {devices}, model {self.model}, {self.steps:,} gradient steps on each device"

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


def _written_out(found: Prediction) -> str:
    """Write a predicted score with its interval."""
    return "{} ({})".format(*_cells(found))


def _cells(found: Prediction | None) -> tuple[str, str]:
    """Write a predicted score and its interval, each as the cell of a table."""
    return ("", "") if found is None else (f"{found.score:.3f}", f"{found.low:.3f} to {found.high:.3f}")


def _written(value: Any) -> Any:
    """Return plain data in which what is infinite is the word that settings take for it, since JSON has no such number."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, list | tuple) else value
