"""What groups are worth: fl, perfl, groupfl and groupperfl on rotated digits with few samples, and as language models.

Run by hand: ``PALMETTE_DATA=... python proofs/groupperfl.py digits`` or ``... words``. The first prints the accuracy of the
clients' own models, mean over seeds, for several numbers of training samples per device. The second is nearer to the paper:
authors of four of the 20 newsgroups, a small model of the next word, and perplexity by group.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import palmette
from palmette.algorithms.groupperfl import Staged
from palmette.engines.evaluation import Scores, evaluate
from palmette.engines.simulate import Simulation
from palmette.population.partition import Dirichlet, Few

METHODS = ("fl", "perfl", "groupfl", "groupperfl")
GROUPS = ("comp.windows.x", "rec.sport.hockey", "sci.crypt", "talk.politics.mideast")
AUTHORS, WORDS, SAMPLES, CONTEXT, WIDTH = 40, 800, 160, 2, 16


def personal(name: str, population: palmette.Population, task: palmette.Task, seed: int, **settings: Any) -> Scores:
    """Run a method for its whole plan and measure the clients' own models."""
    method = palmette.algorithm(name, **settings)
    assert isinstance(method, Staged)
    rounds = method.plan(population.tree).rounds
    simulation = Simulation(method, population, task, rounds=rounds, held_out=0.25, seed=seed)
    for _ in range(rounds):
        simulation.step()
    return evaluate(simulation)["PM"]


def digits(seeds: int = 3) -> None:
    """Print accuracies on rotated digits."""
    for samples in (4, 8, 12):
        found: dict[str, list[Any]] = {name: [] for name in METHODS}
        for seed in range(seeds):
            partition = Few(samples, Dirichlet(alpha=1.0, within="team"))
            population = palmette.make_population("digits", tree="4x10", shift="rotate", partition=partition, seed=seed)
            task = palmette.make_task("mclr", population.shape, population.classes)
            for name in METHODS:
                score = personal(name, population, task, seed, passes=60, group_passes=40, clients=20)
                found[name].append(score.per_device().numpy())
        better = np.nanmean(np.array(found["groupperfl"]) > np.array(found["perfl"]))
        means = "  ".join(f"{name} {np.nanmean(values):.3f}" for name, values in found.items())
        print(f"{samples:3} samples per device: {means}  groupperfl better than perfl for {better:.0%}", flush=True)


def newsgroups() -> tuple[palmette.Population, list[str]]:
    """Make samples of two words and the next, by author, for authors of four newsgroups with enough to say."""
    authors: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    with gzip.open(Path(os.environ["PALMETTE_DATA"]) / "newsgroups20" / "all.jsonl.gz", "rt") as lines:
        for post in map(json.loads, lines):
            group, sender = post["group"], re.search(r"^From: (.*)$", post["text"], re.M)
            if group in GROUPS and sender:
                body = post["text"].split("\n\n", 1)[-1].lower()
                authors[group, sender[1]] += [*re.findall(r"[a-z']+", body), "."]
    chosen: list[tuple[str, str]] = []
    for group in GROUPS:
        mine = sorted(key for key, words in authors.items() if key[0] == group and len(words) >= SAMPLES + CONTEXT)
        chosen += [mine[i] for i in np.random.default_rng(0).permutation(len(mine))[:AUTHORS]]
    counts = collections.Counter(word for key in chosen for word in authors[key][: SAMPLES + CONTEXT])
    number = {word: i + 1 for i, (word, _) in enumerate(counts.most_common(WORDS - 1))}
    xs, ys = [], []
    for key in chosen:
        text = np.array([number.get(word, 0) for word in authors[key][: SAMPLES + CONTEXT]])
        xs.append(np.lib.stride_tricks.sliding_window_view(text, CONTEXT)[:-1].copy())
        ys.append(text[CONTEXT:])
    tree = f"{len(GROUPS)}x{AUTHORS}"
    return palmette.Population.from_arrays(xs, ys, tree=tree, classes=WORDS, source="newsgroups"), list(GROUPS)


def words(seeds: int = 1) -> None:
    """Print perplexities on newsgroups."""
    population, groups = newsgroups()
    print(population.summary())
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        module = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Flatten(), nn.Linear(CONTEXT * WIDTH, WORDS))
        for weight in module.parameters():
            nn.init.normal_(weight, std=0.1, generator=generator)
        task = palmette.make_task(module, population.shape, population.classes)
        for name in METHODS:
            score = personal(
                name, population, task, seed, passes=20, group_passes=10, clients=40, alpha=0.3, group_lr=0.003
            )
            loss, count = score.sums["loss"].view(len(groups), -1).sum(1), score.count.view(len(groups), -1).sum(1)
            each = "  ".join(f"{g} {v:.1f}" for g, v in zip(groups, (loss / count).exp().tolist(), strict=True))
            print(f"seed {seed} {name:10} perplexity {np.exp(score.by_samples('loss')):.1f}  ({each})", flush=True)


if __name__ == "__main__":
    for what in sys.argv[1:] or ["digits", "words"]:
        {"digits": digits, "words": words}[what]()
