"""A word model on Shakespeare's plays and on newsgroups: perplexity before and after, written into docs/reference/datasets.md.

Run by hand: ``make prove-language``; ``TIMES=5`` takes five times as many rounds. The model is `lm` with its default sizes; a
vocabulary of 1,000 words keeps it to minutes on one core. Beside the models stands what always foretelling words by how often
they occur in all training text would reach: who is above it has learned less than that. It fails where perplexity does not fall
by the factor that is promised.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from pages import DOCS, write

import palmette as pm
from palmette.learner import Learner

PAGE = DOCS / "reference/datasets.md"
FACTOR = 6.0  # by which the perplexity of every kind of model is to fall
WORDS, LEAST = 1000, 40
CHOSEN = {"shakespeare": 2, "newsgroups": 2}  # devices of each team
COMMON = {"alpha": 0.01, "batch_size": 8, "local_steps": 5}
# Both take 160 steps on each device. PerMFL's team models go two thirds of the way to the mean of their devices, and the global
# model is the mean of the teams'.
METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "fedavg": (32, {"tune_steps": 10}),
    "permfl": (16, {"team_steps": 2, "lam": 0.1, "gamma": 0.05, "eta": 1 / 0.15, "beta": 20.0}),
}


def split(people: pm.Population) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all targets of the training and of the test samples."""
    own = torch.arange(len(people.y)) - people.start[:-1].repeat_interleave(people.start.diff())
    train = own < people.train.repeat_interleave(people.start.diff())
    return people.y[train], people.y[~train]


def by_frequency(people: pm.Population) -> float:
    """Return the perplexity of the words' frequencies in all training text, each word counted once more than it occurs."""
    train, test = split(people)
    counts = torch.bincount(train.flatten(), minlength=WORDS).double() + 1
    return float((-(counts / counts.sum()).log()[test]).mean().exp())


def before(people: pm.Population, task: pm.Task) -> float:
    """Return the perplexity of the initial model."""
    everybody = torch.arange(people.devices)
    sums = Learner(task, people).scorer.sums(task.initial()[None], torch.zeros_like(everybody), everybody, "test")
    return math.exp(float(sums["loss"].sum() / sums["count"].sum()))


def learn(folder: Path, times: int) -> tuple[list[str], bool]:
    """Train both methods on both data sets; return the table and whether perplexity fell as promised.

    Args:
        folder: Where the runs go.
        times: How many times the usual number of rounds.
    """
    lines = [
        "| data | method | PM | TM | GM | falls by | processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    kept = True
    for name, per_team in CHOSEN.items():
        people = pm.make_population(name, per_team=per_team, least=LEAST, vocabulary=WORDS)
        task = pm.make_task("lm", people.shape, people.classes, words=people.words)
        start, usual = before(people, task), by_frequency(people)
        title = f"`{name}`, {people.devices} devices in {people.tree.size(1)} teams"
        lines += [f"| {title} | before | {start:.0f} | {start:.0f} | {start:.0f} | | |"]
        lines += [f"| | words by frequency | {usual:.0f} | {usual:.0f} | {usual:.0f} | {start / usual:.1f} | |"]
        for method, (rounds, own) in METHODS.items():
            began = time.process_time()
            result = pm.run(
                *(method, people, task),
                rounds=rounds * times,
                settings={**COMMON, **own},
                optimiser={"name": "adam"},
                metrics=["perplexity"],
                evaluate_every=rounds * times,
                out=folder / f"{name}-{method}",
            )
            spent = time.process_time() - began
            found = {kind: result.last(kind, "perplexity") for kind in result.kinds}
            kept = kept and all(start / value >= FACTOR for value in found.values())
            cells = " | ".join(f"{found[kind]:.0f}" if kind in found else "-" for kind in ("PM", "TM", "GM"))
            lines.append(f"| | `{method}` | {cells} | {start / max(found.values()):.1f} | {spent:.0f} |")
            print(name, lines[-1], flush=True)
    return lines, kept


def statistics() -> list[str]:
    """Count devices, teams and tokens of every data set of text, as it is by default."""
    lines = [
        "| data | devices | teams | samples | tokens of a device: least, median, most | `<unk>` |",
        "|---|---|---|---|---|---|",
    ]
    cases: list[tuple[str, dict[str, Any]]] = [
        ("shakespeare", {}),
        ("shakespeare", {"task": "characters"}),
        ("newsgroups", {}),
        ("newsgroups", {"device": "newsgroup"}),
        ("wikitext", {}),
    ]
    for name, options in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that WikiText has no training part here
            people = pm.make_population(name, **options)
        tokens = people.start.diff() * (people.shape[0] + 1)
        title = ", ".join([f"`{name}`", *(f"`{key}={value}`" for key, value in options.items())])
        spread = f"{int(tokens.min()):,}, {int(tokens.median()):,}, {int(tokens.max()):,}"
        unknown = float((people.y == 0).double().mean())
        counts = f"{people.devices:,} | {people.tree.size(1)} | {len(people.x):,}"
        lines.append(f"| {title} | {counts} | {spread} | {100 * unknown:.1f} % |")
    return lines


if __name__ == "__main__":
    write(PAGE, "text-counts", "language", statistics())
    with tempfile.TemporaryDirectory() as place:
        table, fell = learn(Path(place), int(sys.argv[1]) if sys.argv[1:] else 1)
    write(PAGE, "language", "language", table)
    sys.exit(0 if fell else f"the perplexity of some model did not fall by {FACTOR:g}")
