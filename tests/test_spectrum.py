"""The curvature of linear models: closed forms against eigenvalues, all devices, and models that have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from palmette.learner import Learner, curvature
from palmette.learner import spectrum as module
from palmette.population import Population, make_population
from palmette.task import Task, make_task
from palmette.tree import Tree


def people(features: Sequence[Tensor], targets: Sequence[Tensor], classes: int | None = None) -> Population:
    """One device for each matrix of features, in one team; all samples train."""
    counts = torch.tensor([len(x) for x in features])
    start = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    tree = Tree.parse(f"1x{len(features)}")
    return Population(
        tree=tree, x=torch.cat(list(features)), y=torch.cat(list(targets)), start=start, train=counts, classes=classes
    )


def draw(*shapes: tuple[int, int], scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [scale * torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]


def numbers(features: Sequence[Tensor]) -> list[Tensor]:
    return [x[:, 0].clone() for x in features]


def extremes(features: Sequence[Tensor], bias: bool) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of X'X / n over all devices, by numpy."""
    found = []
    for x in features:
        wide = np.concatenate([x.numpy(), np.ones((len(x), 1))], 1) if bias else x.numpy()
        found.append(np.linalg.eigvalsh(wide.T @ wide / len(wide)))
    return min(float(v[0]) for v in found), max(float(v[-1]) for v in found)


def learner(task: Task, population: Population) -> Learner:
    return Learner(task, population, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_squared_errors_have_the_extreme_eigenvalues_of_all_devices(bias: bool) -> None:
    features = draw((9, 3), (7, 3), (30, 3))
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(3, 1, bias=bias)), "squared", l2=0.2)
    found = curvature(learner(task, people(features, numbers(features))), convexity=True)
    low, high = extremes(features, bias)
    assert found.smoothness == pytest.approx(high + 0.2)
    assert found.convexity == pytest.approx(low + 0.2)
    assert found.exact
    assert found.start == pytest.approx(found.smoothness)


def test_a_device_with_fewer_samples_than_weights_leaves_the_l2_term_alone() -> None:
    features = draw((9, 3), (2, 3))
    found = learner(make_task("linear", (3,), None, l2=0.01), people(features, numbers(features)))
    assert curvature(found, convexity=True).convexity == 0.01
    assert found.spectrum is not None
    own = [float(found.spectrum.convexity(torch.tensor([device]))) for device in (0, 1)]
    assert own == pytest.approx([extremes(features[:1], bias=False)[0] + 0.01, 0.01])


def test_diabetes_is_less_convex_than_a_few_power_iterations_tell() -> None:
    x, y = load_diabetes(return_X_y=True)
    x = torch.from_numpy((x - x.mean(0)) / x.std(0))
    features = list(x.split(111))
    found = curvature(
        learner(make_task("linear", (10,), None), people(features, list(torch.from_numpy(y).split(111)))),
        convexity=True,
    )
    low, high = extremes(features, bias=False)
    assert low < 0.01
    assert found.convexity == pytest.approx(low)
    assert found.convexity <= low
    assert found.smoothness == pytest.approx(high)


def test_a_module_of_ones_own_with_one_linear_layer_is_as_good_as_a_named_model() -> None:
    population = make_population("digits", tree="2x3")
    own = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    named = make_task("mclr", population.shape, population.classes)
    assert curvature(learner(own, population)) == curvature(learner(named, population))


def test_the_logistic_loss_is_a_quarter_as_curved_as_its_features() -> None:
    features = draw((9, 3), (12, 3))
    population = people(features, [torch.where(x[:, 0] > 0, 1.0, -1.0).double() for x in features])
    found = curvature(learner(Task(nn.Linear(3, 1), "logistic", l2=0.3), population), convexity=True)
    assert found.smoothness == pytest.approx(extremes(features, bias=True)[1] / 4 + 0.3)
    assert found.convexity == 0.3


def test_the_most_curved_of_many_devices_is_found_wherever_it_is() -> None:
    features = draw(*[(8, 3)] * 70)
    features[1] = 5 * features[1]  # an even choice of some devices steps over it
    found = curvature(learner(make_task("linear", (3,), None), people(features, numbers(features))))
    assert found.smoothness == pytest.approx(extremes(features, bias=False)[1])
    assert found.devices == 70


@pytest.mark.parametrize("flat", [True, False], ids=["all directions alike", "one that stands out"])
@pytest.mark.parametrize("shape", [(400, 300), (250, 500)])
def test_large_matrices_are_bounded_from_above_and_closely(shape: tuple[int, int], flat: bool) -> None:
    features = draw(shape)
    if not flat:
        features[0][:, :] += 2.0
    spectrum = learner(make_task("linear", (shape[1],), None), people(features, numbers(features))).spectrum
    assert spectrum is not None
    exact = float(torch.linalg.matrix_norm(features[0], 2)) ** 2 / shape[0]
    assert exact <= spectrum.largest <= (1.001 if not flat else 1 + 1e-9) * exact


def test_what_a_few_products_leave_open_is_added_to_the_largest_eigenvalue() -> None:
    left, right = (torch.linalg.qr(x)[0] for x in draw((300, 200), (200, 200)))
    sizes = torch.zeros(200, dtype=torch.float64)
    sizes[:6] = torch.tensor([1.0, 0.5, 0.45, 0.4, 0.35, 0.3]).sqrt()  # more than the first try has vectors for
    features = [left * sizes @ right.mT]
    spectrum = learner(make_task("linear", (200,), None), people(features, numbers(features))).spectrum
    assert spectrum is not None
    exact = float(torch.linalg.matrix_norm(features[0], 2)) ** 2 / 300
    assert exact <= spectrum.largest <= 1.001 * exact


def test_features_are_taken_in_blocks_where_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    features = draw((40, 3), (170, 165))
    features[0] = torch.cat([features[0], torch.zeros(40, 162, dtype=torch.float64)], 1)
    population = people(features, numbers(features))
    task = make_task("linear", (165,), None)
    whole, blocks = learner(task, population).spectrum, learner(task, population).spectrum
    assert whole is not None
    assert blocks is not None
    expected = whole.largest, whole.smoothness(torch.arange(2)), whole.batch_smoothness(torch.arange(2), 1)
    monkeypatch.setattr(module, "_NUMBERS", 1000)
    found = blocks.largest, blocks.smoothness(torch.arange(2)), blocks.batch_smoothness(torch.arange(2), 1)
    for one, other in zip(expected, found, strict=True):
        assert torch.as_tensor(one).tolist() == pytest.approx(torch.as_tensor(other).tolist(), rel=2e-3)


def test_no_batch_is_more_curved_than_the_most_curved_sample() -> None:
    features = draw((9, 3), (4, 3), (1, 3))
    spectrum = learner(make_task("linear", (3,), None, l2=0.1), people(features, numbers(features))).spectrum
    assert spectrum is not None
    ids = torch.arange(3)
    norms = [float(x.square().sum(1).max()) + 0.1 for x in features]
    assert spectrum.batch_smoothness(ids, 1).tolist() == pytest.approx(norms)
    whole = spectrum.smoothness(ids).tolist()
    assert spectrum.batch_smoothness(ids, 4).tolist() == pytest.approx(
        [norms[0], *whole[1:]]
    )  # 4 samples are all it has
    assert spectrum.batch_smoothness(ids, "full").tolist() == pytest.approx(whole)


class Extra(nn.Module):
    """A linear model with a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(3, 1), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """Leave the second parameter out."""
        return self.linear(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "task",
    [
        Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), "squared"),
        Task(nn.Linear(3, 1), lambda output, target: (output[:, 0] - target).abs()),
        Task(Extra(), "squared"),
        Task(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)), "squared"),
    ],
    ids=["network", "own loss", "unused parameter", "dropout"],
)
def test_other_models_have_an_estimate_and_no_closed_form(task: Task) -> None:
    features = draw((9, 3), (7, 3))
    found = curvature(learner(task, people(features, numbers(features))), convexity=True)
    assert not found.exact
    assert found.convexity == 0


def test_gradients_under_one_dropout_mask_are_compared() -> None:
    features = draw((20, 3))
    task = Task(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)), "squared")
    found = curvature(learner(task, people(features, numbers(features))), iterations=30).smoothness
    low, high = extremes(features, bias=True)
    assert low < found < 4 * high  # what is kept is doubled; other masks at every step would give some 1e5


def test_an_estimate_does_not_depend_on_the_precision() -> None:
    population = make_population("digits", tree="2x3")
    task = make_task("dnn", population.shape, population.classes)
    single, double = (
        curvature(Learner(task, population, dtype=dtype)).smoothness for dtype in (torch.float32, torch.float64)
    )
    assert single == pytest.approx(double, rel=1e-3)  # a shorter difference would see the kinks of the ReLU
