"""From what cross-validation finds for a closed form to what a real training would score, with an interval.

Errors (the share of wrong samples, or 1 - R2) are compared on a scale on which they can be moved: the log-odds of a share, the
logarithm of 1 - R2. On it a family's trainings differ from its closed form by ``bias`` on average and, from population to
population, by ``spread``. Both were measured on the study's fixed half, by ``proofs/advise_constants.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from palmette.studies.advising.families import Kind
from palmette.studies.advising.predicting import SURROGATES, Held

# Measured by proofs/advise_steps.py on populations of the fixed half with one seed; the study itself has 400 steps. From 200 to
# 4,000 steps, 4 or 5 of 50 scores leave their intervals of 90 %; with 100 steps 8 do, with 50 it is 14 and with 20 it is 28. Of
# 400 steps in 10 exchanges 1 of 24 does, in 5 exchanges it is 4, in 2 it is 6.
FEWEST_STEPS, MOST_STEPS, FEWEST_EXCHANGES = 200, 4000, 10
"""The budgets for which predictions were checked."""
NORMAL = 1.645
"""Standard errors on either side of an interval of 90 %."""


class Constant(NamedTuple):
    """How trainings of a family differ from its closed form.

    Attributes:
        bias: On average.
        spread: Their standard deviation over populations.
    """

    bias: float
    spread: float


# What `python proofs/advise_constants.py` printed on the study's fixed half.
CONSTANTS: Mapping[Kind, Mapping[str, Constant]] = {
    "classes": {
        "local": Constant(-0.073, 0.268),
        "fedavg": Constant(-0.214, 0.258),
        "fedavg-tuned": Constant(-0.13, 0.276),
        "teams": Constant(-0.236, 0.282),
        "teams-tuned": Constant(-0.19, 0.297),
        "hierfavg-tuned": Constant(-0.067, 0.304),
        "permfl": Constant(0.042, 0.339),
        "ditto": Constant(-0.067, 0.276),
        "ladder": Constant(-0.222, 0.291),
        "ladder-directions": Constant(-0.198, 0.288),
    },
    "numbers": {
        "local": Constant(0.063, 0.06),
        "fedavg": Constant(-0.01, 0.037),
        "fedavg-tuned": Constant(0.01, 0.027),
        "teams": Constant(-0.0, 0.036),
        "teams-tuned": Constant(0.028, 0.032),
        "hierfavg-tuned": Constant(0.025, 0.027),
        "permfl": Constant(0.063, 0.053),
        "ditto": Constant(0.009, 0.036),
        "ladder": Constant(0.01, 0.027),
        "ladder-directions": Constant(0.013, 0.027),
    },
    "network": dict.fromkeys(SURROGATES, Constant(-0.474, 0.567)),  # there was one population only
}


@dataclass(frozen=True)
class Prediction:
    """What a family is predicted to score on test samples.

    Attributes:
        score: Accuracy or R2.
        low: The lower end of its interval of 90 % ...
        high: ... and the upper one.
    """

    score: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The standard error."""
        return (self.high - self.low) / (2 * NORMAL)


def unforeseen(steps: int, local_steps: int) -> str:
    """Return why no score is predicted for a budget, in a sentence; nothing where one is.

    Args:
        steps: Gradient steps of every device.
        local_steps: Gradient steps between two exchanges.
    """
    checked = f"predictions were checked for {FEWEST_STEPS:,} to {MOST_STEPS:,} steps only"
    if steps < FEWEST_STEPS:
        return f"No score is predicted for {steps:,} gradient steps: {checked}, and with fewer, models score less."
    if steps > MOST_STEPS:
        return f"No score is predicted for {steps:,} gradient steps: {checked}."
    if steps // local_steps < FEWEST_EXCHANGES:
        return (
            f"No score is predicted for {steps:,} gradient steps with {local_steps:,} between two exchanges: predictions were "
            f"checked for at least {FEWEST_EXCHANGES} exchanges only, and with fewer, common models score less."
        )
    return ""


def moved(kind: Kind, missed: float, samples: float) -> float:
    """Return an error on the scale on which errors are compared.

    Args:
        kind: What is learned.
        missed: The share of wrong samples, or 1 - R2.
        samples: On how many it was measured; no share is more certain than half a sample.
    """
    if kind == "numbers":
        return math.log(max(missed, 1e-9))
    sure = min(max(missed, 0.5 / samples), 1 - 0.5 / samples)
    return math.log(sure / (1 - sure))


def back(kind: Kind, value: float) -> float:
    """Return the score of an error on that scale."""
    return 1 - math.exp(value) if kind == "numbers" else 1 / (1 + math.exp(value))


def sampling(kind: Kind, held: Held, samples: float, tests: float) -> float:
    """Return the variance, on that scale, of a score of so many samples around another one of so many others.

    Args:
        kind: What is learned.
        held: What cross-validation found.
        samples: Training samples, on which it did.
        tests: Test samples; 0 where there are none.
    """
    missed = max(1 - held.score, 1e-9)
    many = 1 / samples + (1 / tests if tests else 0.0)
    if kind == "numbers":
        return (held.deviation / missed) ** 2 * many
    sure = min(max(missed, 0.5 / samples), 1 - 0.5 / samples)
    return many / (sure * (1 - sure))


def predict(kind: Kind, family: str, held: Held, samples: float, tests: float, chance: float = -math.inf) -> Prediction:
    """Return what a family is predicted to score.

    Args:
        kind: What is learned.
        family: The family.
        held: What cross-validation found for its closed form.
        samples: Training samples.
        tests: Test samples that the score will be measured on; 0 for the score of endlessly many.
        chance: What guessing scores; no family is predicted to score less.
    """
    constant = CONSTANTS[kind][family]
    middle = moved(kind, 1 - held.score, samples) + constant.bias
    width = NORMAL * math.sqrt(constant.spread**2 + sampling(kind, held, samples, tests))
    score, low, high = (back(kind, value) for value in (middle, middle + width, middle - width))
    return Prediction(max(score, chance), low, max(high, chance))
