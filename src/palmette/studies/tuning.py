"""Choosing settings on validation samples: what is searched, what is tried next, and which was best.

Every seed is an experiment of its own: it chooses on a quarter of its own training samples, which are not trained on then, and
never looks at a test sample, its own or another seed's. The chosen settings are then trained on all training samples and
tested. The first settings tried are those the user gave; the others are drawn by Optuna.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from palmette import address
from palmette.algorithms import kind_of
from palmette.errors import BadInput
from palmette.protocol import Algorithm, ModelKind
from palmette.protocol.settings import Between
from palmette.runs import Result, RunConfig
from palmette.values import plain, shown

VALIDATION = 0.25  # of each device's training samples decide between settings
_DRAWS = 50  # settings that are drawn in search of one that was not tried before
_TIMES = 10  # how far from its default a setting is searched whose range nobody declared


def validated(config: RunConfig) -> RunConfig:
    """Return the config with validation samples in place of the test samples."""
    return config.model_copy(update={"data": config.data.model_copy(update={"validation": VALIDATION})})


def space_of(config: RunConfig, method: Algorithm | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is searched for a method: by setting, a range or a list of values, as plain data.

    Args:
        config: The run that is to be tuned.
        method: The algorithm, where it is an object.
        given: What the user wants searched, in place of what the method declares.
    """
    if given:
        return dict(given)
    kind = type(method) if method is not None else kind_of(config.algorithm)
    if declared := kind.search:
        return {name: as_plain(one) for name, one in declared.items()}
    own = method if method is not None else config.method()
    numbers = {
        field.name: value
        for field in dataclasses.fields(own)  # type: ignore[arg-type]
        if isinstance(value := getattr(own, field.name), float) and 0 < value < math.inf
    }
    if not numbers:
        raise BadInput(
            f"{kind.name} has nothing to tune: it declares no search and none of its settings is a number above zero; name "
            "what to try, as in --grid alpha=0.01..1"
        )
    return {name: as_plain(Between(value / _TIMES, value * _TIMES)) for name, value in numbers.items()}


def as_plain(one: Between) -> dict[str, Any]:
    """Return a range as plain data."""
    return {"low": one.low, "high": one.high, **({"whole": True} if one.whole else {})}


def as_given(what: str, one: Any, *, pair: bool) -> Any:
    """Return the values of a setting as Python gave them: a list, or a pair as a range.

    Args:
        what: What to call it in an error.
        one: The values.
        pair: Whether a tuple of two is a range.
    """
    if pair and isinstance(one, tuple) and len(one) == 2:
        return {"low": float(one[0]), "high": float(one[1])}
    if not isinstance(one, Sequence) or isinstance(one, str):
        raise BadInput(f"{what} = {shown(one)} must be a list of values")
    return plain(list(one))


def in_words(one: Any) -> str:
    """Write what is searched of a setting."""
    if isinstance(one, Mapping):
        return f"{one['low']:g} to {one['high']:g}"
    return ", ".join(map(str, one))


def check_optuna() -> None:
    """Refuse tuning where Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise BadInput("--tune needs Optuna, which is not installed: pip install 'palmette[tune]'") from None


class Sampler:
    """Says which settings to try next; the same for the same seed and the same scores, however often it is asked anew.

    Args:
        space: What is searched.
        seed: The seed of the runs.
        lower: Whether lower scores are better.
    """

    def __init__(self, space: Mapping[str, Any], seed: int, *, lower: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._worst = space, 1e9 if lower else -1e9
        drawn = optuna.samplers.TPESampler(seed=address.key(seed, "tuning") % 2**32)
        self._study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=drawn)
        self._optuna: Any = optuna
        self._trial: Any = None
        self._tried: list[tuple[dict[str, Any], float]] = []
        self._asked: dict[str, Any] = {}

    def learn(self, settings: Mapping[str, Any], score: float) -> None:
        """Learn from settings that were tried without asking, as far as they lie in the space."""
        self._tried.append(({name: settings.get(name) for name in self._space}, score))
        if all(self._fits(name, settings.get(name)) for name in self._space):
            params = {name: settings[name] for name in self._space}
            ways = {name: self._distribution(one) for name, one in self._space.items()}
            made = self._optuna.trial.create_trial(params=params, distributions=ways, value=self._value(score))
            self._study.add_trial(made)

    def ask(self) -> dict[str, Any] | None:
        """Return the next settings, none that were tried before; ``None`` where there seem to be no others."""
        for _ in range(_DRAWS):
            self._trial = self._study.ask()
            self._asked = {name: self._drawn(name, one) for name, one in self._space.items()}
            known = [score for settings, score in self._tried if settings == self._asked]
            if not known:
                return self._asked
            self._study.tell(self._trial, self._value(known[0]))
        return None

    def tell(self, score: float) -> None:
        """Say how good the settings were that were asked for last; NaN for those that diverged."""
        self._tried.append((self._asked, score))
        self._study.tell(self._trial, self._value(score))

    def _value(self, score: float) -> float:
        return self._worst if math.isnan(score) else score

    def _drawn(self, name: str, one: Any) -> Any:
        trial: Any = self._trial
        if not isinstance(one, Mapping):
            return trial.suggest_categorical(name, list(one))
        if one.get("whole"):
            return trial.suggest_int(name, int(one["low"]), int(one["high"]), log=True)
        return float(f"{trial.suggest_float(name, one['low'], one['high'], log=True):.3g}")

    def _fits(self, name: str, value: Any) -> bool:
        """Whether a value is a point of the space."""
        one = self._space[name]
        if isinstance(one, Mapping):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and bool(one["low"] <= value <= one["high"])
        return value in one

    def _distribution(self, one: Any) -> Any:
        ways = self._optuna.distributions
        if not isinstance(one, Mapping):
            return ways.CategoricalDistribution(list(one))
        if one.get("whole"):
            return ways.IntDistribution(int(one["low"]), int(one["high"]), log=True)
        return ways.FloatDistribution(one["low"], one["high"], log=True)


def score(result: Result, by: ModelKind) -> float:
    """Return what decides between settings: the mean over all validation samples, of a kind of model.

    It is the personal models' where the method has none of that kind.
    """
    kind = by if by in result.kinds else "PM"
    return result.last(kind, result.lead)


def best(scores: Sequence[float], *, lower: bool) -> int | None:
    """Return the place of the best score, the first of equals; ``None`` where none is a number."""
    there = [place for place, value in enumerate(scores) if not math.isnan(value)]
    if not there:
        return None
    return min(there, key=lambda place: (scores[place] if lower else -scores[place], place))
