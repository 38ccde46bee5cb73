"""Populations: packing, the split, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from palmette.errors import BadInput
from palmette.population import Iid, Pool, Population, make_population
from palmette.tree import Tree


def columns(devices: int = 6, each: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples in mixed order; the only feature is the sample's own position."""
    device = np.random.default_rng(seed).permutation(np.repeat(np.arange(devices), each))
    x = np.arange(devices * each, dtype=np.float64)[:, None]
    return x, np.arange(devices * each) % 3, device


def owners(made: Population) -> torch.Tensor:
    return torch.arange(made.devices).repeat_interleave(made.start.diff())


# -- packing and the split ---------------------------------------------------------------------------------------------


def test_every_sample_lies_with_its_device_and_its_label() -> None:
    x, y, device = columns()
    made = Population.from_arrays(x, y, device=device)
    position = made.x[:, 0].long()
    assert torch.equal(position.sort().values, torch.arange(120))
    assert torch.equal(torch.from_numpy(device)[position], owners(made))
    assert torch.equal(torch.from_numpy(y)[position], made.y)
    assert made.start.tolist() == [0, 20, 40, 60, 80, 100, 120]


@pytest.mark.parametrize(("each", "train"), [(2, 1), (3, 2), (4, 3), (7, 5), (20, 15)])
def test_three_quarters_of_every_device_are_for_training(each: int, train: int) -> None:
    x, y, device = columns(each=each)
    made = Population.from_arrays(x, y, device=device)
    assert made.samples.tolist() == [train] * 6
    assert made.tests.tolist() == [each - train] * 6


def test_a_tenth_for_testing_leaves_nine_of_ten() -> None:
    x, y, device = columns(each=10)
    assert Population.from_arrays(x, y, device=device, test=0.1).train.tolist() == [9] * 6


def test_the_seed_decides_the_split_and_shuffles() -> None:
    x, y, device = columns()
    one, again, other = (Population.from_arrays(x, y, device=device, seed=seed).x for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one[:20, 0], one[:20, 0].sort().values)


def test_a_device_alone_finds_the_split_it_has_among_others() -> None:
    x, y, device = columns()
    names = np.array(list("abcdef"))[device]
    all_of_them = Population.from_arrays(x, y, device=names, tree=list("abcdef"))
    mine = device == 2
    alone = Population.from_arrays(x[mine], y[mine], device=names[mine], tree=["c"])
    assert torch.equal(alone.x, all_of_them.x[int(all_of_them.start[2]) : int(all_of_them.start[3])])


def test_two_devices_with_equal_samples_split_differently() -> None:
    x = np.arange(40.0).reshape(40, 1) % 20
    made = Population.from_arrays(x, np.zeros(40, dtype=int), device=np.repeat([0, 1], 20))
    assert not torch.equal(made.x[:20], made.x[20:])


def test_the_users_own_split_is_kept() -> None:
    x, y, device = columns()
    test = np.random.default_rng(5).random(120) < 0.4
    made = Population.from_arrays(x, y, device=device, test=test)
    is_test = torch.from_numpy(test)[made.x[:, 0].long()]
    rank = torch.arange(120) - made.start[owners(made)]
    assert torch.equal(is_test, rank >= made.train[owners(made)])
    assert 0 < int(is_test.sum()) < 120


def test_the_users_arrays_are_not_shared() -> None:
    x, y, device = np.arange(4.0)[:, None], np.zeros(4, dtype=int), np.zeros(4, dtype=int)
    made = Population.from_arrays(torch.from_numpy(x), y, device=device)
    before = made.x.clone()
    x[:] = -1
    assert torch.equal(made.x, before)


def test_read_only_arrays_are_welcome() -> None:
    x, y, device = columns()
    x.flags.writeable = False
    assert Population.from_arrays(x, y, device=device).devices == 6


def test_half_precision_and_small_integers_are_widened() -> None:
    _, y, device = columns()
    for given, kept in [
        (np.float16, torch.float32),
        (np.int32, torch.int64),
        (np.bool_, torch.uint8),
        (np.uint8, torch.uint8),
        (np.dtype(">f8"), torch.float64),
    ]:
        made = Population.from_arrays(np.ones((120, 2), dtype=given), y, device=device)
        assert made.x.dtype == kept


# -- columns and trees -------------------------------------------------------------------------------------------------


def test_names_are_kept_in_order_of_appearance() -> None:
    device = np.array(["b", "a", "b", "c", "a", "c"])
    made = Population.from_arrays(np.arange(6.0)[:, None], np.zeros(6, dtype=int), device=device)
    assert made.tree.names(0) == ["b", "a", "c"]
    assert made.x[:2, 0].sort().values.tolist() == [0, 2]


def test_a_team_column_makes_the_tree() -> None:
    device = np.array([7, 9, 7, 8, 9, 8])
    team = np.array(["n", "s", "n", "n", "s", "n"])
    for given in (team, {7: "n", 8: "n", 9: "s"}):
        made = Population.from_arrays(np.arange(6.0)[:, None], np.zeros(6, dtype=int), device=device, team=given)
        assert made.tree.names(0) == ["7", "8", "9"]
        assert made.tree.names(1) == ["n", "s"]
        assert made.tree.parents[0].tolist() == [0, 0, 1]
        assert [sorted(made.x[a : a + 2, 0].tolist()) for a in (0, 2, 4)] == [[0, 2], [3, 5], [1, 4]]


def test_a_tree_takes_numbers_or_names() -> None:
    tree = Tree.parse({"north": ["a", "b"], "south": ["c"]})
    x, y = np.arange(6.0)[:, None], np.zeros(6, dtype=int)
    by_name = Population.from_arrays(x, y, tree=tree, device=["c", "a", "b", "b", "a", "c"])
    by_number = Population.from_arrays(x, y, tree=tree, device=[2, 0, 1, 1, 0, 2])
    assert torch.equal(by_name.x, by_number.x)
    assert sorted(by_name.x[:2, 0].tolist()) == [1, 4]


def test_whole_numbers_are_names_on_a_tree_whose_names_are_whole_numbers() -> None:
    tree = Tree.from_table([12, 11], ["n", "n"])
    made = Population.from_arrays(np.arange(4.0)[:, None], np.zeros(4, dtype=int), tree=tree, device=[11, 11, 12, 12])
    assert sorted(made.x[:2, 0].tolist()) == [2, 3]


def test_lists_are_one_array_per_device() -> None:
    x = [np.full((n, 2), float(n)) for n in (2, 3, 4, 5)]
    y = [torch.zeros(n, dtype=torch.int64) for n in (2, 3, 4, 5)]
    made = Population.from_arrays(x, y, tree="2x2")
    assert made.start.tolist() == [0, 2, 5, 9, 14]
    assert made.x[:, 0].tolist() == [2.0] * 2 + [3.0] * 3 + [4.0] * 4 + [5.0] * 5
    assert Population.from_arrays(x, y).tree.tiers == 2
    named = Population.from_arrays(x, y, device=["d", "e", "f", "g"], team=["s", "n", "s", "n"])
    assert named.tree.names(0) == ["d", "f", "e", "g"]
    assert named.start.diff().tolist() == [2, 4, 3, 5]
    flags = [np.arange(n) == 0 for n in (2, 3, 4, 5)]
    assert Population.from_arrays(x, y, test=flags).tests.tolist() == [1, 1, 1, 1]


# -- what a population tells -------------------------------------------------------------------------------------------


def test_features_scale_and_shift_bytes() -> None:
    x = np.array([[0], [255], [51], [0]], dtype=np.uint8)
    made = Population.from_arrays(x, np.zeros(4, dtype=int), device=np.zeros(4, dtype=int), affine=(2 / 255, -1.0))
    order = made.x[:, 0].argsort(stable=True)
    got = made.features(order, torch.float64)[:, 0]
    assert got.dtype == torch.float64
    assert torch.allclose(got, torch.tensor([-1.0, -1.0, -0.6, 1.0], dtype=torch.float64))
    assert made.features(order.reshape(2, 2)).shape == (2, 2, 1)
    assert made.features(order).dtype == torch.float32
    assert made.x.dtype == torch.uint8


def test_features_leave_tokens_and_the_stored_floats_alone() -> None:
    x, y, device = columns()
    tokens = Population.from_arrays(x.astype(np.int64), y, device=device)
    assert tokens.features(torch.arange(3)).dtype == torch.int64
    floats = Population.from_arrays(x, y, device=device, affine=(2.0, 0.0))
    before = floats.x.clone()
    floats.features(torch.arange(120), torch.float64)
    assert torch.equal(floats.x, before)


@pytest.mark.parametrize(
    ("train", "fraction", "held"), [(1, 0.5, 0), (2, 0.1, 1), (2, 0.9, 1), (10, 0.2, 2), (10, 0.29, 2), (3, 0.99, 2)]
)
def test_held_out_is_rounded_down_but_neither_nothing_nor_all(train: int, fraction: float, held: int) -> None:
    tree = Tree.parse(1)
    made = Population(
        tree, torch.zeros(20, 1), torch.zeros(20).long(), torch.tensor([0, 20]), torch.tensor([train]), classes=1
    )
    assert made.held_out(fraction).tolist() == [held]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_held_out_refuses_what_is_no_fraction(fraction: float) -> None:
    x, y, device = columns()
    with pytest.raises(BadInput, match="not in 0 < fraction < 1"):
        Population.from_arrays(x, y, device=device).held_out(fraction)


def test_summary_tells_devices_teams_samples_and_classes() -> None:
    x, y, device = columns(each=21)
    text = Population.from_arrays(x, np.where(device == 0, 0, y), device=device, tree="3x2").summary()
    assert "6 devices in 3 teams (tree 3x2), 126 samples of shape (1,), 3 classes" in text
    assert "training samples per device: 15 to 15, median 15" in text
    assert "test samples per device: 6 to 6, median 6" in text
    assert "classes per device: 1 to 3, median 3" in text


def test_float_targets_mean_regression() -> None:
    x, y, device = columns()
    made = Population.from_arrays(x, y.astype(np.float32) / 2, device=device)
    assert made.classes is None
    assert made.y.dtype == torch.float32
    assert "regression" in made.summary()


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(message: str, change: dict[str, Any]) -> None:
    x, y, device = columns()
    given: dict[str, Any] = {"x": x, "y": y, "device": device} | change
    with pytest.raises(BadInput, match=message) as caught:
        Population.from_arrays(given.pop("x"), given.pop("y"), **given)
    assert "\n" not in str(caught.value)


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed[7] = value
    return changed


X, Y, DEVICE = columns()
OWNER = f"device-{DEVICE[7]}"
MIXED = X.astype(object)
MIXED[7] = "seven"


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (f"'{OWNER}' .sample 7, feature 0.: a feature is NaN", {"x": with_value(X, np.nan)}),
        (f"'{OWNER}' .sample 7, feature 0.: a feature is NaN", {"x": with_value(X, np.inf)}),
        (f"'{OWNER}' .sample 7.: a target is NaN", {"y": with_value(Y.astype(float), np.nan)}),
        (f"'{OWNER}' .sample 7.: a label is negative", {"y": with_value(Y, -1)}),
        (f"'{OWNER}' .sample 7.: a label is above 2", {"y": with_value(Y, 5), "classes": 3}),
        (f"device '{DEVICE[7]}' .sample 7.: x must be numbers", {"x": MIXED}),
        ("x must be numbers, not <U", {"x": X.astype(str)}),
        ("y must be numbers", {"y": Y.astype(str)}),
        ("x must be real", {"x": torch.zeros(120, 1, dtype=torch.complex64)}),
        ("classes = 3", {"y": Y.astype(float), "classes": 3}),
        ("classes = 0", {"classes": 0}),
        ("y has 119", {"y": Y[:-1]}),
        ("120 samples; give one entry", {"device": DEVICE[:-1]}),
        ("x holds no samples", {"x": X[:0], "y": Y[:0], "device": DEVICE[:0]}),
        ("x holds no samples", {"x": np.float64(3)}),
        ("device= one number or name per sample", {"device": None}),
        ("whole numbers or names, not float64", {"device": DEVICE.astype(float)}),
        ("device of sample 1 is missing", {"device": np.array(["a", None] * 60, dtype=object)}),
        ("devices 0..4, not 5", {"tree": 5}),
        ("'device-6' has no samples", {"tree": 7}),
        ("no device 'elsa'; did you mean 'else'", {"tree": Tree.parse({"t": ["else"]}), "device": ["elsa"] * 120}),
        ("give tree= or team=, not both", {"tree": 6, "team": DEVICE}),
        ("'.' is in the teams '0' and '1'", {"team": np.arange(120) // 60}),
        ("device '5' has no team", {"team": dict.fromkeys(range(5), "t")}),
        ("test = 1.0 is not a fraction", {"test": 1.0}),
        ("test = -0.5 is not a fraction", {"test": -0.5}),
        ("119 flags for 120 samples", {"test": np.zeros(119, dtype=bool)}),
        ("one true/false per sample", {"test": np.zeros(120)}),
        ("'device-0' has no training samples", {"test": DEVICE == 0}),
    ],
)
def test_bad_arrays_are_refused_in_one_line(message: str, change: dict[str, Any]) -> None:
    refused(message, change)


@pytest.mark.parametrize(
    ("message", "x", "y", "tree"),
    [
        ("tree has 3 devices, x has 2 arrays", [X, X], [Y, Y], 3),
        ("device 1: x must be numbers", [X, X.astype(str)], [Y, Y], None),
        ("device 1: x holds no samples", [X, X[:0]], [Y, Y[:0]], None),
        ("device 1: a sample of x has the shape", [X, X[:, 0]], [Y, Y], None),
        ("device 1: x has 120 samples, y has 119", [X, X], [Y, Y[:-1]], None),
        ("list of as many arrays", [X, X], [Y], None),
        ("one array per device", [[1.0], [2.0]], [0, 1], None),
    ],
)
def test_bad_lists_are_refused_by_device(message: str, x: Any, y: Any, tree: Any) -> None:
    with pytest.raises(BadInput, match=message):
        Population.from_arrays(x, y, tree=tree)


def test_devices_without_test_samples_are_named_once() -> None:
    device = np.array([0, 0, 0, 0, 1, 2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = Population.from_arrays(np.zeros((6, 1)), np.zeros(6, dtype=int), device=device)
    assert [str(entry.message) for entry in caught] == [
        "device 'device-1' has no test samples (2 of 3 devices have none)"
    ]
    assert caught[0].filename == __file__
    assert made.train.tolist() == [3, 1, 1]


def test_a_population_made_by_hand_is_checked() -> None:
    x, y = torch.zeros(4, 1), torch.zeros(4).long()
    with pytest.raises(BadInput, match="2 devices"):
        Population(Tree.parse(2), x, y, torch.tensor([0, 4]), torch.tensor([1]))
    with pytest.raises(BadInput, match="number of samples, 4"):
        Population(Tree.parse(2), x, y, torch.tensor([0, 2, 5]), torch.tensor([1, 1]))
    with pytest.raises(BadInput, match="'device-1' has 3 training samples of 2"):
        Population(Tree.parse(2), x, y, torch.tensor([0, 2, 4]), torch.tensor([1, 3]))


# -- make_population() ------------------------------------------------------------------------------------------------------


def test_digits_by_default_on_forty_devices_within_teams() -> None:
    made = make_population()
    assert (made.devices, made.shape, made.classes, len(made.x), made.source) == (40, (1, 8, 8), 10, 1797, "digits")
    team_sizes = torch.zeros(4).long().index_add_(0, torch.from_numpy(made.tree.ancestors(1)), made.start.diff())
    assert set(team_sizes.tolist()) == {449, 450}
    assert torch.equal(made.train, (made.start.diff() * 3) // 4)
    assert torch.equal(made.x, make_population(seed=0).x)
    assert not torch.equal(made.start, make_population(seed=1).start)


def test_synthetic_units_are_put_on_leaves_by_the_seed() -> None:
    given = make_population("synthetic", tree="2x3", teams="given")
    random = make_population("synthetic", tree="2x3")
    assert given.start.diff().tolist() != random.start.diff().tolist()
    assert given.start.diff().sort().values.tolist() == random.start.diff().sort().values.tolist()
    assert given.shape == (60,)


@pytest.mark.parametrize(
    ("message", "source", "settings"),
    [
        ("no data set 'digit'; did you mean 'digits'", "digit", {}),
        ("synthetic is made device by device and takes no partition", "synthetic", {"partition": "iid"}),
        ("no option 'alfa'; did you mean 'alpha'", "synthetic", {"alfa": 1.0}),
        ("no option 'devices'", "synthetic", {"devices": 3}),
        ("alpha = -1", "synthetic", {"alpha": -1}),
        ("seed = -1", "synthetic", {"seed": -1}),
        ("for images that Palmette loads", "synthetic", {"pixels": "unit"}),
        ("pixels = 'big'", "digits", {"pixels": "big"}),
        ("no option 'wihtin'; did you mean 'within'", "digits", {"wihtin": "team"}),
        ("no option 'alpha'", "digits", {"partition": Iid(), "alpha": 1.0}),
        ("no partition 'idd'; did you mean 'iid'", "digits", {"partition": "idd"}),
        ("449 samples are too few", "digits", {"least": 45, "tree": "4x10"}),
    ],
)
def test_bad_settings_are_refused_by_name(message: str, source: str, settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=message):
        make_population(source, **settings)


def test_a_pool_with_wrong_labels_is_refused() -> None:
    x = np.zeros((100, 1))
    with pytest.raises(BadInput, match=r"labels in 0\.\.2"):
        make_population(Pool(x, np.full(100, 3), 3), tree=2)
    with pytest.raises(BadInput, match="whole label for each of 100 samples"):
        make_population(Pool(x, np.zeros(100), 3), tree=2)
    with pytest.raises(BadInput, match="one label per sample"):
        make_population(Pool(x, np.zeros((100, 2), dtype=int), 3), tree=2)
    with pytest.raises(BadInput, match="has the samples of 2 devices, but tree = 3 has 3"):
        make_population(Pool(x, np.zeros(100, dtype=int), 3, start=np.array([0, 50, 100])), tree=3)
