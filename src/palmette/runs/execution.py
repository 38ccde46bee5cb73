"""Running: rounds, evaluations, checkpoints, and what to do when it must stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from palmette.engines.evaluation import Measured, Scores, cost
from palmette.engines.simulate import Looked, Simulation
from palmette.errors import Diverged, PalmetteError
from palmette.learner import Halted, Optimiser
from palmette.protocol import ModelKind
from palmette.runs.absences import absences_table
from palmette.runs.bounds import Bounds
from palmette.runs.checkpoint import Memory, Seconds, Span, check_rounds, unfit
from palmette.runs.checkpoint import history as unpacked
from palmette.runs.config import RunConfig
from palmette.runs.files import Unwritable
from palmette.runs.fingerprint import fingerprint, introduce, recognised
from palmette.runs.folder import (
    ABSENCES,
    CHECKPOINT,
    ENCODING,
    EVALUATION,
    METRICS,
    OUTLINE,
    POPULATION,
    PREVIOUS,
    TIMINGS,
    TRAFFIC,
    Folder,
)
from palmette.runs.history import History
from palmette.runs.keeping import Keeper
from palmette.runs.metrics import traffic_table
from palmette.runs.records import Record
from palmette.runs.roll import roll
from palmette.runs.saving import save_models
from palmette.runs.stopping import hearing
from palmette.theory import advice, compared, warnings_of

_CHECKPOINT_SHARE = 0.04  # of a run's seconds
_SAME = 2.0  # seconds within which torchrun passes a Ctrl-C on to a process that heard it
_PUBLISH_SHARE, _PUBLISH_PAUSE = 0.01, 1.0  # of a run's seconds; seconds between two writings of the history so far


class Interrupted(PalmetteError):  # noqa: N818 - reads as what it is
    """The run was asked to stop and left a checkpoint."""


class Observer(Protocol):
    """An object that is told how a run goes on, such as a progress bar."""

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """The run starts, or goes on from ``simulation.round``."""

    def exchange(self, tier: int) -> None:
        """Nodes of a tier have asked their children once."""

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """A round is done; ``scores`` where it was evaluated, without those of devices that are kept out of training."""

    def stopping(self) -> None:
        """The run was asked to stop and finishes its round."""


class Execution:
    """One run on its way: a simulation, its folder, its history.

    Args:
        simulation: What runs.
        config: The resolved config.
        folder: Where it is kept; locked by the caller.
        observer: Is told of every round.
    """

    def __init__(self, simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None) -> None:
        self._simulation, self._config, self._folder, self._observer = simulation, config, folder, observer
        self._history = History(simulation, config)
        self._keeper = Keeper(simulation, self._history, folder)
        self._bounds = Bounds(simulation, folder.warn)
        self._seconds: Seconds = {
            "estimate": 0.0,
            "rounds": 0.0,
            "evaluation": 0.0,
            "checkpoints": 0.0,
            "progress": 0.0,
        }
        self._published = -math.inf
        self._good = self._sane = 0  # the last round that was finite, and the last that was measured and found sane
        self.fingerprint = fingerprint(simulation, config)
        """What the run is about."""
        self._stop = False

    @property
    def history(self) -> dict[str, list[Any]]:
        """The history so far, column by column; see `palmette.runs.metrics.SCHEMA`."""
        return self._history.rows

    def run(self) -> None:
        """Run to the end, from the start or from the folder's checkpoint."""
        simulation, observer = self._simulation, self._observer
        began = recognised(self._folder, self.fingerprint)
        resumed = self._resumed()
        introduce(self._folder, self.fingerprint, began, self._config.to_toml().encode())
        if not self._folder.has(POPULATION):
            self._folder.write_table(POPULATION, roll(simulation.population))
        self._folder.log(
            f"{self._config.title}: rounds {simulation.round + 1} to {simulation.rounds}, "
            f"backend {simulation.learner.backend.name} ({simulation.learner.reason})"
        )
        for text in (*simulation.population.notes, *simulation.learner.told):
            self._folder.log(text)
        for one in simulation.looked:
            self._folder.log(one.sentence)
        if simulation.population.found is not None:
            self._folder.log(str(simulation.population.found))
        self._folder.log(f"participation: {simulation.participation}")
        if text := self._history.about:
            self._folder.log(text)
        if simulation.round == 0 and (text := compared(simulation, wanted=self._config.engine.check_steps)):
            self._folder.log(text)
            simulation.looked.append(Looked(text))
        if observer is not None:  # before the look at step sizes, which may take seconds
            simulation.on_exchange = observer.exchange
            observer.begin(simulation, simulation.rounds)
        if simulation.round == 0:
            for text in (*simulation.learner.doubts, *self._look()):
                self._folder.warn(text)
        with hearing(self._asked_to_stop, _SAME if simulation.processes > 1 else 0.0):
            try:
                if not resumed:
                    self._history.record(self._measure(), None)
                    self._checkpoint()
                self._publish()
                while simulation.round < simulation.rounds:
                    self._round()
                    if self._stop and simulation.round < simulation.rounds:
                        raise self._stopped()
            except Diverged as error:
                raise self._diverged(error) from None
            except Halted:
                raise KeyboardInterrupt from None
        self._finish()

    def _resumed(self) -> bool:
        """Go on from what the folder keeps, and return whether there is something."""
        folder = self._folder
        kept = self._keeper.load(unfit=partial(unfit, self._simulation, self.fingerprint.digest))
        if kept is not None:
            self._restore(kept)
            folder.reopen()
        elif folder.finished:
            raise PalmetteError(
                f"the saved state of the run in {folder.path} is damaged, so it cannot be continued; start a new run"
            )
        elif folder.has(CHECKPOINT) or folder.has(PREVIOUS):
            folder.warn(f"no checkpoint in {folder.path} can be used: the run starts over with round 1")
        return kept is not None

    def _look(self) -> list[str]:
        """Hold the step sizes against the curvature of the losses and return what to warn of."""
        self._seconds["estimate"] = sum(one.seconds for one in self._simulation.looked)
        with self._timed("estimate"):
            return warnings_of(self._simulation) if self._config.engine.check_steps else []

    def _round(self) -> None:
        simulation = self._simulation
        self._folder.check_place()
        done = simulation.round + 1
        before = self._measure() if self._history.due(done) else None
        adapted = simulation.adapt_steps
        with self._timed("rounds"):
            simulation.step()
        if done == 1:
            for text in self._unused():
                self._folder.warn(text)
        scores = None
        if before is not None:
            found = self._measure()
            scores = found.scores
            self._history.record(found, before)
            if done == 1:
                self._history.space_out(scores, simulation.adapt_steps - adapted)
            if done == simulation.rounds:
                with self._timed("evaluation"):
                    scores = (self._history.measure_everybody() or found).scores
        if self._observer is not None:
            out = simulation.population.unseen
            if scores is not None and out is not None:
                scores = {kind: score.only(~out) for kind, score in scores.items()}
            self._observer.round(done, scores)
        self._good = done
        spent, total = self._seconds, sum(self._seconds.values())
        if done < simulation.rounds:
            if self._keeper.failing or spent["checkpoints"] <= _CHECKPOINT_SHARE * total:
                self._checkpoint()
            waited = time.monotonic() - self._published
            if waited >= _PUBLISH_PAUSE and spent["progress"] <= _PUBLISH_SHARE * total:
                self._publish()

    def _unused(self) -> Iterator[str]:
        """Yield what the run was given and its first round had no use for."""
        simulation, name = self._simulation, self._simulation.algorithm.name
        task, used = simulation.task, simulation.learner.used
        if task.parts and not simulation.looked_at_parts:
            yield (
                f"model.parts names {', '.join(task.parts)}, and {name} makes no difference between parts: all of the model is "
                "trained and sent"
            )
        if "descend" not in used and simulation.learner.optimiser != Optimiser():
            yield f"optimiser.* does not apply to {name}: it takes gradients and makes its own steps of them"
        if "steps" not in used and task.running is not None:
            yield (
                f"the running statistics of the model stay as they began: {name} takes gradients and makes its own steps of "
                "them, so its models are measured with other statistics than they were trained with; use nn.GroupNorm or "
                "nn.LayerNorm"
            )

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(self) -> Measured:
        """Evaluate the models as they are, once per state; a loss beyond all bounds ends the run."""
        with self._timed("evaluation"):
            found = self._history.measure()
        try:
            self._bounds.check(found.scores.values())
        except Diverged:
            self._good = self._sane
            raise
        self._sane = self._simulation.round
        return found

    # -- keeping -------------------------------------------------------------------------------------------------------

    def _publish(self, ended: str = "") -> None:
        """Put the history so far on disk, for those who look at a run before its end."""
        with self._timed("progress"):
            self._keeper.publish(ended)
        self._published = time.monotonic()

    def _checkpoint(self, *, last: bool = False, must: bool = False) -> None:
        """Keep the state; where that fails, it is tried again later.

        Args:
            last: Whether the run stops here.
            must: Whether it ends with an error where that fails.
        """
        with self._timed("checkpoints"):
            memory = Memory(
                run=self.fingerprint.digest,
                every=self._history.every,
                initial_loss=self._bounds.initial,
                sane=self._sane,
                rounds=self._simulation.rounds,
                looked_at_rounds=self._simulation.looked_at_rounds,
                seconds=self._seconds,
            )
            (self._keeper.save if must else self._keeper.try_to_save)(memory, last=last)

    def _restore(self, kept: list[Record]) -> None:
        memory, tables = Memory.model_validate(kept[-1].about), [unpacked(record.tensors["metrics"]) for record in kept]
        check_rounds(self._simulation, kept[-1].round, memory)
        self._history.restore(pa.concat_tables(tables), memory.every)
        for record in kept:
            self._simulation.restore(record.tensors)
        self._bounds.initial = memory.initial_loss
        self._seconds = {**self._seconds, **memory.seconds}
        self._good, self._sane = self._simulation.round, memory.sane
        self._simulation.looked_at_rounds = memory.looked_at_rounds
        if self._simulation.round == memory.rounds < self._simulation.rounds:
            self._history.forget_the_end()

    def _finish(self) -> None:
        """Write the files of a finished run; where one cannot be written, the run can go on to here again."""
        try:
            self._write_all()
        except Unwritable as error:
            kept, path = self._keeper.round, self._folder.path
            raise Unwritable(
                f"{error}; all {self._simulation.rounds} rounds are done, and the last good state is kept"
                f"{'' if kept == self._simulation.round else f', that after round {kept}'}: when {path} can be written, go on "
                f"with: palmette resume {path}"
            ) from None

    def _write_all(self) -> None:
        simulation, folder = self._simulation, self._folder
        keep = self._config.engine.keep_state
        if keep and self._keeper.round != simulation.round:
            self._checkpoint(last=True, must=True)
        before = simulation.adapt_steps - simulation.unseen_steps
        save_models(simulation, self._config.model.name, folder)
        # What making the own model of every device that trains takes, once.
        adapted = simulation.adapt_steps - simulation.unseen_steps - before
        if outline := simulation.algorithm.outline(simulation.tree, simulation.rounds):
            folder.write_json(OUTLINE, outline)
        if (encoding := simulation.population.encoding) is not None:
            folder.write_json(ENCODING, encoding.as_dict())
        folder.write_table(TRAFFIC, traffic_table([list(row.values()) for row in simulation.ledger.rows()]))
        folder.write_table(
            EVALUATION,
            traffic_table([list(row.values()) for row in cost(simulation, self._history.evaluations).rows()]),
        )
        if len(record := simulation.record.table()):
            folder.write_table(ABSENCES, absences_table(record, simulation.tree))
        speed = simulation.device_steps / max(self._seconds["rounds"], 1e-9)
        steps = {"device_steps": simulation.device_steps, "device_steps_per_second": round(speed, 1)}
        steps |= {"wasted_steps": simulation.wasted_steps, "adapt_steps": adapted, "threads": simulation.threads}
        steps |= {"processes": simulation.processes}
        folder.write_json(TIMINGS, {"seconds": self._seconds, **steps})
        folder.write_table(METRICS, self._history.table())
        folder.close(keep_state=keep)

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _diverged(self, error: Diverged) -> Diverged:
        """Keep the last good round, computed again from a checkpoint where that is older, and say what to change."""
        good, hint = self._good, advice(self._simulation)
        kept = self._keeper.load(at_most=good)
        if kept is None:  # all that is kept is finite, but was not measured before the loss grew
            good = -1
            kept = self._keeper.load()
        if kept is not None:
            self._restore(kept)
            while self._simulation.round < good:
                self._round()
            self._checkpoint(last=True)
        done = self._keeper.round
        left = "No state could be kept" if done is None else f"The state after round {done} is kept"
        told = f"{error}. {hint} {left} in {self._folder.path}."
        self._publish(ended=str(error))
        self._folder.log(told)
        return Diverged(told)

    def _stopped(self) -> Interrupted:
        """Keep the state and say where the run stopped, and from where it goes on if the state could not be kept."""
        simulation = self._simulation
        self._checkpoint(last=True)
        self._publish()
        kept, done = self._keeper.round, f"stopped after round {simulation.round} of {simulation.rounds}"
        if kept == simulation.round:
            doubt = "; its state was written, but may not have reached the disk" if self._keeper.failing else ""
            return Interrupted(f"{done}{doubt}")
        older = f"after round {kept}" if kept is not None else "at its beginning"
        return Interrupted(f"{done}, whose state could not be kept: the run will go on {older}")

    @contextmanager
    def _timed(self, what: Span) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - start

    def _asked_to_stop(self) -> None:
        """Finish the round when asked for the first time; stop at once at the second."""
        if self._stop:
            self._simulation.learner.halt()  # an exception that is raised inside a library may be lost there
            raise KeyboardInterrupt
        self._stop = True
        if self._observer is not None:
            self._observer.stopping()
