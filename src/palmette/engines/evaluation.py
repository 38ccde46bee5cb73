"""How good the models are: which model, on whom, weighted how; and what an algorithm tells of its nodes besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from palmette import address
from palmette.engines import rules
from palmette.engines.measures import Measure, Whole, perplexity_of
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import ProtocolError
from palmette.learner.scores import Split, model_output
from palmette.links import Ledger
from palmette.protocol import Algorithm, ModelKind, model_kind

DISTANCE = "distance"  # the name under which a run keeps how far models lie from those above them
_DEVICES = 256  # devices whose personal models are measured at once
_ORDINARY, _SAMPLED = 10_000, 2_000  # devices up to which all are measured every time; how many are drawn of more


def lower_is_better(metric: str) -> bool:
    """Return whether a metric is to be small: losses, errors and perplexity; all others are to be large."""
    return metric in ("calibration", "perplexity", "rmse") or metric.endswith(("loss", "error"))


@dataclass(frozen=True, eq=False)
class Scores:
    """One kind of model measured on devices' own test samples.

    Attributes:
        model: ``"PM"``, the device's own model; ``"TM"``, its team's; ``"TM2"`` ..., of tiers above; ``"GM"``, the global one.
        sums: For every metric, its sum over each device's test samples.
        count: Number of test samples of each device; 0 for a device that was not measured.
        sampled: How many devices were drawn to be measured; 0 where all were.
    """

    model: ModelKind
    sums: dict[str, Tensor]
    count: Tensor
    sampled: int = 0

    def only(self, who: Tensor) -> Scores:
        """Return the scores of some devices (bool); the others have no samples in it.

        Args:
            who: Which devices, one flag each.
        """
        sums = {metric: values.where(who, torch.zeros_like(values)) for metric, values in self.sums.items()}
        return Scores(self.model, sums, self.count.where(who, torch.zeros_like(self.count)), self.sampled)

    def per_device(self, metric: str = "accuracy") -> Tensor:
        """Return the metric of every device; NaN for a device without test samples.

        Args:
            metric: The metric, such as ``"accuracy"``.
        """
        return self.sums[metric] / self.count

    def by_samples(self, metric: str = "accuracy") -> float:
        """Return the mean over all test samples.

        Args:
            metric: The metric, such as ``"accuracy"``.
        """
        return float(self.sums[metric].sum() / self.count.sum())

    def by_devices(self, metric: str = "accuracy") -> float:
        """Return the mean over devices, each counting the same.

        Args:
            metric: The metric, such as ``"accuracy"``.
        """
        return float(self.per_device(metric).nanmean())

    def spread(self, metric: str = "accuracy") -> float:
        """Return the standard deviation over devices.

        Args:
            metric: The metric, such as ``"accuracy"``.
        """
        values = self.per_device(metric)
        values = values[~values.isnan()]
        return float(values.std(correction=0)) if len(values) else float("nan")

    def worst_decile(self, metric: str = "accuracy") -> float:
        """Return the mean over the tenth of the devices that fare worst.

        Args:
            metric: The metric, such as ``"accuracy"``.
        """
        values = self.per_device(metric)
        values = values[~values.isnan()].sort(descending=lower_is_better(metric)).values
        return float("nan") if not len(values) else float(values[: max(1, len(values) // 10)].mean())


Reports = dict[str, dict[ModelKind, Tensor]]
"""What an algorithm tells: by name and by kind of node, one number per node of that tier."""


def evaluate(simulation: Simulation) -> dict[ModelKind, Scores]:
    """Measure the models of devices, of every inner tier and the global one on the devices' own test samples.

    Args:
        simulation: The simulation; it is not changed.
    """
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


def cost(simulation: Simulation, rounds: Sequence[tuple[int, int]]) -> Ledger:
    """Return what evaluations send over the links: models go down, each team adds its own, sums of every device go up.

    It is the exchange that separate machines make (`palmette.engines.machine`); the simulator reads the models where they are.

    Args:
        simulation: Whose models.
        rounds: For each evaluation, the round after which it was made and how many devices were measured, of all or, where
            these are fewer, of those that `sample` draws.
    """
    tree, ledger = simulation.tree, Ledger()
    scores = len(simulation.task.per_sample_metrics) + 1  # every metric, and how many samples
    row, number = simulation.model().nbytes, 8 * scores * len(simulation.kinds)
    for round_, devices in rounds:
        drawn = sample(simulation, devices)
        below = torch.arange(tree.devices) if drawn is None else drawn
        for tier in range(1, tree.tiers):
            asked = torch.from_numpy(tree.ancestors(tier - 1))[below].unique()
            models = 1 + sum("model" in simulation.stores[at].initial for at in range(tier, tree.top))
            asking = torch.from_numpy(tree.parents[tier - 1])[asked].unique()
            entry = ledger.at(round_, simulation.link_tier(tier))
            entry.add(len(asking), len(asked) * models * row, len(below) * number)
    return ledger


def sample(simulation: Simulation, wanted: int | str) -> Tensor | None:
    """Return the devices that are measured between evaluations of everybody; ``None`` where these are all.

    They are drawn by the seed and each device's own address, so they are the same in every round and for every algorithm.

    Args:
        simulation: Whose devices.
        wanted: How many, ``"all"``, or ``"auto"``: all of them up to ten thousand, two thousand of more.
    """
    tree = simulation.population.tree
    if wanted == "auto":
        wanted = "all" if tree.devices <= _ORDINARY else _SAMPLED
    if wanted == "all" or int(wanted) >= tree.devices:
        return None
    drawn = address.uniform(
        address.mix(address.key(simulation.seed, "evaluation"), torch.from_numpy(tree.addresses[0]))
    )
    return drawn.argsort(stable=True)[: int(wanted)].sort().values


def measure_all(
    simulation: Simulation,
    measures: Mapping[str, Measure] | None = None,
    *,
    held_out: bool = False,
    who: Tensor | None = None,
) -> Measured:
    """Measure the models as `measure` does, and what else is wanted.

    Args:
        simulation: Whose models.
        measures: Metrics of all outputs together.
        held_out: Whether to measure on the training samples that were held out, too.
        who: The devices to measure, in order; all by default.
    """
    everybody = torch.arange(simulation.population.tree.devices)
    with one_thread_inside():
        return _measure(simulation, measures or {}, held_out, everybody if who is None else who)


def _measure(simulation: Simulation, measures: Mapping[str, Measure], held_out: bool, who: Tensor) -> Measured:
    scorer, devices = simulation.learner.scorer, simulation.population.devices
    # Where the loss is the cross-entropy, its perplexity follows from it.
    follows = "perplexity" in measures and simulation.learner.task.loss == "cross-entropy"
    measures = {name: one for name, one in measures.items() if not (follows and name == "perplexity")}
    parts, told, kept, outputs, apart = [], [], [], [], []
    over = _above(simulation)
    for ids in who.split(_DEVICES):
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
    scores = {"PM": _scores("PM", _joined(parts), who, devices)}
    distances = {"PM": torch.cat(apart)} if apart else {}
    held = {"PM": _scores("PM", _joined(kept), who, devices)} if kept else {}
    whole = {"PM": [_whole([part for part in outputs if len(part[2])] or outputs[:1], measures)]} if outputs else {}
    for tier in range(1, simulation.tree.tiers):
        kind, ids = model_kind(tier, simulation.tree.top), torch.arange(simulation.tree.size(tier))
        rows = simulation.models_of(tier, ids)
        if kind in simulation.kinds:
            if kind in over:
                blocks = ids.split(_DEVICES)
                distances[kind] = torch.cat(
                    [_distance(simulation, rows[some], some, tier, over[kind]) for some in blocks]
                )
            owner = torch.from_numpy(simulation.tree.ancestors(tier))[who]
            scores[kind] = _scores(kind, _of_shared(simulation, rows, owner, who, "test"), who, devices)
            if held_out:
                held[kind] = _scores(kind, _of_shared(simulation, rows, owner, who, "held-out"), who, devices)
            if measures:
                found = scorer.outputs(rows, owner, who, "test", simulation.running(who))
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


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _whole(parts: list[tuple[Tensor, Tensor, Tensor]], measures: Mapping[str, Measure]) -> Whole:
    outputs, targets, device = (torch.cat([part[at] for part in parts]) for at in range(3))
    return Whole(outputs, targets, device, measures)


def _of_shared(simulation: Simulation, rows: Tensor, owner: Tensor, who: Tensor, split: Split) -> dict[str, Tensor]:
    """Measure models above the devices on some devices; where statistics are the devices' own, a few at a time."""
    scorer = simulation.learner.scorer
    if not simulation.task.own_running:
        return scorer.sums(rows, owner, who, split)
    places = torch.arange(len(who)).split(_DEVICES)
    return _joined([scorer.sums(rows, owner[at], who[at], split, simulation.running(who[at])) for at in places])


def _scores(model: ModelKind, sums: dict[str, Tensor], who: Tensor, devices: int) -> Scores:
    """Return what was measured on some devices; the others have no samples in it."""
    whole = sums
    if len(who) < devices:
        whole = {name: value.new_zeros(devices).index_copy_(0, who, value) for name, value in sums.items()}
    told = {name: value for name, value in whole.items() if name != "count"}
    return Scores(model, told, whole["count"], len(who) if len(who) < devices else 0)


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
