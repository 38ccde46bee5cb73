"""How good the models are: which model, on whom, weighted how; and what an algorithm tells of its nodes besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.measures import Measure, Whole, perplexity_of
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import ProtocolError
from palmette.learner.scores import Split, model_output
from palmette.protocol import Algorithm, ModelKind, model_kind

DISTANCE = "distance"  # the name under which a run keeps how far models lie from those above them
_DEVICES = 256  # devices whose personal models are measured at once


def lower_is_better(metric: str) -> bool:
    """Return whether a metric is to be small: losses, errors and perplexity; all others are to be large."""
    return metric in ("calibration", "perplexity", "rmse") or metric.endswith(("loss", "error"))


@dataclass(frozen=True, eq=False)
class Scores:
    """One kind of model measured on every device's own test samples.

    Attributes:
        model: ``"PM"``, the device's own model; ``"TM"``, its team's; ``"TM2"`` ..., of tiers above; ``"GM"``, the global one.
        sums: For every metric, its sum over each device's test samples.
        count: Number of test samples of each device.
    """

    model: ModelKind
    sums: dict[str, Tensor]
    count: Tensor

    def only(self, who: Tensor) -> Scores:
        """Return the scores of some devices (bool); the others have no samples in it."""
        sums = {metric: values.where(who, torch.zeros_like(values)) for metric, values in self.sums.items()}
        return Scores(self.model, sums, self.count.where(who, torch.zeros_like(self.count)))

    def per_device(self, metric: str = "accuracy") -> Tensor:
        """Return the metric of every device; NaN for a device without test samples."""
        return self.sums[metric] / self.count

    def by_samples(self, metric: str = "accuracy") -> float:
        """Return the mean over all test samples."""
        return float(self.sums[metric].sum() / self.count.sum())

    def by_devices(self, metric: str = "accuracy") -> float:
        """Return the mean over devices, each counting the same."""
        return float(self.per_device(metric).nanmean())

    def spread(self, metric: str = "accuracy") -> float:
        """Return the standard deviation over devices."""
        values = self.per_device(metric)
        values = values[~values.isnan()]
        return float(values.std(correction=0)) if len(values) else float("nan")

    def worst_decile(self, metric: str = "accuracy") -> float:
        """Return the mean over the tenth of the devices that fare worst."""
        values = self.per_device(metric)
        values = values[~values.isnan()].sort(descending=lower_is_better(metric)).values
        return float("nan") if not len(values) else float(values[: max(1, len(values) // 10)].mean())


Reports = dict[str, dict[ModelKind, Tensor]]
"""What an algorithm tells: by name and by kind of node, one number per node of that tier."""


def evaluate(simulation: Simulation) -> dict[ModelKind, Scores]:
    """Measure the models of devices, of every inner tier and the global one on the devices' own test samples."""
    return measure(simulation)[0]


def measure(simulation: Simulation) -> tuple[dict[ModelKind, Scores], Reports]:
    """Measure the models as `evaluate` does, and ask the algorithm what it tells of the nodes (`Algorithm.report`)."""
    found = measure_all(simulation)
    return found.scores, found.reports


class Measured(NamedTuple):
    """All that one evaluation found.

    Attributes:
        scores: Every kind of model on the devices' test samples.
        reports: What the algorithm tells of the nodes.
        held_out: Every kind of model on the training samples that were held out, where that was wanted.
        whole: Of every kind of model, what metrics of all outputs are measured on, where some were wanted.
        distances: Of every kind of model but the uppermost, how far each node's model lies from the one above it
            (Euclidean): that of the next kind there is, of the node's parent or of a node further up.
    """

    scores: dict[ModelKind, Scores]
    reports: Reports
    held_out: dict[ModelKind, Scores]
    whole: dict[ModelKind, list[Whole]]
    distances: dict[ModelKind, Tensor]


def measure_all(
    simulation: Simulation, measures: Mapping[str, Measure] | None = None, *, held_out: bool = False
) -> Measured:
    """Measure the models as `measure` does, and what else is wanted.

    Args:
        simulation: Whose models.
        measures: Metrics of all outputs together.
        held_out: Whether to measure on the training samples that were held out, too.
    """
    with one_thread_inside():
        return _measure(simulation, measures or {}, held_out)


def _measure(simulation: Simulation, measures: Mapping[str, Measure], held_out: bool) -> Measured:
    tree, scorer = simulation.population.tree, simulation.learner.scorer
    # Where the loss is the cross-entropy, its perplexity follows from it.
    follows = "perplexity" in measures and simulation.learner.task.loss == "cross-entropy"
    measures = {name: one for name, one in measures.items() if not (follows and name == "perplexity")}
    everybody = torch.arange(tree.devices)
    parts, told, kept, outputs, apart = [], [], [], [], []
    over = _above(simulation)
    for ids in everybody.split(_DEVICES):
        personal, running = simulation.personal(ids)
        predict = simulation.algorithm.predict if simulation.predicts else model_output
        parts.append(scorer.sums(personal, torch.arange(len(ids)), ids, "test", running, predict))
        if held_out:
            kept.append(scorer.sums(personal, torch.arange(len(ids)), ids, "held-out", running, predict))
        if measures:
            outputs.append(scorer.outputs(personal, torch.arange(len(ids)), ids, "test", running, predict))
        told.append(_told(simulation, 0, ids, personal["model"]))
        if "PM" in over:
            apart.append(_distance(simulation, personal["model"], ids, 0, over["PM"]))
    reports: Reports = {name: {"PM": torch.cat([part[name] for part in told])} for name in told[0]}
    scores = {"PM": _joined(parts)}
    distances = {"PM": torch.cat(apart)} if apart else {}
    held = {"PM": _joined(kept)} if kept else {}
    whole = {"PM": [_whole([part for part in outputs if len(part[2])] or outputs[:1], measures)]} if outputs else {}
    for tier in range(1, simulation.tree.tiers):
        kind, ids = model_kind(tier, simulation.tree.top), torch.arange(simulation.tree.size(tier))
        rows = simulation.models_of(tier, ids)
        if kind in simulation.kinds:
            owner = torch.from_numpy(simulation.tree.ancestors(tier))
            if kind in over:
                blocks = ids.split(_DEVICES)
                distances[kind] = torch.cat(
                    [_distance(simulation, rows[some], some, tier, over[kind]) for some in blocks]
                )
            scores[kind] = _scores(kind, _of_shared(simulation, rows, owner, "test"))
            if held_out:
                held[kind] = _scores(kind, _of_shared(simulation, rows, owner, "held-out"))
            if measures:
                found = scorer.outputs(rows, owner, everybody, "test", simulation.running(everybody))
                whole[kind] = [_whole([found], measures)]
        for name, value in _told(simulation, tier, ids, rows).items():
            reports.setdefault(name, {})[kind] = value
    if follows:
        for kind, score in scores.items():
            whole.setdefault(kind, []).append(perplexity_of(score.sums["loss"], score.count))
    return Measured(scores, reports, held, whole, distances)


def _above(simulation: Simulation) -> dict[ModelKind, int]:
    """Return, for every kind of model but the uppermost, the tier of the next kind above it."""
    kinds = list(simulation.kinds.items())
    return {kind: tier for (kind, _), (_, tier) in pairwise(kinds)}


def _distance(simulation: Simulation, rows: Tensor, ids: Tensor, tier: int, over: int) -> Tensor:
    """Return how far the models of some nodes lie from those of the nodes above them in a tier."""
    above, place = torch.from_numpy(simulation.tree.ancestors(over, tier))[ids].unique(return_inverse=True)
    models = simulation.models_of(over, above)
    apart: Tensor = torch.linalg.vector_norm(rows - models[place.to(models.device)], dim=1)
    return apart.double().cpu()


def _joined(parts: list[dict[str, Tensor]]) -> Scores:
    return _scores("PM", {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _whole(parts: list[tuple[Tensor, Tensor, Tensor]], measures: Mapping[str, Measure]) -> Whole:
    outputs, targets, device = (torch.cat([part[at] for part in parts]) for at in range(3))
    return Whole(outputs, targets, device, measures)


def _of_shared(simulation: Simulation, rows: Tensor, owner: Tensor, split: Split) -> dict[str, Tensor]:
    """Measure models above the devices on every device; where statistics are the devices' own, some devices at a time."""
    scorer, everybody = simulation.learner.scorer, torch.arange(len(owner))
    if not simulation.task.own_running:
        return scorer.sums(rows, owner, everybody, split)
    blocks = everybody.split(_DEVICES)
    parts = [scorer.sums(rows, owner[ids], ids, split, simulation.running(ids)) for ids in blocks]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _scores(model: ModelKind, sums: dict[str, Tensor]) -> Scores:
    return Scores(model, {name: value for name, value in sums.items() if name != "count"}, sums["count"])


def _told(simulation: Simulation, tier: int, ids: Tensor, models: Tensor) -> dict[str, Tensor]:
    """Return what the algorithm tells of some nodes of a tier, whose models are given."""
    algorithm = simulation.algorithm
    if type(algorithm).report is Algorithm.report:
        return {}  # what the devices keep need not be read to be told nothing
    with torch.no_grad():
        store = simulation.stores[tier]
        state = rules.Visible(store.read(ids), store.initial)
        told = algorithm.report(simulation.node(tier, ids), {**state, "model": models})
    if DISTANCE in told:
        raise ProtocolError(f"{algorithm.name} reports {DISTANCE!r}, which is what Palmette measures itself; rename it")
    for name, value in told.items():
        if value.shape != ids.shape:
            shapes = f"{tuple(ids.shape)}, not {tuple(value.shape)}"
            raise ProtocolError(f"{algorithm.name} must report one {name!r} for each node, of shape {shapes}")
    return {name: value.cpu() for name, value in told.items()}
