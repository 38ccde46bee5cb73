"""Two sentences that say who won, for whom, and at what cost; they are made from the numbers, whoever won."""

from __future__ import annotations

from collections.abc import Sequence

from palmette.protocol import ModelKind
from palmette.report.numbers import Method, by_node, clearly_differ, link_bytes
from palmette.report.words import percent, points, size

_WHOSE = {"PM": "own models of", "TM": "team models of", "GM": "global model of"}
Entry = tuple[Method, ModelKind]


def verdict(methods: Sequence[Method], hero: Method) -> tuple[str, str]:
    """Say in two sentences how a method with teams did beside others.

    Args:
        methods: All methods, ``hero`` among them.
        hero: The method the reader asked about; its main model is compared.
    """
    return _who_won(methods, hero), _at_what_cost(methods, hero)


def _who_won(methods: Sequence[Method], hero: Method) -> str:
    every: list[Entry] = [(method, kind) for method in methods for kind in method.kinds]
    mine: Entry = (hero, hero.main)
    best = max(every, key=_last)
    flat = max((entry for entry in every if entry[0].flat), key=_last, default=None)
    worst = percent(best[0].result.last(best[1], weight="devices", statistic="worst-decile"))
    text = f"On their own test samples, devices do best with the {_name(best)}: {percent(_last(best))} right"
    text += f" ({worst} for the worst tenth of devices)"
    if best != mine:
        text += f"; the {_name(mine)} reach {percent(_last(mine))}, {_gap(mine, best)}"
    if flat is not None and flat != best:
        text += f", and {_gap(mine, flat)} the best without teams, the {_name(flat)} ({percent(_last(flat))})"
    return text + "."


def _at_what_cost(methods: Sequence[Method], hero: Method) -> str:
    costs: dict[str, list[str]] = {}
    for method in methods:
        if method is not hero:
            costs.setdefault(size(link_bytes(method.result)[1]), []).append(method.label)
    lower, upper = link_bytes(hero.result)
    others = _listed(
        [f"{_listed(labels)} {'each ' if len(labels) > 1 else ''}{cost}" for cost, labels in costs.items()]
    )
    text = f"On the dear link to the server {hero.label} moved {size(upper)} (and {size(lower)} on the cheap one), {others}"
    everybody = [(method, kind) for method in methods for kind in method.kinds if kind == "GM"]
    if everybody:
        best = max(everybody, key=_last)
        text += f"; for one model that serves everybody take {best[0].label}: {percent(_last(best))}"
        if "GM" in hero.kinds and best[0] is not hero:
            text += f", against {percent(hero.result.last('GM'))} for {hero.label}'s"
    return text + "."


def _last(entry: Entry) -> float:
    return entry[0].result.last(entry[1])


def _name(entry: Entry) -> str:
    return f"{_WHOSE[entry[1]]} {entry[0].label}"


def _gap(one: Entry, other: Entry) -> str:
    """Say how far one is above or below another, and whether that could be luck."""
    gap = _last(one) - _last(other)
    if gap == 0:
        return "level with"
    devices = [by_node(method.result, kind, 0) for method, kind in (one, other)]
    luck = "" if clearly_differ(devices[0], devices[1]) else " (which could be luck)"
    return f"{points(gap)}{luck} {'above' if gap > 0 else 'below'}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
