"""Logistic regression for two classes: one output, labels 0 and 1 or targets -1 and 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.engines.measures import make_measures
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Learner
from palmette.task import by_class, signs


def people(targets: str = "classes") -> pm.Population:
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 3)).astype(np.float32)
    y = (x @ [1.5, -1.0, 0.5] + 0.5 + random.logistic(size=240) > 0).astype(np.int64)
    y = y if targets == "classes" else 2.0 * y - 1
    return pm.Population.from_arrays(x, y, device=np.arange(240) % 12, team={i: i % 3 for i in range(12)})


def test_the_model_chooses_its_loss_and_has_one_output_and_a_bias() -> None:
    task = pm.make_task("logistic", (3,), 2)
    assert (task.loss, task.layout.width) == ("logistic", 4)
    assert pm.make_task("logistic", (3,), 2, bias=False).layout.width == 3
    assert [pm.make_task("linear", (3,), None, **one).layout.width for one in ({}, {"bias": True})] == [3, 4]


@pytest.mark.parametrize("backend", ["fused", "vmap", "loop"])
def test_classes_train_to_the_bits_of_targets_of_both_signs(backend: str) -> None:
    found = []
    for targets in ("classes", "signs"):
        of = people(targets)
        task = pm.make_task("logistic", of.shape, of.classes)
        assert of.classes == (2 if targets == "classes" else None)
        simulation = Simulation(pm.algorithm("local", alpha=0.1, local_steps=3), of, task, rounds=2, backend=backend)
        simulation.step()
        found.append(simulation.device_models(torch.arange(12)))
    assert torch.equal(*found)
    assert bool((found[0] != 0).all())


def test_it_is_scikit_learns_without_a_penalty_on_one_device() -> None:
    from sklearn.linear_model import LogisticRegression

    of = people()
    one = pm.Population.from_arrays(of.x.double(), of.y, device=np.zeros(len(of.y), dtype=int))
    x, y = one.x[: one.train[0]], one.y[: one.train[0]]
    task = pm.make_task("logistic", one.shape, one.classes)
    method = pm.algorithm("local", alpha=2.0, batch_size="full", local_steps=400)
    simulation = Simulation(method, one, task, rounds=1, dtype=torch.float64)
    simulation.step()
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x.numpy(), y.numpy())
    ours = simulation.device_models(torch.arange(1))[0].numpy()
    np.testing.assert_allclose(ours, [*theirs.coef_[0], theirs.intercept_[0]], atol=1e-6)


def test_metrics_and_predictions_take_one_output_as_two_classes() -> None:
    output, y = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]]), torch.tensor([1, 0, 0, 0])
    assert by_class(output).softmax(1)[:, 1].tolist() == pytest.approx(output[:, 0].sigmoid().tolist())
    assert signs(y).tolist() == [1, -1, -1, -1]
    found = {name: one(output, y) for name, one in make_measures(["auc", "f1", "balanced-accuracy"], 2).items()}
    assert found == pytest.approx({"auc": 1.0, "f1": 2 / 3, "balanced-accuracy": 5 / 6})


def test_a_table_of_two_classes_is_trained_on_and_predicted(tmp_path: Path) -> None:
    of, lines = people(), ["ward,a,b,c,left"]
    owner = np.repeat(np.arange(12), of.start.diff().numpy())
    for row, label, device in zip(of.x.tolist(), of.y.tolist(), owner, strict=True):
        lines.append(f"w{device},{row[0]},{row[1]},{row[2]},{'yes' if label else 'no'}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    table = pm.read_table(path, device="ward", label="left")
    result = pm.run("local", table, "logistic", rounds=3, settings={"alpha": 0.5}, out=tmp_path / "run")
    made = pm.predict(result, path).table.to_pandas()
    right = np.mean(made["prediction"].to_numpy() == np.array(["yes" if one else "no" for one in of.y.tolist()]))
    assert right > 0.7
    assert np.allclose(made["p(yes)"] + made["p(no)"], 1)


@pytest.mark.parametrize(
    ("y", "message"), [(np.arange(8) % 3, "for 2 classes, and the data have 3"), (np.arange(8) / 2, "-1 and 1")]
)
def test_other_targets_are_refused(y: np.ndarray, message: str) -> None:
    of = pm.Population.from_arrays(np.ones((8, 2)), y, device=np.arange(8) % 2)
    with pytest.raises(BadInput, match=message):
        Learner(pm.make_task("logistic", of.shape, of.classes), of)
    with pytest.raises(BadInput, match=message):
        Learner(pm.make_task("linear", of.shape, None, loss="logistic"), of)
    with pytest.raises(BadInput, match="bias must be true or false, not 3"):
        pm.make_task("logistic", (2,), 2, bias=3)
