"""pFedGP: the process is the one of textbooks, the training that of the predictive loss, and only features are sent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import cho_factor, cho_solve
from torch import nn

import palmette as pm
from palmette.algorithms import PFedGP
from palmette.blocks.gaussian_process import Seen, class_targets, kernel, log_chances, posterior
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Learner
from palmette.links import Link
from palmette.population import Population
from palmette.task import Task, make_task
from palmette.testing import regression, simulate
from problems import Floats

SCALE, LENGTH, EPSILON = 2.0, 1.5, 0.01


# -- the process -------------------------------------------------------------------------------------------------------


def radial(one: Floats, other: Floats) -> Floats:
    gap = one[:, None] - other[None]
    return SCALE * np.exp(-(gap**2).sum(2) / (2 * LENGTH**2))


def textbook(context: Floats, targets: Floats, noise: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Regress every output apart, by the formulas of the first page on Gaussian processes."""
    means, variances = [], []
    for output in range(targets.shape[1]):
        factor = cho_factor(radial(context, context) + np.diag(noise[:, output]))
        cross = radial(context, new)
        means.append(cross.T @ cho_solve(factor, targets[:, output]))
        variances.append(SCALE - (cross * cho_solve(factor, cross)).sum(0))
    return np.stack(means, 1), np.stack(variances, 1)


def dirichlet(labels: Floats, classes: int) -> tuple[Floats, Floats]:
    concentration = np.eye(classes)[labels.astype(int)] + EPSILON
    variance = np.log(1 / concentration + 1)
    return np.log(concentration) - variance / 2, variance


def drawn(seed: int = 0) -> tuple[Floats, Floats, Floats]:
    luck = np.random.default_rng(seed)
    return luck.normal(size=(7, 2)), luck.integers(0, 3, 7).astype(float), luck.normal(size=(5, 2))


def test_the_posterior_is_that_of_textbooks_and_filling_changes_nothing() -> None:
    context, labels, new = drawn()
    targets, noise = dirichlet(labels, 3)
    expected = textbook(context, targets, noise, new)
    made = class_targets(torch.from_numpy(labels).long(), 3, EPSILON, torch.float64)
    np.testing.assert_allclose(made[0], targets)
    np.testing.assert_allclose(1 / made[1], noise)
    features, (values, precision) = torch.from_numpy(context), made
    for filled in (0, 4):
        more = torch.nn.functional.pad
        seen = Seen(
            more(features, (0, 0, 0, filled), value=3.0), *(more(one, (0, 0, 0, filled)) for one in (values, precision))
        )
        found = posterior(seen, torch.from_numpy(new), SCALE, LENGTH)
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-9)


def test_far_from_all_samples_nothing_is_known() -> None:
    context, labels, _ = drawn()
    seen = Seen(torch.from_numpy(context), *class_targets(torch.from_numpy(labels).long(), 3, EPSILON, torch.float64))
    mean, variance = posterior(seen, torch.full((1, 2), 50.0, dtype=torch.float64), SCALE, LENGTH)
    torch.testing.assert_close(log_chances(mean, variance).softmax(1), torch.full((1, 3), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(variance, torch.full((1, 3), SCALE, dtype=torch.float64))
    near = kernel(seen.features, seen.features, SCALE, LENGTH).diagonal()
    torch.testing.assert_close(near, torch.full((7,), SCALE, dtype=torch.float64))


def test_chances_are_near_those_of_many_draws() -> None:
    context, labels, new = drawn(3)
    mean, variance = textbook(context, *dirichlet(labels, 3), new)
    luck = np.random.default_rng(1)
    draws = np.exp(mean + np.sqrt(variance) * luck.normal(size=(20_000, *mean.shape)))
    chances = (draws / draws.sum(2, keepdims=True)).mean(0)
    found = log_chances(torch.from_numpy(mean), torch.from_numpy(variance)).softmax(1).numpy()
    assert np.abs(found - chances).max() < 0.06
    assert (found.argmax(1) == chances.argmax(1)).all()


# -- the method by hand ------------------------------------------------------------------------------------------------


def people_of(sizes: tuple[int, ...] = (6, 4), seed: int = 2) -> Population:
    luck = np.random.default_rng(seed)
    x = [luck.normal(size=(size + 2, 3)) for size in sizes]
    y = [np.arange(size + 2) % 3 for size in sizes]
    start = np.concatenate([[0], np.cumsum([size + 2 for size in sizes])])
    return Population(
        pm.Tree.parse(str(len(sizes))),
        torch.from_numpy(np.concatenate(x)),
        torch.from_numpy(np.concatenate(y)),
        torch.from_numpy(start),
        torch.tensor(sizes),
        classes=3,
    )


def linear(width: int = 2) -> Task:
    """Return one linear layer of features, and a head that the process takes the place of."""
    first, head = nn.Linear(3, width, bias=False), nn.Linear(width, 3)
    generator = torch.Generator().manual_seed(3)
    first.weight.data = torch.randn(width, 3, generator=generator)
    return Task(nn.Sequential(first, head))


def made(**settings: Any) -> PFedGP:
    return PFedGP(**{"scale": SCALE, "length": LENGTH, "epsilon": EPSILON, **settings})


def of(people: Population, device: int) -> tuple[Floats, Floats]:
    low = int(people.start[device])
    return people.x[low : low + int(people.train[device])].numpy(), people.y[
        low : low + int(people.train[device])
    ].numpy()


def cross_entropy(mean: Floats, variance: Floats, labels: Floats) -> float:
    scores = mean / np.sqrt(1 + math.pi / 8 * variance)
    scores = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float(-scores[np.arange(len(labels)), labels.astype(int)].mean())


def test_two_rounds_are_those_done_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is all of a device's samples in their order, so the halves are known; the gradient is numerical."""
    people, task = people_of((6, 6)), linear()
    method = made(local_steps=2, alpha=0.1, batch_size=6)
    seen: list[torch.Tensor] = []
    plain = PFedGP._predictive

    def watched(self: PFedGP, model: torch.Tensor, batch: Any, outputs: int) -> torch.Tensor:
        seen.append(batch.x.detach())
        return plain(self, model, batch, outputs)

    monkeypatch.setattr(PFedGP, "_predictive", watched)
    simulation = simulate(method, people, 2, task, backend="loop", chunk=2)
    assert len(seen) == 8  # two rounds, two devices, two steps

    def loss(weight: Floats, batch: torch.Tensor, device: int) -> float:
        x, y = of(people, device)
        order = [int(np.abs(x - row).sum(1).argmin()) for row in batch.numpy()]
        features, labels = x[order] @ weight.T, y[order]
        found = textbook(features[::2], *dirichlet(labels[::2], 3), features[1::2])
        return cross_entropy(*found, labels[1::2])

    weight = task.initial(torch.float64)[:6].reshape(2, 3).numpy()
    for round_ in range(2):
        after = []
        for device in range(2):
            mine = weight.copy()
            for step in range(2):
                gradient = np.zeros_like(mine)
                for place in np.ndindex(mine.shape):
                    move = np.zeros_like(mine)
                    move[place] = 1e-6
                    batch = seen[4 * round_ + 2 * step + device]
                    gradient[place] = (loss(mine + move, batch, device) - loss(mine - move, batch, device)) / 2e-6
                mine = mine - 0.1 * gradient
            after.append(mine)
        weight = (after[0] + after[1]) / 2
    np.testing.assert_allclose(simulation.model()[:6], weight.ravel(), rtol=1e-6)


def test_backends_agree_on_classes_and_on_devices_of_different_sizes() -> None:
    people, task = people_of((7, 4, 5)), linear()
    found = [simulate(made(local_steps=3, batch_size=6), people, 2, task, backend=name) for name in ("loop", "vmap")]
    ids = torch.arange(3)
    for name, rows in found[0].personal(ids)[0].items():
        torch.testing.assert_close(rows, found[1].personal(ids)[0][name])
    first, second = (evaluate(one)["PM"].sums["loss"] for one in found)
    torch.testing.assert_close(first, second)


def test_what_a_device_predicts_is_its_process_on_its_own_samples() -> None:
    people, task = people_of(), linear()
    simulation = simulate(made(local_steps=3, batch_size=4, context=5), people, 2, task)
    weight = simulation.model()[:6].reshape(2, 3).numpy()
    total = 0.0
    for device, kept in ((0, [0, 1, 2, 3, 4]), (1, [0, 1, 2, 3])):
        x, y = of(people, device)
        low, high = int(people.start[device]) + int(people.train[device]), int(people.start[device + 1])
        found = textbook(x[kept] @ weight.T, *dirichlet(y[kept], 3), people.x[low:high].numpy() @ weight.T)
        total += cross_entropy(*found, people.y[low:high].numpy()) * (high - low)
    scores = evaluate(simulation)
    assert list(scores) == ["PM"]
    assert float(scores["PM"].sums["loss"].sum()) == pytest.approx(total, rel=1e-9)


def test_the_context_has_every_class_by_its_share() -> None:
    labels = torch.tensor([[0] * 8 + [1] * 2 + [2] * 2, [1] * 4 + [0] * 8])
    from palmette.algorithms.pfedgp import _turns

    real = torch.ones_like(labels, dtype=torch.bool)
    real[1, 6:] = False
    order = _turns(labels, real, 3)
    assert labels[0][order[0][:6]].bincount().tolist() == [4, 1, 1]
    assert order[0][:3].tolist() == [0, 8, 10]
    assert sorted(order[1][:6].tolist()) == list(range(6))


def test_numbers_are_predicted_by_ordinary_regression() -> None:
    people = regression("3", samples=30, unequal=True)
    task = make_task("dnn", people.shape, None, hidden=[4])
    simulation = simulate(PFedGP(local_steps=2, noise=0.5, context=40), people, 1, task)
    rows, _ = simulation.personal(torch.arange(3))
    module = nn.Sequential(*list(task.module)[:-1]).double()
    module.load_state_dict(
        {
            name: value
            for name, value in task.layout.unflatten(simulation.model()).items()
            if name in module.state_dict()
        }
    )
    found = float(evaluate(simulation)["PM"].sums["loss"].sum())
    expected = 0.0
    for device in range(3):
        low, high = int(people.start[device]), int(people.start[device + 1])
        with torch.no_grad():
            features = module(people.x[low:high]).numpy()
        count = min(40, int(people.train[device]))
        gap = ((features[:, None] - features[None]) ** 2).sum(2)
        whole = 8.0 * np.exp(-gap / (2 * simulation.algorithm.length**2))  # type: ignore[attr-defined]
        matrix = whole[:count, :count] + 0.5 * np.eye(count)
        guess = whole[-1, :count] @ np.linalg.solve(matrix, people.y[low : low + count].numpy())
        expected += 0.5 * float(guess - people.y[high - 1]) ** 2
    assert found == pytest.approx(expected, rel=1e-6)
    assert bool((rows["classes"] == 0).all())


# -- what is sent, who is absent, how it is used -----------------------------------------------------------------------


def digits() -> tuple[Population, Task]:
    people = pm.make_population("digits", tree="2x2")
    return people, make_task("dnn", people.shape, people.classes, hidden=(8,))


def test_only_the_features_cross_the_link_and_the_head_never_changes() -> None:
    people, task = digits()
    simulation = Simulation(PFedGP(local_steps=1), people, task, rounds=1)
    simulation.step()
    task = simulation.task
    width = task.layout.part("body").width
    assert (width, task.layout.width) == (520, 610)
    (entry,) = simulation.ledger.entries.values()
    assert (entry.exchanges, entry.bytes_down, entry.bytes_up) == (1, 4 * 4 * width, 4 * 4 * width)
    assert torch.equal(task.layout.cut(simulation.model(), "head"), task.layout.cut(task.initial(), "head"))


def test_an_absent_device_predicts_with_the_newest_features() -> None:
    people, task = digits()
    gone = Link(absences=lambda round_, tier, exchange, children: children == 3)
    simulation = Simulation(PFedGP(local_steps=2), people, task, rounds=1, links={0: gone})
    simulation.step()
    rows, _ = simulation.personal(torch.arange(4))
    assert torch.equal(rows["model"], simulation.model().expand_as(rows["model"]))
    assert bool(rows["precision"][3].any())
    assert simulation.adapt_steps == 0
    assert sum(entry.bytes_up for entry in simulation.ledger.entries.values()) == 3 * 4 * 520


def test_a_saved_run_predicts_as_it_was_measured(tmp_path: Path) -> None:
    people, task = digits()
    result = pm.run(PFedGP(local_steps=5), people, task, rounds=2, out=tmp_path / "a")
    first, last = int(people.train[1]) + int(people.start[1]), int(people.start[2])
    x = Learner(task, people, seed=0, batch_size=4).data.features(torch.arange(first, last))
    outputs = result.predict(x, "PM", result.names("PM")[1])
    right = float((outputs.argmax(1) == people.y[first:last]).float().mean())
    table = result.metrics.to_pandas()
    mine = table[(table["model"] == "PM") & (table["metric"] == "accuracy") & (table["node"] == result.names("PM")[1])]
    assert right == pytest.approx(float(mine["value"].iloc[-1]))
    with pytest.raises(BadInput, match="predict in a way of its own"):
        pm.export(result, tmp_path / "b", node=result.names("PM")[1])


def test_a_model_without_a_linear_head_is_refused() -> None:
    people = pm.make_population("digits", tree="2x2")
    with pytest.raises(BadInput, match=r"of the model 'mclr' that is all there is to train"):
        pm.run("pfedgp", people, "mclr", rounds=1)
    task = make_task("dnn", people.shape, people.classes, hidden=(8,), parts={"head": "*.bias"})
    with pytest.raises(
        BadInput, match=r"which must be a linear layer; name one with --set model.parts.head. The head is now"
    ):
        Simulation(PFedGP(), people, task, rounds=1)
