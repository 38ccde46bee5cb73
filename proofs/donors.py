"""Tables 2 and 3 of the Async-L2GD paper on the generated donors: the section Donors of docs/reference/datasets.md.

Run by hand: ``make prove-donors`` (``FOLDER=...`` keeps the models, and goes on with those that are there). Pulls are tuned on
validation samples of 3,000 of the ZIP codes by the direct solver; then all 29,490 are trained on. ``python proofs/donors.py
FOLDER coin`` trains the models of one row alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pages import DOCS, write

import palmette as pm
from palmette.engines.simulate import Simulation
from palmette.population.validation import for_choosing
from palmette.theory.multilevel import exact_logistic

Floats = NDArray[np.float64]
CLIENTS, TEST = 29_490, 0.2
CHANCE = 0.1  # p of the paper
# The paper takes 5,000 iterations with eta = 0.001. Steps so small follow the gradient flow, and so do 400 longer ones:
# `same_path` measures what that changes.
PUBLISHED_STEPS, FEWER = (5000, 0.001), (400, 0.0125)
PAPER = (1.36, 0.01)  # gamma_i and lambda_j of the paper: the pulls of a device and of a team
GRID = [(lam, between) for lam in 10.0 ** np.arange(-2, 2.5, 0.5) for between in (0.01, 1.0, 100.0)]
PUBLISHED = {
    "trained alone": ((0.413, 0.932), (0.173, 0.247, 0.313), 6, None, (0.940, 0.070), (0.919, 0.947, 1), 0.972),
    "one model": ((0.211, 0.176), (0.058, 0.201, 0.273), 2.76, 202, (0.942, 0.067), (0.921, 0.948, 1), 0.986),
    "theirs": ((0.215, 0.179), (0.069, 0.209, 0.283), 2.668, 183, (0.942, 0.066), (0.921, 0.948, 1), 1),
}


def people(clients: int = CLIENTS) -> pm.Population:
    """Make the population."""
    return pm.make_population("donors", devices=clients, test=TEST)


def measured(population: pm.Population, models: Floats) -> tuple[Floats, Floats]:
    """Return the cross-entropy and the accuracy of every client on its test samples."""
    sizes = population.start.diff().numpy()
    owner = np.repeat(np.arange(population.devices), sizes)
    test = np.arange(len(owner)) - population.start.numpy()[owner] >= population.train.numpy()[owner]
    x, owner = population.x[torch.from_numpy(test)].double().numpy(), owner[test]
    sign = 2 * population.y.numpy()[test] - 1
    margin = sign * (x * models[owner]).sum(1)
    count = np.bincount(owner, minlength=population.devices)
    means = [np.bincount(owner, each, population.devices) / count for each in (np.logaddexp(0, -margin), margin > 0)]
    return means[0], means[1]


# -- models ------------------------------------------------------------------------------------------------------------


def one_model(population: pm.Population) -> Floats:
    """Fit one model to all training samples, by Newton's method."""
    sizes = population.start.diff()
    place = torch.arange(len(population.x)) - population.start[:-1].repeat_interleave(sizes)
    train = place < population.train.repeat_interleave(sizes)
    x, y = population.x[train].double().numpy(), population.y[train].numpy()
    model = np.zeros(3)
    for _ in range(20):
        chance = 1 / (1 + np.exp(-x @ model))
        model += np.linalg.solve((x * (chance * (1 - chance))[:, None]).T @ x, x.T @ (y - chance))
    return np.tile(model, (population.devices, 1))


def tuned(folder: Path) -> tuple[float, float]:
    """Choose the pulls on validation samples, by the mean cross-entropy over clients as the paper does."""
    place = folder / "tuned.json"
    if not place.exists():
        some = for_choosing(people(3000), TEST)
        found = {pulls: float(measured(some, exact_logistic(some, *pulls)[0])[0].mean()) for pulls in GRID}
        place.write_text(json.dumps(min(found, key=lambda pulls: found[pulls])))
    lam, between = json.loads(place.read_text())
    return lam, between


def trained(method: str, settings: dict[str, Any], rounds: int, clients: int = CLIENTS) -> Floats:
    """Run a method and return its personal models."""
    population = people(clients)
    task = pm.make_task("logistic", population.shape, population.classes, bias=False)
    simulation = Simulation(pm.algorithm(method, **settings), population, task, rounds=rounds, threads=1)
    for number in range(1, rounds + 1):
        simulation.step()
        print(f"{method}: round {number} of {rounds}", flush=True)
    return simulation.device_models(torch.arange(population.devices)).double().numpy()


def pulls_of(population: pm.Population, lam: float, between: float) -> dict[str, Any]:
    """Return the settings of a method with coins for the paper's pulls."""
    sizes = np.diff(population.tree.offsets[0]).tolist()
    names = population.tree.names(1)
    return {"lam": lam, "gamma": {name: between / size for name, size in zip(names, sizes, strict=True)}}


def as_published(steps: tuple[int, float], clients: int = CLIENTS) -> Floats:
    """Train as the paper's experiment does: one coin for all, its pulls and its chance."""
    count, step = steps
    settings = {**pulls_of(people(clients), *PAPER), "eta": step, "between": CHANCE, "iterations": 100}
    return trained("l2gd-coin", settings, count // 100, clients)


def coin(folder: Path) -> dict[str, Floats]:
    """Train as the paper does, with fewer and longer steps."""
    return {"coin": as_published(FEWER)}


def same_path(folder: Path) -> dict[str, Floats]:
    """Train 300 of the clients as the paper does, with its steps and with fewer and longer ones."""
    return {"many": as_published(PUBLISHED_STEPS, 300), "few": as_published(FEWER, 300)}


def local(folder: Path) -> dict[str, Floats]:
    """Train every client alone, with as many local steps of the same size as a run with the coin has."""
    count, step = FEWER
    settings = {"alpha": step / (1 - CHANCE), "local_steps": round(100 * (1 - CHANCE)), "batch_size": "full"}
    return {"local": trained("local", settings, count // 100)}


def l2gd(folder: Path) -> dict[str, Floats]:
    """Train with Async-L2GD and the tuned pulls."""
    return {"l2gd": trained("l2gd", pulls_of(people(), *tuned(folder)), 5)}


def al2sgd(folder: Path) -> dict[str, Floats]:
    """Train with Async-AL2SGD+ and the tuned pulls, on mini-batches of 20."""
    return {"al2sgd": trained("al2sgd", {**pulls_of(people(), *tuned(folder)), "batch_size": 20}, 5)}


def solved(folder: Path) -> dict[str, Floats]:
    """Fit one model, and solve for the paper's pulls and the tuned ones."""
    population = people()
    return {
        "one": one_model(population),
        "exact-paper": exact_logistic(population, *PAPER)[0],
        "exact-tuned": exact_logistic(population, *tuned(folder))[0],
    }


STAGES: dict[str, Callable[[Path], dict[str, Floats]]] = {
    "solved": solved,
    "l2gd": l2gd,
    "al2sgd": al2sgd,
    "coin": coin,
    "local": local,
    "same_path": same_path,
}


def stage(folder: Path, name: str) -> tuple[dict[str, Floats], float]:
    """Train the models of a stage, unless they are there; return them and the seconds of processor time they took."""
    place = folder / f"{name}.npz"
    if not place.exists():
        began = time.process_time()
        made = STAGES[name](folder)
        np.savez(place, seconds=np.array(time.process_time() - began), **made)  # type: ignore[arg-type]
    with np.load(place) as kept:
        return {key: kept[key] for key in kept.files if key != "seconds"}, float(kept["seconds"])


# -- tables ------------------------------------------------------------------------------------------------------------


def numbers(entropy: Floats, accuracy: Floats, beside: Floats) -> tuple[Any, ...]:
    """Return what the paper's two tables say of one way to train."""
    quartiles = [tuple(np.quantile(values, [0.25, 0.5, 0.75]).tolist()) for values in (entropy, accuracy)]
    return (
        *((float(entropy.mean()), float(entropy.std())), quartiles[0], float(entropy.max()), int((entropy > 1).sum())),
        *((float(accuracy.mean()), float(accuracy.std())), quartiles[1], float((accuracy >= beside).mean())),
    )


def line(title: str, found: tuple[Any, ...]) -> str:
    """Write a row."""
    (mean, spread), quartiles, most, above, (right, wide), parts, ratio = found
    cells = [
        f"{mean:.3f} ({spread:.3f})",
        *(f"{value:.3f}" for value in quartiles),
        f"{most:.2f}",
        "not told" if above is None else f"{above} ({100 * above / CLIENTS:.2f} %)",
        f"{right:.3f} ({wide:.3f})",
        *(f"{value:.3f}" for value in parts),
        f"{ratio:.3f}",
    ]
    return f"| {title} | " + " | ".join(cells) + " |"


def tables(folder: Path) -> None:
    """Train what is not there yet, and write the tables."""
    models, seconds = {}, {}
    for name in STAGES:
        made, seconds[name] = stage(folder, name)
        models |= made
    population, (lam, between) = people(), tuned(folder)
    titles = {
        "one": "one model for all, at the minimum",
        "local": "`local`, as many steps as `l2gd-coin`",
        "coin": "`l2gd-coin`, the paper's pulls",
        "exact-paper": "the paper's pulls, at the minimum",
        "exact-tuned": "tuned pulls, at the minimum",
        "l2gd": "`l2gd`, tuned pulls, 500 iterations",
        "al2sgd": "`al2sgd`, tuned pulls, 500 iterations",
    }
    found = {name: measured(population, models[name]) for name in titles}
    ours = found["exact-tuned"][1]
    head = (
        "| | CE, mean (SD) | 25 % | 50 % | 75 % | max | CE above 1 | accuracy, mean (SD) | 25 % | 50 % | 75 % | ratio |"
    )
    rows = [head, "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    rows += [line(f"paper, {title}", values) for title, values in PUBLISHED.items()]
    rows += [line(f"ours, {titles[name]}", numbers(*found[name], ours)) for name in titles]
    some = people(300)
    means = [measured(some, models[name])[0].mean() for name in ("many", "few")]
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    write(
        DOCS / "reference/datasets.md",
        "donors",
        "donors",
        [
            *(*rows, ""),
            f"Tuned pulls: {lam:g} of a device to its team, {between:g} of a team to all; the paper's are {PAPER[0]:g} and "
            f"{PAPER[1]:g}. `l2gd-coin` and `local` take {FEWER[0]} iterations of {FEWER[1]:g} for the paper's "
            f"{PUBLISHED_STEPS[0]:,} of {PUBLISHED_STEPS[1]:g}: on 300 clients the mean cross-entropy is then {means[1]:.4f}, "
            f"with the paper's {means[0]:.4f}. Processor time on one core: {spent}.",
        ],
    )


if __name__ == "__main__":
    place, words = Path(sys.argv[1]), sys.argv[2:]
    place.mkdir(parents=True, exist_ok=True)
    for word in words:
        stage(place, word)
    if not words:
        tables(place)
