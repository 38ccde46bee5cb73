"""Two sentences that say who won, for whom, and at what cost; they are made from the numbers, whoever won."""

from __future__ import annotations

from collections.abc import Sequence

from palmette.protocol import ModelKind
from palmette.report.numbers import Method, by_node, clearly_differ, link_bytes
from palmette.report.words import models, percent, points, size

Entry = tuple[Method, ModelKind]


def verdict(methods: Sequence[Method], hero: Method) -> tuple[str, str]:
    """Say in two sentences how a method with teams did beside others.

    Args:
        methods: All methods, ``hero`` among them.
        hero: The method the reader asked about; its main model is compared.
    """
    every: list[Entry] = [(method, kind) for method in methods for kind in method.kinds]
    best = max(every, key=_last)
    flat = max((entry for entry in every if entry[0].flat), key=_last, default=None)
    everybody = max((entry for entry in every if entry[1] == "GM"), key=_last, default=None)
    return _who_won((hero, hero.main), best, flat), _at_what_cost(hero, best, flat, everybody)


def _who_won(mine: Entry, best: Entry, flat: Entry | None) -> str:
    worst = percent(best[0].result.last(best[1], weight="devices", statistic="worst-decile"))
    text = f"For the devices {best[0].label} won: {_its(best[1])} {percent(_last(best))} of their test samples right"
    text += f" ({worst} for the worst tenth of devices)"
    if best != mine:
        reach = "reaches" if mine[1] == "GM" else "reach"
        text += f"; {mine[0].label}'s {models(mine[1])} {reach} {percent(_last(mine))}, {_gap(mine, best)} that"
    if flat is not None and flat != best and flat != mine:
        text += f"{', and' if best != mine else ','} {_gap(mine, flat)} the best method without teams, {flat[0].label}"
    return text + "."


def _at_what_cost(hero: Method, best: Entry, flat: Entry | None, everybody: Entry | None) -> str:
    text = f"On the dear upper link, to the server, {_cost(hero, 'moved')}"
    if best[0] is not hero:
        text += f" and {_cost(best[0])}"
    if flat is not None and flat[0] not in (hero, best[0]):
        text += f", against {size(link_bytes(flat[0].result)[1])} for {flat[0].label}"
    if everybody is None:
        return text + "."
    text += f"; for one model that serves everybody {everybody[0].label} is best: {percent(_last(everybody))}"
    if everybody[0] is hero:
        return text + "."
    text += f" for {size(link_bytes(everybody[0].result)[1])}"
    return text + (f", {hero.label} {percent(hero.result.last('GM'))}." if "GM" in hero.kinds else ".")


def _cost(method: Method, verb: str = "") -> str:
    return f"{method.label} {f'{verb} ' if verb else ''}{size(link_bytes(method.result)[1])}"


def _its(kind: ModelKind) -> str:
    """Say whose models get something right."""
    who = "its devices'" if kind == "PM" else "its"
    return f"{who} {models(kind)} {'gets' if kind == 'GM' else 'get'}"


def _last(entry: Entry) -> float:
    return entry[0].result.last(entry[1])


def _gap(one: Entry, other: Entry) -> str:
    """Say how far one is above or below another, and whether that could be luck."""
    gap = _last(one) - _last(other)
    if gap == 0:
        return "level with"
    devices = [by_node(method.result, kind, 0) for method, kind in (one, other)]
    luck = "" if clearly_differ(devices[0], devices[1]) else " (which could be luck)"
    return f"{points(gap)}{luck} {'above' if gap > 0 else 'below'}"
