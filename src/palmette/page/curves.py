"""What was measured round by round and node by node, as a page draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from palmette.page.compact import numbers, thinned
from palmette.protocol import ModelKind
from palmette.report.numbers import top
from palmette.report.words import link_name
from palmette.runs import Result
from palmette.runs.metrics import DISTANCE

_POINTS = 400  # of a curve over the rounds
_HISTORY = 120_000  # numbers of single devices over the rounds; more would make the page too large
_LOW, _HIGH = 0.1, 0.9  # the band around a curve holds the devices between these


@dataclass(frozen=True, eq=False)
class History:
    """One kind of model at every node of one tier, round by round.

    Attributes:
        rounds: The rounds that were measured.
        values: A row for every round, a column for every node in the order of the tree.
    """

    rounds: list[int]
    values: NDArray[np.float64]


def history(result: Result, kind: ModelKind, tier: int, size: int) -> History | None:
    """Return a metric of all nodes of a tier over the rounds, as far as single nodes were written down.

    Args:
        result: The run.
        kind: The kind of model.
        tier: The tier.
        size: How many nodes it has.
    """
    table = result.metrics
    on = "all" if tier == 0 else result.on
    wanted = {"model": kind, "metric": result.lead, "when": "after", "on": on, "weight": "samples"}
    keep = pc.equal(table["tier"], tier)
    for column, value in wanted.items():
        keep = pc.and_(keep, pc.equal(table[column], value))
    part = table.filter(keep)
    rounds = part["round"].to_numpy()
    if not len(rounds):
        return None
    order = np.argsort(rounds, kind="stable")
    found, counts = np.unique(rounds, return_counts=True)
    whole = counts == size  # a round in which only some were measured has no place in the table
    kept = order[np.repeat(whole, counts)]
    values = part["value"].to_numpy()[kept].reshape(-1, size)
    return History(found[whole].tolist(), values) if whole.any() else None


def of_devices(found: dict[ModelKind, History], devices: int) -> dict[str, Any] | None:
    """Return the curves of single devices, at as many rounds as fit a page; nothing where there are too many devices."""
    if not found:
        return None
    rounds = next(iter(found.values())).rounds
    most = min(_POINTS, _HISTORY // (devices * len(found)))
    if len(rounds) < 2 or most < 2:
        return None
    keep = thinned(len(rounds), most)
    return {
        "rounds": [rounds[at] for at in keep],
        "thinned": len(keep) < len(rounds),
        "values": {
            kind: [numbers(column) for column in one.values[keep].T.tolist()]
            for kind, one in found.items()
            if one.rounds == rounds
        },
    }


def over_rounds(result: Result, found: dict[ModelKind, History], unseen: list[int]) -> dict[str, Any]:
    """Return the curve of every kind of model: the mean, and how far the devices lie apart.

    Args:
        result: The run.
        found: The devices' own numbers, where they are there.
        unseen: Devices that are kept out of training, which do not count.
    """
    curves = {kind: _curve(result, kind, found.get(kind), unseen) for kind in result.kinds}
    single = all(one.pop("single") for one in curves.values())
    band = "the middle 80 % of the devices" if single else "one standard deviation over the devices"
    return {"kinds": curves, "band": band}


def _curve(result: Result, kind: ModelKind, found: History | None, unseen: list[int]) -> dict[str, Any]:
    metric = result.lead
    mean = result.curve(kind, metric)
    rounds = sorted(mean)
    rounds = [rounds[at] for at in thinned(len(rounds), _POINTS)]
    worst = result.curve(kind, metric, weight="devices", statistic="worst-decile")
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    single = found is not None and set(rounds) <= set(found.rounds)
    if found is not None and single:
        values = np.delete(found.values, unseen, 1)
        values = values[:, ~np.isnan(values).any(0)]
        if values.size:
            ends = np.quantile(values, [_LOW, _HIGH], axis=1)
            low, high = (dict(zip(found.rounds, end.tolist(), strict=True)) for end in ends)
    else:
        middle = result.curve(kind, metric, weight="devices")
        spread = result.curve(kind, metric, weight="devices", statistic="spread")
        low = {round_: middle[round_] - spread[round_] for round_ in rounds if round_ in spread}
        high = {round_: middle[round_] + spread[round_] for round_ in rounds if round_ in spread}
        if metric == "accuracy":
            low = {round_: max(0.0, value) for round_, value in low.items()}
            high = {round_: min(1.0, value) for round_, value in high.items()}
    nothing = float("nan")
    return {
        "rounds": rounds,
        "mean": numbers(mean[round_] for round_ in rounds),
        "low": numbers(low.get(round_, nothing) for round_ in rounds),
        "high": numbers(high.get(round_, nothing) for round_ in rounds),
        "worst": numbers(worst.get(round_, nothing) for round_ in rounds),
        "single": single,
    }


def last(found: History | None) -> list[float | int | None] | None:
    """Return every node's number after the last round."""
    return None if found is None else numbers(found.values[-1].tolist())


def distances(result: Result) -> dict[str, Any]:
    """Return how far models lie from those above them, on average over each tier: how much personalization there is."""
    told = {}
    for kind in result.kinds:
        curve = result.curve(kind, DISTANCE)
        rounds = sorted(curve)
        rounds = [rounds[at] for at in thinned(len(rounds), _POINTS)]
        if rounds:
            told[kind] = {"rounds": rounds, "mean": numbers(curve[round_] for round_ in rounds)}
    return told


def traffic(result: Result) -> dict[str, Any]:
    """Return what every link carried, and how much the link to the server had carried by each round that was measured."""
    server = top(result) if result.metrics.num_rows else result.config.make_tree().top
    flat = all(link["tier"] == server for link in result.links)
    links = [
        {**link, "name": link_name(link["tier"], server, flat=flat), "server": link["tier"] == server}
        for link in result.links
    ]
    measured = sorted({round_ for kind in result.kinds for round_ in result.curve(kind, result.lead)})
    measured = [measured[at] for at in thinned(len(measured), _POINTS)]
    times = result.times
    return {
        "links": links,
        "upper": {"rounds": measured, "bytes": sent_by(result, server, measured)},
        "clock": {"rounds": measured, "seconds": numbers(seconds_by(times, measured))} if times else None,
    }


def seconds_by(times: Mapping[int, float], rounds: Sequence[int]) -> list[float]:
    """Return the time on the simulated clock after some rounds; before the first it is 0.

    Args:
        times: What `Result.times` says.
        rounds: The rounds.
    """
    return [times.get(round_, 0.0 if round_ == 0 else float("nan")) for round_ in rounds]


def sent_by(result: Result, server: int, rounds: Sequence[int]) -> list[int]:
    """Return the bytes, both ways, that the link to the server had carried after some rounds.

    Args:
        result: The run.
        server: The server's tier.
        rounds: The rounds, counted from 1 as in results; traffic counts them from 0.
    """
    table = result.traffic.filter(pc.equal(result.traffic["tier"], server))
    order = np.argsort(table["round"].to_numpy(), kind="stable")
    both = pc.add(table["bytes_up"], table["bytes_down"]).to_numpy()[order]
    sums = np.concatenate([[0], np.cumsum(both)])
    return [int(sums[at]) for at in np.searchsorted(table["round"].to_numpy()[order], rounds, side="left")]
