"""What a population is like, in numbers: sizes, labels, and how far teams and devices lie apart.

Distances are measured on training samples, without devices that are kept out of training. The label distance of two groups is
half the sum of the absolute differences of their label shares (total variation): 0 for the same shares, 1 for no label in
common. The feature distance is that of the mean features, divided by the root mean squared distance of a sample from the mean
of all. Small groups lie apart by chance alone, so beside every distance stands the one that a random choice of as many samples
has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from palmette import address
from palmette.population.packing import refuse_unusable
from palmette.population.population import Population
from palmette.population.scores import silhouette
from palmette.population.signatures import Floats, Samples, signatures
from palmette.tree import Ints

_DEVICES = 2000  # that are looked at one by one; of more, so many at equal distances
_TEAMS = 40  # whose devices a silhouette looks at where there are many
_TEAM_FEATURES = 1 << 25  # numbers of all teams' mean features together that are kept


@dataclass(frozen=True)
class Distance:
    """A mean distance, and the one that random groups of the same sizes have.

    Attributes:
        mean: The mean over the groups.
        chance: The mean distance of random groups.
    """

    mean: float
    chance: float


@dataclass(frozen=True, eq=False)
class Description:
    """A population in numbers.

    Attributes:
        population: The population.
        team_sizes: Devices of every team; empty where there are no teams.
        label_counts: Training samples by team and class, or all in one line where there are no teams; ``None`` for regression.
        targets: Mean and standard deviation of the target by team; ``None`` for classes.
        devices: The devices that were looked at one by one.
        device_shares: The label shares of these devices, or their mean target.
        grouped: Whether the classes are so many that they were put into groups.
        apart: Distances by what was compared: ``labels of teams``, ``labels of devices``, ``features of teams``, ``features of
            devices``.
        silhouettes: How well teams separate, by what devices are compared by; see `scores.silhouette`.
    """

    population: Population
    team_sizes: Ints
    label_counts: Floats | None
    targets: Floats | None
    devices: Ints
    device_shares: Floats
    grouped: bool
    apart: dict[str, Distance]
    silhouettes: dict[str, float]

    @property
    def whole(self) -> bool:
        """Whether every device that trains was looked at."""
        unseen = self.population.unseen
        return len(self.devices) == self.population.devices - (0 if unseen is None else int(unseen.sum()))

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        made, counts = self.population, self.label_counts
        sizes = made.start.diff().numpy()
        teams = made.tree.names(1) if len(self.team_sizes) else ["all"]
        told: dict[str, Any] = {
            "source": made.source,
            "tree": str(made.tree),
            "devices": made.devices,
            "unseen": 0 if made.unseen is None else int(made.unseen.sum()),
            "teams": len(self.team_sizes),
            "devices_per_team": five(self.team_sizes) if len(self.team_sizes) else None,
            "samples": len(made.x),
            "shape": list(made.shape),
            "classes": made.classes,
            "samples_per_device": five(sizes),
            "training_samples_per_device": five(made.train.numpy()),
            "compared_devices": len(self.devices),
            "grouped_classes": self.grouped,
        }
        if counts is not None:
            told["labels_by_team"] = {name: line.astype(int).tolist() for name, line in zip(teams, counts, strict=True)}
        if self.targets is not None:
            told["target_by_team"] = {
                name: {"mean": float(mean), "deviation": float(spread)}
                for name, (mean, spread) in zip(teams, self.targets, strict=True)
            }
        told["apart"] = {name: asdict(one) for name, one in self.apart.items()}
        told["silhouette"] = self.silhouettes
        told["notes"] = list(made.notes)
        told["found"] = None if made.found is None else made.found.as_dict()
        return told


def five(values: Any) -> list[float]:
    """Return the least, the quartiles and the largest of some numbers."""
    return [float(one) for one in np.percentile(values, [0, 25, 50, 75, 100])]


def describe(population: Population, *, seed: int = 0) -> Description:
    """Describe a population in numbers; the work is bounded by the samples there are.

    Args:
        population: The population.
        seed: Seed of the random groups that distances are compared with.
    """
    refuse_unusable(population)
    tree, samples = population.tree, Samples(population)
    teams = tree.size(1) if tree.top > 1 else 1
    team = tree.parents[0] if tree.top > 1 else np.zeros(tree.devices, dtype=np.int64)
    trains = samples.trains
    chosen = trains[np.linspace(0, len(trains) - 1, min(_DEVICES, len(trains))).astype(np.int64)]
    sums = _Sums(samples, team, teams, chosen)
    apart = sums.distances(population.classes is not None, tree.top > 1, address.numpy_generator(seed, "description"))
    silhouettes: dict[str, float] = {}
    close = trains if len(trains) <= _DEVICES else _of_some_teams(trains, team)
    for by in ("labels", "gradients") if tree.top > 1 else ():
        if by == "gradients" or population.classes is not None:
            value = silhouette(signatures(population, by, close, seed=seed), team[close])
            silhouettes |= {} if value is None else {by: value}
    share = sums.device_labels / sums.device_sizes[:, None]
    return Description(
        population,
        np.bincount(tree.parents[0]) if tree.top > 1 else np.zeros(0, dtype=np.int64),
        sums.labels if population.classes is not None else None,
        sums.targets() if population.classes is None else None,
        chosen,
        share if population.classes is not None else share[:, :1],
        samples.grouped,
        apart,
        silhouettes,
    )


def _of_some_teams(trains: Ints, team: Ints) -> Ints:
    """Choose devices of a few teams at equal distances: a silhouette needs several devices of each."""
    known = np.unique(team[trains])
    some = known[np.linspace(0, len(known) - 1, min(_TEAMS, len(known))).astype(np.int64)]
    members = trains[np.isin(team[trains], some)]
    return members[np.linspace(0, len(members) - 1, min(_DEVICES, len(members))).astype(np.int64)]


class _Sums:
    """Sums over the training samples of teams and of some devices, gathered in one pass.

    Args:
        samples: The samples.
        team: The team of every device.
        teams: Number of teams.
        chosen: The devices to keep the sums of, ascending.
    """

    def __init__(self, samples: Samples, team: Ints, teams: int, chosen: Ints) -> None:
        inputs, outputs = samples.inputs, samples.outputs
        self.team, self.per_sample = team[chosen], samples.labels
        self.sizes, self.labels = np.zeros(teams), np.zeros((teams, outputs))
        self.label_squares, self.squares = np.zeros((teams, outputs)), np.zeros(inputs)
        self.features = np.zeros((teams, inputs)) if teams * inputs <= _TEAM_FEATURES else None
        self.device_sizes = np.zeros(len(chosen))
        self.device_labels, self.device_features = np.zeros((len(chosen), outputs)), np.zeros((len(chosen), inputs))
        for first, last in samples.blocks(samples.trains, max(inputs, outputs)):
            block = samples.trains[first:last]
            x, y, size = samples.read(block)
            begin = np.cumsum(size) - size
            by_x, by_y = np.add.reduceat(x, begin), np.add.reduceat(y, begin)
            # Devices come team after team, so those of a team in a block are neighbours.
            here, at = np.unique(team[block], return_index=True)
            self.sizes[here] += np.add.reduceat(size, at)
            self.labels[here] += np.add.reduceat(by_y, at)
            self.label_squares[here] += np.add.reduceat(np.add.reduceat(y**2, begin), at)
            self.squares += (x**2).sum(0)
            if self.features is not None:
                self.features[here] += np.add.reduceat(by_x, at)
            inside = np.flatnonzero(np.isin(chosen, block))
            place = np.searchsorted(block, chosen[inside])
            self.device_sizes[inside] = size[place]
            self.device_labels[inside], self.device_features[inside] = by_y[place], by_x[place]

    def targets(self) -> Floats:
        """Return the mean and the standard deviation of the first target by team."""
        mean = self.labels[:, 0] / self.sizes
        spread = np.sqrt(np.maximum(self.label_squares[:, 0] / self.sizes - mean**2, 0))
        return np.stack([mean, spread], axis=1)

    def distances(self, classes: bool, teams: bool, random: np.random.Generator) -> dict[str, Distance]:
        """Return how far teams lie from all samples, and devices from their team."""
        found: dict[str, Distance] = {}
        groups = [("devices", self.device_labels, self.labels[self.team])]
        if teams:
            groups.insert(0, ("teams", self.labels, self.labels.sum(0)[None].repeat(len(self.labels), 0)))
        for name, own, above in groups if classes else ():
            own, above = own * self.per_sample, above * self.per_sample
            drawn = np.array(
                [
                    random.multivariate_hypergeometric(
                        np.rint(whole).astype(np.int64), min(round(float(part.sum())), int(np.rint(whole).sum()))
                    )
                    for whole, part in zip(above, own, strict=True)
                ]
            )
            found[f"labels of {name}"] = Distance(_apart(own, above), _apart(drawn, above))
        if self.features is None:
            return found
        total = self.features.sum(0) / self.sizes.sum()
        spread = max(float((self.squares / self.sizes.sum() - total**2).sum()), 1e-30)
        means = self.features / self.sizes[:, None]
        if teams:
            found["features of teams"] = _far(means - total, spread, self.sizes, self.sizes.sum())
        mine = self.device_features / self.device_sizes[:, None] - means[self.team]
        found["features of devices"] = _far(mine, spread, self.device_sizes, self.sizes[self.team])
        return found


def _apart(own: Any, above: Floats) -> float:
    """Return the mean total variation distance of counts."""
    shares = [counts / np.maximum(counts.sum(1, keepdims=True), 1) for counts in (own, above)]
    return float(np.abs(shares[0] - shares[1]).sum(1).mean() / 2)


def _far(difference: Floats, spread: float, size: Floats, of: Any) -> Distance:
    """Return the mean length of differences of means, and the one of random choices of as many samples."""
    length = np.sqrt((difference**2).sum(1) / spread)
    return Distance(float(length.mean()), float(np.sqrt(np.maximum(1 / size - 1 / of, 0)).mean()))
