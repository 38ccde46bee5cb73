"""One run of a study: what is to be run, running it in this process, and how it ended."""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged, PalmetteError
from palmette.population import Population
from palmette.protocol import ModelKind
from palmette.runs import Interrupted, RunConfig, execute, resume
from palmette.runs.folder import CONFIG, Folder
from palmette.studies.steps import Objects, rounds_for
from palmette.track.tracker import chosen

End = Literal["done", "diverged", "refused", "failed", "stopped"]
_KEPT = 2  # populations that are kept for the next runs


@dataclass(frozen=True, eq=False)
class Trial:
    """One run that is to be there when the study is done.

    Attributes:
        arm: The name of the method.
        seed: The seed.
        out: Its folder.
        config: Its config; ``None`` to go on with the run that lies in the folder.
        objects: What the config cannot hold.
        attempt: The number of the settings that are tried with it; 0 for a run that is a result.
        group: Under which heading its progress is told; its arm's by default.
        steps: Gradient steps of each device that decide its rounds, where its settings may change how many they come to.
        track: The names of trackers that are told of it.
        study: The name of the study, under which trackers keep it.
    """

    arm: str
    seed: int
    out: Path
    config: RunConfig | None = None
    objects: Objects = field(default_factory=Objects)
    attempt: int = 0
    group: str = ""
    steps: int | None = None
    track: tuple[str, ...] = ()
    study: str = ""

    @property
    def name(self) -> str:
        """What to call it in a line."""
        return f"{self.arm}, seed {self.seed}" + (f", try {self.attempt}" if self.attempt else "")

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return (self.out / CONFIG).exists() and Folder(self.out).finished


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a run ended.

    Attributes:
        trial: The run.
        end: ``"done"``; ``"diverged"`` or ``"refused"``, which the same settings always do; ``"failed"`` for another reason;
            ``"stopped"`` by the user.
        message: Why, where it is not done.
        warnings: What was said on the way.
    """

    trial: Trial
    end: End
    message: str = ""
    warnings: tuple[str, ...] = ()


class Eyes(Protocol):
    """Is told how the runs of a study go on."""

    def begin(self, trial: Trial, rounds: int) -> None:
        """A run begins, or goes on."""

    def round(self, trial: Trial, done: int, rounds: int, scores: Mapping[str, float]) -> None:
        """A round is done; the scores of its models by kind, where it was evaluated."""

    def end(self, outcome: Outcome) -> None:
        """A run ended."""

    def say(self, text: str) -> None:
        """Something is to be said."""

    def stopping(self) -> None:
        """The user asked to stop; the rounds under way are finished."""


class Told:
    """Observes one run for a study.

    Args:
        begin: Is called with the number of rounds when the run begins.
        round_: Is called after every round with its number, the number of all and the scores by kind of model.
        stop: Is called when the user asks to stop.
        asked: Returns whether the user asked to stop before the run could hear it.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        round_: Callable[[int, int, dict[str, float]], None],
        stop: Callable[[], None],
        asked: Callable[[], bool],
    ) -> None:
        self._begin, self._round, self._stop, self._asked, self._rounds = begin, round_, stop, asked, 0

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Tell that it begins."""
        if self._asked():
            raise Interrupted("stopped before it began")
        self._rounds = rounds
        self._begin(rounds)

    def exchange(self, tier: int) -> None:
        """Say nothing."""

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Tell that a round is done."""
        self._round(done, self._rounds, lead_scores(scores))

    def stopping(self) -> None:
        """Tell that the user asked to stop."""
        self._stop()


def lead_scores(scores: Mapping[ModelKind, Scores] | None) -> dict[str, float]:
    """Return the accuracy of every kind of model, or the loss where there is no accuracy."""
    return {
        kind: score.by_samples("accuracy" if "accuracy" in score.sums else "loss")
        for kind, score in (scores or {}).items()
    }


class Populations:
    """Makes populations by config and keeps the last ones: the methods of a study meet the same."""

    def __init__(self) -> None:
        self._made: dict[str, Population] = {}

    def of(self, config: RunConfig) -> Population:
        """Return the population of a config."""
        values = config.model_dump()
        seed = config.seed if config.data.seed is None else config.data.seed
        key = json.dumps([values["data"], values["tree"], values["server"], seed], default=str)
        if key not in self._made:
            while len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[key] = config.population()
        return self._made[key]


def run_trial(trial: Trial, populations: Populations, observer: Told, threads: int | None) -> Outcome:
    """Run a trial to its end in this process, or go on with it, and say how it ended; a bug is told with its traceback."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        end, message = _run(trial, populations, observer, threads)
    told = () if trial.attempt else heard  # of settings that are only tried, the score says enough
    return Outcome(trial, end, message, tuple(dict.fromkeys(str(one.message) for one in told)))


def _run(trial: Trial, populations: Populations, observer: Told, threads: int | None) -> tuple[End, str]:
    objects = trial.objects
    given: dict[str, Any] = {"method": objects.method, "threads": threads, "observer": observer}
    given["track"] = chosen(trial.track, group=trial.study)
    try:
        if trial.config is None:
            resume(trial.out, population=objects.population, model=objects.task, **given)
            return "done", ""
        config = trial.config
        if config.engine.threads is not None:
            given["threads"] = None  # the user's word counts more than how many trials run side by side
        if changed := config.changed_code():
            return "failed", f"{changed} when the study began; put the old code back, or start a new study"
        people = objects.population if objects.population is not None else populations.of(config)
        if trial.steps is not None:
            rounds = rounds_for(config, trial.steps, people, objects, trial.arm)
            config = config.model_copy(update={"rounds": rounds})
        execute(config, trial.out, exist="resume", population=people, task=objects.task, **given)
    except Diverged as error:
        return "diverged", str(error)
    except Interrupted as error:
        return "stopped", str(error)
    except MemoryError:
        return "failed", "there is not enough memory for this; use --jobs 1, fewer devices or a smaller model"
    except BadInput as error:
        return "refused" if trial.attempt else "failed", str(error)
    except (PalmetteError, OSError) as error:
        return "failed", str(error)
    except Exception as error:  # of a method of the user's own: the other runs go on, and this one is told in full
        lines = traceback.format_exception(error)
        return "failed", f"{type(error).__name__}: {error}\n{''.join(lines)}"
    return "done", ""


def refuse_unfit(folder: Path) -> None:
    """Refuse a folder for a study that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file, not a folder for a study; choose another --out")
    if (folder / CONFIG).exists():
        raise BadInput(f"{folder} holds a run, not a study; choose another --out")
