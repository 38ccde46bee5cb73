"""How the demo's settings were chosen, and how its methods compare on many seeds.

Run by hand: ``python proofs/demo.py choose`` tries a small grid for every method on every population of the demo, on three
seeds that the demo does not show. Digits all come from one pool, so test samples are never looked at: a method trains on
three quarters of each device's training samples and is measured on the last quarter. Generated data is another world for
every seed, so there its own test samples, of which there are more, decide. ``python proofs/demo.py compare FOLDER`` runs
the demo's methods with the settings that are in `palmette.studies.demo` on ten more seeds and prints mean and spread, and
on how many seeds the best was ahead. ``python proofs/demo.py teams FOLDER`` runs PerMFL on those ten seeds with warm and with
restarting teams, each with its own best settings of the grid and with those of the other. Names of populations at the end
limit it to those.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.engines.simulate import Simulation
from palmette.population import Population
from palmette.protocol import model_kind
from palmette.studies.conduct import conduct
from palmette.studies.demo import CASES, CONTESTANTS, SEEDS, STEPS, Case, Contestant, comparisons, config_of, demo_plan
from palmette.studies.plan import Arm, Plan

CHOOSE_ON = (100, 101, 102)
COMPARE_ON = tuple(range(200, 210))
ALPHAS = {"digits": (0.1, 0.3), "crowd": (0.3, 1.0)}  # up to the largest stable step
PULLS = (0.01, 0.03, 0.1)  # lam; gamma is 0.03 lam
TEAM_STEPS = (4, 20)
# Fine-tuning steps, with numbers of team steps that leave whole rounds.
TUNING = {10: (3, 13), 40: (6, 18), 200: (5, 10)}


def grid(case: Case, contestant: Contestant) -> Iterator[dict[str, Any]]:
    """Give the settings tried for a method; all methods share the step sizes."""
    tiers = contestant.key.startswith("hierfavg")
    for alpha in ALPHAS[case.data["name"]]:
        if contestant.key == "permfl":
            for steps, lam, teams in itertools.product(TEAM_STEPS, PULLS, ("warm", "restart")):
                yield {"alpha": alpha, "team_steps": steps, "lam": lam, "gamma": round(0.03 * lam, 6), "teams": teams}
        elif contestant.tuned:
            for tune, several in TUNING.items():
                for steps in several if tiers else (None,):
                    yield {"alpha": alpha, "tune_steps": tune, **({"team_steps": steps} if steps else {})}
        elif tiers:
            for steps in TEAM_STEPS:
                yield {"alpha": alpha, "team_steps": steps}
        else:
            yield {"alpha": alpha}


def accuracy(case: Case, contestant: Contestant, seed: int, settings: dict[str, Any], population: Population) -> float:
    """Train and return the main model's accuracy on the samples that decide."""
    generated = case.data["name"] == "crowd"
    config = config_of(case, contestant, settings).model_copy(update={"seed": seed})
    method, task = config.method(), config.task(population)
    held_out = 0.0 if generated else 0.25
    simulation = Simulation(method, population, task, rounds=config.rounds, seed=config.seed, held_out=held_out)
    for _ in range(config.rounds):
        simulation.step()
    tree, everybody = simulation.tree, torch.arange(population.devices)
    kinds = ["PM", *(model_kind(tier, tree.top) for tier in range(1, tree.tiers))]
    tier = kinds.index(contestant.main)
    if tier == 0:
        rows, owner = simulation.device_models(everybody), everybody
    else:
        rows = simulation.models_of(tier, torch.arange(tree.size(tier)))
        owner = torch.from_numpy(tree.ancestors(tier))
    sums = simulation.learner.scorer.sums(rows, owner, everybody, "test" if generated else "held-out")
    return float(sums["accuracy"].sum() / sums["count"].sum())


def populations_of(case: Case) -> dict[int, Population]:
    """Return the populations on which settings are chosen, by seed."""
    base = config_of(case, CONTESTANTS[0])
    return {seed: base.model_copy(update={"seed": seed}).population() for seed in CHOOSE_ON}


def best_of(
    case: Case, contestant: Contestant, tried: Sequence[dict[str, Any]], populations: dict[int, Population]
) -> tuple[dict[str, Any], float]:
    """Return the settings with the best accuracy, and it."""
    found = [
        float(np.mean([accuracy(case, contestant, seed, one, populations[seed]) for seed in CHOOSE_ON]))
        for one in tried
    ]
    return tried[int(np.argmax(found))], max(found)


def choose(cases: Sequence[Case]) -> None:
    """Print the settings with the best accuracy for every method, population by population."""
    for case in cases:
        populations = populations_of(case)
        print(case.key, flush=True)
        for contestant in CONTESTANTS:
            tried = list(grid(case, contestant))
            best, score = best_of(case, contestant, tried, populations)
            print(f'  "{contestant.key}": {best},  # {score:.3f} of {len(tried)}', flush=True)


def teams(folder: Path, cases: Sequence[Case]) -> None:
    """Print how PerMFL fares with warm and with restarting teams, each with the best settings of both."""
    hero = next(one for one in CONTESTANTS if one.key == "permfl")
    for case in cases:
        populations = populations_of(case)
        arms = []
        for chosen_for in ("warm", "restart"):
            tried = [one for one in grid(case, hero) if one["teams"] == chosen_for]
            best, _ = best_of(case, hero, tried, populations)
            print(f"{case.key}: best for {chosen_for}: {best}", flush=True)
            for how in ("warm", "restart"):
                config = config_of(case, hero, {**best, "teams": how})
                arms.append(Arm(f"{case.key}/{how}, settings chosen for {chosen_for}", config))
        found: dict[str, list[tuple[float, ...]]] = {}
        plan = Plan("demo", tuple(arms), COMPARE_ON, "python proofs/demo.py teams", STEPS)
        for arm, _, result in conduct(plan, folder / case.key).results():
            found.setdefault(arm.name, []).append(tuple(result.last(kind) for kind in ("PM", "TM", "GM")))
        for name, scores in found.items():
            means, spreads = np.mean(scores, 0), np.std(scores, 0, ddof=1)
            told = "  ".join(
                f"{kind} {mean:.3f} +- {spread:.3f}"
                for kind, mean, spread in zip(("PM", "TM", "GM"), means, spreads, strict=True)
            )
            print(f"  {name}: {told}", flush=True)


def compare(folder: Path, cases: Sequence[Case]) -> None:
    """Print how the methods compare on seeds that were neither shown nor chosen on."""
    assert not set(COMPARE_ON) & {*CHOOSE_ON, *SEEDS}
    for case in cases:
        (found,) = comparisons(conduct(demo_plan([case], seeds=COMPARE_ON), folder / case.key))
        print(case.key, flush=True)
        for entry in found.entries:
            ahead = sum(a > b for a, b in zip(found.best.values, entry.values, strict=True))
            told = "*" if entry in found.level else f"behind the best on {ahead} of {len(COMPARE_ON)}"
            print(f"  {entry.name:34} {entry.kind} {entry.mean:.3f} +- {entry.spread:.3f}  {told}", flush=True)


def named(words: Sequence[str]) -> Sequence[Case]:
    """Return the populations of these names, all where none is named."""
    return [case for case in CASES if case.key in words or not words]


if __name__ == "__main__":
    if sys.argv[1:2] == ["choose"]:
        choose(named(sys.argv[2:]))
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) > 2:
        compare(Path(sys.argv[2]), named(sys.argv[3:]))
    elif sys.argv[1:2] == ["teams"] and len(sys.argv) > 2:
        teams(Path(sys.argv[2]), named(sys.argv[3:]))
    else:
        sys.exit("usage: demo.py choose [POPULATION ...] | demo.py compare|teams FOLDER [POPULATION ...]")
