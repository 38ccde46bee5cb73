"""Two-level heterogeneity and found teams, measured: do the two knobs act apart, and are the true teams found?

Run by hand: ``make prove-heterogeneity``. Prints the tables of docs/reference/datasets.md and, with the name of a file,
draws the labels of every device for four settings of the two knobs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import palmette as pm
from palmette.population import find_teams
from palmette.population.description import describe
from palmette.population.signatures import KINDS
from palmette.report.picture import save

SEEDS = range(5)
KNOBS = ("alike", 10.0, 1.0, 0.3, 0.1)


def two_level(between: Any, within: Any, seed: int = 0) -> pm.Population:
    """Deal MNIST out to 8 teams of 10 devices."""
    return pm.make_population(
        "mnist", tree="8x10", partition="two-level", between_teams=between, within_teams=within, seed=seed
    )


def knobs() -> None:
    """Print the label distances for every setting of the two knobs."""
    print("| between_teams \\ within_teams | " + " | ".join(map(str, KNOBS)) + " |")
    print("|---|" + "---|" * len(KNOBS))
    for between in KNOBS:
        cells = []
        for within in KNOBS:
            apart = describe(two_level(between, within)).apart
            cells.append(f"{apart['labels of teams'].mean:.2f} / {apart['labels of devices'].mean:.2f}")
        print(f"| {between} | " + " | ".join(cells) + " |")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "digits turned by team, labels alike": ("digits", {"shift": "rotate", "partition": "iid"}),
    "digits turned by team, dirichlet 1": ("digits", {"shift": "rotate"}),
    "digits turned by team, dirichlet 0.3": ("digits", {"shift": "rotate", "alpha": 0.3, "within": "team"}),
    "digits turned by team, 2 labels each": ("digits", {"shift": "rotate", "partition": "labels"}),
    "digits, no label in common": ("digits", {"partition": "labels", "teams": "worst"}),
    "digits, two-level 0.3 / 1": ("digits", {"partition": "two-level", "between_teams": 0.3, "within_teams": 1.0}),
    "MNIST turned by team, 2 labels each": ("mnist", {"shift": "rotate", "partition": "few", "samples": 200}),
    "MNIST turned by team, 5 labels each": (
        "mnist", {"shift": "rotate", "partition": "few", "samples": 200, "classes_per_device": 5},
    ),
}  # fmt: skip


def finding() -> None:
    """Print how well found teams agree with the true ones."""
    print("\n| 4 teams of 10 devices | " + " | ".join(KINDS) + " |")
    print("|---|" + "---|" * len(KINDS))
    for title, (name, options) in CASES.items():
        cells = []
        for by in KINDS:
            found = [
                find_teams(pm.make_population(name, tree="4x10", seed=seed, **options), by=by, seed=seed).found
                for seed in SEEDS
            ]
            values = [one.agreement for one in found if one is not None and one.agreement is not None]
            cells.append(f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


def training() -> None:
    """Print what PerMFL reaches with given and found teams on turned digits."""
    print("\n| PerMFL, digits turned by team | PM | TM |")
    print("|---|---|---|")
    ways = {"given teams": {}} | {f"found by {by}": {"teams": "found", "found_by": by} for by in KINDS}
    for title, options in ways.items():
        scores: dict[str, list[float]] = {"PM": [], "TM": []}
        for seed in SEEDS:
            people = pm.make_population("digits", tree="4x10", shift="rotate", seed=seed, **options)
            simulation = pm.Simulation(
                pm.PerMFL(), people, pm.make_task("mclr", people.shape, 10), rounds=10, seed=seed
            )
            for _ in range(10):
                simulation.step()
            for kind, one in pm.evaluate(simulation).items():
                if kind in scores:
                    scores[kind].append(one.by_samples("accuracy"))
        print(
            f"| {title} | " + " | ".join(f"{100 * np.mean(values):.1f} %" for values in scores.values()) + " |",
            flush=True,
        )


def draw(path: Path) -> None:
    """Draw the labels of every device for four settings of the two knobs."""
    figure = Figure(figsize=(9, 3.1), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4, sharey=True)
    for axes, (between, within) in zip(
        panels, [("alike", "alike"), (0.3, "alike"), ("alike", 0.3), (0.3, 0.3)], strict=True
    ):
        made = pm.make_population(
            "mnist", tree="4x10", partition="two-level", between_teams=between, within_teams=within, seed=1
        )
        about = describe(made)
        axes.imshow(about.device_shares, aspect="auto", cmap="Blues", vmin=0, vmax=0.8, interpolation="nearest")
        axes.hlines([9.5, 19.5, 29.5], -0.5, 9.5, color="#D55E00", linewidth=0.9)
        axes.set_title(f"between_teams = {between}\nwithin_teams = {within}", fontsize=9)
        axes.set_xticks(range(10))
        axes.set_yticks([4.5, 14.5, 24.5, 34.5], [f"team {team}" for team in range(4)])
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("label", fontsize=8.5)
        for side in axes.spines.values():
            side.set_visible(False)
    save(figure, path)


def main() -> int:
    """Print all tables."""
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]))
    knobs()
    finding()
    training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
