"""What a page says first: what was run, what came out, for whom it failed and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from palmette.page.compact import number
from palmette.report.words import duration, many, points, size

_FEW = 3  # devices that are named


def score(value: float | None, share: bool) -> str:
    """Write an accuracy as a percentage, another metric with four digits."""
    if value is None or math.isnan(value):
        return "not measured"
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def gap(value: float, share: bool) -> str:
    """Write how far two numbers lie apart."""
    return points(value) if share else f"{abs(value):.3g}"


def about_run(run: dict[str, Any], population: dict[str, Any] | None) -> dict[str, Any]:
    """Return the first screen of one run: three sentences and the numbers beside them.

    Args:
        run: What `run_data` returned.
        population: What `people` returned.
    """
    return {
        "title": run["title"],
        "sentences": [_what(run, population), *_came_out(run), *_failed(run, population), *_cost(run)],
        "tiles": _tiles(run),
    }


def _what(run: dict[str, Any], population: dict[str, Any] | None) -> str:
    sizes = [] if population is None else [len(tier["names"]) for tier in population["tiers"]]
    who = f"{many(sizes[0], 'device')} in {many(sizes[1], 'team')}" if len(sizes) > 2 else "the devices"
    who = many(sizes[0], "device") if len(sizes) == 2 else who
    if population is not None:
        untested = population["tiers"][0]["test"].count(0)
        notes = [f"{many(len(population['unseen']), 'device')} kept out of training"] if population["unseen"] else []
        notes += [f"{many(untested, 'device')} without test samples"] if untested else []
        who += f" ({', '.join(notes)})" if notes else ""
    text = f"{run['algorithm']} trained the model {run['model']} on {run['data']}: {who}"
    if run["state"] == "finished":
        return f"{text}, {many(run['done'], 'round')}, seed {run['seed']}."
    done = f"{run['done']} of {many(run['rounds'], 'round')}"
    how = {
        "running": f"is running: {done} are done",
        "diverged": f"diverged: {run['ended']}. Before that, {done} were done",
        "stopped": f"was stopped after {done}",
    }[run["state"]]
    return f"{text}, seed {run['seed']}. The run {how}."


def _came_out(run: dict[str, Any]) -> list[str]:
    if not run["models"]:
        return ["Nothing was measured yet."]
    told = ", ".join(
        f"{'the ' if one['kind'] == 'GM' else ''}{one['words']} ({one['kind']}) {score(one['last'], run['share'])}"
        for one in run["models"]
    )
    when = "At the end" if run["state"] == "finished" else "So far"
    return [f"{when}, test {run['metric']} is: {told}."]


def _failed(run: dict[str, Any], population: dict[str, Any] | None) -> list[str]:
    """Say which devices fare worst, and how many would be better off with the model above theirs."""
    nodes = run["nodes"]
    if not nodes or population is None or not run["models"]:
        return []
    kind = run["models"][0]["kind"]
    own = nodes[kind][0]
    if not own:
        return []
    names, unseen = population["tiers"][0]["names"], set(population["unseen"])
    known = [at for at, value in enumerate(own) if value is not None and at not in unseen]
    if not known:
        return []
    worst = sorted(known, key=lambda at: own[at], reverse=run["lower"])[:_FEW]
    told = ", ".join(f"{names[at]} ({score(own[at], run['share'])})" for at in worst)
    text = f"It serves these devices worst: {told}"
    if (level := sum(own[at] == own[worst[-1]] for at in known if at not in worst)) and own[worst[0]] == own[worst[-1]]:
        text += f" and {many(level, 'other')} with the same {run['metric']}"
    others = [one["kind"] for one in run["models"][1:] if nodes[one["kind"]][0]]
    if kind == "PM" and others:
        above = nodes[others[0]][0]
        pairs = [(own[at], above[at]) for at in known if above[at] is not None]
        hurt = sum((mine > theirs) if run["lower"] else (mine < theirs) for mine, theirs in pairs)
        whose = "their team's model" if others[0] == "TM" else "the global model" if others[0] == "GM" else others[0]
        text += f"; {hurt or 'none'} of {many(len(pairs), 'device')} would be better off with {whose}"
    return [f"{text}."]


def _cost(run: dict[str, Any]) -> list[str]:
    links = run["traffic"]["links"]
    if not links:
        return []
    upper = sum(link["bytes_up"] + link["bytes_down"] for link in links if link["server"])
    lower = sum(link["bytes_up"] + link["bytes_down"] for link in links if not link["server"])
    if not upper and not lower:
        return ["Nothing was sent to anybody."]
    rest = f", and {size(lower)} over the links below" if lower else ""
    told = [f"It sent {size(upper)} over the link to the server{rest}, both ways together."]
    if (seconds := _clock(run)) is not None:
        told.append(f"On the simulated clock it took {duration(seconds)}.")
    return [*told, run["absences"]["told"]] if run["absences"] else told


def _clock(run: dict[str, Any]) -> float | None:
    """Return the last time on the simulated clock, where there is one."""
    clock = run["traffic"]["clock"]
    return next((one for one in reversed(clock["seconds"]) if one is not None), None) if clock else None


def _tiles(run: dict[str, Any]) -> list[dict[str, Any]]:
    tiles = [
        {
            "label": one["words"],
            "kind": one["kind"],
            "value": score(one["last"], run["share"]),
            "note": f"worst tenth of devices {score(one['worst'], run['share'])}",
        }
        for one in run["models"]
    ]
    upper = [link for link in run["traffic"]["links"] if link["server"]]
    if upper:
        sent = sum(link["bytes_up"] + link["bytes_down"] for link in upper)
        exchanges = sum(link["exchanges"] for link in upper)
        tiles.append({"label": "sent to and from the server", "value": size(sent), "note": many(exchanges, "exchange")})
    if (seconds := _clock(run)) is not None:
        each = f"{duration(seconds / max(1, run['done']))} a round"
        tiles.append({"label": "on the simulated clock", "value": duration(seconds), "note": each})
    return tiles


def so_far(study: dict[str, Any]) -> list[str]:
    """Say how far a study is, where it is not at its end: what follows is about its finished runs only.

    Args:
        study: The data of its page: its state, its progress and its folder.
    """
    if study["state"] == "finished":
        return []
    done, runs = study["progress"]["finished"], len(study["progress"]["runs"])
    how = f"{done} of {many(runs, 'run')} {'is' if done == 1 else 'are'} finished, and what follows is about these only"
    if study["state"] == "running":
        return [f"The study is running: {how}."]
    return [f"The study was stopped: {how}; palmette resume {study['folder']} goes on with it."]


def about_methods(group: dict[str, Any]) -> list[str]:
    """Return sentences about several methods on one population: who won, for whom it failed, what it cost.

    Args:
        group: What `palmette.page.comparison.comparison` made of them.
    """
    ranking, share = group["ranking"], group["share"]
    if not ranking:
        return ["No run has come to its end, so there is nothing to compare yet."]
    best = ranking[0]
    name = _named(best)
    text = (
        f"{'Lowest' if group['lower'] else 'Highest'} test {group['metric']}: the {name}, {score(best['mean'], share)}"
    )
    level = [one for one in ranking[1:] if not one["clear"]]
    worse = [one for one in ranking[1:] if one["clear"]]
    if level:
        text += f"; not clearly worse: {_list([_named(one) for one in level])}"
    if worse:
        nearest = worse[0]
        text += f". The {_named(nearest)} are" if nearest["kind"] != "GM" else f". The {_named(nearest)} is"
        text += f" {gap(best['mean'] - nearest['mean'], share)} behind"
    sentences = [f"{text}."]
    sentences += _whom(best, group)
    return sentences + _costs(best, ranking, group)


def _named(one: dict[str, Any]) -> str:
    return f"{one['words']} ({one['kind']}) of {one['method']}"


def _whom(best: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """Say which devices the winner fails."""
    told = []
    if best.get("hurt") is not None and best["method"] != group["reference"]:
        told.append(f"{100 * best['hurt']:.0f} % of the devices fare worse with it than when they train alone")
    if best.get("worst") is not None:
        told.append(f"on its worst tenth of devices it has {score(best['worst'], group['share'])}")
    text = ", and ".join(told)
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def _costs(best: dict[str, Any], ranking: Sequence[dict[str, Any]], group: dict[str, Any]) -> list[str]:
    sent = {one["method"]: one["sent"] for one in ranking}
    mine = sent[best["method"]]
    text = f"{best['method']} sent {size(round(mine))} over the link to the server" if mine else ""
    text = text or f"{best['method']} sent nothing to the server"
    others = [f"{name} {size(round(value)) if value else 'nothing'}" for name, value in sent.items()]
    others = [one for one, name in zip(others, sent, strict=True) if name != best["method"]]
    rest = f" ({', '.join(others[:6])}{', ...' if len(others) > 6 else ''})" if others else ""
    steps = number(best["steps"])
    taken = f"; a device took {steps:,} gradient steps" if steps else ""
    return [f"{text}{rest}{taken}."]


def _list(names: Sequence[str]) -> str:
    if len(names) > _FEW:
        return f"{', '.join(names[:_FEW])} and {len(names) - _FEW} more"
    return ", ".join(names)
