"""Values nobody expected, as a program gives them: understood and said so, or refused in a sentence."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import ALGORITHMS
from palmette.cli.app import app
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, PalmetteError
from palmette.learner import Learner
from palmette.population import Population, make_population
from palmette.report.tables import run_report
from palmette.runs import execute, make_config
from palmette.runs.progress import Bars, Lines
from palmette.task import Task, make_task
from palmette.tree import Tree
from palmette.values import plain, rough, shown, size

ROWS = 24
DEVICE = np.arange(ROWS) % 4
LUCK = np.random.default_rng(0)
X = LUCK.normal(size=(ROWS, 3)).astype(np.float32)
Y = np.arange(ROWS) // 4 % 3


def people(x: Any = X, y: Any = Y, **options: Any) -> Population:
    return Population.from_arrays(x, y, **{"device": DEVICE, "team": DEVICE // 2, **options})


def small(name: str) -> dict[str, Any]:
    """Settings that make one round of a method short."""
    few = {
        "local_steps": 1,
        "head_steps": 1,
        "team_steps": 1,
        "tune_steps": 1,
        "iterations": 3,
        "passes": 1,
        "group_passes": 1,
    }
    known = ALGORITHMS[name].__dataclass_fields__  # type: ignore[attr-defined]
    return {key: value for key, value in few.items() if key in known}


def takes_auto(name: str) -> bool:
    """Tell whether a method's alpha may be "auto": only where it says what is stable."""
    kind = ALGORITHMS[name]
    return "alpha" in kind.__dataclass_fields__ and kind.stable is not pm.Algorithm.stable  # type: ignore[attr-defined]


def run(name: str, population: Population, out: Path, *rest: Any, **options: Any) -> pm.Result:
    """Run a method, on a network where it treats layers differently."""
    options = {"rounds": 1, "settings": small(name), **options}
    rest = rest or (("dnn",) if ALGORITHMS[name].parts else ())
    return pm.run(name, population, *rest, out=out, **options)


# -- who takes part ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("permfl", {}, "all devices, all teams"),
        ("permfl", {"devices": "50%"}, "50 % of each team's devices, all teams"),
        ("permfl", {"devices": 0.5, "teams": "100%"}, "50 % of each team's devices, all teams"),
        ("permfl", {"devices": 1.0}, "all devices, all teams"),
        ("permfl", {"devices": "1 device", "teams": "1 team"}, "1 of each team's devices, 1 team"),
        (
            "permfl",
            {"devices": "2 devices", "teams": "pass 1"},
            "2 of each team's devices, 1 team at a time until each",
        ),
        ("fedavg", {"devices": "3 devices"}, "3 devices"),
        ("fedavg", {"devices": 0.25}, "25 % of the devices"),
    ],
)
def test_a_run_says_what_it_understood_of_participation(
    name: str, given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    screen = Console(file=io.StringIO(), width=200)
    result = run(name, people(), tmp_path / "a", participation=given, observer=Lines("a", screen))
    assert f"participation: {told}" in (tmp_path / "a" / "log.txt").read_text()
    assert f"a: participation: {told}" in screen.file.getvalue()  # type: ignore[attr-defined]
    again = make_config(pm.runs.read_config(tmp_path / "a" / "config.toml"))
    assert again.participation == result.config.participation == given


def test_a_count_in_words_is_the_count(tmp_path: Path) -> None:
    made = [
        run("permfl", people(), tmp_path / str(i), participation={"devices": w})
        for i, w in enumerate(["1 device", "1 node"])
    ]
    whole = run("permfl", people(), tmp_path / "all", participation={"devices": "100%"})
    counted = [int(sum(result.traffic["exchanges"].to_pylist())) for result in (*made, whole)]
    assert counted[0] == counted[1]
    seen = [set(result.metrics["on"].to_pylist()) for result in (*made, whole)]
    assert "unseen" in seen[0] & seen[1]  # one device of each team never took part
    assert "unseen" not in seen[2]


@pytest.mark.parametrize("one", [1, "1", " 1 ", np.int64(1)])
def test_a_bare_one_is_refused_where_it_may_mean_one_or_all(one: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"participation.devices = .* one of 2 devices .* write '1 device' or '100%'"):
        run("permfl", people(), tmp_path / "a", participation={"devices": one})
    assert not (tmp_path / "a").exists()
    lonely = people(tree="4x1", team=None)
    assert run("permfl", lonely, tmp_path / "b", participation={"devices": one}).config.participation["devices"] in (
        1,
        one,
    )


# -- labels ------------------------------------------------------------------------------------------------------------


def said(*arrays: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        people(*arrays, **options)
    return [str(entry.message) for entry in caught]


def test_whole_numbers_as_floats_are_told_to_be_a_regression_target() -> None:
    (told,) = said(X, Y.astype(np.float64))
    assert told.startswith("y holds whole numbers as floats (0.0, 1.0, 2.0): taken as a regression target")
    with pytest.warns(UserWarning, match="regression"):
        assert people(X, Y.astype(np.float32)).classes is None


def test_labels_that_skip_classes_are_counted_aloud() -> None:
    labels = np.array([0, 5, 9])[Y]
    (told,) = said(X, labels)
    assert told.startswith("3 of 10 classes occur (labels 0, 5, 9)")
    with pytest.warns(UserWarning, match="3 of 10"):
        assert people(X, labels).classes == 10
    assert said(X, labels, classes=10) == []  # who says ten means ten


@pytest.mark.parametrize("y", [Y, Y + 0.5, np.where(Y > 0, 1.0, -1.0), LUCK.normal(size=ROWS).round(1)])
def test_labels_that_can_be_read_in_one_way_are_taken_without_a_word(y: Any) -> None:
    assert said(X, y) == []


# -- a loss of one's own -----------------------------------------------------------------------------------------------


def brier(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    chances = output.softmax(-1)
    return (chances - nn.functional.one_hot(target, chances.shape[-1])).square().sum(-1)


def test_a_loss_of_ones_own_keeps_the_accuracy_of_classes(tmp_path: Path) -> None:
    task = Task(nn.Linear(3, 4), loss=brier)
    result = run("fedavg", people(), tmp_path / "a", task)
    assert result.metric_names == ["accuracy", "loss"]
    assert 0 <= result.last("PM", "accuracy") <= 1
    assert task.metrics is None  # the task that was given is as it was
    same = run("fedavg", people(), tmp_path / "b", Task(task.module, loss=brier, metrics={}))
    assert same.metric_names == ["loss"]


def test_a_loss_of_ones_own_has_no_accuracy_without_classes(tmp_path: Path) -> None:
    def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output[:, 0] - target).abs()

    result = run("fedavg", people(y=X[:, 0]), tmp_path / "a", Task(nn.Linear(3, 4), loss=absolute))
    assert result.metric_names == ["loss"]
    scalar = run("fedavg", people(), tmp_path / "b", Task(nn.Linear(3, 1), loss=absolute))
    assert scalar.metric_names == ["loss"]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (lambda: Task(nn.Linear(3, 3), loss=42), "loss must be one of .* or a function, not 42"),  # type: ignore[arg-type]
        (lambda: Task(nn.Linear(3, 3), l2="much"), "l2 must be .* not 'much'"),  # type: ignore[arg-type]
        (lambda: Task(nn.Linear(3, 3), loss=lambda output, target: 0.5), "the loss gave a float"),  # type: ignore[arg-type,return-value]
        (lambda: Task(nn.LSTM(3, 3)), "gave a tuple; it must give one tensor"),
    ],
)
def test_a_task_that_cannot_be_learned_is_refused_in_a_sentence(task: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told):
        run("fedavg", people(), tmp_path / "a", task())


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x": X[:, :0]}, r"a sample of x has the shape \(0,\), which holds no number"),
        ({"y": Y[:, None][:, :0]}, r"a sample of y has the shape \(0,\), which holds no number"),
        ({"x": X * np.float32(1e30)}, r"device '\d': a feature is above 1e\+15; scale x first"),
        ({"y": X[:, 0] * np.float32(1e30)}, r"a target is above 1e\+15; scale y first"),
        ({"y": Y.astype(np.int64) * 2**40}, "is too large; number classes from 0"),
        ({"x": np.full((ROWS, 3), 2**64 - 1, dtype=np.uint64)}, "above the largest whole number"),
        ({"x": torch.zeros(ROWS, 3).to_sparse()}, "x must be a dense tensor"),
        ({"x": torch.zeros(ROWS, 3, device="meta")}, "x must be a dense tensor with values"),
        ({"x": np.zeros(ROWS, dtype="M8[s]")}, r"x must be numbers, not datetime64"),
        ({"x": [[1.0], [2.0, [3.0]]], "y": [[0], [1]]}, "device 1: x cannot be made an array"),
        ({"device": torch.zeros(ROWS, dtype=torch.bfloat16)}, "device must be whole numbers or names, not float32"),
        (
            {"device": np.array([{}] * ROWS, dtype=object)},
            "device of sample 0 must be a whole number or a name, not {}",
        ),
        ({"device": np.array([b"\xff"] * ROWS)}, "not plain letters"),
        ({"team": dict.fromkeys(range(4))}, "device '0' has no team"),
        ({"test": "50%"}, "test = '50%' is not a fraction"),
        ({"test": True}, "test = True is not a fraction"),
        ({"test": {}}, "test = {} is not a fraction"),
        ({"test": np.zeros((ROWS, 1), dtype=bool)}, r"one true/false per sample, not bool of shape \(24, 1\)"),
        ({"seed": "luck"}, r"seed = 'luck' must be a whole number from 0 to 2\*\*63 - 1"),
        ({"seed": True}, "seed = True must be"),
        ({"seed": -1}, "seed = -1 must be"),
        ({"seed": 2**63}, f"seed = {2**63} must be"),
        ({"classes": "three"}, "classes = 'three' must be a whole number"),
        ({"affine": 3}, "affine must be two numbers, a scale and a shift, not 3"),
        ({"affine": (1, float("inf"))}, "affine's shift = inf must be a finite number"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        people(**change)
    assert "\n" not in str(caught.value)


def test_numbers_and_columns_of_other_libraries_are_taken() -> None:
    plain_one = people(seed=3, classes=3)
    other = people(
        X.astype(object),
        Y.astype(object),
        device=torch.from_numpy(DEVICE).to(torch.int32),
        team=list(DEVICE // 2),
        seed=np.int64(3),
        classes=np.uint8(3),
        test=np.float64(0.25),
    )
    assert torch.equal(plain_one.x, other.x.float())
    assert torch.equal(plain_one.y, other.y)
    assert torch.equal(people(X[::-1], Y[::-1], device=DEVICE[::-1], team=DEVICE[::-1] // 2).x.sum(), plain_one.x.sum())
    one = np.ones((1, 3))[::-1]  # numpy calls it contiguous, torch does not
    with pytest.warns(UserWarning, match="no test samples"):
        assert Population.from_arrays(one, np.array([0]), device=[0]).devices == 1
    assert str(people(tree=np.array([2, 2]), team=None).tree) == "2x2"
    assert Tree.parse(np.int64(4)).devices == 4


def test_columns_of_pandas_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"y": Y, "device": DEVICE, "team": DEVICE // 2}).astype({"y": "Int64"})
    made = people(pandas.DataFrame(X), table["y"], device=table["device"], team=table["team"])
    assert torch.equal(made.y, people().y)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("alpha", ["auto", None])
@pytest.mark.filterwarnings("ignore:.*expect divergence")
def test_one_class_for_everybody_ends_in_a_result_or_a_sentence(name: str, alpha: str | None, tmp_path: Path) -> None:
    settings = {**small(name), **({"alpha": alpha} if alpha and takes_auto(name) else {})}
    population = people(y=np.zeros(ROWS, dtype=int))
    # A network's curvature is measured, and with one class there is none.
    if ALGORITHMS[name].parts and "alpha" in settings:
        with pytest.raises(BadInput, match="the loss is flat, there is nothing to learn"):
            run(name, population, tmp_path / "a", settings=settings)
        return
    assert run(name, population, tmp_path / "a", settings=settings).last("PM", "accuracy") == 1


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_flat_loss_ends_in_a_result_or_a_sentence(name: str, tmp_path: Path) -> None:
    """A linear model without intercept learns nothing from features that are all zero."""
    population = people(np.zeros((ROWS, 3)), X[:, 0])
    two = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
    model = two if ALGORITHMS[name].parts else "linear"
    run(name, population, tmp_path / "a", model)
    if takes_auto(name):
        with pytest.raises(BadInput, match=r"the loss is flat, there is nothing to learn.* or give alpha a number"):
            run(name, population, tmp_path / "b", model, settings={**small(name), "alpha": "auto"})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.filterwarnings("ignore:.*expect divergence")
def test_huge_features_end_in_a_result_or_a_sentence(name: str, tmp_path: Path) -> None:
    """Features of 1e30 cannot come in by `from_arrays`, but can by a population made by hand."""
    good = people()
    population = Population(good.tree, good.x * 1e30, good.y, good.start, good.train, classes=3)
    with suppress(PalmetteError):  # it diverges, or it was lucky
        run(name, population, tmp_path / "a", settings=small(name))


# -- values of settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": "luck"}, "seed = 'luck' must be a whole number"),
        ({"seed": True}, "seed = True must be a whole number"),
        ({"seed": -1}, "seed = -1 must be"),
        ({"threads": "two"}, "threads = 'two' must be a whole number"),
        ({"settings": 3}, "settings: should be a table, not 3"),
        ({"settings": {"local_steps": 10**18}}, r"years on one core; lower local_steps = 1e\+18"),
        ({"settings": {"alpha": b"x"}}, "settings.alpha: a bytes is no value of a setting"),
        ({"participation": 0.5}, "participation: should be a table, not 0.5"),
        ({"participation": {"devices": True}}, "participation must be .* not True"),
        ({"evaluate_every": []}, "evaluate_every: should be 'auto' or a whole number, not "),
        ({"device": "cuda:99"}, "device: this machine's torch cannot compute on 'cuda:99'"),
        ({"device": 2**64}, f"engine.device: should be text, not {2**64}"),
        ({"device": "\ud800"}, "half a character"),
        ({"rounds": 10**12}, r"a run of 1e\+12 rounds is too long, .* lower rounds"),
        ({"rounds": 2**30}, "the tables of all rounds would take .* lower rounds"),
    ],
)
def test_wild_options_of_a_run_are_refused(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told) as caught:
        run("permfl", people(), tmp_path / "a", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_a_compute_device_that_is_not_there_is_refused_by_every_entry() -> None:
    population = people()
    task = make_task("mclr", population.shape, population.classes)
    for name in ("cuda:99", "abacus", 7, True):
        with pytest.raises(BadInput, match="cannot compute on"):
            Learner(task, population, device=name)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="cannot compute on"):
            Simulation(pm.algorithms.FedAvg(), population, task, rounds=1, device=name)  # type: ignore[arg-type]


def test_numpy_values_and_paths_are_plain_settings(tmp_path: Path) -> None:
    settings = {"team_steps": np.array([1]), "local_steps": np.int64(1), "alpha": np.float32(0.5), "as_published": ()}
    result = run("permfl", people(), tmp_path / "a", settings=settings, seed=np.uint8(7), loss=np.float64(0.0))
    assert result.config.settings["team_steps"] == [1]
    assert (result.config.seed, result.config.settings["alpha"]) == (7, 0.5)
    config = make_config({"algorithm": "local", "data": {"name": "mnist", "folder": tmp_path}})
    assert config.data.folder == str(tmp_path)


def test_values_are_shown_in_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown(list(range(1000)))) < 100
    assert "too large to show" in shown(10**5000)
    assert plain({1: (np.int64(2), [Path("x")])}) == {"1": [2, ["x"]]}
    assert [size(999), size(48e10), size(10**40)] == ["999 B", "480 GB", "1e+40 B"]
    assert [rough(40), rough(10**12), rough(10**5000)] == ["40", "1e+12", "1e+4000"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"test": "50%"}, "test = '50%' is not a fraction"),
        ({"shift": [1]}, r"no shift \[1\]"),
        ({"teams": {}}, "no team formation {}"),
        ({"partition": []}, r"no partition \[\]"),
        ({"pixels": np.array([1, 2])}, "pixels = "),
        ({"seed": "luck"}, "seed = 'luck'"),
        ({"folder": 3}, "folder"),
        ({"alpha": "much"}, "alpha = 'much' must be a finite number"),
        ({"source": {}}, "no data set {}"),
        ({"source": "crowd", "samples": 10**15}, "of memory, .* data.samples"),
        ({"source": "crowd", "spread": 1e300}, "spread = 1e.300"),
        ({"source": "synthetic", "tree": 10**7}, "synthetic samples of 10,000,000 devices would take"),
        ({"tree": 10**400}, r"a tree of 1e\+400 devices is too large"),
        ({"tree": {"a": 10**12}}, r"a tree of 1e\+12 devices is too large; the most is 1e\+07 where they have names"),
        ({"tree": {"a": True}}, "'a' must hold .* not True"),
        ({"tree": b"4x10"}, "cannot read the tree b'4x10'"),
    ],
)
def test_wild_options_of_a_population_are_refused(options: dict[str, Any], told: str) -> None:
    given = {"source": "digits", "tree": "2x2", **options}
    with pytest.raises(BadInput, match=told) as caught:
        make_population(given.pop("source"), **given)
    assert "\n" not in str(caught.value)


# -- names -------------------------------------------------------------------------------------------------------------

NAMES = [
    "[/bold]",
    "[red]x",
    "x" * 300,
    "X" * 300,
    "a/b",
    "ü 日本",
    "Ü 日本",
    ":smile:",
    "..",
    "a\tb",
    "y" * 300 + "1",
    "y" * 300 + "2",
]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> pm.Result:
    """A run whose nodes have names that terminals and disks stumble over."""
    device = np.repeat(np.array(NAMES), 4)
    team = np.repeat(np.array(["[/bold]", "z" * 300] * 6), 4)
    population = Population.from_arrays(np.tile(X, (2, 1)), np.tile(Y, 2), device=device, team=team)
    metrics = {"[/dim]": brier}
    task = Task(nn.Linear(3, 3), loss="cross-entropy", metrics=metrics)
    return run("permfl", population, tmp_path_factory.mktemp("named") / "[/bold]", task)


def test_names_with_brackets_are_shown_as_they_are(named: pm.Result) -> None:
    done = CliRunner().invoke(app, ["show", str(named.folder)])
    assert done.exit_code == 0, done.output
    assert "[/bold]" in done.stdout
    screen = Console(file=io.StringIO(), width=80)
    screen.print(run_report(named, teams=True))
    for bars in (Bars("[/bold]"), Bars("[red]")):
        screen.print(bars.picture())
    Lines("[/bold]", screen).stopping()
    assert screen.file.getvalue().count("[/bold]") >= 3  # type: ignore[attr-defined]
    assert "[red]" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_names_too_long_or_too_like_have_files_of_their_own(named: pm.Result, tmp_path: Path) -> None:
    written = named.save_models(tmp_path / "models")
    assert len({path.name.casefold() for path in written}) == len(NAMES)
    assert all(len(path.name.encode()) <= 255 for path in written)
    for name, path in zip(named.names("PM"), written, strict=True):
        if name == "a/b":
            assert path.name == "a%2Fb.safetensors"  # what needs no change has none
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"node": name}
            assert torch.equal(file.get_tensor("weight"), named.module("PM", name, into=nn.Linear(3, 3)).weight)


def test_half_a_character_in_a_name_is_refused() -> None:
    for make in (
        lambda: Tree.parse({"a": ["b\ud800"]}),
        lambda: people(device=np.array(["a", "b\ud800"] * 12), team=None),
        lambda: make_config({"algorithm": "permfl", "tree": {"b\ud800": 2}}),
        lambda: make_config({"algorithm": "permfl", "data": {"name": "b\ud800"}}),
    ):
        with pytest.raises(BadInput, match=r"'b\\ud800' holds half a character .*UTF-8"):
            make()


def nested(depth: int) -> dict[str, Any]:
    tree: Any = ["device"]
    for tier in range(depth):
        tree = {f"t{tier}": tree}
    return tree  # type: ignore[no-any-return]


def test_deep_trees_run_and_deeper_ones_are_refused(tmp_path: Path) -> None:
    config = {"algorithm": "hierfavg", "rounds": 1, "settings": small("hierfavg"), "tree": nested(20)}
    result = execute(make_config(config), tmp_path / "a")
    assert len(result.kinds) == 22
    for deep in (nested(63), nested(5000), "x".join(["1"] * 64)):
        with pytest.raises(BadInput, match="at most 64 tiers"):
            Tree.parse(deep)
