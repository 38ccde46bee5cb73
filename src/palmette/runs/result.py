"""A finished run as data: its config, tables and models."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, nearest
from palmette.protocol import ModelKind
from palmette.runs.config import RunConfig, make_config, read_config
from palmette.runs.folder import CONFIG, METRICS, OUTLINE, TIMINGS, TRAFFIC, Folder, model_file
from palmette.runs.metrics import OWN
from palmette.task import make_task


class Result:
    """What a run left in its folder.

    Attributes:
        folder: Where it lies.
        config: The resolved config.
        metrics: The history, one number per row: round, when, model, tier, node, on, weight, statistic, metric, value.
        outline: What the algorithm's settings came to on this tree, where it tells (`Algorithm.outline`).
        traffic: Exchanges and bytes by round and link.
        timings: Seconds; the only file of a run that differs when it is run again.
    """

    def __init__(self, folder: Path) -> None:
        files = Folder.open(folder)
        self.folder = folder
        self.config: RunConfig = make_config(read_config(folder / CONFIG))
        if not (folder / METRICS).exists():
            raise BadInput(f"the run in {folder} is not finished; continue it with 'palmette resume {folder}'")
        self.metrics: pa.Table = files.read_table(METRICS)
        self.traffic: pa.Table = files.read_table(TRAFFIC)
        try:
            self.timings: dict[str, Any] = json.loads((folder / TIMINGS).read_text())
            self.timings["device_steps"], self.timings["device_steps_per_second"]
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"cannot read {folder / TIMINGS}: {error!r}") from None
        self.outline: dict[str, Any] = {}
        if (folder / OUTLINE).exists():
            try:
                self.outline = dict(json.loads((folder / OUTLINE).read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise BadInput(f"cannot read {folder / OUTLINE}: {error!r}") from None

    def curve(
        self,
        model: ModelKind = "PM",
        metric: str = "accuracy",
        *,
        on: str = "all",
        weight: str | None = None,
        statistic: str | None = None,
        when: str = "after",
        node: str | None = None,
        tier: int | None = None,
    ) -> dict[int, float]:
        """Return one number over the rounds: of which model, on whom, weighted how.

        By default it is the mean over samples, or what the algorithm itself reports under that name. With ``node`` it is about
        that device or team alone; ``tier`` is needed where nodes of two tiers share a name.
        """
        table = self.metrics
        own = self._reported.get(metric)
        weight = weight or ("samples" if own is None else OWN)
        statistic = statistic or (own if own is not None and weight == OWN else "mean")
        wanted = {"model": model, "metric": metric, "on": on, "weight": weight, "statistic": statistic, "when": when}
        keep = pc.equal(table["tier"], pc.max(table["tier"])) if node is None else pc.equal(table["node"], node)
        if tier is not None:
            keep = pc.and_(keep, pc.equal(table["tier"], tier))
        elif node is not None and len(set(table.filter(keep)["tier"].to_pylist())) > 1:
            raise BadInput(f"{node!r} is the name of nodes in two tiers; say which with tier=")
        for column, value in wanted.items():
            keep = pc.and_(keep, pc.equal(table[column], value))
        part = table.filter(keep)
        return dict(zip(part["round"].to_pylist(), part["value"].to_pylist(), strict=True))

    def last(self, model: ModelKind = "PM", metric: str = "accuracy", **which: Any) -> float:
        """Return a number after the last round."""
        curve = self.curve(model, metric, **which)
        if not curve:
            raise BadInput(f"no {metric} of {model} in {self.folder}")
        return curve[max(curve)]

    def best(self, model: ModelKind = "PM", metric: str = "accuracy") -> tuple[float, int]:
        """Return the best number over the rounds and its round."""
        curve = self.curve(model, metric)
        sign = -1 if lower_is_better(metric) else 1
        round_ = max(curve, key=lambda key: (sign * curve[key], -key))
        return curve[round_], round_

    @property
    def kinds(self) -> list[ModelKind]:
        """Which kinds of models were measured."""
        return self._kinds_in(self.metrics.filter(pc.not_equal(self.metrics["weight"], OWN)))

    @staticmethod
    def _kinds_in(table: pa.Table) -> list[ModelKind]:
        """Return the kinds of models a table is about, from the devices up."""
        return sorted(set(table["model"].to_pylist()), key=lambda kind: (kind == "GM", kind != "PM", len(kind), kind))

    @cached_property
    def _reported(self) -> dict[str, str]:
        """What the algorithm itself reports, by name, each with how it is put together over a tier."""
        measured = set(self.metric_names)
        own = self.metrics.filter(pc.equal(self.metrics["weight"], OWN)).select(["metric", "statistic"])
        rows = own.group_by(["metric", "statistic"], use_threads=False).aggregate([]).to_pylist()
        return {row["metric"]: row["statistic"] for row in rows if row["metric"] not in measured}

    @property
    def metric_names(self) -> list[str]:
        """The names of what was measured on samples."""
        return sorted(set(self.metrics.filter(pc.not_equal(self.metrics["weight"], OWN))["metric"].to_pylist()))

    @property
    def reports(self) -> dict[str, dict[ModelKind, float]]:
        """What the algorithm itself tells of its nodes after the last round: by name and by kind of node."""
        last = pc.and_(
            pc.equal(self.metrics["round"], pc.max(self.metrics["round"])),
            pc.equal(self.metrics["tier"], pc.max(self.metrics["tier"])),
        )
        own = self.metrics.filter(pc.and_(last, pc.equal(self.metrics["weight"], OWN)))
        found: dict[str, dict[ModelKind, float]] = {}
        for row in own.to_pylist():
            value = int(row["value"]) if row["statistic"] == "sum" else row["value"]  # counts are whole numbers
            found.setdefault(row["metric"], {})[row["model"]] = value
        return {
            name: {kind: by_kind[kind] for kind in self._kinds_in(own) if kind in by_kind}
            for name, by_kind in found.items()
        }

    def summary(self) -> dict[str, Any]:
        """Return the run in one object, as ``palmette run --json`` prints it.

        ``extra`` is there where the algorithm has something to tell of its own: its ``outline`` and its ``metrics``.
        """
        names = self.metric_names
        lead = "accuracy" if "accuracy" in names else "loss"
        links = self.traffic.group_by("tier").aggregate(
            [("exchanges", "sum"), ("bytes_up", "sum"), ("bytes_down", "sum")]
        )
        best = {kind: self.best(kind, lead) for kind in self.kinds}
        extra = {"outline": self.outline, "metrics": self.reports}
        told = {name: value for name, value in extra.items() if value}
        return {
            "algorithm": self.config.algorithm,
            "rounds": self.config.rounds,
            "seed": self.config.seed,
            "models": {kind: {name: self.last(kind, name) for name in names} for kind in self.kinds},
            "best": {kind: {lead: value, "round": round_} for kind, (value, round_) in best.items()},
            "device_steps": self.timings["device_steps"],
            "device_steps_per_second": self.timings["device_steps_per_second"],
            "traffic": {
                "links": [
                    {
                        "tier": row["tier"],
                        "exchanges": row["exchanges_sum"],
                        "bytes_up": row["bytes_up_sum"],
                        "bytes_down": row["bytes_down_sum"],
                    }
                    for row in sorted(links.to_pylist(), key=lambda row: row["tier"])
                ]
            },
            "folder": str(self.folder),
            **({"extra": told} if told else {}),
        }

    # -- models --------------------------------------------------------------------------------------------------------

    def names(self, kind: ModelKind = "PM") -> list[str]:
        """Return the names of the nodes that have a model of this kind, in the order of `tensors`."""
        return list(self._about(kind)["nodes"])

    def tensors(self, kind: ModelKind = "PM") -> dict[str, Tensor]:
        """Return the parameters of all models of a kind, by name, with one line per node."""
        with safe_open(self._file(kind), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

    def module(self, kind: ModelKind = "PM", node: str | None = None, into: nn.Module | None = None) -> nn.Module:
        """Return one node's model as a torch module.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``; in deeper trees also ``"TM2"`` for the nodes of tier 2, and so on.
            node: The device's or team's name; not needed for the global model.
            into: The module to fill, for a run whose model was a module of your own.
        """
        names = self.names(kind)
        name = names[0] if node is None and len(names) == 1 else node
        if name not in names:
            raise BadInput(f"no {kind} of {name!r}{nearest(str(name), names)}")
        about = self._about(kind)["model"]
        if into is None:
            if "model" in self.config.given:
                raise BadInput("this run's model was a module of your own: give one to fill with into=")
            options = {key: value for key, value in dict(self.config.model).items() if key not in ("name", "l2")}
            into = make_task(self.config.model.name, tuple(about["shape"]), about["classes"], **options).module
        line = names.index(name)
        with torch.no_grad(), safe_open(self._file(kind), framework="pt") as file:
            for key, parameter in into.named_parameters():
                parameter.copy_(file.get_slice(key)[line])
        return into

    def save_models(self, target: str | Path, kind: ModelKind = "PM") -> list[Path]:
        """Write every node's model to a safetensors file of its own, named after the node."""
        folder = Path(target)
        written = [folder / f"{quote(name, safe=' ')}.safetensors" for name in self.names(kind)]
        if len({path.name.casefold() for path in written}) < len(written):
            raise BadInput("two nodes' names differ only in upper and lower case, which some disks do not tell apart")
        folder.mkdir(parents=True, exist_ok=True)
        with safe_open(self._file(kind), framework="pt") as file:
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            for line, path in enumerate(written):
                save_file({key: part[line] for key, part in parts.items()}, path)
        return written

    def _file(self, kind: ModelKind) -> Path:
        path = self.folder / model_file(kind)
        if not path.exists():
            raise BadInput(f"{self.config.algorithm} made no {kind}; there is {', '.join(self.kinds)}")
        return path

    def _about(self, kind: ModelKind) -> dict[str, Any]:
        self._file(kind)
        return Folder(self.folder).read_about(model_file(kind))


def load(folder: str | Path) -> Result:
    """Read a finished run from its folder."""
    return Result(Path(folder))
