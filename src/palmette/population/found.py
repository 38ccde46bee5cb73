"""Teams that are found: devices whose data are alike are put together."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from palmette import address
from palmette.errors import BadInput
from palmette.population.population import Population
from palmette.population.recipe import Recipe
from palmette.population.scores import Found, agreement, silhouette
from palmette.population.signatures import check_kind, signatures
from palmette.tree import Ints, Tree
from palmette.values import plain, whole

DEFAULT = "updates"


def find_teams(population: Population, *, by: str = DEFAULT, teams: int | None = None, seed: int = 0) -> Population:
    """Put the devices of a population into teams anew: those whose data are alike come together.

    Devices are clustered (k-means of scikit-learn) by one row each, of length 1; see `palmette.population.signatures`.
    Devices that are kept out of training have no say: each goes to the team with the nearest centre. Devices keep their
    names, and those that were only numbered are named after their number.

    Args:
        population: The population; its tree has at most one tier of teams.
        by: What devices are compared by: ``"gradients"``, ``"updates"`` or ``"labels"``.
        teams: Number of teams; by default as many as there are.
        seed: Seed of the clustering.
    """
    check_kind(by)
    tree, count = population.tree, _count(population, teams)
    rows = signatures(population, by, seed=seed)
    trains = np.ones(population.devices, dtype=bool) if population.unseen is None else ~population.unseen.numpy()
    different = len(np.unique(rows[trains].round(5), axis=0))
    if different < count:
        raise BadInput(
            f"{count} teams cannot be found: the {int(trains.sum())} devices that train have only {different} different {by}; "
            "lower found_teams or choose another found_by"
        )
    team = _cluster(rows, trains, count, address.key(seed, "found teams") % 2**32)
    found = Found(
        by,
        count,
        silhouette(rows[trains], team[trains]),
        agreement(tree.parents[0][trains], team[trains]) if tree.top > 1 else None,
        int((~trains).sum()),
    )
    return replace(_regrouped(population, team), found=found)


def found_again(population: Population, by: str | None, teams: int | None, recipe: Recipe | None) -> Population:
    """Find teams as a config says, and note in the recipe how that was done.

    Args:
        population: The population.
        by: What devices are compared by; ``None`` for the default.
        teams: Number of teams; ``None`` for as many as there are.
        recipe: How the population was made so far.
    """
    by = DEFAULT if by is None else by
    made = find_teams(population, by=by, teams=teams, seed=0 if recipe is None else recipe.seed)
    if recipe is None:
        return made
    values = {**recipe.values, "teams": "found", "found_by": by, "found_teams": made.tree.size(1)}
    return made.made_by(replace(recipe, values=values))


def _count(population: Population, teams: int | None) -> int:
    """Return how many teams to find."""
    tree = population.tree
    if tree.top > 2:
        raise BadInput(
            f"teams = 'found' makes one tier of teams, and tree = {tree} has {tree.top - 1}; use a tree such as 4x10"
        )
    if teams is None and tree.top < 2:
        raise BadInput("these devices are in no teams yet; say how many to find, as in data.found_teams = 4")
    return tree.size(1) if teams is None else whole("found_teams", plain(teams), 1)


def _cluster(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]], trains: Ints, count: int, state: int) -> Ints:
    """Return the team of every device; teams are numbered in the order of their first device that trains."""
    from sklearn.cluster import KMeans  # a second to import
    from sklearn.exceptions import ConvergenceWarning

    with threadpool_limits(1), warnings.catch_warnings():  # one thread: the same sums in the same order everywhere
        warnings.simplefilter("ignore", ConvergenceWarning)  # of rows that differ too little to be told apart
        fitted = KMeans(count, n_init=10, random_state=state).fit(rows[trains].astype(np.float64))
        label: Ints = fitted.predict(rows.astype(np.float64)).astype(np.int64)
        label[trains] = fitted.labels_
    first = np.unique(label[trains], return_index=True)[1]
    if len(first) < count:
        raise BadInput(
            f"only {len(first)} of {count} teams could be told apart; lower found_teams or choose another found_by"
        )
    number: Ints = np.empty(count, dtype=np.int64)
    number[label[trains][np.sort(first)]] = np.arange(count)
    return number[label]


def _regrouped(population: Population, team: Ints) -> Population:
    """Return the population on a tree of other teams: its devices team after team, each with its samples and its name."""
    old = population.tree
    order = np.argsort(team, kind="stable")
    names = old.names(0)
    count = int(team.max()) + 1
    tree = Tree(
        (team[order], np.zeros(count, dtype=np.int64)),
        (tuple(names[one] for one in order.tolist()), tuple(f"found-{one}" for one in range(count)), old.labels[-1]),
    )
    chosen = torch.from_numpy(order)
    size = population.start.diff()[chosen]
    start = torch.cat([torch.zeros(1, dtype=torch.int64), size.cumsum(0)])
    samples = (population.start[:-1][chosen] - start[:-1]).repeat_interleave(size) + torch.arange(int(start[-1]))
    return replace(
        population,
        tree=tree,
        x=population.x[samples],
        y=population.y[samples],
        start=start,
        train=population.train[chosen],
        unseen=None if population.unseen is None else population.unseen[chosen],
    )
