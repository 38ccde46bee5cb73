"""Models, their flat rows, and what a task refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palmette.errors import BadInput
from palmette.learner import kernel
from palmette.learner.choice import choose
from palmette.task import LOSSES, AddressedDropout, Task, by_class, make_task
from palmette.task.models import MODELS

CPU = torch.device("cpu")


def module(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def training_replica(task: Task) -> nn.Module:
    return task.replica(training=True, dtype=torch.float32, device=CPU)


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("mclr", (784,), {}, 7_850),
        ("mclr", (1, 28, 28), {}, 7_850),
        ("dnn", (784,), {}, 79_510),
        ("dnn", (60,), {"hidden": 20}, 1_430),
        ("dnn", (60,), {"hidden": [20]}, 1_430),
        ("dnn", (60,), {"hidden": ()}, 610),
        ("dnn", (60,), {"hidden": (20, 30)}, 61 * 20 + 21 * 30 + 31 * 10),
        ("cnn", (1, 28, 28), {}, 421_642),
        ("cnn", (3, 32, 32), {}, 896 + 18_496 + (64 * 8 * 8 + 1) * 128 + 1_290),
        ("linear", (60,), {}, 600),
    ],
)
def test_models_have_the_published_number_of_parameters(
    name: str, shape: tuple[int, ...], options: dict[str, Any], parameters: int
) -> None:
    task = make_task(name, shape, 10, **options)
    assert task.layout.width == parameters
    assert task.initial().shape == (parameters,)
    assert task.name == name


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_takes_its_example_samples_and_gives_one_output_per_class(name: str) -> None:
    model = MODELS[name]
    task = make_task(name, model.shape, model.outputs)
    assert by_class(task.module(model.samples(5))).shape == (*model.targets(5).shape, model.outputs)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_says_on_which_backend_it_runs(name: str) -> None:
    model = MODELS[name]
    probe = model.samples(2)[None], model.targets(2)[None]
    for options in ({}, *model.choices()):
        task = make_task(name, model.shape, model.outputs, **options)
        chosen, why = choose("auto", task, torch.float32, CPU, probe)
        said = [model.otherwise[word] for key, one in options.items() if (word := f"{key}={one}") in model.otherwise]
        expected = (said or [model.backend])[0]
        if expected == "native" and isinstance(kernel.find(), str):
            expected = "fused"
        assert chosen.name == expected, why


@pytest.mark.parametrize("name", ["mclr", "linear"])
def test_linear_models_start_at_zero(name: str) -> None:
    for seed in (0, 1):
        assert not make_task(name, (784,), 10, seed=seed).initial().any()


@pytest.mark.parametrize(("name", "options"), [("mclr", {"start": "random"}), ("dnn", {}), ("cnn", {})])
def test_initial_weights_depend_on_the_seed_alone(name: str, options: dict[str, Any]) -> None:
    def rows(seed: int) -> Tensor:
        torch.rand(seed + 1)  # somebody else draws numbers meanwhile
        return make_task(name, (1, 8, 8), 10, seed=seed, **options).initial()

    assert torch.equal(rows(0), rows(0))
    assert not torch.equal(rows(0), rows(1))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_making_a_model_leaves_the_global_random_numbers_alone(name: str) -> None:
    before = torch.get_rng_state()
    made = make_task(name, MODELS[name].shape, MODELS[name].outputs)
    made.replica(training=True, dtype=torch.float64, device=CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_weights_fill_the_range_torch_uses() -> None:
    named = make_task("dnn", (400,), 10).layout.unflatten(make_task("dnn", (400,), 10).initial())
    for weight, bias, fan_in in (("1.weight", "1.bias", 400), ("3.weight", "3.bias", 100)):
        bound = 1 / math.sqrt(fan_in)
        values = torch.cat([named[weight].flatten(), named[bias]])
        assert 0.99 * bound < float(values.abs().max()) <= bound
        assert abs(float(values.mean())) < 0.05 * bound
        assert float(named[bias].abs().min()) > 0


def test_random_mclr_is_not_zero() -> None:
    assert bool((make_task("mclr", (6,), 3, start="random").initial() != 0).all())


@pytest.mark.parametrize(
    ("name", "shape", "options", "culprit"),
    [
        ("mlcr", (6,), {}, "unknown model 'mlcr'; did you mean 'mclr'"),
        ("mclr", (6,), {"start": "one"}, "start must be 'zero' or 'random', not 'one'"),
        ("mclr", (6,), {"hidden": 5}, "model 'mclr' cannot be made with .*hidden"),
        ("dnn", (6,), {"hidden": (5, 0)}, "hidden size = 0 must be a whole number of at least 1"),
        ("cnn", (784,), {}, r"cnn needs images .* not \(784,\)"),
        ("cnn", (1, 3, 28), {}, r"sides of at least 4, not \(1, 3, 28\)"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_with_the_reason(
    name: str, shape: tuple[int, ...], options: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(BadInput, match=culprit):
        make_task(name, shape, 10, **options)


def test_any_module_becomes_a_task_under_its_own_name() -> None:
    task = make_task(nn.Linear(6, 3), (6,), 3)
    assert (task.name, task.loss, task.layout.width) == ("linear", "cross-entropy", 21)
    with pytest.raises(BadInput, match=r"a module takes no settings, but .*'hidden'"):
        make_task(nn.Linear(6, 3), (6,), 3, hidden=5)


def test_without_classes_the_loss_is_squared_and_there_is_one_output() -> None:
    task = make_task("linear", (6,), None)
    assert (task.loss, task.layout.width) == ("squared", 6)


def test_the_present_parameters_of_a_module_are_the_initial_model() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
    task = Task(layer, "squared")
    assert task.initial().tolist() == [1, 2, 3]
    assert task.initial(torch.float64).dtype == torch.float64
    assert not task.initial().requires_grad


# -- layout ------------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Parameters of every number of dimensions, a scalar among them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.kernel = nn.Parameter(torch.randn(2, 3, 4))
        self.bias = nn.Parameter(torch.randn(5))


@pytest.mark.parametrize("lead", [(), (6,)])
@pytest.mark.parametrize("make", [Odd, lambda: MODELS["cnn"].make((1, 8, 8), 4), lambda: MODELS["mclr"].make((9,), 4)])
def test_rows_become_named_tensors_without_copies_and_come_back(
    make: Callable[[], nn.Module], lead: tuple[int, ...]
) -> None:
    layout = Task(make()).layout
    rows = torch.randn(*lead, layout.width)
    named = layout.unflatten(rows)
    assert [tuple(value.shape) for value in named.values()] == [(*lead, *shape) for shape in layout.shapes]
    offset = 0
    for value, size in zip(named.values(), layout.sizes, strict=True):
        assert value.data_ptr() == rows.data_ptr() + offset * rows.element_size()
        assert value.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        offset += size
    assert torch.equal(layout.flatten(named), rows)


def test_writing_into_a_named_tensor_writes_into_the_row() -> None:
    layout = Task(Odd()).layout
    rows = torch.zeros(3, layout.width)
    layout.unflatten(rows)["bias"][1] = 7.0
    assert rows[1, -5:].tolist() == [7] * 5
    assert float(rows.sum()) == 35


def test_names_come_in_the_modules_own_order_and_sizes_add_up() -> None:
    layout = Task(Odd()).layout
    assert layout.names == ("scale", "kernel", "bias")
    assert (layout.sizes, layout.width) == ([1, 24, 5], 30)


def test_flattening_does_not_depend_on_the_order_of_the_mapping() -> None:
    layout = Task(Odd()).layout
    named = layout.unflatten(torch.arange(30.0))
    assert torch.equal(layout.flatten(dict(reversed(named.items()))), torch.arange(30.0))


def test_a_row_of_the_wrong_length_is_refused_with_both_lengths() -> None:
    with pytest.raises(BadInput, match="a row of 29 numbers does not fit a model of 30"):
        Task(Odd()).layout.unflatten(torch.zeros(2, 29))


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(BadInput, match="ReLU has no parameters"):
        Task(nn.ReLU())


def test_a_parameter_used_twice_is_learned_once() -> None:
    tied = module(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight  # type: ignore[index, union-attr]
    assert Task(tied).layout.width == 16 + 4 + 4


# -- losses and metrics ------------------------------------------------------------------------------------------------


def test_losses_are_one_value_per_sample() -> None:
    output, target = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    expected = [math.log(2), 2 + math.log1p(math.exp(-2))]
    np.testing.assert_allclose(LOSSES["cross-entropy"](output, target).tolist(), expected, rtol=1e-6)
    np.testing.assert_allclose(
        LOSSES["squared"](torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0])).tolist(), [2.0, 0.0]
    )
    np.testing.assert_allclose(
        LOSSES["squared"](torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]])).tolist(), [2.5]
    )
    np.testing.assert_allclose(
        LOSSES["logistic"](torch.tensor([[0.0], [3.0]]), torch.tensor([1.0, -1.0])).tolist(),
        [math.log(2), math.log1p(math.exp(3))],
        rtol=1e-6,
    )


def test_metrics_fit_the_loss_unless_given() -> None:
    linear = nn.Linear(2, 2)
    assert set(Task(linear).per_sample_metrics) == {"loss", "accuracy"}
    assert set(Task(linear, "squared").per_sample_metrics) == {"loss"}
    assert set(Task(linear, "logistic").per_sample_metrics) == {"loss", "accuracy"}
    own = {"gap": lambda output, target: (output[:, 0] - target).abs()}
    assert set(Task(linear, metrics=own).per_sample_metrics) == {"loss", "gap"}
    accuracy = Task(linear).per_sample_metrics["accuracy"]
    assert accuracy(torch.tensor([[1.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])).tolist() == [1.0, 0.0]
    logistic = Task(linear, "logistic").per_sample_metrics["accuracy"]
    assert logistic(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, -1.0])).tolist() == [1.0, 0.0]


# -- what a task refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_layers_with_running_statistics_are_refused_with_a_replacement(layer: nn.Module) -> None:
    with pytest.raises(BadInput, match=f"'1' is {type(layer).__name__}.*GroupNorm"):
        Task(module(nn.Linear(4, 4), layer))


@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4)])
def test_layers_that_normalise_each_sample_are_welcome(layer: nn.Module) -> None:
    assert Task(module(nn.Linear(4, 4), layer)).layout.width == 28


def test_an_unknown_loss_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"unknown loss 'cross_entropy'; did you mean 'cross-entropy'\?"):
        Task(nn.Linear(2, 2), "cross_entropy")


@pytest.mark.parametrize("l2", [-0.1, float("nan"), float("inf")])
def test_an_l2_weight_that_is_no_weight_is_refused(l2: float) -> None:
    with pytest.raises(BadInput, match=f"l2 must be a finite number of at least 0, not {l2}"):
        make_task("mclr", (6,), 3, l2=l2)


SAMPLES = torch.randn(2, 6)
LABELS = torch.tensor([0, 2])


def test_a_task_that_fits_is_accepted() -> None:
    make_task("mclr", (6,), 3).fitted(SAMPLES, LABELS, 3)
    make_task("linear", (6,), None).fitted(SAMPLES, torch.randn(2), None)
    make_task(nn.Linear(6, 3), (6,), 3).fitted(SAMPLES.double(), LABELS, 3)
    make_task(module(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)), (6,), 3).fitted(
        torch.ones(2, 6, dtype=torch.int64), LABELS, 3
    )


def test_a_loss_that_is_not_per_sample_is_refused() -> None:
    task = Task(nn.Linear(6, 3), nn.CrossEntropyLoss())
    with pytest.raises(BadInput, match=r"the loss gave shape \(\) for 2 samples; .*reduction='none'"):
        task.fitted(SAMPLES, LABELS, 3)
    Task(nn.Linear(6, 3), nn.CrossEntropyLoss(reduction="none")).fitted(SAMPLES, LABELS, 3)


def test_too_few_outputs_are_refused_with_the_number_needed() -> None:
    with pytest.raises(BadInput, match="'mclr' has 3 outputs but the labels go up to 4: give it at least 5"):
        make_task("mclr", (6,), 3).fitted(SAMPLES, LABELS, 5)


def test_samples_of_the_wrong_shape_are_refused_with_their_shape() -> None:
    with pytest.raises(BadInput, match=r"'dnn' cannot take samples of shape \(6,\)"):
        make_task("dnn", (7,), 3).fitted(SAMPLES, LABELS, 3)


def test_outputs_that_do_not_fit_the_targets_are_refused() -> None:
    with pytest.raises(BadInput, match="module"):
        Task(nn.Linear(6, 2), "squared").fitted(SAMPLES, torch.randn(2), None)


def test_checking_draws_nothing_and_changes_nothing() -> None:
    task = Task(module(nn.Linear(6, 3), nn.Dropout(0.5)))
    before, row = torch.get_rng_state(), task.initial()
    task.fitted(SAMPLES, LABELS, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(task.initial(), row)
    assert task.module.training


# -- dropout -----------------------------------------------------------------------------------------------------------


def dropped(address: int, rate: float = 0.4, layer: int = 1, size: int = 4000) -> Tensor:
    drop = AddressedDropout(rate, layer)
    drop.address.fill_(address)
    return drop(torch.ones(4, size // 4))


def test_dropout_has_the_same_mask_at_the_same_address_and_another_elsewhere() -> None:
    assert torch.equal(dropped(5), dropped(5))
    assert not torch.equal(dropped(5), dropped(6))
    assert not torch.equal(dropped(5, layer=1), dropped(5, layer=2))


def test_dropout_zeroes_its_share_and_scales_up_the_rest() -> None:
    value = dropped(5)
    assert set(value.flatten().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    assert abs(float((value == 0).float().mean()) - 0.4) < 0.03


def test_dropout_masks_of_neighbouring_layers_are_unrelated() -> None:
    masks = np.stack([(dropped(5, 0.5, layer) == 0).flatten().numpy() for layer in (1, 2)])
    assert abs(np.corrcoef(masks)[0, 1]) < 0.06


def test_dropout_is_the_identity_when_evaluating_or_at_rate_zero() -> None:
    value = torch.randn(3, 4)
    assert AddressedDropout(0.5, 0).eval()(value) is value
    assert AddressedDropout(0.0, 0)(value) is value


def test_dropout_at_rate_one_drops_everything() -> None:
    assert not dropped(5, 1.0).any()
    assert bool(dropped(5, 1.0).isfinite().all())


def shared_dropout() -> nn.Module:
    drop = nn.Dropout(0.5)
    return module(nn.Linear(6, 6), drop, nn.Linear(6, 6), drop)


@pytest.mark.parametrize(
    "make",
    [
        lambda: module(nn.Linear(6, 6), nn.Dropout(0.5)),
        lambda: module(module(nn.Linear(6, 6), nn.Dropout(0.5)), nn.Linear(6, 6)),
        shared_dropout,
        lambda: module(nn.Linear(6, 6), nn.AlphaDropout(0.5)),
        lambda: module(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Dropout1d(0.5)),
    ],
    ids=["plain", "nested", "one layer in two places", "alpha dropout", "channel dropout"],
)
def test_no_layer_draws_from_the_global_random_numbers_while_training(make: Callable[[], nn.Module]) -> None:
    try:
        replica = training_replica(Task(make()))
    except BadInput as refused:
        assert "dropout" in str(refused).lower()  # noqa: PT017 - refusing such a layer is as good
        return
    before = torch.get_rng_state()
    one, other = replica(SAMPLES), replica(SAMPLES)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, other)


def test_a_replica_shares_nothing_with_the_module_and_evaluates_without_dropout() -> None:
    task = Task(module(nn.Linear(6, 3), nn.Dropout(0.5)))
    copy = task.replica(training=False, dtype=torch.float64, device=CPU)
    torch.testing.assert_close(copy(SAMPLES.double()).float(), task.module[0](SAMPLES))  # type: ignore[index]
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    assert bool(task.initial().any())
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert isinstance(task.module[1], nn.Dropout)  # type: ignore[index]


class OwnLuck(torch.nn.Module):
    """A model that draws from torch's own random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.nn.functional.dropout(x, 0.5, self.training))


def test_a_model_that_draws_random_numbers_of_its_own_is_refused() -> None:
    from palmette.learner import Learner
    from palmette.population import Population

    people = Population.from_arrays(
        torch.randn(40, 3), torch.zeros(40, dtype=torch.int64), device=[0, 1] * 20, classes=2
    )
    for backend in ("auto", "loop"):
        with pytest.raises(BadInput, match="random numbers of its own"):
            Learner(Task(OwnLuck()), people, backend=backend)
