"""A run as data: its config, tables and models."""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, PalmetteWarning, nearest
from palmette.guards.visible import visible
from palmette.links import Ledger
from palmette.links.clock import SECOND
from palmette.protocol import ModelKind
from palmette.runs import kept
from palmette.runs.config import RunConfig
from palmette.runs.folder import CONFIG, IDENTITY, METRICS, OUTLINE, POPULATION, TIMINGS, TRAFFIC, Folder
from palmette.runs.metrics import DISTANCE, HELD_OUT, OWN, POOLED, SAMPLED, TRAINED, of_sample
from palmette.runs.models import Models
from palmette.runs.notebook import html_page, html_table, to_pandas
from palmette.runs.wording import number


class Result(Models):
    """What a run left in its folder.

    A run that is not finished has its config and the metrics and traffic so far; `timings`, `outline` and the models come with
    its end.

    Attributes:
        folder: Where it lies.
        config: The resolved config.
        finished: Whether the run came to its end.
        ended: What went wrong, where the run diverged; else nothing.
        rounds_done: The rounds done when the metrics were written; all of them in a finished run.
        metrics: The history, one number per row: round, when, model, tier, node, on, weight, statistic, metric, value.
        outline: What the algorithm's settings came to on this tree, where it tells (`Algorithm.outline`).
        traffic: Exchanges and bytes by round and link.
        timings: Seconds; the only file of a run that differs when it is run again.
        trusted: Whether code that the config names may be run, to make a model of the user's own again.
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        folder = Path(folder)
        self._files = files = Folder.open(folder)
        self.folder, self.finished, self.trusted = folder, files.finished, trust
        files.check(
            CONFIG, IDENTITY, METRICS, TRAFFIC, TIMINGS, OUTLINE, POPULATION
        )  # models are checked when they are first read
        self.config: RunConfig = kept.config_in(files)
        self.outline: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.metrics: pa.Table
        self.traffic: pa.Table
        self.ended = ""
        if not self.finished:
            self.metrics, self.traffic, self.rounds_done, self.ended = kept.progress(files, self.config)
            self._check_whole()
            return
        self.metrics, self.rounds_done = kept.history(files, self.config), self.config.rounds
        self.traffic = kept.sent(files, self.config)
        self.timings, self.outline = kept.timings(files), kept.outline(files)
        self._check_whole()

    def _check_whole(self) -> None:
        """Refuse metrics that lack what every run measures: the leading metric of each kind of model, in the same rounds."""
        for kind in self.kinds:
            rounds = self.curve(kind, self.lead).keys()
            spreads = [
                self.curve(kind, self.lead, weight="devices", statistic=statistic).keys()
                for statistic in ("mean", "spread", "worst-decile")
            ]
            if not rounds or any(one != rounds for one in spreads):
                raise BadInput(
                    f"the metrics of the run in {self.folder} are not whole: the {self.lead} of {kind} is missing in some "
                    "rounds; no run wrote this"
                )

    def __repr__(self) -> str:
        config = self.config
        done = (
            f"{config.rounds} rounds" if self.finished else f"not finished, round {self.rounds_done} of {config.rounds}"
        )
        head = (
            f"Result of {config.title} on {config.data.title}: {done}, model {config.model.title}, seed {config.seed}"
        )
        scores = [f"{kind} {self.last(kind, self.lead):.3f}" for kind in self.kinds]
        who = " of a sample of the devices" if self.on == self.curve_on and self.sampled else ""
        told = f"{head}\n  test {self.lead}{who}: {', '.join(scores) or 'not measured yet'}; in {self.folder}"
        return visible(told, lines=True)

    def _repr_html_(self) -> str:
        """Return the run as a notebook shows it: every kind of model, what was sent, and where it lies."""
        config, metric = self.config, self.lead
        done = (
            f"{config.rounds} rounds" if self.finished else f"not finished, round {self.rounds_done} of {config.rounds}"
        )
        what = f"on {config.data.title}: {done}, model {config.model.title}, seed {config.seed}"
        rows = []
        for kind in self.kinds:
            best, round_ = self.best(kind, metric)
            worst = self.last(kind, metric, weight="devices", statistic="worst-decile")
            rows.append(
                [kind, *(number(value) for value in (self.last(kind, metric), best)), str(round_), number(worst)]
            )
        head = (f"test {metric}", "last", "best", "in round", "worst tenth")
        tables = [html_table(head, rows)] if rows else []
        notes = [f"It diverged: {self.ended}."] if self.ended else []
        return html_page(config.title, what, tables, [*notes, f"In {self.folder}"])

    def to_pandas(self, table: str = "metrics") -> Any:
        """Return a table of the run as a data frame of pandas, which must be installed.

        Args:
            table: ``"metrics"``, the long history; ``"traffic"``, exchanges and bytes by round and link; or ``"population"``,
                every node with its samples.
        """
        known = {"metrics": self.metrics, "traffic": self.traffic}
        known |= {} if self.population is None else {"population": self.population}
        if table not in known:
            raise BadInput(f"a run has no table {table!r}{nearest(str(table), known)}")
        return to_pandas(known[table])

    @property
    def lead(self) -> str:
        """The metric to show first: accuracy where there is one, else the loss."""
        return "accuracy" if "accuracy" in self.metric_names else "loss"

    @cached_property
    def population(self) -> pa.Table | None:
        """Every node with its parent, samples and labels (`palmette.runs.roll.SCHEMA`); ``None`` in runs of older versions."""
        return kept.roll(self._files)

    @cached_property
    def log(self) -> list[str]:
        """The lines of the run's log."""
        return kept.log(self._files)

    @property
    def running(self) -> bool:
        """Whether a process is working on the run at this moment."""
        return not self.finished and self._files.busy

    @cached_property
    def on(self) -> str:
        """Which devices the last numbers are about by default.

        It is ``"trained"`` where some devices are kept out of training, else ``"all"``. Before the end of a run that measures a
        sample of its devices, it is what `curve_on` is.
        """
        if TRAINED in self._groups:
            return TRAINED
        return "all" if "all" in self._groups or SAMPLED not in self._groups else self.curve_on

    @cached_property
    def curve_on(self) -> str:
        """Which devices the numbers over the rounds are about by default.

        Where a sample of the devices was measured between evaluations of everybody (``evaluate_on``), it is that sample in all
        rounds, the last one too: ``"sampled"``, or ``"sampled trained"``. Otherwise it is what `on` is.
        """
        if SAMPLED not in self._groups:
            return self.on
        trained = of_sample(TRAINED)
        return trained if trained in self._groups else SAMPLED

    @property
    def sampled(self) -> bool:
        """Whether a sample of the devices was measured between evaluations of everybody (``evaluate_on``)."""
        return SAMPLED in self._groups

    @cached_property
    def _overall(self) -> pa.Table:
        """The rows that are about all devices together; of many devices, a small part of the table."""
        return self.metrics.filter(pc.equal(self.metrics["tier"], pc.max(self.metrics["tier"])))

    @cached_property
    def _groups(self) -> set[str]:
        return set(self.metrics["on"].unique().to_pylist())

    def curve(
        self,
        model: ModelKind = "PM",
        metric: str = "accuracy",
        *,
        on: str | None = None,
        weight: str | None = None,
        statistic: str | None = None,
        when: str = "after",
        node: str | None = None,
        tier: int | None = None,
    ) -> dict[int, float]:
        """Return one number over the rounds: of which model, on whom, weighted how.

        By default it is the mean over samples, or what the algorithm itself reports under that name. Where devices are kept out
        of training (``data.unseen``) it is by default about the others, ``on="trained"``; ``on="all"`` takes all devices,
        ``on="unseen"`` those that have not taken part so far. Where a sample of the devices was measured (`sampled`), it is by
        default about that sample in all rounds, ``on="sampled"``; ``on="all"`` is there for the last round. With ``node`` it is
        about that device or team alone; ``tier`` is needed where nodes of two tiers share a name.

        The keys are rounds, of which 0 is before training; rounds in which nothing was measured are not there.

        Args:
            model: The kind of model: ``"PM"``, ``"TM"``, ``"GM"``; in deeper trees also ``"TM2"``, and so on.
            metric: What was measured, such as ``"loss"``; `metric_names` and `reports` have all.
            on: Whose numbers, as in the column ``on`` of `metrics`: ``"all"``, ``"trained"``, ``"unseen"``,
                ``"participants"`` ...
            weight: ``"samples"`` or ``"devices"``: what counts the same.
            statistic: ``"mean"``, and with ``weight="devices"`` also ``"spread"`` and ``"worst-decile"``.
            when: ``"after"`` the update of a round, or ``"before"`` it where the algorithm measures that.
            node: The name of one device or team.
            tier: Its tier, where two tiers have a node of this name.
        """
        table = self._overall if node is None else self.metrics
        own = self._reported.get(metric)
        weight = weight or ("samples" if own is None else OWN)
        pooled = metric in self._pooled and weight == "samples"
        statistic = statistic or (own if own is not None and weight == OWN else POOLED if pooled else "mean")
        wanted = {"model": model, "metric": metric, "weight": weight, "statistic": statistic, "when": when}
        keep = pc.equal(table["when"], when) if node is None else pc.equal(table["node"], node)
        if tier is not None:
            keep = pc.and_(keep, pc.equal(table["tier"], tier))
        elif node is not None and len(set(table.filter(keep)["tier"].to_pylist())) > 1:
            raise BadInput(f"{node!r} is the name of nodes in two tiers; say which with tier=")
        for column, value in wanted.items():
            keep = pc.and_(keep, pc.equal(table[column], value))
        part = table.filter(keep)
        # A single node may not be in the sample, and what an algorithm reports is not told of trained devices apart.
        usual = [self.curve_on] if node is None and weight != OWN else [SAMPLED, "all"]
        for words in usual if on is None else [on]:
            found = part.filter(pc.equal(part["on"], words))
            if len(found):
                return dict(zip(found["round"].to_pylist(), found["value"].to_pylist(), strict=True))
        return {}

    def last(self, model: ModelKind = "PM", metric: str = "accuracy", **which: Any) -> float:
        """Return a number after the last round: of all devices, also where a sample was measured before (see `on`).

        Args:
            model: The kind of model.
            metric: What was measured.
            **which: As in `curve`: on, weight, statistic, when, node, tier.
        """
        usual = (self.on, "all", SAMPLED) if which.get("node") is None else ("all", SAMPLED)
        curve: dict[int, float] = {}
        for words in usual if which.get("on") is None else (which["on"],):
            curve = curve or self.curve(model, metric, **{**which, "on": words})
        if not curve:
            own = set(self._reported) - {DISTANCE}
            there = sorted({row for row in self.metric_names if self.curve(model, row)} | own)
            hint = f"; there is {', '.join(there)}, as in last({model!r}, {there[0]!r})" if there else ""
            kinds = "" if model in self.kinds else f"; it has models {', '.join(self.kinds)}"
            raise BadInput(f"the run in {self.folder} has no {metric} of {model}{hint or kinds}")
        return curve[max(curve)]

    def best(self, model: ModelKind = "PM", metric: str = "accuracy") -> tuple[float, int]:
        """Return the best number over the rounds and its round; of the devices that `curve` is about (`curve_on`).

        Where training samples were held out (``engine.held_out``), the round is chosen by them and the number is the one on
        test samples after that round, so that no choice is made on test data.

        Args:
            model: The kind of model.
            metric: What was measured.
        """
        curve = self.curve(model, metric) or {0: self.last(model, metric)}  # which says what there is
        chosen = self.curve(model, metric, on=of_sample(HELD_OUT) if self.sampled else HELD_OUT) or curve
        sign = -1 if lower_is_better(metric) else 1
        known = {key: value for key, value in chosen.items() if value == value and key in curve}
        round_ = max(known or curve, key=lambda key: (sign * chosen[key], -key))
        return curve[round_], round_

    @cached_property
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

    @cached_property
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
        told = pc.and_(pc.equal(self.metrics["weight"], OWN), pc.not_equal(self.metrics["metric"], DISTANCE))
        own = self.metrics.filter(pc.and_(last, told))
        if pc.any(pc.equal(own["on"], "all")).as_py():
            own = own.filter(pc.equal(own["on"], "all"))
        found: dict[str, dict[ModelKind, float]] = {}
        for row in own.to_pylist():
            value = int(row["value"]) if row["statistic"] == "sum" else row["value"]  # counts are whole numbers
            found.setdefault(row["metric"], {})[row["model"]] = value
        return {
            name: {kind: by_kind[kind] for kind in self._kinds_in(own) if kind in by_kind}
            for name, by_kind in found.items()
        }

    @property
    def links(self) -> list[dict[str, Any]]:
        """Exchanges and bytes on every link in the whole run, by the tier of its parents, from the devices up.

        Where replies did not enter, ``missing`` tells how many and why; where some came twice, ``repeated``.
        """
        counts = ("exchanges", "bytes_up", "bytes_down")
        found = []
        for tier, total in Ledger.of(self.traffic.to_pylist()).totals().items():
            told: dict[str, Any] = {"tier": tier, **{name: getattr(total, name) for name in counts}}
            told |= {"missing": total.missing} if total.missing else {}
            found.append(told | ({"repeated": total.repeated} if total.repeated else {}))
        return found

    @property
    def times(self) -> dict[int, float]:
        """Seconds on the simulated clock after each round; empty where the run had none.

        In a round in which the server waits for nobody, or nobody's reply enters, no time passes.
        """
        server = pc.max(self.traffic["tier"]).as_py()
        rows = {row["round"] + 1: row.get("time", 0) for row in self.traffic.to_pylist() if row["tier"] == server}
        if not any(rows.values()):
            return {}
        found, now = {}, 0
        for round_ in range(1, self.rounds_done + 1):
            now = max(now, rows.get(round_, 0))
            found[round_] = now / SECOND
        return found

    @cached_property
    def absences(self) -> pa.Table:
        """Who was absent when, and why: round, tier, node, exchange, reason; empty where nobody was."""
        return kept.absences(self._files, self.config)

    @cached_property
    def evaluation(self) -> pa.Table:
        """Exchanges and bytes that evaluation takes besides training, by round and link."""
        return kept.evaluation(self._files, self.config)

    def summary(self) -> dict[str, Any]:
        """Return the run in one object, as ``palmette run --json`` prints it.

        ``time`` is there where the run had a simulated clock, in seconds; ``wasted_steps`` where devices worked for replies
        that did not enter; ``extra`` where the algorithm has something to tell of its own: its ``outline`` and its
        ``metrics``; ``on`` where a sample of the devices was measured before the end: which devices ``models`` and ``best``
        are about. A run that is not finished has less to tell, what `line` says, and ``finished`` is false.
        """
        names, lead = self.metric_names, self.lead
        if not self.finished:
            return self.line()
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
            "traffic": {"links": self.links},
            **({"time": self.times[self.config.rounds]} if self.times else {}),
            **({"wasted_steps": wasted} if (wasted := self.timings.get("wasted_steps")) else {}),
            "folder": str(self.folder),
            **({"on": {"models": self.on, "best": self.curve_on}} if self.sampled else {}),
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
        # A vocabulary is too long to be told.
        if self.encoding is not None and self.encoding.classes is not None and self.encoding.words is None:
            told["classes"] = list(self.encoding.classes)
        return told

    def line(self) -> dict[str, Any]:
        """Return what a list of runs says about this one."""
        config = self.config
        return {
            "folder": str(self.folder),
            "algorithm": config.algorithm,
            "data": config.data.name,
            "model": config.model.title,
            "rounds": config.rounds,
            "rounds_done": self.rounds_done,
            "seed": config.seed,
            "finished": self.finished,
            "running": self.running,
            "models": {kind: {name: self.last(kind, name) for name in self.metric_names} for kind in self.kinds},
            **({"on": {"models": self.on}} if self.sampled else {}),
        }


def load(folder: str | Path, *, trust: bool = False) -> Result:
    """Read a run from its folder; no code is run.

    A run that is not finished, because it goes on at this moment or was stopped, comes with a warning and with
    ``finished = False``: its metrics are those so far, and it has no models yet.

    Args:
        folder: The run's folder.
        trust: Whether code that the run names may be run when one of its models is asked for: the file or module of a model or
            an algorithm of your own. Leave it out for what a stranger made.
    """
    result = Result(folder, trust=trust)
    if not result.finished:
        going = "is still running" if result.running else f"is not finished; go on with 'palmette resume {folder}'"
        done = f"{result.rounds_done} of {result.config.rounds} rounds"
        warnings.warn(f"the run in {folder} {going}. These are its numbers after {done}", PalmetteWarning, stacklevel=2)
    return result
