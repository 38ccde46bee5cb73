"""How good the models are: which model, on whom, weighted how."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.protocol import ModelKind
from palmette.simulate import Simulation, one_thread_inside

_DEVICES = 256  # devices whose personal models are measured at once


def lower_is_better(metric: str) -> bool:
    """Return whether a metric is to be small; all but the loss are to be large."""
    return metric == "loss"


@dataclass(frozen=True, eq=False)
class Scores:
    """One kind of model measured on every device's own test samples.

    Attributes:
        model: ``"PM"``, the device's own model; ``"TM"``, its team's; ``"GM"``, the global one.
        sums: For every metric, its sum over each device's test samples.
        count: Number of test samples of each device.
    """

    model: ModelKind
    sums: dict[str, Tensor]
    count: Tensor

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


def evaluate(simulation: Simulation) -> dict[ModelKind, Scores]:
    """Measure the personal, team and global models on the devices' own test samples."""
    with one_thread_inside():
        return _evaluate(simulation)


def _evaluate(simulation: Simulation) -> dict[ModelKind, Scores]:
    tree, scorer = simulation.population.tree, simulation.learner.scorer
    everybody = torch.arange(tree.devices)
    parts = []
    for ids in everybody.split(_DEVICES):
        rows = simulation.device_models(ids)
        parts.append(scorer.sums(rows, torch.arange(len(ids)), ids, "test"))
    result: dict[ModelKind, Scores] = {
        "PM": _scores("PM", {name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    }
    kinds = simulation.algorithm.models
    teams = simulation.team_models()
    if "TM" in kinds and teams is not None:
        owner = torch.from_numpy(tree.parents[0])
        result["TM"] = _scores("TM", scorer.sums(teams, owner, everybody, "test"))
    if "GM" in kinds:
        one = torch.zeros_like(everybody)
        result["GM"] = _scores("GM", scorer.sums(simulation.model()[None], one, everybody, "test"))
    return result


def _scores(model: ModelKind, sums: dict[str, Tensor]) -> Scores:
    return Scores(model, {name: value for name, value in sums.items() if name != "count"}, sums["count"])
