"""FedProx, server optimisers, SCAFFOLD and MTGC: plain numpy, what each is the same as, what it sends, and who is absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import (
    MTGC,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    HierFAVG,
    Scaffold,
    algorithm,
)
from palmette.blocks import server_optimisers
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Optimiser
from palmette.links import Link
from palmette.links.ledger import Traffic
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.tree import Tree
from problems import Floats, quadratics, regression, simulate, task_of

K, ALPHA = 3, 0.1
STEPS: dict[str, Any] = {"local_steps": K, "alpha": ALPHA, "batch_size": "full"}
NUMBER = 8  # bytes of a number in a message


def away(*devices: int) -> Link:
    """A link on which some devices are never heard of."""
    gone = torch.tensor(devices)
    return Link(absences=lambda round_, tier, exchange, children: torch.isin(children, gone))


def now_and_then(lost: Callable[[int, int, int], bool]) -> Link:
    """A link that loses a child by its number, the round and the exchange."""

    def absences(round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        return torch.tensor([lost(round_, e, c) for e, c in zip(exchange.tolist(), children.tolist(), strict=True)])

    return Link(absences=absences)


def steps(form: tuple[Floats, Floats], row: Floats, shift: Floats | float = 0.0, pull: float = 0.0) -> Floats:
    (a, b), centre = form, row
    for _ in range(K):
        row = row - ALPHA * (a @ row - b + shift + pull * (row - centre))
    return row


def weights(population: Population) -> Floats:
    found: Floats = population.train.numpy() / int(population.train.sum())
    return found


def personal(simulation: Simulation) -> Tensor:
    return simulation.device_models(torch.arange(simulation.population.devices))


# -- FedProx -----------------------------------------------------------------------------------------------------------


def test_fedprox_agrees_with_numpy() -> None:
    population = regression([3, 2], unequal=True)
    forms, x = quadratics(population), np.zeros(3)
    for _ in range(3):
        x = weights(population) @ np.stack([steps(form, x, pull=0.7) for form in forms])
    simulation = simulate(FedProx(**STEPS, lam=0.7), population, 3)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)


@pytest.mark.parametrize("rate", ["one", "each"])
def test_fedprox_without_a_pull_is_fedavg_bit_for_bit(rate: str) -> None:
    population = regression([3, 2], unequal=True)
    names = population.tree.names(0)
    alpha: Any = 0.05 if rate == "one" else {name: 0.01 * (i + 1) for i, name in enumerate(names)}
    one, other = (
        simulate(method, population, 3, dtype=torch.float32)
        for method in (FedAvg(alpha=alpha, batch_size=5), FedProx(alpha=alpha, batch_size=5, lam=0))
    )
    assert torch.equal(one.model(), other.model())
    assert torch.equal(personal(one), personal(other))
    pulled = simulate(FedProx(alpha=alpha, batch_size=5, lam=0.3), population, 3, dtype=torch.float32)
    assert not torch.equal(one.model(), pulled.model())


# -- optimisers of the server ------------------------------------------------------------------------------------------


def second_moment(rule: str, v: Floats, g: Floats) -> Floats:
    if rule == "adagrad":
        return v + g**2
    if rule == "adam":
        return 0.99 * v + 0.01 * g**2
    return v - 0.01 * g**2 * np.sign(v - g**2)


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_servers_agree_with_numpy(kind: type[Any]) -> None:
    population = regression([3, 2], unequal=True)
    forms, x, m, v = quadratics(population), np.zeros(3), np.zeros(3), np.full(3, 0.02**2)
    for _ in range(4):
        g = x - weights(population) @ np.stack([steps(form, x) for form in forms])
        m, v = 0.6 * m + 0.4 * g, second_moment(kind.rule, v, g)
        x = x - 0.1 * m / (np.sqrt(v) + 0.02)
    simulation = simulate(kind(**STEPS, server_lr=0.1, beta_1=0.6, tau=0.02), population, 4)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)


def test_fedavgm_agrees_with_numpy() -> None:
    population = regression([3, 2], unequal=True)
    forms, x, m = quadratics(population), np.zeros(3), np.zeros(3)
    for _ in range(4):
        m = 0.8 * m + x - weights(population) @ np.stack([steps(form, x) for form in forms])
        x = x - 0.5 * m
    simulation = simulate(FedAvgM(**STEPS, server_lr=0.5, momentum=0.8), population, 4)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)


def test_fedavgm_without_momentum_is_fedavg() -> None:
    population = regression([3, 2], unequal=True)
    one = simulate(FedAvg(batch_size=5), population, 4)
    other = simulate(FedAvgM(batch_size=5, momentum=0, server_lr=1), population, 4)
    torch.testing.assert_close(one.model(), other.model(), atol=1e-14, rtol=0)
    assert not torch.allclose(one.model(), simulate(FedAvgM(batch_size=5, momentum=0.5), population, 4).model())


def test_the_two_adams_of_reddi_are_one() -> None:
    rows, gradient = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), torch.ones(2, 4)
    on = torch.ones(2, dtype=torch.bool)
    adam, adaptive = server_optimisers.FedAdam(0.1, "reddi"), server_optimisers.Adaptive(0.1)
    one, moments = adam.step(rows, adam.start(rows), gradient, on)
    other, same = adaptive.step(rows, adaptive.start(rows), gradient, on)
    assert torch.equal(one, other)
    assert torch.equal(moments["second"], same["second"])


@pytest.mark.parametrize("kind", [FedAvgM, FedAdagrad, FedAdam, FedYogi])
def test_a_server_that_nobody_answers_stands_still(kind: type[Any]) -> None:
    silent = now_and_then(lambda round_, exchange, child: round_ == 1)
    one, two, three = (
        simulate(kind(batch_size=5), regression([3, 2]), 3, stop=stop, links={0: silent}) for stop in (1, 2, 3)
    )
    for name, rows in one.stores[-1].rows.items():
        assert torch.equal(rows, two.stores[-1].rows[name])
    assert not torch.equal(one.model(), three.model())  # although it has momentum


# -- SCAFFOLD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_agrees_with_numpy_also_when_devices_are_absent(option: Any) -> None:
    population = regression([3, 2])
    forms, n = quadratics(population), 5
    x, c, own = np.zeros(3), np.zeros(3), np.zeros((n, 3))
    for t in range(4):
        here = [i for i in range(n) if (i + t) % 3]
        dx, dc = [], []
        for i in here:
            y = steps(forms[i], x, shift=c - own[i])
            new = forms[i][0] @ x - forms[i][1] if option == "I" else own[i] - c + (x - y) / (K * ALPHA)
            dx.append(y - x)
            dc.append(new - own[i])
            own[i] = new
        x, c = x + 0.5 * np.mean(dx, 0), c + len(here) / n * np.mean(dc, 0)
    lost = now_and_then(lambda round_, exchange, child: (child + round_) % 3 == 0)
    simulation = simulate(Scaffold(**STEPS, option=option, server_lr=0.5), population, 4, links={0: lost})
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[0].rows["control"].numpy(), own, atol=1e-12)
    np.testing.assert_allclose(simulation.stores[-1].rows["control"][0].numpy(), own.mean(0), atol=1e-12)
    assert simulation.device_steps == 13 * (K + (option == "I"))


def alike(devices: int) -> Population:
    """Devices that all have the same samples."""
    one = regression("1")
    return Population(
        tree=Tree.parse(f"{devices}"),
        x=one.x.repeat(devices, 1),
        y=one.y.repeat(devices),
        start=torch.arange(devices + 1) * len(one.y),
        train=one.train.repeat(devices),
    )


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_on_identical_data_is_fedavg(option: Any) -> None:
    one = simulate(FedAvg(**STEPS), alike(3), 5)
    other = simulate(Scaffold(**STEPS, option=option), alike(3), 5)
    torch.testing.assert_close(one.model(), other.model(), atol=1e-13, rtol=0)
    assert bool(other.stores[0].rows["control"].any())
    apart = regression("3")
    differ = simulate(FedAvg(**STEPS), apart, 5).model() - simulate(Scaffold(**STEPS), apart, 5).model()
    assert float(differ.abs().max()) > 1e-4


def test_scaffold_reaches_the_minimum_of_the_mean_where_fedavg_does_not() -> None:
    population = regression("3")
    forms = quadratics(population)
    best = np.linalg.solve(sum(a for a, _ in forms), sum(b for _, b in forms))
    given: dict[str, Any] = {"local_steps": 10, "alpha": 0.2, "batch_size": "full"}
    errors = [
        float(np.abs(simulate(method, population, 25).model().numpy() - best).max())
        for method in (Scaffold(**given), FedAvg(**given))
    ]
    assert errors[0] < 1e-5
    assert errors[1] > 1e-2


# -- MTGC --------------------------------------------------------------------------------------------------------------


class PlainMTGC:
    """MTGC on any tree, node by node, with full batches and equal weights; ``lost`` says who is absent when."""

    def __init__(self, population: Population, times: list[int], kept: bool) -> None:
        self.kept, self.tree, self.forms, self.times = kept, population.tree, quadratics(population), times
        self.own = {(tier, i): np.zeros(3) for tier in range(self.tree.top) for i in range(self.tree.size(tier))}
        self.x = np.zeros(3)

    def answer(self, tier: int, node: int, start: Floats, above: Floats) -> Floats:
        """Work for one message, with the sum of the corrections above."""
        shift = above + self.own[tier, node]
        if tier == 0:
            return steps(self.forms[node], start, shift=shift)
        w, children = start, list(self.tree.children(tier, node))
        for child in children:
            self.own[tier - 1, child] = self.own[tier - 1, child] if self.kept else np.zeros(3)
        for time in range(self.times[tier - 1]):
            rows = [self.answer(tier - 1, child, w, shift) for child in children]
            w = np.mean(rows, 0)
            if time + 1 < self.times[tier - 1]:  # of the last mean they are not told
                self.correct(tier - 1, children, rows, w)
        return w

    def correct(self, tier: int, children: list[int], rows: list[Floats], mean: Floats) -> None:
        for child, row in zip(children, rows, strict=True):
            self.own[tier, child] = self.own[tier, child] + (row - mean) / (ALPHA * K * np.prod(self.times[:tier]))

    def run(self, rounds: int) -> PlainMTGC:
        below = self.tree.top - 1
        nodes = list(range(self.tree.size(below)))
        for _ in range(rounds):
            rows = [self.answer(below, node, self.x, np.zeros(3)) for node in nodes]
            self.x = np.mean(rows, 0)
            self.correct(below, nodes, rows, self.x)
        return self


@pytest.mark.parametrize(("tree", "times"), [("4", []), ("2x3", [3]), ("2x2x2", [3, 2])])
@pytest.mark.parametrize("corrections", ["kept", "reset"])
def test_mtgc_agrees_with_numpy_on_any_depth(tree: str, times: list[int], corrections: Any) -> None:
    population = regression(tree)
    method = MTGC(**STEPS, team_steps=tuple(times) if times else 10, corrections=corrections)
    plain = PlainMTGC(population, times, corrections == "kept").run(4)
    np.testing.assert_allclose(simulate(method, population, 4).model().numpy(), plain.x, atol=1e-12)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_mtgc_without_corrections_is_hierfavg_bit_for_bit(weights: Any) -> None:
    population = regression([3, 1, 2], unequal=True)
    given: dict[str, Any] = {"team_steps": 3, "local_steps": 4, "batch_size": 5, "weights": weights}
    one, other, corrected = (
        simulate(method, population, 3, dtype=torch.float32)
        for method in (HierFAVG(**given), MTGC(**given, corrections="none"), MTGC(**given))
    )
    assert torch.equal(one.model(), other.model())
    assert torch.equal(one.stores[1].rows["model"], other.stores[1].rows["model"])
    assert torch.equal(personal(one), personal(other))
    assert one.ledger.totals() == other.ledger.totals()
    assert not torch.equal(one.model(), corrected.model())


def test_mtgc_reaches_the_minimum_of_the_mean_where_plain_averaging_does_not() -> None:
    population = regression("3x2")
    forms = quadratics(population)
    best = np.linalg.solve(sum(a for a, _ in forms), sum(b for _, b in forms))
    given: dict[str, Any] = {"team_steps": 4, "local_steps": 5, "alpha": 0.2, "batch_size": "full"}
    kept, reset, none = (
        float(np.abs(simulate(MTGC(**given, corrections=one), population, 30).model().numpy() - best).max())
        for one in ("kept", "reset", "none")
    )
    assert kept < 1e-4
    assert 5 * kept < reset < none / 5


def test_a_device_that_missed_an_exchange_keeps_its_correction() -> None:
    # Device 0 is away at the second of three exchanges of round 0, when it would have been told the first mean.
    lost = now_and_then(lambda round_, exchange, child: (round_, exchange, child) == (0, 1, 0))
    whole, simulation = (
        simulate(MTGC(**STEPS, team_steps=3), regression("2x3"), 1, links=links) for links in ({}, {0: lost})
    )
    shift = simulation.stores[0].rows["own"]
    assert not bool(shift[0].any())
    assert bool((shift[1:] != 0).any(1).all())
    assert torch.equal(shift[3:], whole.stores[0].rows["own"][3:])  # the other team heard nothing of it


def test_a_team_that_missed_a_round_keeps_its_correction_and_goes_on() -> None:
    lost = now_and_then(lambda round_, exchange, child: (round_, child) == (1, 0))
    at = [simulate(MTGC(**STEPS, team_steps=3), regression("2x3"), 4, stop=stop, links={1: lost}) for stop in (2, 3, 4)]
    shifts = [simulation.stores[1].rows["own"][0] for simulation in at]
    assert not bool(shifts[0].any())  # after round 0 there was nobody to tell it the mean
    assert not bool(shifts[1].any())  # the x of round 2 is not the mean that it took part in
    assert bool(shifts[2].any())


def test_lists_that_do_not_fit_the_tree_are_refused() -> None:
    with pytest.raises(BadInput, match=r"team_steps has 2 entries but the tree .* has 1 tier of teams"):
        simulate(MTGC(team_steps=(2, 3)), regression("2x3"), 1)


# -- what it costs -----------------------------------------------------------------------------------------------------

N, M, ROW = 6, 2, 3 * 8
TRAFFIC: dict[str, tuple[Algorithm, dict[int, Traffic]]] = {
    "fedprox": (FedProx(), {2: Traffic(1, N * ROW, N * ROW)}),
    "fedavgm": (FedAvgM(), {2: Traffic(1, N * ROW, N * ROW)}),
    "fedadam": (FedAdam(), {2: Traffic(1, N * ROW, N * ROW)}),
    "scaffold": (Scaffold(), {2: Traffic(1, 2 * N * ROW, 2 * N * ROW)}),
    "mtgc": (
        MTGC(team_steps=4),
        {
            1: Traffic(
                4 * M, N * (5 * ROW + 4 * NUMBER), 4 * N * ROW
            ),  # y goes down once, with the first of four models
            2: Traffic(1, M * (ROW + NUMBER), M * ROW),
        },
    ),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_a_round_costs_what_the_method_says(name: str) -> None:
    method, expected = TRAFFIC[name]
    assert simulate(method, regression("2x3"), 1).ledger.totals() == expected


# -- who is absent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [FedProx(**STEPS), FedAvgM(**STEPS), FedYogi(**STEPS)], ids=lambda method: method.name
)
def test_the_average_is_over_those_that_answered(method: Algorithm) -> None:
    population = regression([3, 2], unequal=True)
    without = population.tree.flat()
    kept = Population(
        tree=Tree.parse("3"),
        x=population.x[: int(population.start[3])],
        y=population.y[: int(population.start[3])],
        start=population.start[:4],
        train=population.train[:3],
    )
    assert without.devices == 5
    lost, alone = simulate(method, population, 3, links={0: away(3, 4)}), simulate(method, kept, 3)
    torch.testing.assert_close(lost.model(), alone.model(), atol=1e-13, rtol=0)


def test_each_method_is_measured_by_the_models_it_makes() -> None:
    population = regression("2x3")
    for method, kinds in ((FedProx(), {"PM", "GM"}), (Scaffold(), {"PM", "GM"}), (MTGC(), {"PM", "TM", "GM"})):
        assert set(evaluate(simulate(method, population, 1, task_of(population)))) == kinds


@pytest.mark.parametrize("name", ["scaffold", "mtgc"])
@pytest.mark.parametrize("rule", [Optimiser(momentum=0.9), Optimiser(schedule="cosine"), Optimiser(weight_decay=0.1)])
def test_what_reads_gradients_off_its_steps_refuses_other_steps(name: str, rule: Optimiser) -> None:
    population = regression("2x3")
    with pytest.raises(BadInput, match=r"leave optimiser.\* out"):
        simulate(algorithm(name), population, 1, optimiser=rule)
    other = {"scaffold": {"option": "I"}, "mtgc": {"corrections": "none"}}[name]
    simulate(algorithm(name, **other), population, 1, optimiser=rule)


def test_devices_kept_out_of_training_do_not_dilute_scaffolds_control_variate() -> None:
    people = regression([2, 2])
    people = replace(people, unseen=torch.tensor([False, True, False, False]))
    after = simulate(Scaffold(local_steps=2, batch_size="full"), people, 2)
    devices = after.stores[0].rows["control"][[0, 2, 3]]
    torch.testing.assert_close(after.stores[-1].rows["control"][0], devices.mean(0))
