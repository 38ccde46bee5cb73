"""Table 1 and Figure 1 of Async-L2GD: four estimators on the hierarchical linear model.

20 clusters of 20 clients, 20 dimensions, all variances 1. "ours" of the paper is the single-coin algorithm after 50,000
iterations; here it is the exact solution that the algorithm seeks, and `coin` runs the algorithm itself. The distances are
not squared, as the paper's numbers are not, whatever its caption says; the pull of the single-cluster estimator is chosen
by cross-validation, as its text says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.population import Population
from palmette.report import style
from palmette.report.picture import save
from palmette.task import make_task
from palmette.theory import hlm
from palmette.tree import Tree

ESTIMATORS: dict[str, Callable[[hlm.Sample], hlm.Floats]] = {
    "local": hlm.local,
    "single model": hlm.single_model,
    "single cluster": lambda sample: hlm.single_cluster(sample, hlm.choose_pull(sample)),
    "exact": lambda sample: hlm.exact(sample)[0],
}
PAPER: dict[tuple[int, str], tuple[float, float, float]] = {
    (10, "local"): (4.50, 0.981, 8.224),
    (10, "single model"): (6.11, 0.968, 9.025),
    (10, "single cluster"): (4.46, 0.958, 8.112),
    (10, "exact"): (3.46, 0.689, 8.676),
    (100, "local"): (0.494, 0.093, 0.768),
    (100, "single model"): (6.243, 1.003, 9.479),
    (100, "single cluster"): (0.494, 0.093, 0.763),
    (100, "exact"): (0.489, 0.093, 0.748),
}
"""Mean, standard deviation and largest distance over clients, as printed in Table 1."""

MEASURES = ("mean", "sd", "max")
FIGURE = (1, 5, 10, 25, 50, 100, 200)
COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.BLACK)
NOTES = (
    "distances are not squared, although the paper's caption writes squared norms",
    "the paper's 'ours' is 50,000 iterations of the single-coin algorithm; 'exact' is the minimiser it seeks",
    "the paper's largest distance of 'ours' at m = 10, 8.676, is above that of local training and is not reproduced",
)


def measure(samples: Sequence[int], seeds: int = 5) -> list[dict[str, Any]]:
    """Return one row per number of samples and estimator: mean, sd and max over clients, averaged over seeds.

    Args:
        samples: Numbers of samples per client (m).
        seeds: Independent draws.
    """
    rows = []
    for m in samples:
        drawn = [hlm.draw(samples=m, seed=seed) for seed in range(seeds)]
        for name, estimator in ESTIMATORS.items():
            distances = np.stack([sample.distances(estimator(sample)) for sample in drawn])
            ours = (distances.mean(), distances.std(1).mean(), distances.max(1).mean())
            row: dict[str, Any] = {"m": m, "estimator": name, "seeds": seeds}
            row |= {key: float(value) for key, value in zip(MEASURES, ours, strict=True)}
            row["spread"] = float(distances.mean(1).std())  # of the mean, over seeds
            theirs = PAPER.get((m, name))
            row |= {f"paper_{key}": theirs[k] if theirs else None for k, key in enumerate(MEASURES)}
            rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text, the paper's numbers beside ours."""
    lines = [f"{'m':>4}  {'estimator':<15}{'mean':>8}{'sd':>8}{'max':>8}    {'paper: mean':>11}{'sd':>8}{'max':>8}"]
    for row in rows:
        ours = "".join(f"{row[key]:>8.3f}" for key in MEASURES)
        theirs = [row[f"paper_{key}"] for key in MEASURES]
        beside = "".join("-".rjust(n) if v is None else f"{v:>{n}.3f}" for v, n in zip(theirs, (11, 8, 8), strict=True))
        lines.append(f"{row['m']:>4}  {row['estimator']:<15}{ours}    {beside}")
    return "\n".join(lines)


def table1(out: Path | None = None, *, seeds: int = 5) -> dict[str, Any]:
    """Run Table 1."""
    rows = measure((10, 100), seeds)
    files = [] if out is None else [str(_bars(rows, out / "l2gd-table1.png"))]
    return {"rows": rows, "table": table(rows), "notes": list(NOTES), "files": files}


def figure1(out: Path | None = None, *, samples: Sequence[int] = FIGURE, seeds: int = 5) -> dict[str, Any]:
    """Run Figure 1; the paper prints its numbers at m = 10 and 100 only."""
    rows = measure(samples, seeds)
    files = [] if out is None else [str(_curves(rows, out / "l2gd-figure1.png"))]
    return {"rows": rows, "table": table(rows), "notes": list(NOTES), "files": files}


def population(sample: hlm.Sample) -> Population:
    """Return a draw as devices in teams, all samples for training."""
    n, m, d = sample.x.shape
    return Population(
        tree=Tree.parse(np.bincount(sample.cluster).tolist()),
        x=torch.from_numpy(sample.x.reshape(n * m, d).copy()),
        y=torch.from_numpy(sample.y.reshape(-1).copy()),
        start=torch.arange(n + 1) * m,
        train=torch.full((n,), m),
    )


def coin(
    out: Path | None = None,
    *,
    samples: Sequence[int] = (10, 100),
    sizes: Sequence[int] = (20,) * 20,
    dimension: int = 20,
    rounds: int = 500,
    **settings: Any,
) -> dict[str, Any]:
    """Run the paper's own way to Table 1, one seed: the single coin, p = 0.1, eta = 1e-4, 50,000 iterations.

    The paper's losses are sums over a client's m samples, with pulls of 1 of clients to clusters and of clusters to the centre;
    ours are means, so pulls are divided by m and the step is multiplied by it.

    Args:
        out: Nothing is drawn; it is there for all experiments.
        samples: Numbers of samples per client (m).
        sizes: Clients of each cluster, all the same.
        dimension: Width of the parameters.
        rounds: Rounds of 100 iterations.
        **settings: Other settings of ``l2gd-coin``.
    """
    rows = []
    for m in samples:
        sample = hlm.draw(sizes, samples=m, dimension=dimension)
        people, best = population(sample), hlm.exact(sample)[0]
        given = {"lam": 1 / m, "gamma": 1 / (sizes[0] * m), "eta": 1e-4 * m, "smoothness": 1.0, **settings}
        task = make_task("linear", people.shape, None)
        simulation = Simulation(algorithm("l2gd-coin", **given), people, task, rounds=rounds, dtype=torch.float64)
        for _ in range(rounds):
            simulation.step()
        found = simulation.stores[0].rows["model"].numpy()
        for name, estimate in (("l2gd-coin", found), ("exact", best)):
            distances, theirs = sample.distances(estimate), PAPER.get((m, "exact"))
            ours = (distances.mean(), distances.std(), distances.max())
            row: dict[str, Any] = {"m": m, "estimator": name, "seeds": 1}
            row |= {key: float(value) for key, value in zip(MEASURES, ours, strict=True)}
            row |= {f"paper_{key}": theirs[k] if theirs else None for k, key in enumerate(MEASURES)}
            row["to_exact"] = float(np.linalg.norm(estimate - best, axis=1).mean())
            rows.append(row)
    return {"rows": rows, "table": table(rows), "notes": list(NOTES), "files": []}


def _of(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["estimator"] == name]


def _curves(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw the mean distance over m, the paper's printed numbers as crosses."""
    figure = Figure(figsize=(7, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for colour, name in zip(COLOURS, ESTIMATORS, strict=True):
        mine = _of(rows, name)
        spread = [row["spread"] for row in mine]
        axes.errorbar(
            *([row["m"] for row in mine], [row["mean"] for row in mine], spread), color=colour, marker="o", label=name
        )
        printed = [(row["m"], row["paper_mean"]) for row in mine if row["paper_mean"] is not None]
        if printed:
            axes.plot(*zip(*printed, strict=True), color=colour, marker="x", markersize=10, linestyle="none")
    axes.set(xscale="log", yscale="log", xlabel="samples per client (m)", ylabel="mean distance to the truth")
    axes.set_title("Hierarchical linear model, 20 clusters of 20 clients; crosses: the paper's Table 1", fontsize=10)
    for axis, ticks in ((axes.xaxis, sorted({row["m"] for row in rows})), (axes.yaxis, (0.3, 0.5, 1, 2, 3, 4, 6))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_minor_formatter(NullFormatter())
    axes.legend()
    axes.grid(alpha=0.3)
    return save(figure, path)


def _bars(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw the table: mean distances, ours and the paper's, one panel for each m."""
    settings = sorted({row["m"] for row in rows})
    figure = Figure(figsize=(9, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, m in zip(figure.subplots(1, len(settings)), settings, strict=True):
        part = [row for row in rows if row["m"] == m]
        place = np.arange(len(part))
        axes.bar(place - 0.2, [row["mean"] for row in part], 0.4, yerr=[row["sd"] for row in part], label="Palmette")
        theirs = [[row[f"paper_{key}"] for row in part] for key in ("mean", "sd")]
        axes.bar(place + 0.2, theirs[0], 0.4, yerr=theirs[1], color=style.FAINT, label="paper")
        axes.set_xticks(place, [row["estimator"] for row in part], fontsize=8)
        axes.set_title(f"m = {m}")
    axes.set_ylabel("distance to the truth")
    axes.legend()
    return save(figure, path)
