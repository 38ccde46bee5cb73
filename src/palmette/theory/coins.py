"""The conditions of Async-L2GD's Theorem 3.5 and of Async-AL2SGD+'s Theorem 4.3 with Corollary 4.4.

The second is stated as an order of iterations only. Its proof is that of L-Katyusha, and has constants: with C = 2 b1 b2 / a1,
B = C (a2 + a1/2) / rho and A = C (1 - a2 - a1/2) an iteration multiplies, on average,

    Psi = |z - theta^|^2 + A (F(y) - F*) + B (F(ref) - F*)

by at most ``max {b1, (1 - a1 - a2) / (1 - a2 - a1/2), 1 - rho a1 / (2 a2 + a1)}``. To see it, bound ``|z+ - theta^|^2`` by
strong convexity at theta, add C times the descent ``E F(y+) <= F(theta) - 7/8 eta E|g|^2 + a2 D(ref, theta)``, which takes away
both the noise and ``E|g|^2``, and share what is left between y and the reference, which becomes y+ with chance rho.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.blocks.katyusha import katyusha
from palmette.blocks.mixing import Coins, Pulls
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.learner import Curvature
from palmette.protocol import Device
from palmette.theory.advice import slack
from palmette.theory.conditions import Check, Condition
from palmette.tree import Tree

GOAL = 1e-6  # the relative squared error that numbers of iterations are told for
_SAMPLES = 4096  # samples whose norms are taken at once
_DEVICES = 1024  # devices, evenly chosen, that stand for more


def check_coins(simulation: Simulation, bent: Curvature) -> Check:
    """Hold the settings of a method with coins against the theorem of its algorithm."""
    method = simulation.algorithm
    assert isinstance(method, CoinTree | AL2SGD)
    if isinstance(method, AL2SGD):
        return _accelerated(simulation, method, bent)
    return _plain(simulation, method, bent.convexity)


def estimated(simulation: Simulation) -> list[float]:
    """Return what the run will estimate in its first round: L, or the L of single batches and 1 / mu."""
    parts, tree = [], simulation.tree
    some = torch.arange(0, tree.devices, -(-tree.devices // _DEVICES))
    where = {"seed": simulation.seed, "round_": 0, "rounds": simulation.rounds, "stage": None}
    with one_thread_inside(), torch.no_grad():
        for ids in some.split(simulation.learner.chunk(len(some))):
            state, first = simulation.stores[0].read(ids), torch.zeros_like(ids)
            node = Device(simulation.learner, first, tree, ids, samples=simulation.samples, **where)
            parts.append(simulation.algorithm.device(node, {"estimate": 1}, state)[0])
    largest: list[float] = torch.cat(parts).amax(0).tolist()
    return largest


def _plain(simulation: Simulation, method: CoinTree, convex: float) -> Check:
    tree, (smooth,) = simulation.tree, estimated(simulation)
    pulls = Pulls.on(tree, method.lam, method.gamma)
    used = smooth if method.smoothness == "auto" else float(method.smoothness)
    coins = method.coins(tree, pulls, used)
    expected = max(coins.terms(pulls, smooth))  # of the losses as they are, whatever L the coins were chosen for
    most = 1 / (2 * expected)
    eta = step_of(method, tree, used)
    slower = 1 - eta * convex
    rounds = method.iterations
    within = float(((1 - coins.between) * coins.within * (1 - coins.within)).sum())
    full = method.batch_size == "full"
    promised = convex > 0 and eta <= most * (1 + 1e-9) and not method.decrease and full
    return Check(
        algorithm=method.name,
        theorem="Async-L2GD, Theorem 3.5 (strongly convex)",
        constants={
            "L_f": smooth,
            "mu_f": convex,
            **_coin_constants(coins),
            "Lc": expected,
        },
        conditions=(
            Condition("eta", eta, high=most * (1 + 1e-9), source="Thm 3.5: eta <= 1 / (2 Lc)", diverges=2 / expected),
            Condition("mu_f", convex, low=0.0, source="Thm 3.5: strong convexity"),
        ),
        promise="E|theta^t - theta^|^2 <= (1 - eta mu)^t |theta^0 - theta^|^2 + 2 eta sigma^2 / mu, t in iterations",
        rate=slower**rounds if promised else None,
        largest={"eta": most},
        wanted={"iterations to 1e-6": math.log(GOAL) / math.log(slower)} if 0 < slower < 1 else {},
        notes=(
            "a constant step ends in a ball of radius^2 about 2 eta sigma^2 / mu around the minimiser; decrease > 0 shrinks it",
            f"averages a round, coalesced (Prop. 3.2): {coins.between * (1 - coins.between) * rounds:.3g} between teams, "
            f"{within * rounds:.3g} within them",
            *(
                ()
                if full
                else (f"the theorem is about full gradients; batches of {method.batch_size} add noise of their own",)
            ),
        ),
    )


def step_of(method: CoinTree, tree: Tree, smooth: float) -> float:
    """Return the step of the first round, from the L that the coins were chosen for."""
    if method.eta != "auto":
        return float(method.eta)
    pulls = Pulls.on(tree, method.lam, method.gamma)
    return method.coins(tree, pulls, smooth).step(pulls, smooth)


@dataclass(frozen=True)
class Lyapunov:
    """The function that L-Katyusha shrinks: ``|z - theta^|^2 + own (F(y) - F*) + ref (F(ref) - F*)``.

    Attributes:
        own: A.
        ref: B.
        rate: The factor an iteration multiplies it by at most, on average.
    """

    own: float
    ref: float
    rate: float

    @staticmethod
    def of(method: AL2SGD, tree: Tree, smooth: float, convex: float) -> Lyapunov:
        """Work it out for the constants a run has."""
        k = steps_of(method, tree, smooth, convex)
        a1, a2, b1 = k["a1"], k["a2"], k["b1"]
        scale, part = 2 * b1 * k["b2"] / a1, a2 + a1 / 2
        rate = max(b1, (1 - a1 - a2) / (1 - part), 1 - method.refresh * a1 / (2 * part))
        return Lyapunov(scale * (1 - part), scale * part / method.refresh, rate)


def steps_of(method: AL2SGD, tree: Tree, smooth: float, convex: float) -> dict[str, float]:
    """Return the step and the weights that follow from L~ and mu."""
    pulls = Pulls.on(tree, method.lam, method.gamma)
    expected = max(Coins.fair(tree, pulls, smooth).terms(pulls, smooth))
    return katyusha(expected, smooth + float(pulls.device.max()), convex, method.refresh)


def _accelerated(simulation: Simulation, method: AL2SGD, bent: Curvature) -> Check:
    tree, (found, inverse) = simulation.tree, estimated(simulation)
    smooth = found if method.smoothness == "auto" else float(method.smoothness)
    known = 1 / inverse if method.convexity == "auto" else float(method.convexity)
    convex, single = bent.convexity, method.batch_size == 1
    most = max(found, one_sample(simulation)) if single else found
    pulls = Pulls.on(tree, method.lam, method.gamma)
    coins = Coins.fair(tree, pulls, smooth)
    expected = max(coins.terms(pulls, smooth))
    rate = Lyapunov.of(method, tree, smooth, known).rate
    order = (1 / method.refresh + math.sqrt(expected / (method.refresh * known))) * math.log(1 / GOAL)
    conditions = (
        Condition("mu_f", convex, low=0.0, source="Thm 4.3: strong convexity"),
        Condition("convexity", known, high=convex * (1 + 1e-6), source="mu of the steps <= mu_f"),
        Condition(
            "smoothness",
            smooth,
            low=most * (1 - 1e-6),
            source=f"L~ of the steps: that of any {'sample' if single else 'batch'}",
            diverges_below=bent.smoothness / slack(method),
        ),
    )
    return Check(
        algorithm=method.name,
        theorem="Async-AL2SGD+, Theorem 4.3 (strongly convex), Corollary 4.4",
        constants={"L~": most, "mu_f": convex, **_coin_constants(coins), "Lc": expected},
        conditions=conditions,
        promise="O((1/rho + sqrt(Lc / (rho mu))) log 1/eps) iterations; by its proof E Psi^t <= rate^t Psi^0, "
        "Psi = |z - theta^|^2 + A (F(y) - F*) + B (F(ref) - F*)",
        rate=rate**method.iterations if all(one.holds for one in conditions) else None,
        largest={"convexity": convex, "eta (it follows)": steps_of(method, tree, smooth, known)["eta"]},
        wanted={
            "iterations to 1e-6, up to a constant": order,
            **({"iterations to 1e-6, by the proof": math.log(GOAL) / math.log(rate)} if 0 < rate < 1 else {}),
        },
        notes=(
            "all steps follow from L~ (smoothness), mu (convexity) and rho (refresh); there is none to set",
            "with auto a run takes L~ and mu from a few batches and power iterations, and may take mu too large",
        ),
    )


def _coin_constants(coins: Coins) -> dict[str, float]:
    return {
        "p_0": coins.between,
        "largest p_i": float(coins.within.max()),
        "largest tau_i": float(coins.tau.max()),
    }


def one_sample(simulation: Simulation) -> float:
    """Return the largest curvature of one training sample's loss at the initial model; 0 for models that are not linear.

    It is the squared norm of its features: times one for squared errors, over the number of classes for a softmax of zeros.
    """
    task, learner, population = simulation.task, simulation.learner, simulation.population
    if task.name not in ("linear", "mclr") or task.loss not in ("squared", "cross-entropy"):
        return 0.0
    largest = 0.0
    for device in range(simulation.tree.devices):
        first = int(population.start[device])
        for some in torch.arange(first, first + int(learner.samples[device])).split(_SAMPLES):
            norms = learner.data.features(some.to(learner.device)).flatten(1).square().sum(1)
            largest = max(largest, float(norms.max()))
    largest += task.name == "mclr"  # its intercept sees a one
    return largest / (population.classes or 1 if task.loss == "cross-entropy" else 1) + task.l2
