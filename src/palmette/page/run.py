"""One run as the data of a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from palmette.algorithms import ALGORITHMS
from palmette.engines.evaluation import lower_is_better
from palmette.page import curves
from palmette.page.absent import absences
from palmette.page.compact import number, plain
from palmette.protocol import ModelKind
from palmette.protocol.sentences import sentences
from palmette.protocol.settings import described
from palmette.report import words
from palmette.report.absences import absent_told, clock_told, wasted_told
from palmette.report.numbers import backend, seconds
from palmette.report.tables import next_command
from palmette.runs import Result
from palmette.runs.folder import CONFIG
from palmette.runs.metrics import TRAINED

_WARNING = "warning: "
_LINES = 40  # of warnings in a log


def run_data(result: Result, population: dict[str, Any] | None, *, nodes: bool = True) -> dict[str, Any]:
    """Return what a page tells of a run.

    Args:
        result: The run; it may be under way, stopped, diverged or without a single number.
        population: What `people` returned for it.
        nodes: Whether to keep the numbers of single nodes.
    """
    config = result.config
    sizes = [] if population is None else [len(tier["names"]) for tier in population["tiers"]]
    found = {
        kind: one
        for kind in (result.kinds if sizes else [])
        if (one := curves.history(result, kind, 0, sizes[0])) is not None
    }
    unseen = [] if population is None else population["unseen"]
    return {
        "folder": str(result.folder),
        "method": config.label,
        "seed": config.seed,
        "title": f"{config.title} on {config.data.title}",
        "algorithm": config.title,
        "data": config.data.title,
        "model": config.model.title,
        "rounds": config.rounds,
        "done": result.rounds_done,
        "state": state(result),
        "ended": result.ended,
        "metric": result.lead,
        "share": result.lead == "accuracy",
        "lower": lower_is_better(result.lead),
        "on": result.on,
        "sampled": result.sampled,
        "models": [_model(result, kind) for kind in result.kinds],
        "curves": curves.over_rounds(result, found, unseen),
        "distances": curves.distances(result),
        "traffic": curves.traffic(result),
        "absences": absences(result, population),
        "nodes": _nodes(result, found, sizes) if nodes else None,
        "devices": curves.of_devices(found, sizes[0]) if nodes and sizes else None,
        "measures": _measures(result),
        "reports": plain(result.reports) if result.metrics.num_rows else {},
        "settings": list(_settings(result)),
        "facts": list(_facts(result)),
        "commands": list(_commands(result)),
        "warnings": _warnings(result),
        "versions": dict(config.versions),
    }


def state(result: Result) -> str:
    """Say how a run stands: ``finished``, ``diverged``, ``running``, or ``stopped``."""
    if result.finished:
        return "finished"
    return "running" if result.running else "diverged" if result.ended else "stopped"


def _model(result: Result, kind: ModelKind) -> dict[str, Any]:
    metric = result.lead
    best, round_ = result.best(kind, metric)
    new = result.curve(kind, metric, on="unseen")
    at = max(result.curve(kind, metric))
    return {
        "kind": kind,
        "words": words.models(kind),
        "last": number(result.last(kind, metric)),
        "best": number(best),
        "best_round": round_,
        "devices": number(result.last(kind, metric, weight="devices")),
        "spread": number(result.last(kind, metric, weight="devices", statistic="spread")),
        "worst": number(result.last(kind, metric, weight="devices", statistic="worst-decile")),
        "unseen": number(new[at]) if TRAINED in result.on and at in new else None,
    }


def _nodes(result: Result, found: dict[ModelKind, curves.History], sizes: list[int]) -> dict[str, Any]:
    """Return the last number of every node below the server, tier by tier, for every kind of model."""
    return {
        kind: [
            curves.last(found.get(kind) if tier == 0 else curves.history(result, kind, tier, size))
            for tier, size in enumerate(sizes[:-1])
        ]
        for kind in result.kinds
    }


def _measures(result: Result) -> list[dict[str, Any]]:
    """Return further metrics of every kind of model, over all test samples and as the mean over devices."""
    return [
        {
            "metric": name,
            "models": {
                kind: [number(result.last(kind, name)), number(result.last(kind, name, weight="devices"))]
                for kind in result.kinds
                if result.curve(kind, name) and result.curve(kind, name, weight="devices")
            },
        }
        for name in result.metric_names
        if name != result.lead
    ]


def _settings(result: Result) -> Iterator[dict[str, str]]:
    """Give every setting of the algorithm with what it means, then what else the config says."""
    config = result.config
    known = described(ALGORITHMS[config.algorithm]) if config.algorithm in ALGORITHMS else {}
    for name, value in config.settings.items():
        yield {"group": "algorithm", "name": name, "value": str(value), "about": known.get(name, "")}
    for group in ("data", "model", "optimiser", "engine"):
        part = getattr(config, group)
        fields = type(part).model_fields
        for name, value in part:
            if value not in (None, {}, []) and (name not in fields or value != fields[name].default or name == "name"):
                yield {"group": group, "name": f"{group}.{name}", "value": str(value), "about": ""}
    for name, value in config.participation.items():
        yield {"group": "links", "name": f"participation.{name}", "value": str(value), "about": ""}
    if config.loss:
        about = "probability that a node that was asked does not answer"
        yield {"group": "links", "name": "loss", "value": str(config.loss), "about": about}
    for group, part in {**{f"links.{name}": one for name, one in config.links.items()}, "clock": config.clock}.items():
        told = sentences(type(part))
        for name, value in part:
            if value is not None:
                yield {"group": "links", "name": f"{group}.{name}", "value": str(value), "about": told[name]}
    if config.replay is not None:
        about = "run whose absences were repeated"
        yield {"group": "links", "name": "replay", "value": config.replay, "about": about}


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    if result.finished:
        steps, speed = result.timings["device_steps"], result.timings["device_steps_per_second"]
        yield "gradient steps", f"{steps:,} of all devices together, {speed:,.0f} a second"
        if told := wasted_told(result):
            yield "in vain", told
        yield "time", f"{seconds(result):.1f} s, evaluation and checkpoints included"
    if told := clock_told(result):
        yield "clock", told
    if told := "; ".join(absent_told(result)):
        yield "absent", told
    if result.outline:
        yield "outline", "; ".join(words.outline(result.outline))
    if (found := backend(result)) is not None:
        yield "backend", f"{found[0]} ({found[1]})"


def _commands(result: Result) -> Iterator[dict[str, str]]:
    """Give the commands that run it again exactly, go on with it, and compare it."""
    folder = shlex.quote(str(result.folder))
    objects = ", ".join(sorted(result.config.given))
    if result.config.given and not all(one.again for one in result.config.given.values()):
        again = f"pm.rerun({str(result.folder)!r}, ...)"
        yield {"what": f"Run it again in Python; hand over what the config cannot hold: {objects}", "command": again}
    else:
        file = shlex.quote(str(result.folder / CONFIG))
        yield {
            "what": "Run it again: the same versions give the same bytes",
            "command": f"palmette run --config {file}",
        }
    if not result.finished:
        yield {"what": "Go on with it", "command": f"palmette resume {folder}"}
        return
    yield {"what": "Check every file against its checksum", "command": f"palmette verify {folder}"}
    if (other := next_command(result)) is not None:
        yield {"what": "Run another method on the same samples, with as many steps", "command": other}


def _warnings(result: Result) -> list[str]:
    lines = result.log
    found = list(dict.fromkeys(line.removeprefix(_WARNING) for line in lines if line.startswith(_WARNING)))
    if result.ended:  # what to change stands behind what went wrong
        found += [line.removeprefix(f"{result.ended}. ") for line in lines[-1:] if line.startswith(f"{result.ended}. ")]
    return found[-_LINES:]
