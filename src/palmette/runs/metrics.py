"""The history of a run as one long table that says of every number what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from palmette.engines.evaluation import DISTANCE as DISTANCE
from palmette.engines.evaluation import Reports, Scores
from palmette.engines.measures import Whole
from palmette.links.ledger import COLUMNS
from palmette.protocol import ModelKind, model_kind
from palmette.tree import Tree

SCHEMA = pa.schema(
    [
        ("round", pa.int32()),  # 0 is the start, r is after r rounds
        ("when", pa.string()),  # after | before the round's update
        ("model", pa.string()),  # PM | TM | TM2 ... | GM
        ("tier", pa.int8()),  # tier of the node the number is about; the top tier for all devices together
        ("node", pa.string()),  # its name
        # all | trained | participants | unseen devices; held-out: on held-out training samples; sampled ...: in a sample of all
        ("on", pa.string()),
        ("weight", pa.string()),  # samples | devices; nodes: the algorithm's own number about nodes of the model's tier
        (
            "statistic",
            pa.string(),
        ),  # mean | spread | worst-decile; pooled: of all outputs together; sum: of the algorithm's own counts
        ("metric", pa.string()),  # accuracy, loss ..., what the algorithm reports
        ("value", pa.float64()),
    ]
)
TRAFFIC_SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])
POOLED = "pooled"  # the statistic of a metric of all outputs together
TRAINED = "trained"  # all devices but those kept out of training; there only where some are
SAMPLED = "sampled"  # the devices drawn to be measured between evaluations of everybody, or with another word those among them
HELD_OUT = "held-out"  # on the training samples that were held out, not on test samples
OWN = "nodes"  # the weight of numbers about nodes: what the algorithm reports itself, and distances between models
_EACH = 1000  # above so many devices, single devices are listed after the last round only


@dataclass
class Metrics:
    """Collects the rows of the table."""

    rows: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SCHEMA.names})
    _made: pa.Table = field(
        default_factory=SCHEMA.empty_table, init=False
    )  # of the first rows: each becomes Arrow's once

    def add(self, **row: Any) -> None:
        """Append one row."""
        for name, column in self.rows.items():
            column.append(row[name])

    def extend(self, nodes: list[str], values: list[float], **row: Any) -> None:
        """Append one row for each of some nodes; all else is the same for them."""
        for name, column in self.rows.items():
            if name == "node":
                column.extend(nodes)
            elif name == "value":
                column.extend(values)
            else:
                column.extend(repeat(row[name], len(nodes)))

    def drop_last(self, round_: int, *, keep: bool, devices: int, sampled: bool = False) -> None:
        """Drop what was recorded after a round only because it was the last one.

        Args:
            round_: The round.
            keep: Whether it would have been measured all the same; then only single devices may have to go ...
            devices: How many devices there are.
            sampled: ... or, where a sample of the devices would have been measured, what is about everybody.
        """
        if keep and devices <= _EACH and not sampled:
            return
        gone = []
        for done, tier, on in zip(self.rows["round"], self.rows["tier"], self.rows["on"], strict=True):
            extra = not on.startswith(SAMPLED) if sampled else tier == 0
            gone.append(done == round_ and (not keep or extra))
        for name, column in self.rows.items():
            self.rows[name] = [value for value, drop in zip(column, gone, strict=True) if not drop]
        self._made = SCHEMA.empty_table()

    def table(self, first: int = 0) -> pa.Table:
        """Return what was collected, from some row on."""
        made = self._made.num_rows
        if made < len(self.rows["round"]):
            new = pa.table({name: column[made:] for name, column in self.rows.items()}, schema=SCHEMA)
            # In one piece, so that the bytes of a file do not tell how often it was asked for.
            self._made = pa.concat_tables([self._made, new]).combine_chunks() if made else new
        return self._made.slice(first)

    def record(
        self,
        scores: dict[ModelKind, Scores],
        tree: Tree,
        *,
        round_: int,
        when: str,
        participants: Tensor,
        unseen: Tensor,
        kept_out: Tensor | None,
        last: bool,
        sampled: Tensor | None = None,
    ) -> None:
        """Add an evaluation: everybody, participants and unseen devices, each team, and each device.

        Args:
            scores: What was measured.
            tree: The population's tree.
            round_: Rounds done.
            when: ``"after"`` or ``"before"`` the update of that round.
            participants: Which devices took part in the round (bool).
            unseen: Which devices never took part (bool).
            kept_out: Which devices are kept out of training (bool); ``None`` for none of them.
            last: Whether it is the run's last evaluation.
            sampled: Which devices were measured (bool), where not all were.
        """
        members = _members(tree, kept_out, sampled)
        groups = members + _further(participants, unseen, sampled)
        # Names are made once: of many devices they are the largest part of the table.
        tiers = range(0 if last or _few(tree, sampled) else 1, tree.top) if when == "after" else range(0)
        names = {tier: tree.names(tier) for tier in tiers}
        for kind, score in scores.items():
            for metric in score.sums:
                about = {"round": round_, "when": when, "model": kind, "metric": metric}
                for on, who in groups:
                    where = {"tier": tree.top, "node": tree.name(tree.top, 0), "on": on}
                    for weight, statistic, value in _statistics(score, metric, who):
                        self.add(**about, **where, weight=weight, statistic=statistic, value=value)
                for tier in sorted(tiers, key=lambda tier: (tier == 0, tier)):
                    for on, who in members:
                        same = {**about, "tier": tier, "on": on, "weight": "samples", "statistic": "mean"}
                        nodes, values = _shown(names[tier], _of_tier(score.only(who), metric, tree, tier), tier, who)
                        self.extend(nodes, values, **same)

    def record_whole(
        self,
        whole: dict[ModelKind, list[Whole]],
        tree: Tree,
        *,
        round_: int,
        participants: Tensor,
        unseen: Tensor,
        kept_out: Tensor | None,
        last: bool,
        sampled: Tensor | None = None,
    ) -> None:
        """Add metrics of all outputs together: pooled over samples, over devices, of each team and of each device.

        Args:
            whole: What is measured, of every kind of model.
            tree: The population's tree.
            round_: Rounds done.
            participants: Which devices took part in the round (bool).
            unseen: Which devices never took part (bool).
            kept_out: Which devices are kept out of training (bool); ``None`` for none of them.
            last: Whether it is the run's last evaluation.
            sampled: Which devices were measured (bool), where not all were.
        """
        members = _members(tree, kept_out, sampled)
        groups = members + _further(participants, unseen, sampled)
        each = last or _few(tree, sampled)
        for kind, found in ((kind, one) for kind, some in whole.items() for one in some):
            for metric in found.measures:
                about = {"round": round_, "when": "after", "model": kind, "metric": metric}
                mine = found.by_group(metric, torch.arange(tree.devices), tree.devices) if each else None
                for on, who in groups:
                    where = {"tier": tree.top, "node": tree.name(tree.top, 0), "on": on}
                    pooled = found.of(metric, who[found.device])
                    self.add(**about, **where, weight="samples", statistic=POOLED, value=pooled)
                    if mine is not None:
                        there = Scores(kind, {metric: mine[who]}, (~mine[who].isnan()).double())
                        for _, statistic, value in list(_statistics_of_devices(there, metric)):
                            self.add(**about, **where, weight="devices", statistic=statistic, value=value)
                for tier in range(tree.top - 1, -1, -1):
                    if tier == 0 and mine is None:
                        continue
                    group = torch.from_numpy(tree.ancestors(tier))
                    for on, who in members:
                        part = found if on in ("all", SAMPLED) else found.only(who)
                        values = (
                            mine if tier == 0 and mine is not None else part.by_group(metric, group, tree.size(tier))
                        )
                        same = {**about, "tier": tier, "on": on, "weight": "samples", "statistic": POOLED}
                        nodes, numbers = _shown(tree.names(tier), values.tolist(), tier, who)
                        self.extend(nodes, numbers, **same)

    def record_held_out(
        self,
        scores: dict[ModelKind, Scores],
        tree: Tree,
        *,
        round_: int,
        kept_out: Tensor | None,
        sampled: Tensor | None = None,
    ) -> None:
        """Add the means over the training samples that were held out, by which a best round can be chosen.

        Args:
            scores: What was measured on them.
            tree: The population's tree.
            round_: Rounds done.
            kept_out: Which devices are kept out of training (bool), and have no say; ``None`` for none of them.
            sampled: Which devices were measured (bool), where not all were.
        """
        _, who = _members(tree, kept_out, sampled)[-1]
        on = HELD_OUT if sampled is None else of_sample(HELD_OUT)
        for kind, score in scores.items():
            where = {"tier": tree.top, "node": tree.name(tree.top, 0), "on": on}
            for metric in score.sums:
                about = {"round": round_, "when": "after", "model": kind, "metric": metric}
                self.add(**about, **where, weight="samples", statistic="mean", value=score.only(who).by_samples(metric))

    def record_reports(
        self, reports: Reports, tree: Tree, *, round_: int, last: bool, sampled: Tensor | None = None
    ) -> None:
        """Add what the algorithm tells of its nodes: over each tier (sums of counts, means of others) and node by node.

        Args:
            reports: What it tells.
            tree: The population's tree.
            round_: Rounds done.
            last: Whether it is the run's last evaluation.
            sampled: Which devices were asked (bool), where not all were.
        """
        tiers = {model_kind(tier, tree.top): tier for tier in range(tree.tiers)}
        for metric, by_kind in reports.items():
            for kind, values in by_kind.items():
                tier, on = tiers[kind], "all" if sampled is None else SAMPLED
                about = {"round": round_, "when": "after", "model": kind, "on": on, "weight": OWN}
                statistic, value = over_nodes(values)
                server = {"tier": tree.top, "node": tree.name(tree.top, 0)}
                self.add(**about, **server, metric=metric, statistic=statistic, value=value)
                if tier < tree.top and (tier or last or _few(tree, sampled)):
                    names = tree.names(tier)
                    if tier == 0 and sampled is not None:
                        names = list(compress(names, sampled.tolist()))
                    self.extend(names, values.tolist(), **about, tier=tier, metric=metric, statistic=statistic)


def traffic_table(rows: Sequence[Sequence[int]]) -> pa.Table:
    """Return exchanges and bytes by round and link as a table."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in TRAFFIC_SCHEMA]
    return pa.table(columns, schema=TRAFFIC_SCHEMA)


def over_nodes(values: Tensor) -> tuple[str, float]:
    """Return a tier's number: the ``"sum"`` of counts, the ``"mean"`` of other numbers; NaN stands for none."""
    if not values.is_floating_point():
        return "sum", float(values.sum())
    return "mean", float(values.nanmean())


def of_sample(on: str) -> str:
    """Return the word for ``on`` of those devices of a group that were drawn to be measured."""
    return SAMPLED if on == "all" else f"{SAMPLED} {on}"


def _members(tree: Tree, kept_out: Tensor | None, sampled: Tensor | None) -> list[tuple[str, Tensor]]:
    """Return all devices and, where some are kept out of training, the others; each with its word for ``on``."""
    everybody = ("all", torch.ones(tree.devices, dtype=torch.bool))
    return _drawn([everybody] if kept_out is None else [everybody, (TRAINED, ~kept_out)], sampled)


def _further(participants: Tensor, unseen: Tensor, sampled: Tensor | None) -> list[tuple[str, Tensor]]:
    """Return the devices that took part and those that never did, where there are some."""
    found = _drawn([("participants", participants), ("unseen", unseen)], sampled)
    return [(on, who) for on, who in found if who.any()]


def _drawn(groups: list[tuple[str, Tensor]], sampled: Tensor | None) -> list[tuple[str, Tensor]]:
    return groups if sampled is None else [(of_sample(on), who & sampled) for on, who in groups]


def _few(tree: Tree, sampled: Tensor | None) -> bool:
    """Return whether so few devices are measured that single ones are listed every time."""
    return (tree.devices if sampled is None else int(sampled.sum())) <= _EACH


def _shown(names: list[str], values: list[float], tier: int, who: Tensor) -> tuple[list[str], list[float]]:
    """Return the nodes that a group's numbers are about: of single devices its own, of teams all."""
    if tier or bool(who.all()):
        return names, values
    mine = who.tolist()
    return list(compress(names, mine)), list(compress(values, mine))


def _statistics(score: Scores, metric: str, who: Tensor) -> Iterator[tuple[str, str, float]]:
    part = Scores(score.model, {metric: score.sums[metric][who]}, score.count[who])
    yield "samples", "mean", part.by_samples(metric)
    yield from _statistics_of_devices(part, metric)


def _statistics_of_devices(part: Scores, metric: str) -> Iterator[tuple[str, str, float]]:
    yield "devices", "mean", part.by_devices(metric)
    yield "devices", "spread", part.spread(metric)
    yield "devices", "worst-decile", part.worst_decile(metric)


def _of_tier(score: Scores, metric: str, tree: Tree, tier: int) -> list[float]:
    """Return the mean over the samples under each node of a tier."""
    if tier == 0:
        return score.per_device(metric).tolist()
    above = torch.from_numpy(tree.ancestors(tier))
    total = torch.zeros(tree.size(tier), dtype=torch.float64).index_add_(0, above, score.sums[metric])
    count = torch.zeros_like(total).index_add_(0, above, score.count)
    return (total / count).tolist()
