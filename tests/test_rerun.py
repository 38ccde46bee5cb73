"""The config of a run is enough to run it again; what it cannot hold is named, and asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import Scaffold
from palmette.cli.app import app
from palmette.population import Dirichlet, Few, Iid, Labels, Partition, Pool
from palmette.population.partition import Parts
from palmette.runs import read_config
from palmette.runs.folder import CONFIG
from palmette.runs.objects import hash_samples
from palmette.tree import Ints, Tree
from problems import regression
from test_contract import SMALL, unlike_first
from test_runs import contents

FAST: dict[str, Any] = {"team_steps": 2, "local_steps": 2, "alpha": 0.3}
NAMED = {"north": {"a": ["d1", "d2"], "b": ["d3"]}, "south": {"c": ["d4", "d5", "d6"]}}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def runs_again(folder: str = "one") -> None:
    done = palmette("run", "--config", f"{folder}/config.toml", "--out", "again", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    assert contents(Path("again")) == contents(Path(folder))
    assert Path("again", CONFIG).read_bytes() == Path(folder, CONFIG).read_bytes()


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("digits", {}),
        ("digits", {"shift": "rotate", "seed": 5}),
        ("digits", {"tree": NAMED, "teams": "given", "test": 0.5, "pixels": "unit"}),
        ("digits", {"tree": [3, 1, 2], "partition": Dirichlet(np.float64(0.3), within="all", least=3)}),
        ("digits", {"partition": Few(samples=6, of=Labels(classes_per_device=3)), "teams": "worst"}),
        ("digits", {"partition": Few(samples=5, of=Dirichlet(0.5))}),
        ("digits", {"partition": "few", "samples": 4, "classes_per_device": 1}),
        ("digits", {"tree": ["x", "y"], "partition": Iid()}),
        ("synthetic", {"beta": 1, "seed": 4}),
        ("crowd", {"samples": 5, "spread": 0.1, "seed": 9}),
    ],
)
def test_a_library_run_on_a_named_source_runs_again_from_its_config(source: str, how: dict[str, Any]) -> None:
    population = pm.make_population(source, **{"tree": "2x3", **how})
    name = "permfl" if population.tree.top > 1 else "fedavg"
    settings = {"alpha": 0.01} if name == "fedavg" else {**FAST, "alpha": 0.01}
    result = pm.run(name, population, rounds=2, seed=3, settings=settings, out="one")
    assert result.config.given == {}
    runs_again()


def test_the_servers_own_name_is_kept() -> None:
    links = {"boss": None, "a": "boss", "b": "boss", "d1": "a", "d2": "a", "d3": "b"}
    population = pm.make_population("digits", tree=Tree.from_parents(links))
    pm.run("permfl", population, rounds=1, settings=FAST, out="one")
    runs_again()
    assert "boss" in pm.load("again").metrics["node"].to_pylist()


@pytest.mark.parametrize("name", unlike_first(sorted(pm.ALGORITHMS)))
def test_every_algorithm_given_as_an_object_runs_again_by_its_name(name: str) -> None:
    population = pm.make_population("digits", tree="2x2")
    method = pm.algorithm(name, **SMALL[name])
    result = pm.run(method, population, "dnn" if method.parts else "mclr", rounds=1, out="one")
    assert result.config.given == {}
    runs_again()


def test_a_command_line_run_writes_its_data_defaults_and_versions_down() -> None:
    palmette("run", "permfl", "--tree", "2x3", "--rounds", "1", "--out", "one", "--set", "data.shift=rotate")
    written = read_config(Path("one", CONFIG))
    assert written["data"] == {
        "name": "digits", "partition": "dirichlet", "alpha": 1.0, "within": "team", "least": 4, "teams": "random",
        "test": 0.25, "pixels": "signed", "shift": "rotate",
    }  # fmt: skip
    assert written["model"] == {"name": "mclr", "l2": 0.0, "loss": "cross-entropy", "start": "zero"}
    assert set(written["versions"]) == {"palmette", "python", "torch", "kernel"}
    assert written["versions"]["torch"] == torch.__version__
    runs_again()


@pytest.mark.filterwarnings("default")
def test_other_versions_are_told_and_run_all_the_same() -> None:
    palmette("run", "local", "--tree", "2x2", "--rounds", "1", "--out", "one")
    path = Path("one", CONFIG)
    Path("old.toml").write_text(path.read_text().replace(torch.__version__, "2.0.1"))
    done = palmette("run", "--config", "old.toml", "--out", "two", "--quiet")
    assert done.exit_code == 0
    assert f"made with torch 2.0.1 (here {torch.__version__}): the last bits may differ" in done.stderr
    assert Path("two", CONFIG).read_bytes() == path.read_bytes()


def test_a_file_for_one_data_set_or_model_serves_another_and_says_what_it_leaves_out() -> None:
    palmette("run", "local", "--tree", "2x2", "--rounds", "1", "--out", "one", "--model", "dnn")
    other = palmette("run", "--config", "one/config.toml", "--data", "synthetic", "--model", "mclr", "--out", "two")
    assert other.exit_code == 0, other.stderr
    assert "data.partition, alpha, within, least, teams, test, pixels in one/config.toml are for digits" in other.stderr
    assert "model.hidden in one/config.toml are for dnn" in other.stderr
    labels = palmette("run", "--config", "one/config.toml", "--set", "data.partition=labels", "--out", "three")
    assert labels.exit_code == 0, labels.stderr
    assert read_config(Path("three", CONFIG))["data"]["classes_per_device"] == 2


# -- models ------------------------------------------------------------------------------------------------------------


def test_a_task_of_a_named_model_is_recorded_with_its_options_and_seed() -> None:
    population = pm.make_population("digits", tree="2x2")
    task = pm.make_task("dnn", population.shape, population.classes, hidden=(7, 5), l2=0.01, seed=4)
    result = pm.run("permfl", population, task, rounds=1, seed=1, settings=FAST, out="one")
    assert result.config.model.options == {"hidden": [7, 5]}
    assert (result.config.model.seed, result.config.model.l2) == (4, 0.01)
    runs_again()
    assert result.module("GM")[1].out_features == 7  # type: ignore[index]


def test_a_named_loss_is_recorded() -> None:
    population = regression("2x2")
    population = replace(population, y=population.y.sign())  # the targets of this loss
    task = pm.make_task("linear", population.shape, None, loss="logistic")
    assert pm.run("local", population, task, rounds=1, out="one").config.model.loss == "logistic"


def test_a_named_model_that_was_changed_is_no_longer_made_by_its_name() -> None:
    population = pm.make_population("digits", tree="2x2")
    task = pm.make_task("mclr", population.shape, population.classes)
    with torch.no_grad():
        next(task.module.parameters()).fill_(0.5)
    result = pm.run("local", population, task, rounds=1, out="one")
    assert result.config.given["model"].object == "torch.nn.modules.container.Sequential"


# -- objects -----------------------------------------------------------------------------------------------------------


class Halves(Partition):
    """Deals the pool out in order."""

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        return Parts(np.arange(len(y)), len(y) * np.arange(tree.devices + 1) // tree.devices)


@pm.settings
class Mine(Scaffold):
    """An algorithm of one's own."""

    name: ClassVar[str] = "mine"


def gap(output: Tensor, target: Tensor) -> Tensor:
    return (output.logsumexp(-1) - output.gather(-1, target[:, None])[:, 0]).abs()


def given() -> dict[str, tuple[dict[str, Any], str, str]]:
    """By role: what to run, the object the config must name, and the argument it must ask for."""
    digits = pm.make_population("digits", tree="2x2")
    pool = Pool(np.zeros((40, 3), np.float32), np.arange(40) % 2, 2, name="mine")
    changed = pm.make_population("digits", tree="2x2")
    changed.y[:3] = 1
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    by_hand = Tree((np.array([0, 0, 1]), np.array([0, 0])), (("a", "b", "c"), None, None))
    base: dict[str, Any] = {"algorithm": "local", "population": digits}
    named = pm.make_task("mclr", digits.shape, 10)
    return {
        "arrays": ({**base, "population": regression("2x2"), "model": "linear"}, "palmette.Population", "population="),
        "pool": (
            {**base, "population": pm.make_population(pool, tree="2x2")},
            "palmette.population.Pool",
            "population=",
        ),
        "partition": (
            {**base, "population": pm.make_population("digits", tree="2x2", partition=Halves())},
            "test_rerun.Halves",
            "population=",
        ),
        "replaced": (
            {**base, "population": dataclasses.replace(digits, y=digits.y.clone())},
            "Population",
            "population=",
        ),
        "changed": ({**base, "population": changed}, "palmette.Population", "population="),
        "tree": ({**base, "population": pm.make_population("digits", tree=by_hand)}, "palmette.Tree", "population="),
        "algorithm": ({**base, "algorithm": Mine(local_steps=2)}, "test_rerun.Mine", "method="),
        "model": ({**base, "model": module}, "torch.nn.modules.container.Sequential", "model="),
        "loss": ({**base, "model": dataclasses.replace(named, loss=gap)}, "test_rerun.gap", "model="),
        "metrics": ({**base, "model": dataclasses.replace(named, metrics={"gap": gap})}, "test_rerun.gap", "model="),
    }


@pytest.mark.parametrize("case", list(given()))
def test_what_a_config_cannot_hold_is_named_and_asked_for(case: str) -> None:
    how, path, argument = given()[case]
    first = pm.run(**how, rounds=1, out="one")
    role = {
        "arrays": "data",
        "pool": "data",
        "partition": "data",
        "replaced": "data",
        "changed": "data",
        "tree": "data",
    }
    named = first.config.given[role.get(case, case)]  # type: ignore[index]
    assert path in named.object
    assert len(named.hash) >= 32
    refused = palmette("run", "--config", "one/config.toml", "--out", "again")
    assert refused.exit_code == 2
    assert path in refused.stderr
    assert f"pm.rerun(FOLDER, {argument}" in refused.stderr
    assert not Path("again").exists()
    model = how.get("model")
    objects = {
        "method": how["algorithm"] if case == "algorithm" else None,
        "population": how["population"],
        "model": None if isinstance(model, str) else model,
    }
    again = pm.rerun("one", "again", **objects)
    assert contents(again.folder) == contents(first.folder)
    assert (again.folder / CONFIG).read_bytes() == (first.folder / CONFIG).read_bytes()


def test_another_object_than_the_configs_is_told() -> None:
    pm.run("local", regression("2x2"), "linear", rounds=1, out="one")
    with pytest.warns(UserWarning, match="the data is not the one this config was made with"):
        pm.rerun("one", "two", population=regression("2x2", seed=1))


def test_whatever_of_the_data_differs_is_told() -> None:
    made = regression("2x2")
    samples, labels, train = made.x.clone(), made.y.clone(), made.train.clone()
    samples[-1, 0] += 1
    labels[-1] += 1
    train[-1] -= 1
    changes: list[dict[str, Any]] = [{"x": samples}, {"y": labels}, {"train": train}, {"affine": (2.0, 0.0)}]
    changes += [{"tree": Tree.parse([1, 3])}, {"tree": Tree.parse({"a": ["b", "c"], "d": ["e", "f"]})}]
    others = [hash_samples(dataclasses.replace(made, **change)) for change in changes]
    assert hash_samples(regression("2x2")) == hash_samples(made)
    assert len({hash_samples(made), *others}) == 7


def test_a_name_on_the_command_line_takes_the_place_of_an_object() -> None:
    pm.run(Mine(), pm.make_population("digits", tree="2x2"), rounds=1, out="one")
    done = palmette("run", "local", "--config", "one/config.toml", "--out", "two")
    assert done.exit_code == 0, done.stderr


def test_settings_of_ones_own_that_are_objects_are_named_in_the_config() -> None:
    @pm.settings
    class Odd(Mine):
        name: ClassVar[str] = "odd"
        table: Any = None

    result = pm.run(Odd(table=nn.Linear(1, 1)), pm.make_population("digits", tree="2x2"), rounds=1, out="one")
    assert result.config.settings["table"] == "<torch.nn.modules.linear.Linear>"


# -- what was given stays as it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_changes_nothing_that_it_was_given(dtype: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4)).astype(dtype)
    y, device, team = random.integers(0, 3, 60), np.repeat(np.arange(6), 10), np.repeat(["a", "b"], 30)
    module = nn.Sequential(nn.Linear(4, 3)).to(getattr(torch, dtype)).train()
    settings = {"alpha": {str(i): 0.1 for i in range(6)}, "team_steps": 2, "local_steps": 2}
    participation: dict[str, str | int | float] = {"devices": 0.5}
    before = [value.copy() for value in (x, y, device, team)]
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    kept = (repr(settings), repr(participation))
    population = pm.Population.from_arrays(x, y, device=device, team=team, affine=(2.0, 1.0))
    packed = [value.clone() for value in (population.x, population.y, population.start, population.train)]
    result = pm.run(
        "permfl", population, module, rounds=2, settings=settings, participation=participation, out="one", dtype=dtype
    )
    for one, other in zip((x, y, device, team), before, strict=True):
        assert np.array_equal(one, other)
    for here, there in zip((population.x, population.y, population.start, population.train), packed, strict=True):
        assert torch.equal(here, there)
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights[name])
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert (repr(settings), repr(participation)) == kept
    assert result.module("GM", into=module) is not module


def test_samples_are_read_only_wherever_they_come_from() -> None:
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    x.flags.writeable = False
    pool = Pool(x, np.arange(12) % 2, 2, (2.0, 1.0), np.arange(0, 13, 3), train=np.full(4, 2))
    population = pm.make_population(pool, tree="2x2")
    assert population.features(torch.tensor([3, 4]))[0, 0] == 13
    assert population.features(torch.tensor(3))[0] == 13
    assert x[3, 0] == 6


def test_modules_of_a_result_are_new_ones_and_the_next_run_starts_where_the_first_did() -> None:
    population = pm.make_population("digits", tree="2x2")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = [parameter.clone() for parameter in module.parameters()]
    first = pm.run("permfl", population, module, rounds=1, settings=FAST, out="one")
    one, two = (first.module("PM", f"device-{i}", into=module) for i in (0, 3))
    assert one is not two
    assert not torch.equal(one[1].weight, two[1].weight)  # type: ignore[index]
    assert all(torch.equal(here, there) for here, there in zip(module.parameters(), start, strict=True))
    second = pm.run("permfl", population, module, rounds=1, settings=FAST, out="two")
    assert contents(first.folder) == contents(second.folder)


def test_a_filled_module_keeps_its_type_of_numbers_and_the_runs_where_it_is_made() -> None:
    population = pm.make_population("digits", tree="2x2")
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    result = pm.run("permfl", population, wide, rounds=1, settings=FAST, out="one", dtype="float64")
    filled = result.module("GM", into=wide)
    assert filled[1].weight.dtype == torch.float64  # type: ignore[index]
    assert torch.equal(filled[1].weight, result.tensors("GM")["1.weight"][0])  # type: ignore[index]
    assert result.module("GM", into=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))[1].weight.dtype == torch.float32  # type: ignore[index]
    named = pm.run("permfl", population, rounds=1, settings=FAST, out="two", dtype="float64")
    assert named.module("GM")[1].weight.dtype == torch.float64  # type: ignore[index]


def test_frozen_parameters_are_saved_once_and_are_in_every_module() -> None:
    population = pm.make_population("digits", tree="2x2")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    result = pm.run("local", population, module, rounds=1, out="one")
    assert set(result.tensors("PM")) == {"3.weight", "3.bias"}
    blank = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    filled = result.module("PM", "device-1", into=blank)
    assert torch.equal(filled[1].weight, module[1].weight)  # type: ignore[index]
    assert torch.equal(filled[3].weight, result.tensors("PM")["3.weight"][1])  # type: ignore[index]
    assert set(load_file(result.save_models("models")[0])) == set(module.state_dict())


@pytest.mark.parametrize(
    ("layers", "words"), [([nn.Linear(64, 10)], "'1.bias', which"), ([nn.Flatten(), nn.Linear(64, 9)], r"\(9,\)")]
)
def test_a_module_of_other_layers_is_refused(layers: list[nn.Module], words: str) -> None:
    result = pm.run("local", pm.make_population("digits", tree="2x2"), rounds=1, out="one")
    with pytest.raises(pm.BadInput, match=words):
        result.module("PM", "device-0", into=nn.Sequential(*layers))


# -- reprs -------------------------------------------------------------------------------------------------------------


def test_reprs_say_in_two_lines_what_there_is() -> None:
    population = pm.make_population("digits", tree="2x3")
    result = pm.run("permfl", population, rounds=1, settings=FAST, out="one")
    for thing, wanted in (
        (population, ("'digits'", "6 devices", "2 teams", "1797 samples", "10 classes", "median")),
        (population.tree, ("Tree 2x3", "6 devices", "2 teams", "'device-0' to 'device-5'", "'team-1'")),
        (result, ("permfl", "digits", "1 rounds", "seed 0", f"PM {result.last('PM'):.3f}", "GM", "one")),
    ):
        text = repr(thing)
        assert len(text.splitlines()) == 2
        assert max(map(len, text.splitlines())) <= 130
        assert all(word in text for word in wanted), text


def test_the_recipe_is_data() -> None:
    recipe = pm.make_population("digits", seed=7).recipe
    assert recipe is not None
    assert recipe.seed == 7
    assert all(isinstance(value, str | int | float) for value in recipe.values.values())
