"""What a run measured so far: evaluations of its models, on a sample of the devices or on all, kept as rows."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from palmette.engines.evaluation import Measured, Scores, measure_all, sample
from palmette.engines.measures import make_measures
from palmette.engines.simulate import Simulation
from palmette.protocol import ModelKind
from palmette.runs.config import RunConfig
from palmette.runs.metrics import DISTANCE, SAMPLED, TRAINED, Metrics

_EVALUATION_SHARE = 0.05  # of the samples a run passes through a model


class History:
    """Measures the models of a simulation and keeps the rows of `Metrics`.

    Args:
        simulation: What is measured.
        config: Says what is measured, on whom and how often.
    """

    def __init__(self, simulation: Simulation, config: RunConfig) -> None:
        self._simulation, self._config = simulation, config
        self._metrics = Metrics()
        self._measures = make_measures(config.metrics, simulation.population.classes)
        self._drawn = sample(simulation, config.evaluate_on)
        self._found: tuple[int, Measured] | None = None  # what was measured last, and after which round
        self.every = 1 if config.evaluate_every == "auto" else config.evaluate_every
        """Rounds between two evaluations."""

    @property
    def about(self) -> str:
        """Say that a sample of the devices is measured; nothing where all are."""
        if self._drawn is None:
            return ""
        return (
            f"{len(self._drawn):,} of {self._simulation.population.devices:,} devices, drawn by the seed and the same in every "
            "round, are measured before the end; all of them after the last round (evaluate_on)"
        )

    def due(self, done: int) -> bool:
        """Return whether the models are measured before and after a round."""
        return done in (1, self._simulation.rounds) or done % self.every == 0

    def measure(self) -> Measured:
        """Evaluate the models as they are, once per state."""
        if self._found is None or self._found[0] != self._simulation.round:
            self._found = self._simulation.round, self._measured(self._drawn)
        return self._found[1]

    def measure_everybody(self) -> Measured | None:
        """Evaluate and record the models on all devices; nothing where that is what is done after every round."""
        if self._drawn is None:
            return None
        found = self._measured(None)
        self._record(found, when="after", drawn=None)
        self._tell(found, drawn=None)
        return found

    def _measured(self, who: Tensor | None) -> Measured:
        return measure_all(self._simulation, self._measures, held_out=bool(self._config.engine.held_out), who=who)

    def record(self, after: Measured, before: Measured | None) -> None:
        """Keep what was measured after a round and before it; before the first round there is no before."""
        self._record(after, when="after", drawn=self._drawn)
        if before is not None:
            self._record(before, when="before", drawn=self._drawn)
        self._tell(after, drawn=self._drawn)

    def space_out(self, scores: dict[ModelKind, Scores], adapted: int) -> None:
        """Choose the rounds between evaluations from counts of samples, so that it is the same on every machine.

        Args:
            scores: What the first round's evaluation measured.
            adapted: Steps that devices took to make models for it and for the one before.
        """
        simulation = self._simulation
        if self._config.evaluate_every != "auto":
            return
        size = simulation.algorithm.batch_size
        batch = float(simulation.learner.samples.double().mean()) if size == "full" else float(size)
        training = 3 * batch * simulation.device_steps  # a gradient costs about three forward passes
        measuring = sum(float(score.count.sum()) for score in scores.values()) + 3 * batch * adapted
        rounds = measuring / (_EVALUATION_SHARE * max(training, 1))
        self.every = (
            1 if rounds <= 1 else math.ceil(2 * rounds)
        )  # apart from each other, each measures before and after

    @property
    def rows(self) -> dict[str, list[Any]]:
        """The history so far, column by column; see `palmette.runs.metrics.SCHEMA`."""
        return self._metrics.rows

    @property
    def evaluations(self) -> list[tuple[int, int]]:
        """The rounds after which models were measured, each with the number of devices that were."""
        everybody = self._simulation.population.devices
        drawn = everybody if self._drawn is None else len(self._drawn)
        rows = self._metrics.rows
        found = {
            (round_, on.startswith(SAMPLED))
            for round_, when, on, weight in zip(
                *(rows[name] for name in ("round", "when", "on", "weight")), strict=True
            )
            if when == "after" and weight == "samples" and on.removeprefix(SAMPLED).strip() in ("", "all", TRAINED)
        }
        return [(round_, drawn if sampled else everybody) for round_, sampled in sorted(found)]

    def table(self, first: int = 0) -> pa.Table:
        """Return all rows, or those from some row on."""
        return self._metrics.table(first)

    def restore(self, table: pa.Table, every: int) -> None:
        """Go on from the rows of a checkpoint."""
        self._metrics = Metrics({name: table[name].to_pylist() for name in table.column_names})
        self.every, self._found = every, None

    def forget_the_end(self) -> None:
        """Drop what was measured only because the run was to end here."""
        done = self._simulation.round
        devices, sampled = self._simulation.population.devices, self._drawn is not None
        keep = done == 1 or done % self.every == 0
        self._metrics.drop_last(done, keep=keep, devices=devices, sampled=sampled)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _record(self, found: Measured, *, when: str, drawn: Tensor | None) -> None:
        simulation = self._simulation
        tree, last, ended = simulation.population.tree, simulation.stores[0].last, simulation.round == simulation.rounds
        nobody = torch.zeros_like(last, dtype=torch.bool)
        who: dict[str, Any] = {
            "participants": last == simulation.round - 1 if simulation.round else nobody,
            "unseen": last < 0 if simulation.round else nobody,
            "last": ended and drawn is None,
        }
        shared: dict[str, Any] = {
            "round_": simulation.round,
            "kept_out": simulation.population.unseen,
            "sampled": self._mask(drawn),
        }
        self._metrics.record(found.scores, tree, when=when, **who, **shared)
        if when == "after":
            self._metrics.record_whole(found.whole, tree, **who, **shared)
            self._metrics.record_held_out(found.held_out, tree, **shared)

    def _tell(self, found: Measured, *, drawn: Tensor | None) -> None:
        """Add what the algorithm reports about the models just measured, and how far they lie apart."""
        tree, done = self._simulation.population.tree, self._simulation.round
        ended = done == self._simulation.rounds and drawn is None
        told = {**found.reports, DISTANCE: found.distances}
        self._metrics.record_reports(told, tree, round_=done, last=ended, sampled=self._mask(drawn))

    def _mask(self, drawn: Tensor | None) -> Tensor | None:
        """Return which devices were drawn to be measured (bool); ``None`` where all are measured."""
        devices = self._simulation.population.devices
        return None if drawn is None else torch.zeros(devices, dtype=torch.bool).index_fill(0, drawn, True)
