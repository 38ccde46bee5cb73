"""Gradients at several rows on one batch: the same samples and masks, through every backend, counted honestly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palmette.algorithms import AL2SGD, algorithm
from palmette.blocks import mixing
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.learner.backends import VmapBackend
from palmette.learner.loop import LoopBackend
from palmette.protocol import Node
from palmette.task import make_task
from palmette.tree import Tree
from problems import regression, simulate
from test_backends import SIZES, close, learner, population, rows, work

LAYOUT = make_task("linear", (2,), None).layout
HALF = torch.tensor([True, False, True, False, True])
DROPPING = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 3))


@pytest.mark.parametrize("where", [None, HALF], ids=["all", "some"])
@pytest.mark.parametrize("batch", ["next", "same", "full", "one"])
@pytest.mark.parametrize("model", ["mclr", "dnn", "cnn", "linear", DROPPING])
def test_backends_agree_on_the_gradients_at_two_rows(model: Any, batch: Any, where: Tensor | None) -> None:
    found = []
    for backend in ("loop", "vmap", "fused"):
        of = learner(model, backend, l2=0.1)
        gradient = work(of).oracle(batch, where)
        found.append(torch.stack([gradient(rows(of, 1)), gradient(rows(of, 2))]))
    close(found[1], found[0])
    close(found[2], found[0])
    assert (found[0].abs().sum(2) > 0).tolist() == [(where if where is not None else HALF | True).tolist()] * 2


@pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
def test_all_rows_meet_one_batch_and_one_set_of_masks(backend: str) -> None:
    of = learner(DROPPING, backend)
    doing, start = work(of), rows(of)
    gradient = doing.oracle("next")
    first = gradient(start)
    assert not torch.equal(gradient(2 * start), first)
    assert torch.equal(gradient(start), first)
    assert not torch.equal(doing.oracle("next")(start), first)
    assert torch.equal(work(of).gradient(start, "next"), first)
    masked = doing.oracle("full")(start)
    assert not torch.equal(doing.oracle("full")(start), masked)


@pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
def test_it_is_the_gradient_of_an_objective_with_both_rows(backend: str) -> None:
    def apart(named: dict[str, Tensor], batch: Any) -> Tensor:
        losses = [batch.loss(row) + 0.5 * 0.1 * row.square().sum() for row in named.values()]
        return losses[0] - losses[1]

    of = learner("dnn", backend, l2=0.1)
    one, other = rows(of, 1), rows(of, 2)
    after = work(of).minimise(apart, {"one": one, "other": other}, steps=HALF.long(), lr=1.0)
    gradient = work(of).oracle("next", HALF)
    close(gradient(one), one - after["one"])
    close(gradient(other), after["other"] - other)


def test_every_call_counts_a_step_of_every_device_it_is_for() -> None:
    of = learner("mclr", "fused")
    doing, start = work(of), rows(of)
    gradient = doing.oracle("next")
    assert doing.device_steps == 0
    gradient(start)
    gradient(start)
    assert doing.device_steps == 10
    doing.oracle("next", HALF)(start)
    assert doing.device_steps == 13
    assert not doing.oracle("next", torch.zeros(5, dtype=torch.bool))(start).any()
    assert doing.device_steps == 13
    doing.gradient(start)
    assert doing.device_steps == 18


def test_a_device_alone_meets_the_batch_it_meets_among_others() -> None:
    of = learner("dnn", "fused")
    start = rows(of)
    for among in (None, HALF):
        together = work(of).oracle("next", among)(start)
        close(work(of, torch.tensor([2])).oracle("next")(start[2:3]), together[2:3])


def test_more_samples_than_are_taken_at_once_make_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    of = learner("dnn", "fused", l2=0.1)
    start = rows(of)
    once = work(of).oracle("full", HALF)(start)
    monkeypatch.setattr("palmette.learner.steps._FULL", 10)
    close(work(of).oracle("full", HALF)(start), once)


def test_single_samples_are_right_on_average() -> None:
    of = learner("linear", "fused")
    doing, one, other = work(of), rows(of, 1), rows(of, 2)
    draws = [doing.oracle("one") for _ in range(1500)]
    found = torch.stack([gradient(one) - gradient(other) for gradient in draws])
    wanted = doing.gradient(one) - doing.gradient(other)
    error = (found.mean(0) - wanted).abs() / (found.std(0) / len(draws) ** 0.5)
    assert error.mean() < 1.5
    assert error.max() < 6


def test_the_inputs_stay_as_they_are() -> None:
    of = learner("mclr", "fused", l2=0.1)
    start = rows(of)
    before = start.clone()
    work(of).oracle("next", HALF)(start).zero_()
    assert torch.equal(start, before)


def test_an_error_names_the_devices() -> None:
    of = learner("mclr", "fused")
    with pytest.raises(PalmetteError, match="tier 0"):
        work(of).oracle("next")(torch.zeros(len(SIZES), of.width + 1, dtype=of.dtype))


@pytest.mark.parametrize("name", ["l2gd", "l2gd-coin", "al2sgd"])
def test_methods_with_coins_take_every_gradient_in_the_fused_backend(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient left the fused backend")

    people = population()
    task = make_task("mclr", people.shape, people.classes)
    simulation = Simulation(algorithm(name, iterations=8), replace(people, tree=Tree.parse([2, 3])), task, rounds=1)
    monkeypatch.setattr(VmapBackend, "gradient", refuse)
    monkeypatch.setattr(LoopBackend, "gradient", refuse)
    simulation.step()
    assert simulation.device_steps > 0


def test_two_gradients_per_local_iteration_are_two_device_steps() -> None:
    # Without pulls between teams and with a tiny one within them, every iteration is local but for one coin in millions.
    people = regression("1x2")
    method = AL2SGD(lam=1e-9, gamma=0.0, smoothness=1.0, convexity=0.5, refresh=1e-9, iterations=7)
    simulation = simulate(method, people, 1)
    assert simulation.device_steps == 2 * (1 + 7 * 2)  # the slope of the first reference, then two gradients each


def test_coins_are_those_of_the_single_iterations() -> None:
    tree = Tree.parse("3x2")
    samples = [torch.ones(tree.size(tier), dtype=torch.int64) for tier in range(3)]
    where: dict[str, Any] = {"seed": 7, "round_": 3, "rounds": 9, "stage": 0, "samples": samples, "layout": LAYOUT}
    node = Node(tree, 1, torch.tensor([0, 2]), **where)
    chance = torch.tensor([0.3, 0.8], dtype=torch.float64)
    one_by_one = torch.stack([node.uniform("within", i) for i in range(4, 60)]) < chance
    assert torch.equal(mixing.flips(node, "within", chance, 4, 60), one_by_one)
    assert mixing.flips(node, "within", chance, 5, 5).shape == (0, 2)
    np.testing.assert_allclose(one_by_one.double().mean(0), chance, atol=0.2)
