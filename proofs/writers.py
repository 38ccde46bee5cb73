"""PerMFL on MNIST by writer beside FedAvg and HierFAVG with fine-tuning and local training: own writers and unseen ones.

Run by hand: ``make prove-writers``; it writes its table into docs/reference/datasets.md. Every method gives each of the 539
writers the same number of gradient steps, fine-tuning counted, and gets six tries: on validation samples of 60 writers of
seed 0 (30 a team) the best settings for a device's own model (PM) are chosen, and three seeds are trained with them on all
writers. Unseen writers take no part in training; their models are made from the team's model (PerMFL, HierFAVG) or the
global one (FedAvg) in the same way as everybody's, on their own training samples, and local training has nothing to give
them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pages import DOCS, write

import palmette as pm
from palmette.population import Population
from palmette.population.validation import for_choosing
from palmette.report.numbers import by_node
from palmette.values import Array

PAGE = DOCS / "reference/datasets.md"
STEPS, SEEDS = 400, (0, 1, 2)  # gradient steps on each writer
MANY = 35  # training samples; most unseen writers have far fewer, and few of the others

# Settings with the rounds that come to the steps: those of a round, and of fine-tuning where the method has it.
ALPHAS = (0.01, 0.02, 0.04)
FINE = [{"alpha": alpha, "tune_steps": tune} for alpha in ALPHAS for tune in (80, 160)]
TRIES: dict[str, list[dict[str, Any]]] = {
    "local": [{"alpha": alpha} for alpha in (0.005, 0.01, 0.02, 0.03, 0.04, 0.06)],
    "fedavg": FINE,
    "hierfavg": [{**one, "team_steps": 2} for one in FINE],
    "permfl": [{"alpha": alpha, "local_steps": steps, "team_steps": 2} for alpha in ALPHAS for steps in (50, 100)],
}


def rounds_of(settings: Mapping[str, Any]) -> int:
    """Return the rounds that give a writer its steps exactly."""
    each = settings.get("local_steps", 20) * settings.get("team_steps", 1)
    rounds, rest = divmod(STEPS - settings.get("tune_steps", 0), each)
    assert rest == 0, settings
    return int(rounds)


def groups(population: Population) -> dict[str, Array]:
    """Return the writers that are told of together (bool): own ones, unseen ones with many training samples, and with few."""
    assert population.unseen is not None
    new, many = population.unseen.numpy(), population.train.numpy() >= MANY
    return {"own": ~new, "many": new & many, "few": new & ~many}


def scores(name: str, settings: Mapping[str, Any], population: Population, seed: int, out: Path) -> dict[str, float]:
    """Train once, or read a run that is there, and return the last accuracy of every kind of model on every group."""
    result = pm.run(
        name,
        population,
        "mclr",
        rounds=rounds_of(settings),
        seed=seed,
        settings={"batch_size": 20, **settings},
        evaluate_every=1_000_000,
        out=out,
        exist="resume",
        progress=False,
    )
    weights = (population.start.diff() - population.train).numpy()  # test samples
    found = {}
    for kind in result.kinds:
        told = by_node(result, kind, 0, "accuracy")
        values = np.array([told[node] for node in population.tree.labels[0] or ()])
        for group, who in groups(population).items():
            found[f"{kind} {group}"] = float(np.average(values[who], weights=weights[who]))
    return found


def chosen(name: str, population: Population, out: Path) -> dict[str, Any]:
    """Return the settings with the best own models on validation samples."""
    tried = []
    for number, one in enumerate(TRIES[name]):
        tried.append((scores(name, one, population, 0, out / f"{name}-try-{number}")["PM own"], one))
        print(f"{name} {one}: {100 * tried[-1][0]:.1f}", flush=True)
    return max(tried, key=lambda pair: pair[0])[1]


def table(
    found: Mapping[str, Sequence[Mapping[str, float]]],
    settings: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, int],
) -> list[str]:
    """Write what came out, in percent, with the standard deviation over seeds of the devices' own models."""
    titles = [
        "method",
        "settings",
        "rounds",
        f"{sizes['own']} own writers",
        f"{sizes['many']} unseen writers with {MANY} training samples or more",
        f"{sizes['few']} unseen writers with fewer",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, runs in found.items():
        told = ", ".join(f"`{key}` {value}" for key, value in settings[name].items())
        cells = [f"`{name}`", told, str(rounds_of(settings[name]))]
        for group in sizes:
            if name == "local" and group != "own":
                cells.append("-")
                continue
            kinds = [kind for kind in ("PM", "TM", "GM") if f"{kind} {group}" in runs[0]]
            values = {kind: [100 * run[f"{kind} {group}"] for run in runs] for kind in kinds}
            means = [f"{kind} {statistics.mean(values[kind]):.1f}" for kind in kinds]
            means[0] = f"**{means[0]}** ± {statistics.stdev(values['PM']):.1f}"
            cells.append(", ".join(means))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(folder: Path) -> None:
    """Choose settings, train, and write the table."""
    began = time.process_time()
    some = for_choosing(pm.make_population("mnist-writers", per_team=30, seed=0), 0.25)
    settings = {name: chosen(name, some, folder) for name in TRIES}
    finish(folder, settings)
    print(f"{(time.process_time() - began) / 60:.1f} minutes of processor time")


def finish(folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Train on all writers with chosen settings, and write the table."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in TRIES}
    for seed in SEEDS:
        population = pm.make_population("mnist-writers", seed=seed)
        for name, one in settings.items():
            found[name].append(scores(name, one, population, seed, folder / f"{name}-{seed}"))
            print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
    sizes = {group: int(who.sum()) for group, who in groups(population).items()}
    write(PAGE, "writers", "writers", table(found, settings, sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
