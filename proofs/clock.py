"""Accuracy against simulated time and bytes to the server: six methods at the edge, stragglers, and asynchronous averaging.

Run by hand: ``make prove-clock`` (``python proofs/clock.py FOLDER choose`` tries the settings that are chosen here). Tables go
into ``docs/how-to/reliability.md``, figures beside it. Nothing can fail: who is ahead is what it is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from linked import IMAGES, PAGE, SEEDS, TREE, Method, config_of, drawn, mean, number, told, train
from pages import table, write

from palmette.errors import Diverged
from palmette.figures.costs import Cost, cost_of
from palmette.figures.lines import Choice, Line
from palmette.report import words
from palmette.runs import Result
from palmette.studies.demo import CASES
from palmette.tree import Tree

STEPS, LOCAL = (
    1200,
    10,
)  # gradient steps of every device, three times as many as in the demo; of them between two exchanges
CHOOSING = (100, 101, 102)  # seeds that settings are chosen with
DEADLINES = (0.25, 0.14)
SPREAD = "lognormal 1 1"  # speeds of stragglers: of 40 devices the slowest is about ten times as slow as the median


@dataclass(frozen=True)
class Place:
    """A population of the demo and what is asked of it.

    Attributes:
        key: Its name there.
        about: Who the devices are.
        kind: The models that matter on it.
        targets: Two accuracies; the figures mark the second.
        methods: The methods, all with about as many steps.
    """

    key: str
    about: str
    kind: str
    targets: tuple[float, float]
    methods: tuple[Method, ...]

    @property
    def data(self) -> dict[str, Any]:
        """The samples, as a config writes them."""
        return dict(next(case.data for case in CASES if case.key == self.key))

    def method(self, name: str) -> Method:
        """Return a method."""
        return next(one for one in self.methods if one.algorithm == name)


def place_of(key: str, about: str, kind: str, targets: tuple[float, float], buffer: int) -> Place:
    """Make a population: PerMFL, hierarchical FedAvg and FedAvg at the demo's settings, the others at what was chosen."""
    chosen = next(case.chosen for case in CASES if case.key == key)
    permfl, teams = chosen["permfl"], chosen["hierfavg"]["team_steps"]
    tuned = {"tune_steps": chosen["hierfavg-tuned"]["tune_steps"], "alpha": 0.3}
    return Place(
        key,
        about,
        kind,
        targets,
        (
            _method("permfl", **permfl),
            _method("hierfavg", **tuned, team_steps=teams),
            _method("mtgc", **tuned, team_steps=teams),
            Method("l2gd", {"lam": 0.1, "gamma": 0.003, "eta": 0.1}, STEPS // 100),
            _method("fedavg", **chosen["fedavg-tuned"]),
            _fedbuff(teams, buffer, 2, tuned),
        ),
    )


def _method(name: str, **settings: Any) -> Method:
    return Method(name, {"local_steps": LOCAL, **settings}, STEPS // (LOCAL * settings.get("team_steps", 1)))


def _fedbuff(teams: int, buffer: int, team_buffer: int, settings: Mapping[str, Any]) -> Method:
    """Return FedBuff with as many rounds as make as many steps: a move takes ``buffer`` of 10 devices and some of 4 teams."""
    own = {**settings, "team_steps": teams, "buffer": buffer, "team_buffer": team_buffer}
    one = _method("fedbuff", **own)
    return replace(one, rounds=round(one.rounds * 10 / buffer * 4 / team_buffer))


PLACES = (
    place_of("alike", "all alike", "GM", (0.90, 0.95), buffer=3),
    place_of("apart", "rotated, teams apart", "PM", (0.85, 0.90), buffer=5),
)


def runs_of(base: Path, name: str, method: Method, data: Mapping[str, Any], **more: Any) -> list[Result]:
    """Run a method with every seed, measured after every round."""
    seeds = more.pop("seeds", SEEDS)
    return [
        train(base / name / f"{method.algorithm}-{seed}", config_of(method, seed, data=data, evaluate_every=1, **more))
        for seed in seeds
    ]


def cost(results: Sequence[Result], kind: str, target: float) -> Cost:
    """Return what some runs cost, as a figure counts it."""
    line = Line("", {result.config.seed: result for result in results})
    return cost_of(line, kind, Choice("accuracy", target=target))


def reached(results: Sequence[Result], kind: str, target: float) -> tuple[str, str]:
    """Return the seconds and the bytes to the server until an accuracy."""
    found = cost(results, kind, target)
    if found.reached is None:
        return "never", "-"
    return f"{found.seconds[found.reached]:.1f} s", words.size(round(float(found.upper[found.reached])))


# -- six methods at the edge -------------------------------------------------------------------------------------------


def edge(base: Path, place: Place) -> list[str]:
    """Run six methods on a population with the preset ``edge``, draw them, and return a table."""
    found = {
        method.algorithm: runs_of(base, place.key, method, place.data, clock={"preset": "edge"})
        for method in place.methods
    }
    lines = list(found.items())
    for kind in ("time", "traffic"):
        choice = {"models": (place.kind,), "target": place.targets[1], "width": "page"}
        drawn(lines, kind, IMAGES / f"{kind}-{place.key}.png", **choice)
    rows = []
    for name, results in lines:
        last = cost(results, place.kind, 2.0)
        lower = float(last.links[min(last.links)][-1]) if len(last.links) > 1 else 0
        cells = [cell for target in place.targets for cell in reached(results, place.kind, target)]
        end = [number(mean(results, place.kind)), f"{last.seconds[-1]:.0f} s", words.size(round(float(last.upper[-1])))]
        rows.append([f"`{name}`", *cells, *end, words.size(round(lower)) if lower else "-"])
        print(" | ".join(rows[-1]), flush=True)
    low, high = map(number, place.targets)
    heads = [f"*{place.about}*, {place.kind}", f"until {low}", "to server", f"until {high}", "to server"]
    heads += ["at the end", "time", "to server", "to teams"]
    return table(heads, rows)


# -- stragglers --------------------------------------------------------------------------------------------------------


def stragglers(base: Path) -> list[str]:
    """Hold waiting for slow devices, going on without them and asynchronous averaging against each other."""
    rows: list[list[str]] = []
    for speeds, whose in ((SPREAD, "a device's own"), (f"{SPREAD} each", "drawn anew each time")):
        for way in ("wait", *(f"deadline {one} s" for one in DEADLINES), "fedbuff"):
            cells = []
            for place in PLACES:
                results, share, never = _way(base, place, way, speeds)
                seconds = np.mean([result.times[result.config.rounds] for result in results])
                value = number(mean(results, place.kind))
                cells += [value, reached(results, place.kind, place.targets[1])[0], f"{seconds:.0f} s"]
            left = f"{100 * share:.0f} %" if share else "none"
            label = "hierfavg, waits" if way == "wait" else f"hierfavg, {way}" if "deadline" in way else way
            rows.append([label, whose, left, f"{never:.0f}", *cells])
            print(" | ".join(rows[-1]), flush=True)
    ways = {"waits": "wait", "0.25 s": f"deadline {DEADLINES[0]} s", "0.14 s": f"deadline {DEADLINES[1]} s"}
    apart = PLACES[1]
    lines = [(f"hierfavg, {name}", _way(base, apart, way, SPREAD)[0]) for name, way in ways.items()]
    lines.append(("fedbuff", _way(base, apart, "fedbuff", SPREAD)[0]))
    choice = {"models": (apart.kind,), "target": apart.targets[1], "width": "page"}
    drawn(lines, "time", IMAGES / "stragglers.png", **choice)
    heads = ["", "speeds", "replies left out", "never heard"]
    for place in PLACES:
        heads += [f"*{place.about}*: {place.kind}", f"until {number(place.targets[1])}", "to the end"]
    return table(heads, rows)


def _way(base: Path, place: Place, way: str, speeds: str) -> tuple[list[Result], float, float]:
    """Return the runs of one way to treat stragglers, the share of replies left out, and the devices never heard."""
    method = place.method("fedbuff" if way == "fedbuff" else "hierfavg")
    links = {"devices": {"deadline": float(way.split()[1])}} if "deadline" in way else {}
    name = f"{place.key}-{way}-{speeds}".replace(" ", "-")
    results = runs_of(base, name, method, place.data, links=links, clock={"preset": "edge", "speeds": speeds})
    asks = method.rounds * int(method.settings["team_steps"])
    absent = [Counter(result.absences["node"].to_pylist()) for result in results]
    share = float(np.mean([one.total() for one in absent])) / (asks * Tree.parse(TREE).devices)
    return results, share, float(np.mean([sum(count >= asks for count in one.values()) for one in absent]))


# -- choosing ----------------------------------------------------------------------------------------------------------


def choose(base: Path) -> None:
    """Print how good settings of l2gd and of FedBuff's buffers are, on validation samples of other seeds."""
    for place in PLACES:
        teams = place.method("hierfavg").settings
        tuned = {key: teams[key] for key in ("alpha", "tune_steps")}
        tried = [
            Method("l2gd", {"lam": lam, "gamma": 0.03 * lam, "eta": eta}, STEPS // 100)
            for lam in (0.01, 0.1)
            for eta in ("auto", 0.1, 0.2, 0.3)
        ]
        tried += [
            _fedbuff(teams["team_steps"], one, other, {**tuned, "server_lr": rate})
            for rate in (1.0, 0.5)
            for one in (3, 5)
            for other in (1, 2)
        ]
        for at, method in enumerate(tried):
            data = {**place.data, "validation": 0.25}
            try:
                found = runs_of(
                    base / "choose", f"{place.key}-{at}", method, data, clock={"preset": "edge"}, seeds=CHOOSING
                )
            except Diverged:
                print(place.key, told(method), "diverged", flush=True)
                continue
            print(place.key, told(method), f"{mean(found, place.kind):.4f}", flush=True)


def main(base: Path) -> int:
    """Run, print and write."""
    lines = [
        f"Mean of {len(SEEDS)} seeds; a target is reached after the first round whose mean over the seeds is that good. Bytes "
        "are both ways together.",
        "",
    ]
    for place in PLACES:
        lines += [*edge(base, place), ""]
        names = [f"`{method.algorithm}`" for method in place.methods]
        lines += [
            f"![{place.kind} of {len(names)} methods over time, {place.about}](../images/time-{place.key}.png)",
            "",
            f"![The same over bytes to the server](../images/traffic-{place.key}.png)",
            "",
            f"Settings on *{place.about}*: {'; '.join(map(told, place.methods))}.",
            "",
        ]
    lines += [
        f"**Stragglers.** Speeds `{SPREAD}`, so that the slowest of 40 devices takes about ten times as long as the median "
        "one. `hierfavg` waits for all, or goes on after a deadline on the devices' link; `fedbuff` never waits for the slow.",
        "",
        *stragglers(base),
        "",
        "![PM over time with stragglers, teams apart](../images/stragglers.png)",
    ]
    write(PAGE, "time", "clock", lines)
    return 0


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.exit(choose(folder) if sys.argv[2:] == ["choose"] else main(folder))
