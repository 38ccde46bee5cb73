"""How well each family of methods would serve a population, without training any of them.

Every family has a closed form that stands for it: the linear model of `palmette.theory.surrogate` with its own ratios of
variances. A ratio of 0 lets a tier have the model above it, a huge one lets it forget that model; the others are the likeliest
ones. Five-fold cross-validation on the training samples then says how well each would do on samples that it has not seen.

What is left between the closed forms and real trainings (mini-batches, a fixed number of steps, a softmax in place of squares,
a fifth of the samples more) was measured once on the study's *fixed* half, see `proofs/advise_constants.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.blocks.variances import MOST, Known, lift
from palmette.theory.components import Components
from palmette.theory.evidence import Evidence
from palmette.theory.surrogate import REAL, Seen, predicted, solved

FOLDS = 5
LADDER, DIRECTIONS = "ladder", "ladder-directions"
_CURVE = 0.4  # of the error, the most that more samples are said to save
_GRID = tuple(10 ** (power / 2) for power in range(-4, 7))  # ratios of devices that learn by themselves

SURROGATES: Mapping[str, str] = {
    "local": "alone",
    "fedavg": "common",
    "fedavg-tuned": "flat",
    "ditto": "flat",
    "teams": "teams",
    "teams-tuned": "teams, own",
    "hierfavg-tuned": "both",
    "permfl": "both",
    LADDER: "both",
    DIRECTIONS: "directions",
}
"""The closed form that stands for each family."""


@dataclass(frozen=True, eq=False)
class Held:
    """What cross-validation found for one closed form.

    Attributes:
        score: The share of samples that are right, or R2.
        deviation: The standard deviation of what single samples add to it: over the root of a number of samples, the standard
            error of a score that is measured on so many.
        sums: Every device's samples that are right, or its squared errors.
    """

    score: float
    deviation: float
    sums: Tensor


@dataclass(frozen=True, eq=False)
class Foreseen:
    """What cross-validation found for all closed forms.

    Attributes:
        held: By closed form.
        counts: Every device's samples.
        around: Every device's squares around the mean of all targets; ``None`` for classes.
        ratios: The ratios of every closed form, the devices' first.
    """

    held: Mapping[str, Held]
    counts: Tensor
    around: Tensor | None
    ratios: Mapping[str, Sequence[float | Tensor]]

    def family(self, key: str) -> Held:
        """Return what stands for a family."""
        return self.held[SURROGATES[key]]

    def ahead(self, key: str, other: str) -> tuple[float, float]:
        """Return by how much one family is ahead of another, and the standard error of that."""
        mine, theirs = self.family(key), self.family(other)
        gained = mine.sums - theirs.sums if self.around is None else theirs.sums - mine.sums
        base = self.counts if self.around is None else self.around
        return _ratio(gained, base)

    def each_ahead(self, key: str, other: str) -> tuple[Tensor, Tensor]:
        """Return by how much every device is better off with one family, per sample, and the standard errors of that.

        It is in the share of samples that are right, or in the mean squared error. The standard error of a device is that of a
        share, or of a mean square, of so many samples.

        Args:
            key: The family.
            other: The other one.
        """
        mine, theirs = self.family(key), self.family(other)
        count = self.counts.clamp(min=1.0)
        if self.around is None:
            gained = (mine.sums - theirs.sums) / count
            spread = (mine.sums + theirs.sums) / (2 * count)
            spread = (2 * spread * (1 - spread)).clamp(min=1 / count)  # as if the two were right or wrong independently
            return gained, (spread / count).sqrt()
        gained = (theirs.sums - mine.sums) / count
        return gained, (mine.sums + theirs.sums) / count / count.sqrt()


def foresee(people: Seen, known: Known, found: Components, evidence: Evidence, steps: int = 400) -> Foreseen:
    """Return what cross-validation on training samples says of every closed form.

    Args:
        people: The training samples in few directions.
        known: Their moments.
        found: Their variance components; with those by direction, these are looked at, too.
        evidence: How likely other ratios are.
        steps: Gradient steps that every device may take.
    """
    ratios = _ratios(people, known, found, evidence, steps)
    base = torch.ones(len(people.z), dtype=REAL)
    if people.labels is None:
        base = (people.targets - people.targets.mean(0)).square().sum(1)
    held = _validated(people, known, ratios, base, FOLDS)
    if people.labels is None:
        half = _validated(people, known, ratios, base, 2)
        held = {name: _on_all(one, half[name]) for name, one in held.items()}
    around = _added(people, base) if people.labels is None else None
    return Foreseen(held, people.counts(), around, ratios)


def _validated(
    people: Seen, known: Known, ratios: Mapping[str, Sequence[float | Tensor]], base: Tensor, folds: int
) -> dict[str, Held]:
    """Return what cross-validation finds for every closed form.

    Args:
        people: The samples.
        known: Their moments.
        ratios: The ratios of every closed form.
        base: What the score of each sample is relative to.
        folds: How many parts there are, each of which is left out once.
    """
    fold = _folds(people, folds)
    kept = people.moments(fold, folds)
    rest = Known(*(whole.repeat_interleave(folds, 0) - part for whole, part in zip(known, kept, strict=True)))
    # As many trees side by side as there are folds.
    parents = [(parent[:, None] * folds + torch.arange(folds)).reshape(-1) for parent in people.parents]
    held = {}
    for name, values in ratios.items():
        own = solved(rest, parents, values, zero=name == "alone")[0]
        said = predicted(people.z, own, people.owner * folds + fold)
        each = _scored(people, said)
        score = float(each.sum() / base.sum().clamp(min=1e-300))
        deviation = float((each - score * base).square().mean().sqrt() / base.mean().clamp(min=1e-300))
        held[name] = Held(1 - score if people.labels is None else score, deviation, _added(people, each))
    return held


def _scored(people: Seen, said: Tensor) -> Tensor:
    """Return whether each sample is right, or its squared error."""
    if people.labels is None:
        return (said - people.targets).square().sum(1)
    return (said.argmax(1) == people.labels).to(REAL)


def _on_all(held: Held, half: Held) -> Held:
    """Return the score that is to be expected with all samples, from those with four fifths and with half of them.

    The error of a linear model of numbers is about a + b/n with n samples. (That of classes was found to follow no such rule.)
    """
    missed = 1 - held.score
    gained = min(max((held.score - half.score) / 3, 0.0), _CURVE * missed)
    return Held(held.score + gained, held.deviation, held.sums)


def _ratios(
    people: Seen, known: Known, found: Components, evidence: Evidence, steps: int
) -> dict[str, Sequence[float | Tensor]]:
    """Return the ratios of every closed form, the devices' first."""
    tiers = people.tree.top
    none = [0.0] * tiers
    made: dict[str, Sequence[float | Tensor]] = {
        "alone": [_alone(people, known, steps), *none[1:]],
        "common": none,
        "flat": evidence.best([0], polish=False),
        "both": list(found.ratios),
    }
    if tiers > 1:
        last = tiers - 1  # on deeper trees a team is all that is below one child of the server
        made["teams"] = [*none[1:], MOST]
        made["pulled"] = [0.0, *found.ratios[1:]]
        made["teams, own"] = evidence.best([0], {last: MOST}, polish=False)
    if found.directions is not None:
        made["directions"] = list(found.directions)
    return made


def _alone(people: Seen, known: Known, steps: int) -> float:
    """Return the ratio of devices that learn by themselves, from nothing.

    It is the likeliest one. But nothing holds a linear model of numbers back except the end of its training: so many gradient
    steps at a quarter of the largest stable rate, the slowest that a search tries, forget where they began to a known degree.
    """
    samples, counts = len(people.z), people.counts()

    def evidence(ratio: float) -> float:
        told = lift(known, torch.full((known.gram.shape[1],), ratio, dtype=REAL))
        rest = max(people.squares - float(told.fit.sum()), 1e-12 * people.squares)
        return -samples * math.log(rest) - float(told.cost.sum())

    likeliest = max(_GRID, key=evidence)
    if people.labels is not None:
        return likeliest
    curved = float((torch.linalg.eigvalsh(known.gram)[:, -1] / counts.clamp(min=1.0)).max())
    return min(max(likeliest, 0.25 * steps / (curved * float(counts.mean()))), MOST)


def _folds(people: Seen, folds: int) -> Tensor:
    """Return the fold of every sample: those of a device one after the other, of one class after the other."""
    order = torch.arange(len(people.owner))
    if people.labels is not None:
        order = (people.owner * people.targets.shape[1] + people.labels).argsort(stable=True)
    first = people.counts().cumsum(0).long() - people.counts().long()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - first[people.owner[order]]
    return (place + people.owner) % folds


def _added(people: Seen, values: Tensor) -> Tensor:
    return torch.zeros(people.tree.devices, dtype=REAL).index_add_(0, people.owner, values)


def _ratio(sums: Tensor, base: Tensor) -> tuple[float, float]:
    """Return one sum over another, and the standard error of that when devices are drawn."""
    found = float(sums.sum() / base.sum())
    return found, float((sums - found * base).square().sum().sqrt() / base.sum())
