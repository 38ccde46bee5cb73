"""A storm on every link: what it costs, that its record replays to the same bits, and that separate nodes weather it alike.

Run by hand: ``make prove-storm``. 20 % of the replies are lost, 5 % late, 1 % damaged, on both links, and two of four teams
are away for a third of the rounds. Results go into ``docs/how-to/reliability.md``. Fails where PerMFL's personal models end
more than .02 below those of a clean run, or where a replay or a separate node differs in a bit.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from linked import IMAGES, KINDS, METHODS, PAGE, SEEDS, Method, config_of, drawn, mean, number, told, train
from pages import table, write

from palmette.algorithms import ALGORITHMS
from palmette.engines.separate import Separate, ordered
from palmette.runs import Result, prepare
from palmette.testing.compared import same_as_separate
from palmette.tree import Tree

FAULTS = {"lost": 0.2, "late": 0.05, "corrupt": 0.01}
AWAY = ((1, 3, 8), (2, 7, 12))  # team, and from which to which of 15 parts of the rounds it is away: a third of them
PARTS = 15
BOUND = 0.02
MODELS = ("devices.safetensors", "teams.safetensors", "global.safetensors")


def storm(method: Method, tree: Tree) -> dict[str, Any]:
    """Return the links of a storm; of a method without teams, the devices of a team that is away are."""
    flat = ALGORITHMS[method.algorithm].flat
    away: list[list[str | int]] = []
    for team, begin, end in AWAY:
        nodes = [tree.name(0, at) for at in tree.children(1, team)] if flat else [tree.name(1, team)]
        first, last = (max(1, method.rounds) * part // PARTS + 1 for part in (begin, end))
        away += [[node, first, max(first + 1, last)] for node in nodes]
    return {"all": FAULTS, "devices" if flat else "teams": {"away": away}}


def weathered(method: Method, seed: int, base: Path, **more: Any) -> tuple[Result, Result, Result]:
    """Run a method without faults, in the storm, and by the storm's record."""
    clean = config_of(method, seed, **more)
    links = storm(method, clean.make_tree())
    folder = base / f"{method.algorithm}-{seed}"
    stormy = train(folder / "storm", config_of(method, seed, links=links, **more))
    again = train(folder / "replay", config_of(method, seed, replay=str(stormy.folder), **more))
    return train(folder / "clean", clean), stormy, again


def same_models(one: Result, other: Result) -> bool:
    """Whether two runs ended with the same models, bit for bit."""
    files = [name for name in MODELS if (one.folder / name).exists()]
    return bool(files) and all((one.folder / name).read_bytes() == (other.folder / name).read_bytes() for name in files)


def apart(method: Method, seed: int = 0, **more: Any) -> int:
    """Run a method in the storm on separate nodes and in the simulator, refuse any difference; return how many were absent."""
    plain = config_of(method, seed, **more)
    config = config_of(method, seed, engine={"chunk": 1}, links=storm(method, plain.make_tree()), **more)
    stacked, federation = prepare(config), prepare(config)
    for _ in range(method.rounds):
        stacked.step()
    with Separate(federation) as machines:
        for _ in range(method.rounds):
            machines.step()
    machines.settle()
    same_as_separate(machines.machines, stacked)
    if not torch.equal(machines.record, ordered(stacked.record.table())):
        raise SystemExit(f"{method.algorithm}: separate nodes wrote down other absences")
    return len(machines.record)


def row(method: Method, runs: Sequence[tuple[Result, Result, Result]], absent: int) -> list[str]:
    """Return a line of the table."""
    clean, stormy, again = (list(some) for some in zip(*runs, strict=True))
    pairs = [f"{number(mean(clean, kind))} → {number(mean(stormy, kind))}" for kind in KINDS]
    pairs = ["-" if pair.startswith("-") else pair for pair in pairs]
    wasted = sum(run.timings["wasted_steps"] for run in stormy) / sum(run.timings["device_steps"] for run in stormy)
    replayed = sum(same_models(*pair) for pair in zip(stormy, again, strict=True))
    same = f"{replayed} of {len(stormy)}"
    return [f"`{method.algorithm}`", *pairs, f"{100 * wasted:.0f} %", same, f"same bits, {absent:,} absences"]


def missing(runs: Sequence[tuple[Result, Result, Result]]) -> str:
    """Say what was missing in the storms of one method, link by link."""
    told = []
    for place, name in enumerate(("team - devices", "server - teams")):
        reasons: Counter[str] = Counter()
        for _, stormy, _ in runs:
            reasons.update(stormy.links[place]["missing"])
        why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        told.append(f"on the link {name} {why}")
    return "; ".join(told)


def main(base: Path) -> int:
    """Run, print and write."""
    rows, found = [], {}
    for method in METHODS:
        runs = found[method.algorithm] = [weathered(method, seed, base) for seed in SEEDS]
        rows.append(row(method, runs, apart(replace(method, rounds=2))))
        print(" | ".join(rows[-1]), flush=True)
    permfl = found["permfl"]
    clean, stormy, _ = (list(some) for some in zip(*permfl, strict=True))
    gap = mean(stormy, "PM") - mean(clean, "PM")
    heads = ["", "PM", "TM", "GM", "steps in vain", "replay: same models", "two rounds on separate nodes"]
    lines = [
        f"Rotated digits, tree 4x10, `mclr`, mean of {len(SEEDS)} seeds, test accuracy without faults → in the storm.",
        "",
        *table(heads, rows),
        "",
        f"PerMFL's personal models end {abs(gap):.4f} {'below' if gap < 0 else 'above'} those of clean runs; the bound is "
        f"{BOUND}. Missing in its {len(SEEDS)} storms: {missing(permfl)}.",
        "",
        f"Settings: {'; '.join(map(told, METHODS))}. All take about 6,000 gradient steps on each device. Of a method without "
        "teams, which has one link only, the devices of the two teams are away in place of the teams.",
        "",
        "![PerMFL without faults and in the storm](../images/storm.png)",
    ]
    named = [("without faults", clean), ("in the storm", stormy)]
    drawn(named, "convergence", IMAGES / "storm.png", models=("PM", "GM"), width="page")
    write(PAGE, "a storm", "storm", lines)
    same = all(same_models(stormy, again) for runs in found.values() for _, stormy, again in runs)
    print(f"PM {gap:+.4f}; replays {'the same' if same else 'DIFFER'}")
    return 0 if gap >= -BOUND and same else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
