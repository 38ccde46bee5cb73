"""A run as data: its config, tables and models."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, nearest
from palmette.learner import Batch
from palmette.population import Encoding
from palmette.protocol import Algorithm, ModelKind
from palmette.runs.config import RunConfig, make_config, read_config
from palmette.runs.folder import (
    CONFIG,
    ENCODING,
    FROZEN,
    IDENTITY,
    METRICS,
    OUTLINE,
    PROGRESS,
    ROWS,
    TIMINGS,
    TRAFFIC,
    Folder,
    model_file,
)
from palmette.runs.metrics import HELD_OUT, OWN, POOLED, SCHEMA
from palmette.task import make_task
from palmette.values import one_line

_LONGEST = 200  # letters of a file's name before its ending; disks allow 255 bytes


class Result:
    """What a run left in its folder.

    A run that is not finished has its config and the metrics so far; `traffic`, `timings`, `outline` and the models come with
    its end.

    Attributes:
        folder: Where it lies.
        config: The resolved config.
        finished: Whether the run came to its end.
        rounds_done: The rounds done when the metrics were written; all of them in a finished run.
        metrics: The history, one number per row: round, when, model, tier, node, on, weight, statistic, metric, value.
        outline: What the algorithm's settings came to on this tree, where it tells (`Algorithm.outline`).
        traffic: Exchanges and bytes by round and link.
        timings: Seconds; the only file of a run that differs when it is run again.
    """

    def __init__(self, folder: Path) -> None:
        self._files = files = Folder.open(folder)
        self.folder, self.finished = folder, files.finished
        files.check(CONFIG, IDENTITY, METRICS, TRAFFIC, TIMINGS, OUTLINE)  # models are checked when they are first read
        self.config: RunConfig = make_config(read_config(folder / CONFIG))
        self.outline: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.traffic: pa.Table = pa.table({})
        if not self.finished:
            begun = (folder / PROGRESS).exists()
            self.metrics: pa.Table = files.read_table(PROGRESS) if begun else SCHEMA.empty_table()
            self.rounds_done = int((self.metrics.schema.metadata or {}).get(b"round", 0))
            return
        self.metrics, self.rounds_done = files.read_table(METRICS), self.config.rounds
        self.traffic = files.read_table(TRAFFIC)
        try:
            self.timings = json.loads((folder / TIMINGS).read_text())
            self.timings["device_steps"], self.timings["device_steps_per_second"]
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"cannot read {folder / TIMINGS}: {error!r}") from None
        if (folder / OUTLINE).exists():
            try:
                self.outline = dict(json.loads((folder / OUTLINE).read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise BadInput(f"cannot read {folder / OUTLINE}: {error!r}") from None

    def __repr__(self) -> str:
        config = self.config
        done = (
            f"{config.rounds} rounds" if self.finished else f"not finished, round {self.rounds_done} of {config.rounds}"
        )
        head = f"Result of {config.algorithm} on {config.data.title}: {done}, model {config.model.name}, seed {config.seed}"
        scores = [f"{kind} {self.last(kind, self.lead):.3f}" for kind in self.kinds]
        return f"{head}\n  test {self.lead}: {', '.join(scores) or 'not measured yet'}; in {self.folder}"

    @property
    def lead(self) -> str:
        """The metric to show first: accuracy where there is one, else the loss."""
        return "accuracy" if "accuracy" in self.metric_names else "loss"

    @property
    def running(self) -> bool:
        """Whether a process is working on the run at this moment."""
        return not self.finished and self._files.busy

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
        pooled = metric in self._pooled and weight == "samples"
        statistic = statistic or (own if own is not None and weight == OWN else POOLED if pooled else "mean")
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
            there = sorted({row for row in self.metric_names if self.curve(model, row)} | set(self._reported))
            hint = f"; there is {', '.join(there)}, as in last({model!r}, {there[0]!r})" if there else ""
            kinds = "" if model in self.kinds else f"; it has models {', '.join(self.kinds)}"
            raise BadInput(f"the run in {self.folder} has no {metric} of {model}{hint or kinds}")
        return curve[max(curve)]

    def best(self, model: ModelKind = "PM", metric: str = "accuracy") -> tuple[float, int]:
        """Return the best number over the rounds and its round.

        Where training samples were held out (``engine.held_out``), the round is chosen by them and the number is the one on
        test samples after that round, so that no choice is made on test data.
        """
        curve = self.curve(model, metric)
        chosen = self.curve(model, metric, on=HELD_OUT) or curve
        sign = -1 if lower_is_better(metric) else 1
        known = {key: value for key, value in chosen.items() if value == value and key in curve}
        round_ = max(known or curve, key=lambda key: (sign * chosen[key], -key))
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

    @cached_property
    def _pooled(self) -> set[str]:
        """The metrics of all outputs together."""
        rows = self.metrics.filter(pc.equal(self.metrics["statistic"], POOLED))
        return set(rows["metric"].unique().to_pylist())

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

        ``extra`` is there where the algorithm has something to tell of its own: its ``outline`` and its ``metrics``. A run that
        is not finished has less to tell, what `line` says, and ``finished`` is false.
        """
        names, lead = self.metric_names, self.lead
        if not self.finished:
            return self.line()
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
            **self._about_data(),
            **({"extra": told} if told else {}),
        }

    def _about_data(self) -> dict[str, Any]:
        """Return what is to be told where there are devices that never trained, and where classes have names."""
        told: dict[str, Any] = {}
        new = {kind: {name: self.curve(kind, name, on="unseen") for name in self.metric_names} for kind in self.kinds}
        found = {
            kind: {name: curve[self.config.rounds] for name, curve in curves.items() if self.config.rounds in curve}
            for kind, curves in new.items()
        }
        if any(found.values()):
            told["unseen"] = found
        if self.encoding is not None and self.encoding.classes is not None:
            told["classes"] = list(self.encoding.classes)
        return told

    def line(self) -> dict[str, Any]:
        """Return what a list of runs says about this one."""
        config = self.config
        return {
            "folder": str(self.folder),
            "algorithm": config.algorithm,
            "data": config.data.name,
            "model": config.model.name,
            "rounds": config.rounds,
            "rounds_done": self.rounds_done,
            "seed": config.seed,
            "finished": self.finished,
            "running": self.running,
            "models": {kind: {name: self.last(kind, name) for name in self.metric_names} for kind in self.kinds},
        }

    # -- models --------------------------------------------------------------------------------------------------------

    def names(self, kind: ModelKind = "PM") -> list[str]:
        """Return the names of the nodes that have a model of this kind, in the order of `tensors`."""
        return list(self._about(kind)["nodes"])

    def tensors(self, kind: ModelKind = "PM") -> dict[str, Tensor]:
        """Return the parameters of all models of a kind, by name, with one line per node; `frozen` has the others.

        Running statistics of batch normalisation are among them.
        """
        with safe_open(self._file(kind), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

    @cached_property
    def encoding(self) -> Encoding | None:
        """How a table's columns became the inputs of the models, with the names of the classes; ``None`` without a table."""
        self._files.check(ENCODING)
        if not (self.folder / ENCODING).exists():
            return None
        try:
            return Encoding.from_dict(json.loads((self.folder / ENCODING).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadInput(f"cannot read {self.folder / ENCODING}: {error!r}") from None

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Parameters and buffers that were frozen and are the same in all models, by name; mostly there are none."""
        self._files.check(FROZEN)
        return load_file(self.folder / FROZEN) if (self.folder / FROZEN).exists() else {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self._about(self.kinds[0])["model"]["shape"])

    def state_dict(self, kind: ModelKind = "PM", node: str | None = None) -> dict[str, Tensor]:
        """Return one node's model as `torch.nn.Module.load_state_dict` takes it.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
            node: The device's or team's name; not needed for the global model.
        """
        names = self.names(kind)
        name = names[0] if node is None and len(names) == 1 else node
        if name not in names:
            raise BadInput(f"no {kind} of {name!r}{nearest(str(name), names)}")
        line = names.index(name)
        with torch.no_grad(), safe_open(self._file(kind), framework="pt") as file:
            values = {key: file.get_slice(key)[line] for key in file.keys()}  # noqa: SIM118 - not a mapping
        return self._whole(values, kind)

    def _whole(self, values: dict[str, Tensor], kind: ModelKind) -> dict[str, Tensor]:
        """Add to a node's tensors what is frozen, and the further names of parameters that layers share."""
        values = {**values, **self.frozen}
        tied = self._about(kind)["model"].get("tied", {})
        return {**values, **{name: values[own].clone() for name, own in tied.items()}}

    def module(self, kind: ModelKind = "PM", node: str | None = None, into: nn.Module | None = None) -> nn.Module:
        """Return one node's model as a torch module, a new one every time.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``; in deeper trees also ``"TM2"`` for the nodes of tier 2, and so on.
            node: The device's or team's name; not needed for the global model.
            into: A module of the same layers, for a run whose model was a module of your own. It is copied, in its own type
                of numbers, and itself stays as it is.
        """
        values, about = self.state_dict(kind, node), self._about(kind)["model"]
        if into is not None:
            made = copy.deepcopy(into)
        elif "model" in self.config.given:
            raise BadInput("this run's model was a module of your own: give one of the same layers with into=")
        else:
            model = self.config.model
            made = make_task(model.name, tuple(about["shape"]), about["classes"], **model.options).module
            made = made.to(next(iter(values.values())).dtype)
        _fill(made, values, f"the {kind} of {node!r}" if node is not None else f"the {kind}")
        return made

    def predict(
        self,
        x: Tensor,
        kind: ModelKind = "PM",
        node: str | None = None,
        *,
        into: nn.Module | None = None,
        method: Algorithm | None = None,
    ) -> Tensor:
        """Return the outputs of one node for samples, as evaluation computes them.

        Most methods predict with the node's model; what a method's own `Algorithm.predict` does is done here too.

        Args:
            x: Samples ``(samples, ...)``, with features as the model was trained on them.
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
            node: The device's or team's name; not needed for the global model.
            into: A module of the same layers, where the run's model was your own.
            method: The algorithm, where it was an object of your own that predicts in a way of its own.
        """
        module = self.module(kind, node, into)
        own = kind == "PM" and (self.folder / ROWS).exists()
        work: Callable[[Tensor], Tensor] = self._own_way(node, module, method) if own else module.eval()
        try:
            with torch.no_grad():
                return work(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(
                f"model {self.config.model.name!r} cannot take samples of shape {tuple(x.shape[1:])}: {one_line(str(error))}"
            ) from None

    def _own_way(self, node: str | None, module: nn.Module, method: Algorithm | None) -> Callable[[Tensor], Tensor]:
        """Return what predicts as a device does by the algorithm's own rule, from all it keeps."""
        if method is None and not self.config.by_path and "algorithm" in self.config.given:
            raise BadInput(
                f"{self.config.algorithm} predicts in a way of its own, and a folder holds no code: give method=, the algorithm"
            )
        self._files.check(ROWS)
        line = 0 if node is None else self.names("PM").index(node)
        with safe_open(self.folder / ROWS, framework="pt") as file:
            rows = {key: file.get_slice(key)[line] for key in file.keys()}  # noqa: SIM118 - not a mapping
        dtype, algorithm = rows["model"].dtype, method or self.config.method()
        # The module comes with its layers in the modes they trained in, which say what a row holds.
        task = make_task(module, (), None, loss="squared", **self.config.model.about)
        running = task.initial_running(dtype) if task.own_running else None
        replica = task.replica(training=False, dtype=dtype, device=torch.device("cpu"))
        return lambda x: algorithm.predict(rows, Batch(x, x, None, task, replica, {}, running))

    def save_models(self, target: str | Path, kind: ModelKind = "PM") -> list[Path]:
        """Write every node's model to a safetensors file of its own, named after the node; what is frozen is in each.

        A name that is too long for a file, or that differs from another only in upper and lower case, is cut and ends in a
        digest of the whole name. Every file holds the node's name as its metadata ``node``.
        """
        folder, names = Path(target), self.names(kind)
        written = [folder / f"{name}.safetensors" for name in file_names(names)]
        folder.mkdir(parents=True, exist_ok=True)
        with safe_open(self._file(kind), framework="pt") as file:
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            for line, path in enumerate(written):
                rows = {key: part[line] for key, part in parts.items()}
                save_file(self._whole(rows, kind), path, metadata={"node": names[line]})
        return written

    def _file(self, kind: ModelKind) -> Path:
        path = self.folder / model_file(kind)
        if not self.finished:
            raise BadInput(
                f"the run in {self.folder} is not finished and has no models yet; go on with 'palmette resume {self.folder}'"
            )
        self._files.check(path.name)
        if not path.exists():
            raise BadInput(f"{self.config.algorithm} has no model of the kind {kind}; it has {', '.join(self.kinds)}")
        return path

    def _about(self, kind: ModelKind) -> dict[str, Any]:
        self._file(kind)
        return self._files.read_about(model_file(kind))


def file_names(names: list[str]) -> list[str]:
    """Return a file name for every node that any disk can hold and tell from the others."""
    quoted = [quote(name, safe=" ") for name in names]
    times = Counter(text.casefold() for text in quoted)
    return [
        text
        if len(text) <= _LONGEST and times[text.casefold()] == 1
        else f"{text[: _LONGEST - 17]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
        for name, text in zip(names, quoted, strict=True)
    ]


def load(folder: str | Path) -> Result:
    """Read a run from its folder.

    A run that is not finished, because it goes on at this moment or was stopped, comes with a warning and with
    ``finished = False``: its metrics are those so far, and it has no models yet.
    """
    result = Result(Path(folder))
    if not result.finished:
        going = "is still running" if result.running else f"is not finished; go on with 'palmette resume {folder}'"
        done = f"{result.rounds_done} of {result.config.rounds} rounds"
        warnings.warn(f"the run in {folder} {going}. These are its numbers after {done}", stacklevel=2)
    return result


def _fill(module: nn.Module, values: dict[str, Tensor], what: str) -> None:
    """Put a model's numbers into a module that has a place for each of them."""
    parameters: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    missing = next((key for key in values if key not in parameters), None)
    if missing is not None:
        raise BadInput(f"{what} has the parameter {missing!r}, which the module given with into= does not have")
    for key, value in values.items():
        if parameters[key].shape != value.shape:
            here, there = tuple(parameters[key].shape), tuple(value.shape)
            raise BadInput(f"{what} has the parameter {key!r} of shape {there}; that of the module given is {here}")
        with torch.no_grad():
            parameters[key].copy_(value)
