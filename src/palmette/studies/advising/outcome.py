"""What came of the study: regrets of every method, how predictions held, and what the advice cost, half by half.

The regret of a method on a population is the mean score over seeds of the best classic family there, less the method's own. A
family has the settings that the full search chose for it on held-out training samples, seed by seed; the best family is the one
that the test samples, which nobody else looks at, show to be best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palmette.studies.advising.families import FAMILIES
from palmette.studies.advising.judging import ADVISED
from palmette.studies.advising.others import OTHERS
from palmette.studies.advising.populations import CASES, Case
from palmette.studies.advising.study import CLASSIC, results

SEARCH, ADVISOR = "search", "advisor"
LABELS: Mapping[str, str] = {
    **{family.key: family.label for family in FAMILIES},
    "permfl-default": "PerMFL with its default settings",
    "permfl-auto": "PerMFL with automatic pulls",
    SEARCH: "Full held-out search over all families",
    "ladder": "Ladder, automatic pulls, one per tier",
    "ladder-directions": "Ladder, automatic pulls, one per direction",
    ADVISOR: "The advisor's choice",
}
"""What people call every method of the study."""
NEAR = 0.01  # regrets up to this count as none


@dataclass(frozen=True)
class Foretold:
    """One prediction and what became of it.

    Attributes:
        case: The population.
        seed: The seed.
        family: The family.
        predicted: The predicted score.
        low: The lower end of its interval of 90 %.
        high: The upper end.
        true: The score on the test samples.
    """

    case: Case
    seed: int
    family: str
    predicted: float
    low: float
    high: float
    true: float

    @property
    def covered(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.true <= self.high


@dataclass(frozen=True, eq=False)
class Outcome:
    """All that was found.

    Attributes:
        scores: By population and method, the score with every seed.
        foretold: All predictions.
        seconds: By population and seed, the CPU seconds of the search and of the advice.
        steps: By population and seed, the device-steps of the search; the advice takes none.
        advised: By population, the family advised with every seed.
    """

    scores: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    foretold: list[Foretold] = field(default_factory=list)
    seconds: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    steps: dict[tuple[str, int], int] = field(default_factory=dict)
    advised: dict[str, list[str]] = field(default_factory=dict)

    def cases(self, half: str | None = None, *, networks: bool = False) -> list[Case]:
        """Return the populations that were run: of a half, and the networks or the others."""
        return [
            case
            for case in CASES
            if case.name in self.scores and half in (None, case.half) and case.network == networks
        ]

    def mean(self, case: Case, method: str) -> float:
        """Return a method's mean score over seeds."""
        return float(np.mean(self.scores[case.name][method]))

    def best(self, case: Case) -> str:
        """Return the classic family that is best on a population."""
        return max((family.key for family in FAMILIES), key=lambda key: self.mean(case, key))

    def regret(self, case: Case, method: str) -> float:
        """Return how far a method stays behind the best classic family; below 0 where it is ahead of all of them."""
        return self.mean(case, self.best(case)) - self.mean(case, method)

    def regrets(self, cases: Sequence[Case], method: str) -> list[float]:
        """Return a method's regrets on those of some populations where it was run."""
        return [self.regret(case, method) for case in cases if method in self.scores[case.name]]

    def predictions(self, cases: Sequence[Case]) -> list[Foretold]:
        """Return the predictions for some populations."""
        names = {case.name for case in cases}
        return [one for one in self.foretold if one.case.name in names]

    def coverage(self, cases: Sequence[Case]) -> float:
        """Return the share of the intervals that hold the truth."""
        return float(np.mean([one.covered for one in self.predictions(cases)]))

    def gains(self, cases: Sequence[Case], over: str = "fedavg-tuned") -> tuple[list[float], list[float], list[str]]:
        """Return predicted and true gains over one family, pair by pair, and the population of each."""
        told = {(one.case.name, one.seed, one.family): one for one in self.predictions(cases)}
        predicted, true, names = [], [], []
        for (name, seed, family), one in told.items():
            base = told.get((name, seed, over))
            if base is not None and family != over:
                predicted.append(one.predicted - base.predicted)
                true.append(one.true - base.true)
                names.append(name)
        return predicted, true, names

    def cost(self, cases: Sequence[Case]) -> float:
        """Return the CPU time of the advice as a part of the search's, all populations together."""
        names = {case.name for case in cases}
        found = [pair for (name, _), pair in self.seconds.items() if name in names]
        return sum(advice for _, advice in found) / max(sum(search for search, _ in found), 1e-9)


def outcome(folder: Path) -> Outcome:
    """Read what lies in a folder of the study; populations that are not complete are left out.

    Args:
        folder: The folder that `palmette.studies.advising.study.run_each` wrote.
    """
    made = Outcome()
    classic, advised, others = (
        {(case.name, seed): found for case, seed, found in results(folder, kind)} for kind in (CLASSIC, ADVISED, OTHERS)
    )
    cases = {case.name: case for case in CASES}
    for key in sorted(classic.keys() & advised.keys() & others.keys()):
        name, seed = key
        families, advice = classic[key]["families"], advised[key]
        found = {family: _known(families[family]["test"]) for family in families}
        found[SEARCH] = found[classic[key]["picked"]]
        found |= {method: _known(score) for method, score in others[key]["tests"].items()}
        found[ADVISOR] = _known(advice["test"])
        for method, score in found.items():
            made.scores.setdefault(name, {}).setdefault(method, []).append(score)
        made.advised.setdefault(name, []).append(advice["advice"]["personal"]["family"])
        made.seconds[key] = classic[key]["seconds"], advice["advice_seconds"]
        made.steps[key] = classic[key]["steps"]
        made.foretold.extend(_foretold(cases[name], seed, advice["advice"]["predictions"], found))
    return made


def _known(score: float | None) -> float:
    """Return a score; that of a training that diverged is 0."""
    return 0.0 if score is None else score


def _foretold(
    case: Case, seed: int, predictions: Mapping[str, Mapping[str, Any]], found: Mapping[str, float]
) -> Iterator[Foretold]:
    for family, told in predictions.items():
        if family in found:
            yield Foretold(case, seed, family, told["score"], told["low"], told["high"], found[family])
