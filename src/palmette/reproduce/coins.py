"""What Async-L2GD's theorems say of its coins, held against runs on small quadratics whose minimiser is known.

The paper has no experiment for these. Losses are ``1/2 mean (x theta - y)^2`` with the curvatures that are asked for, from
``1 / condition`` to 1; errors are squared distances of all models to the exact minimiser, as parts of those at the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from palmette.address import numpy_generator
from palmette.algorithms import algorithm
from palmette.blocks.mixing import Coins, Pulls
from palmette.engines.simulate import Simulation
from palmette.population import Population
from palmette.reproduce.hierarchical import population
from palmette.task import make_task
from palmette.theory import hlm
from palmette.tree import Tree

Found = dict[str, dict[str, float]]
LAM, GAMMA = 0.5, 0.1
SIZES = (3, 3, 3)
STEPS = {"the largest": 1.0, "a quarter of it": 0.25, "a sixteenth of it": 1 / 16}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "l2gd": ("l2gd", {}),
    "l2gd-decreasing": ("l2gd", {"decrease": 0.2}),
    "al2sgd": ("al2sgd", {"batch_size": "full"}),
    "al2sgd-printed": ("al2sgd", {"batch_size": "full", "as_published": ["estimator"]}),
    "al2sgd-one-sample": ("al2sgd", {"batch_size": 1, "smoothness": "auto", "refresh": 1 / 16}),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """Quadratic losses in teams, and the minimiser of (2.1) with `LAM` and `GAMMA`."""

    people: Population
    best: hlm.Floats
    curvature: hlm.Floats
    moment: hlm.Floats

    @staticmethod
    def draw(seed: int, condition: float, *, dimension: int = 4, samples: int = 16) -> Problem:
        """Draw teams of clients with one spectrum of curvatures for all."""
        drawn = hlm.draw(SIZES, samples=samples, dimension=dimension, seed=seed, orthonormal=float(samples))
        scale = np.sqrt(np.geomspace(1 / condition, 1, dimension))
        noise = drawn.y - np.einsum("nmd,nd->nm", drawn.x, drawn.truth)
        x = drawn.x * scale
        sample = replace(drawn, x=x, y=np.einsum("nmd,nd->nm", x, drawn.truth) + noise)
        gram, moment = sample.gram / samples, sample.moment / samples
        best = hlm.solve(gram, moment, sample.cluster, (1 / (SIZES[0] * GAMMA), 1 / LAM, 1.0))[0]
        return Problem(population(sample), best, gram, moment)

    @property
    def start(self) -> float:
        """The squared distance of all models at the start, zero, to the minimiser."""
        return float(np.square(self.best).sum())

    def errors(self, name: str, settings: Mapping[str, Any], *, every: int, rounds: int, seed: int) -> Iterator[float]:
        """Run a method and yield the squared distance to the minimiser after every so many iterations.

        Args:
            name: The algorithm.
            settings: Its settings, but for the pulls.
            every: Iterations between two measurements.
            rounds: Number of measurements.
            seed: Decides the coins.
        """
        given = {"lam": LAM, "gamma": GAMMA, "smoothness": 1.0, "iterations": every, **settings}
        task = make_task("linear", self.people.shape, None)
        run = Simulation(
            algorithm(name, **given), self.people, task, rounds=rounds, seed=seed, dtype=torch.float64, threads=1
        )
        for _ in range(rounds):
            run.step()
            yield float(np.square(run.stores[0].rows["model"].numpy() - self.best).sum())

    @property
    def coins(self) -> tuple[Pulls, Coins]:
        """The pulls, and the coins of Corollary 3.6."""
        pulls = Pulls.on(self.people.tree, LAM, GAMMA)
        return pulls, Coins.fair(self.people.tree, pulls, 1.0)

    def noise(self) -> float:
        """Return sigma^2 of Theorem 3.5: how much the oracle varies at the minimiser."""
        pulls, coins = self.coins
        team = self.people.tree.parents[0]
        mix, p, q = pulls.mix[team][:, None], coins.between, float(coins.within[0])
        own = np.stack([self.best[team == i].mean(0) for i in range(len(SIZES))])[team]
        shared = np.square(mix * LAM * (self.best - self.best.mean(0))).sum()  # teams are alike in size and pulls
        apart = np.square((1 - mix) * LAM * (self.best - own)).sum()
        local = np.square(np.einsum("nde,ne->nd", self.curvature, self.best) - self.moment).sum()
        return float(2 / p * shared + 2 / (p + 2 * (1 - p) * q) * apart + local / ((1 - p) * (1 - q)))


def noise_balls(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return, for three step sizes, how Async-L2GD comes near the minimiser and how far from it it stays.

    ``ball`` is the squared distance in the end, a mean over the second half of the run; ``next`` how many times as large it is
    as with a quarter of the step; ``bound`` is its part of ``2 eta sigma^2 / mu``; ``rate`` how fast the distance
    falls at first beside ``eta mu`` of the theorem, and ``straight`` how much faster in the first than in the second half of
    that phase.

    Args:
        options: ``repeats``: runs with other coins whose mean is taken; how often each is ``measured``.
        methods: Not used.
        seed: Decides problem and coins.
    """
    problem = Problem.draw(seed, 1.0)  # one curvature, so that the first phase has one rate
    pulls, coins = problem.coins
    found: Found = {name: {} for name in ("ball", "next", "bound", "rate", "straight")}
    for name, part in STEPS.items():
        eta = part * coins.step(pulls, 1.0)
        every, rounds = max(1, round(1 / eta / 8)), int(options.get("measured", 160))
        paths = [
            [problem.start, *problem.errors("l2gd", {"eta": eta}, every=every, rounds=rounds, seed=1000 * seed + k)]
            for k in range(int(options.get("repeats", 8)))
        ]
        path = np.mean(paths, 0)
        ball = float(path[rounds // 2 :].mean())
        found["ball"][name] = ball
        found["bound"][name] = ball / (2 * eta * problem.noise())
        ended = max(2, int((path < 4 * ball).argmax()))  # until here it still falls
        middle, fall = ended // 2, -np.log(path)
        found["rate"][name] = float(fall[ended] - fall[0]) / (ended * every * eta)
        first, second = (fall[middle] - fall[0]) / middle, (fall[ended] - fall[middle]) / (ended - middle)
        found["straight"][name] = float(first / second)
    names = list(STEPS)
    found["next"] = {one: found["ball"][one] / found["ball"][two] for one, two in pairwise(names)}
    return found


def best_coins(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return, for random pulls on random trees, how the coins of Corollary 3.6 do beside others.

    ``others`` is the least expected smoothness (Lc) of many other coins as a multiple of the corollary's; ``apart`` how far the
    three terms of the corollary's Lc lie apart, as a part of it, where C2 > C1.

    Args:
        options: ``problems`` of a seed, ``tries`` for each.
        methods: Not used.
        seed: Decides all.
    """
    generator = numpy_generator(seed, "best coins")
    found: Found = {"others": {}, "apart": {}}
    for number in range(int(options.get("problems", 20))):
        tree = Tree.parse(generator.integers(1, 6, size=generator.integers(2, 5)).tolist())
        lam = dict(zip(tree.names(0), 10 ** generator.uniform(-2, 1, tree.devices), strict=True))
        gamma = dict(zip(tree.names(1), 10 ** generator.uniform(-3, 1, tree.size(1)), strict=True))
        smoothness = float(10 ** generator.uniform(-1, 1))
        pulls = Pulls.on(tree, lam, gamma)
        coins = Coins.fair(tree, pulls, smoothness)
        terms = coins.terms(pulls, smoothness)
        least = math.inf
        for _ in range(int(options.get("tries", 1000))):
            within = dict(zip(tree.names(1), generator.uniform(0, 1, tree.size(1)).tolist(), strict=True))
            within = within if generator.random() < 0.5 else dict.fromkeys(within, next(iter(within.values())))
            other = Coins.fair(tree, pulls, smoothness, float(generator.uniform(0.001, 0.999)), within)
            least = min(least, max(other.terms(pulls, smoothness)))
        found["others"][f"problem {number}"] = least / max(terms)
        if coins.within.any():
            found["apart"][f"problem {number}"] = 1 - min(terms) / max(terms)
    return found


def exchanges(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return the averages of a run as multiples of what Proposition 3.2 expects, between teams and within each.

    ``raw`` counts all, ``coalesced`` those not preceded by one of their kind; ``before`` holds the latter within teams against
    the other way to read the proposition: those with a local iteration just before.

    Args:
        options: ``iterations``; ``between`` (p_0) and ``within`` (p_i).
        methods: Not used.
        seed: Decides the coins.
    """
    problem = Problem.draw(seed, 1.0)
    p, q, length = options.get("between", 0.3), options.get("within", 0.4), int(options.get("iterations", 4000))
    coin = algorithm("l2gd", lam=LAM, gamma=GAMMA, between=p, within=q, smoothness=1.0, iterations=length)
    task = make_task("linear", problem.people.shape, None)
    run = Simulation(coin, problem.people, task, rounds=1, seed=seed, dtype=torch.float64, threads=1)
    run.step()
    chances = (("between", 2, p, p * (1 - p)), ("within", 1, (1 - p) * q, (1 - p) * q * (1 - q)))
    found: Found = {}
    for name, tier, raw, coalesced in chances:
        counts = run.stores[tier].rows["counts"].numpy()
        for kind, column, chance in (("raw", 0, raw), ("coalesced", 1, coalesced)):
            each = counts[:, column] / (chance * length)
            found[f"{name}-{kind}"] = {f"node {i}": float(value) for i, value in enumerate(each)}
    other = found["within-coalesced"]
    found["before"] = {node: value / (1 - p) for node, value in other.items()}
    return found


def accelerated(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return the logarithm (to base 10) of the error of methods after some iterations.

    Args:
        options: ``iterations``, ascending multiples of 50; ``condition`` of the losses.
        methods: Names of `METHODS`; all by default.
        seed: Decides problem and coins.
    """
    problem, marks = Problem.draw(seed, float(options.get("condition", 10.0))), [int(n) for n in options["iterations"]]
    convex = {"convexity": 1 / float(options.get("condition", 10.0))}
    found: Found = {}
    for name in methods or METHODS:
        kind, settings = METHODS[name]
        given = settings | (convex if kind == "al2sgd" else {})
        path = problem.errors(kind, given, every=50, rounds=marks[-1] // 50, seed=seed)
        errors = {50 * (n + 1): error for n, error in enumerate(path)}
        found[name] = {str(mark): math.log10(max(errors[mark] / problem.start, 1e-30)) for mark in marks}
    return found


def iterations_needed(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return how many iterations methods need until the error is small, and how that grows with the condition.

    ``l2gd`` takes the constant step that is fastest of some, and ``part`` is what Async-AL2SGD+ needs of its iterations for the
    same error. ``growth`` is an exponent for Async-AL2SGD+: 1 where twice the condition needs twice the iterations, 1/2 where
    it needs the square root of two times as many.

    Args:
        options: The ``condition``, the ``goal`` and the ``steps`` of Async-L2GD, as parts of the largest; for the growth the
            ``conditions`` and the error that is ``exact`` enough; ``most`` iterations.
        methods: Not used.
        seed: Decides problem and coins.
    """
    goal, most = float(options.get("goal", 1e-3)), int(options.get("most", 10_000))
    condition = float(options.get("condition", 10.0))
    problem = Problem.draw(seed, condition)
    pulls, coins = problem.coins
    plain = float(most)
    for part in options.get("steps", (1 / 8, 1 / 16, 1 / 32)):
        plain = min(plain, _needed(problem, "l2gd", {"eta": part * coins.step(pulls, 1.0)}, goal, int(plain), seed))
    settings = {"convexity": 1 / condition, "batch_size": "full"}
    fast = _needed(problem, "al2sgd", settings, goal, most, seed)
    conditions, counts = [float(one) for one in options.get("conditions", (10, 160))], []
    for one in conditions:
        given = {**settings, "convexity": 1 / one}
        counts.append(_needed(Problem.draw(seed, one), "al2sgd", given, float(options.get("exact", 1e-8)), most, seed))
    growth = math.log(counts[-1] / counts[0]) / math.log(conditions[-1] / conditions[0])
    numbers = {"l2gd": plain, "al2sgd": fast, "part": fast / plain, "growth": growth}
    return {name: {"all": value} for name, value in numbers.items()}


def _needed(problem: Problem, name: str, settings: Mapping[str, Any], goal: float, most: int, seed: int) -> float:
    """Return the iterations, counted by twenties, after which a method's error stays below a goal for three counts."""
    under = 0
    for n, error in enumerate(problem.errors(name, settings, every=20, rounds=max(1, most // 20), seed=seed), 1):
        under = under + 1 if error < goal * problem.start else 0
        if under == 3:
            return 20.0 * (n - 2)
    return float(most)


def estimator_bias(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> Found:
    """Return how far the mean of Async-AL2SGD+'s estimator over all coins is from the gradient, at random models.

    ``printed`` is (4.1) as it stands, ``corrected`` has the missing pull to the team's mean; both as parts of the gradient.

    Args:
        options: Not used.
        methods: Not used.
        seed: Decides models and reference.
    """
    problem = Problem.draw(seed, 10.0)
    pulls, coins = problem.coins
    generator, team = numpy_generator(seed, "estimator"), problem.people.tree.parents[0]
    theta, ref = generator.normal(size=(2, *problem.best.shape))

    def slope(models: hlm.Floats) -> tuple[hlm.Floats, hlm.Floats, hlm.Floats]:
        own = np.stack([models[team == i].mean(0) for i in range(len(SIZES))])[team]
        local = np.einsum("nde,ne->nd", problem.curvature, models) - problem.moment
        return np.asarray(local), np.asarray(models - own), np.asarray(models - models.mean(0))

    mix = pulls.mix[team][:, None]
    (f1, own1, all1), (f0, own0, all0) = slope(theta), slope(ref)
    whole = f1 + LAM * ((1 - mix) * own1 + mix * all1)
    at_ref = f0 + LAM * ((1 - mix) * own0 + mix * all0)
    found: Found = {}
    for name, printed in (("printed", True), ("corrected", False)):
        gains = {key: value[team][:, None] for key, value in coins.gains(pulls, printed).items()}
        share, within = gains["share"], coins.within[team][:, None]
        joint = LAM * gains["joint"] * (share * (all1 - all0) + (1 - share) * (own1 - own0))
        apart, local = LAM * gains["apart"] * (own1 - own0), gains["local"] * (f1 - f0)
        mean = at_ref + coins.between * joint + (1 - coins.between) * (within * apart + (1 - within) * local)
        found[name] = {"all": float(np.linalg.norm(mean - whole) / np.linalg.norm(whole))}
    return found
