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
from palmette.theory.conditions import Check, Condition, of_the_run
from palmette.tree import Tree

GOAL = 1e-3  # the relative squared error that numbers of iterations are told for
_DEVICES = 1024  # devices, evenly chosen, that stand for more where there is no closed form


def check_coins(simulation: Simulation, bent: Curvature) -> Check:
    """Hold the settings of a method with coins against the theorem of its algorithm."""
    method = simulation.algorithm
    assert isinstance(method, CoinTree | AL2SGD)
    found = _accelerated(simulation, method, bent) if isinstance(method, AL2SGD) else _plain(simulation, method, bent)
    return found.settled()


_CONSTANT = "E|theta^t - theta^|^2 <= (1 - eta mu)^t |theta^0 - theta^|^2 + 2 eta sigma^2 / mu, t in iterations"
_ONE_STEP = (
    "E|theta^(t+1) - theta^|^2 <= (1 - eta_t mu) E|theta^t - theta^|^2 + 2 eta_t^2 sigma^2, t in iterations; the step eta_t "
    "decreases, so there is no rate that holds for all rounds"
)


def estimated(simulation: Simulation, most: int = _DEVICES) -> list[float]:
    """Return what the devices will tell in the run's first round: L, or the L of single batches and 1 / mu.

    Args:
        simulation: The run.
        most: Devices, evenly chosen, that are looked at where there is no closed form.
    """
    parts, tree = [], simulation.tree
    every = 1 if simulation.learner.spectrum is not None else -(-tree.devices // most)
    some = torch.arange(0, tree.devices, every)
    where = {
        "seed": simulation.seed,
        "round_": 0,
        "rounds": simulation.rounds,
        "stage": None,
        "layout": simulation.task.layout,
    }
    with one_thread_inside(), torch.no_grad():
        for ids in some.split(simulation.learner.chunk(len(some))):
            state, first = simulation.stores[0].read(ids), torch.zeros_like(ids)
            node = Device(simulation.learner, first, tree, ids, samples=simulation.samples, **where)
            parts.append(simulation.algorithm.device(node, {"estimate": 1}, state)[0])
    largest: list[float] = torch.cat(parts).amax(0).tolist()
    return largest


def _plain(simulation: Simulation, method: CoinTree, bent: Curvature) -> Check:
    tree, (smooth,), convex = simulation.tree, estimated(simulation), bent.convexity
    pulls = Pulls.on(tree, method.lam, method.gamma)
    used = smooth if method.smoothness == "auto" else float(method.smoothness)
    coins = method.coins(tree, pulls, used)
    expected = max(coins.terms(pulls, smooth))  # of the losses as they are, whatever L the coins were chosen for
    most, unstable = 1 / (2 * expected), 2 / max(coins.terms(pulls, bent.start))
    eta = step_of(method, tree, used)
    slower, rounds = 1 - eta * convex, method.iterations
    within = float(((1 - coins.between) * coins.within * (1 - coins.within)).sum())
    shrinks = 0 < slower < 1 and not method.decrease
    return Check(
        algorithm=method.name,
        theorem="Async-L2GD, Theorem 3.5 (strongly convex)",
        constants={"L_f": smooth, "mu_f": convex, **_coin_constants(coins), "Lc": expected},
        conditions=(
            *of_the_run(simulation, batches=False),
            Condition("eta", eta, high=most, source="Thm 3.5: eta <= 1 / (2 Lc)", diverges=unstable),
            Condition("mu_f", convex, low=0.0, source="Thm 3.5: strong convexity"),
        ),
        promise=_ONE_STEP if method.decrease else _CONSTANT,
        rate=slower**rounds if shrinks else None,
        largest={"eta": most},
        wanted=_lengths(slower, rounds) if shrinks else {},
        notes=(
            "a constant eta stops getting closer at a squared distance of about 2 eta sigma^2 / mu from the minimiser; "
            "decrease > 0 shrinks that distance",
            f"expected averages in a round, repeated ones counted once (Prop. 3.2): "
            f"{coins.between * (1 - coins.between) * rounds:.3g} between teams, "
            f"{within * rounds:.3g} within them",
        ),
    )


def _lengths(factor: float, iterations: int) -> dict[str, float]:
    """Return how long it takes until the first term of a bound is a thousandth, in iterations and in rounds."""
    needed = math.log(GOAL) / math.log(factor)
    counts = {"iterations": needed, "rounds": needed / iterations}
    return {f"{what} until the falling part of the bound is 1e-3 of the start": many for what, many in counts.items()}


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
    tree, (found, inverse), convex = simulation.tree, estimated(simulation), bent.convexity
    smooth = found if method.smoothness == "auto" else float(method.smoothness)
    known = 1 / inverse if method.convexity == "auto" else float(method.convexity)
    pulls = Pulls.on(tree, method.lam, method.gamma)
    coins = Coins.fair(tree, pulls, smooth)
    expected = max(coins.terms(pulls, smooth))
    rate, steps = Lyapunov.of(method, tree, smooth, known).rate, steps_of(method, tree, smooth, known)
    kind = "sample" if method.batch_size == 1 else "batch"
    order = (1 / method.refresh + math.sqrt(expected / (method.refresh * known))) * math.log(1 / GOAL)
    return Check(
        algorithm=method.name,
        theorem="Async-AL2SGD+, Theorem 4.3 (strongly convex), Corollary 4.4",
        constants={"L~": found, "mu_f": convex, **_coin_constants(coins), "Lc": expected, "eta": steps["eta"]},
        conditions=(
            *of_the_run(simulation, batches=True),
            Condition("mu_f", convex, low=0.0, source="Thm 4.3: strong convexity"),
            *((Condition("convexity", known, high=convex, source="mu of the steps <= mu_f"),) if convex else ()),
            Condition(
                "smoothness",
                smooth,
                least=found,
                source=f"L~ of the steps: that of any {kind}",
                diverges_below=bent.start / slack(method),
            ),
        ),
        promise="O((1/rho + sqrt(Lc / (rho mu))) log 1/eps) iterations; by its proof E Psi^t <= rate^t Psi^0, "
        "Psi = |z - theta^|^2 + A (F(y) - F*) + B (F(ref) - F*)",
        rate=rate**method.iterations if rate < 1 else None,
        largest={"convexity": convex} if convex else {},
        wanted={
            **(_lengths(rate, method.iterations) if 0 < rate < 1 else {}),
            "iterations for 1e-3 by the order alone, its constant left out": order,
        },
        notes=(
            "there is no learning rate to set: all steps follow from L~ (smoothness), mu (convexity) and rho (refresh)",
        ),
    )


def slack(method: CoinTree | AL2SGD) -> float:
    """Return how many times too small the L of a method with coins may be before a local step is beyond 2 / L."""
    return 8.0 if isinstance(method, AL2SGD) else 4.0  # the steps are 1 / (4 L) and 1 / (2 L)


def _coin_constants(coins: Coins) -> dict[str, float]:
    return {
        "p_0": coins.between,
        "largest p_i": float(coins.within.max()),
        "largest tau_i": float(coins.tau.max()),
    }
