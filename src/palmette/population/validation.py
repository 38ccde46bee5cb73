"""Choosing settings without looking at test samples: a part of the training samples takes their place."""

from __future__ import annotations

from dataclasses import replace

import torch

from palmette.population.population import Population
from palmette.values import fraction


def for_choosing(population: Population, share: float) -> Population:
    """Return a population whose test samples are gone and in whose place each device is tested on training samples.

    Of every device's training samples the last ones (they lie in random order) become its validation samples: the share
    rounded down, at least one where it has two, and never all.

    Args:
        population: The population; it is not changed.
        share: The part of each device's training samples to be tested on.
    """
    held = population.held_out(fraction("data.validation", share))
    train, first = population.train, population.start[:-1]
    start = torch.cat([torch.zeros(1, dtype=torch.int64), train.cumsum(0)])
    index = torch.arange(int(start[-1])) + torch.repeat_interleave(first - start[:-1], train)
    made = replace(population, x=population.x[index], y=population.y[index], start=start, train=train - held)
    recipe = population.recipe
    if recipe is not None:
        made.made_by(replace(recipe, values={**recipe.values, "validation": share}))
    return made
