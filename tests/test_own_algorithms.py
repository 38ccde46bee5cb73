"""An algorithm of one's own: every mistake ends in one sentence that names the class, the method and the fix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import kind_of
from palmette.cli.app import app
from palmette.cli.reference import entry
from palmette.engines.separate import run_separately
from palmette.errors import ProtocolError
from palmette.protocol.definition import check_kind
from palmette.testing import CHECKS, ContractBroken, contract, regression, simulate, task_of
from programs import METHOD


@pm.settings
class Mine(pm.Algorithm):
    """Averaging in teams and over teams."""

    name: ClassVar[str] = "mine"
    paper: ClassVar[str] = "a test"
    lr: float = 0.1
    batch_size: int = 5

    def keeps(self, node: Any, initial: Any) -> Any:
        return {"model": initial}

    def device(self, node: Any, message: Any, state: Any) -> Any:
        theta = node.descend(message, steps=2, lr=self.lr)
        return theta, {"model": theta}

    def team(self, node: Any, message: Any, state: Any) -> Any:
        replies = yield pm.Ask(message, otherwise=message)
        return replies.rows, {"model": replies.rows}

    def server(self, node: Any, state: Any) -> Any:
        replies = yield pm.Ask(state["model"], otherwise=state["model"])
        return {"model": replies.rows}


def changed(**members: Any) -> pm.Algorithm:
    """Return an algorithm `Wrong` that is `Mine` but for some members."""
    return type("Wrong", (Mine,), members)()


def generator(returned: Callable[[Any], Any], asked: Any = None) -> Any:
    """Return a program that asks once and then returns something made from the replies' rows."""

    def program(self: Any, node: Any, *given: Any) -> Any:
        message = given[0]["model"] if len(given) == 1 else given[0]
        replies = yield (pm.Ask(message) if asked is None else asked)
        return returned(replies.rows)

    return program


def device(returned: Callable[[Any], Any]) -> Any:
    return lambda self, node, message, state: returned(message)


def refused(method: Any, kind: type[Exception] = ProtocolError, tree: Any = (3, 2)) -> str:
    """Return the sentence a run is refused with, which must be the same for separate nodes where one begins."""
    population = regression(list(tree))
    with pytest.raises(kind) as caught:
        simulate(method, population, 2)
    line = str(caught.value)
    if kind is ProtocolError and "keeps" not in line.split(" ")[0]:
        with pytest.raises(kind) as apart:
            run_separately(pm.Simulation(method, population, task_of(population), rounds=2), 2)
        assert str(apart.value).split(" ")[0] == line.split(" ")[0]
    assert "\n" not in line
    return line


def test_the_right_one_runs_and_keeps_the_contract() -> None:
    report = contract(Mine())
    assert set(report.checks) == set(CHECKS)
    assert str(report).startswith("mine keeps the contract (12 checks in ")
    assert "  deterministic: The same seed gives the same bits." in str(report)


# -- what a program returns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            {"device": device(lambda m: m)},
            ["Wrong.device must return two things", 'return reply, {"model": ...}', "it returned rows of shape (3, 3)"],
        ),
        ({"device": device(lambda m: (m, {"model": m}, 1))}, ["Wrong.device must return two things", "3 things"]),
        ({"device": device(lambda m: None)}, ["Wrong.device must return two things", "it returned nothing"]),
        ({"team": generator(lambda rows: rows)}, ["Wrong.team must return two things", "rows of shape (2, 3)"]),
        ({"device": generator(lambda rows: rows)}, ["Wrong.device must not yield"]),
        (
            {"team": lambda self, node, message, state: (message, state)},
            ["Wrong.team has no yield", "replies = yield pm.Ask(message)"],
        ),
        ({"server": lambda self, node, state: state}, ["Wrong.server has no yield", "replies = yield pm.Ask(message)"]),
        ({"server": generator(lambda rows: None)}, ["Wrong.server must return what it keeps", "it returned nothing"]),
        ({"server": generator(lambda rows: rows)}, ["Wrong.server must return what it keeps", "rows of shape (1, 3)"]),
        (
            {"server": generator(lambda rows: {"modle": rows})},
            ["Wrong.server returned the state ['modle']", "keeps declares ['model'] for tier 2"],
        ),
        (
            {"device": device(lambda m: (m, {}))},
            ["Wrong.device returned the state []", "declares ['model'] for tier 0"],
        ),
        (
            {"device": device(lambda m: (m, {"model": m[0]}))},
            ["Wrong.device returned rows of shape (3,) as the state 'model'", "shape (3, 3)"],
        ),
        ({"device": device(lambda m: (m, {"model": m[:, :1]}))}, ["Wrong.device", "(3, 1)", "must have shape (3, 3)"]),
        (
            {"device": device(lambda m: (m.flatten(), {"model": m}))},
            ["Wrong.device returned", "as a reply", "one per node of the stack"],
        ),
        ({"device": device(lambda m: (3.0, {"model": m}))}, ["Wrong.device returned float 3.0 as a reply"]),
        (
            {"device": device(lambda m: ({1: m}, {"model": m}))},
            ["Wrong.device replied with the key 1", "names are text"],
        ),
        ({"device": device(lambda m: ({"a": "b"}, {"model": m}))}, ["Wrong.device", "str 'b' as the reply 'a'"]),
        ({"team": generator(lambda rows: (rows.mean(), {"model": rows}))}, ["Wrong.team returned", "as a reply"]),
        (
            {"server": generator(lambda rows: {"model": rows}, asked="hello")},
            ["Wrong.server yielded str 'hello'", "pm.Ask(message)"],
        ),
        ({"team": generator(lambda rows: rows, asked=pm.Ask)}, ["Wrong.team yielded the class Ask"]),
        (
            {"team": generator(lambda rows: rows, asked=pm.Ask(torch.zeros(7, 3)))},
            ["Wrong.team: message '' must have 2 rows, not shape (7, 3)"],
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[0],
)
def test_what_a_program_returns_or_yields(members: dict[str, Any], told: list[str]) -> None:
    line = refused(changed(**members), tree=(3, 3) if "device" in members else (3, 2))
    for part in told:
        assert part in line


def test_a_device_that_returns_two_rows_is_not_taken_for_a_reply_and_a_state() -> None:
    assert "must return two things" in refused(changed(device=device(lambda m: m)), tree=(2, 2))


def test_a_state_that_would_be_cut_to_whole_numbers_is_refused() -> None:
    counting = {
        "keeps": lambda self, node, initial: {"model": initial, "n": torch.zeros(1, dtype=torch.int64)},
        "device": device(lambda m: (m, {"model": m, "n": torch.full((len(m), 1), 0.5)})),
    }
    assert "Wrong.device returned the state 'n' as torch.float32" in refused(changed(**counting)).replace("64", "32")


def test_a_server_that_never_asks() -> None:
    def server(self: Any, node: Any, state: Any) -> Any:
        if node.round < 0:
            yield pm.Ask(None)
        return state

    line = refused(changed(server=server))
    assert "Wrong.server returned without asking anybody" in line
    assert "yield pm.Ask(None)" in line


def test_a_program_that_asks_for_a_reply_nobody_gave() -> None:
    def server(self: Any, node: Any, state: Any) -> Any:
        replies = yield pm.Ask(state["model"])
        return {"model": replies["theta"]}

    assert "Wrong.server: there is no reply named 'theta'; the children replied with ['']" in refused(
        changed(server=server)
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (None, "must return rows by name"),
        ({"model": 3}, "must return rows by name"),
        ({}, 'must give the server a row named "model"'),
        ({"model": torch.zeros(2)}, 'declares a row "model" of shape (2,) for tier 0; a model has (3,)'),
    ],
)
def test_what_is_declared_to_be_kept(rows: Any, told: str) -> None:
    line = refused(changed(keeps=lambda self, node, initial: rows))
    assert line.startswith("Wrong.keeps ")
    assert told in line


def test_adapt_must_give_one_model_per_device() -> None:
    method = changed(
        keeps=lambda self, node, initial: {"model": initial} if node.tier else {},
        device=device(lambda m: (m, {})),
        adapt=lambda self, node, parent, state: parent[0],
    )
    simulation = simulate(method, regression([3, 2]), 1)
    with pytest.raises(ProtocolError, match=r"Wrong.adapt must return one model per device, rows of shape \(5, 3\)"):
        simulation.device_models(torch.arange(5))


# -- how it is written -----------------------------------------------------------------------------------------------------


class Bare(pm.Algorithm):
    """A class without decorator."""

    name: ClassVar[str] = "bare"
    paper: ClassVar[str] = "a test"
    lr: float = 0.1
    batch_size: int = 5
    device, team, server = Mine.device, Mine.team, Mine.server


@dataclass
class Thawed(Bare):
    """A dataclass that can be changed."""


class Forgot(Mine):
    """A new setting, and no decorator."""

    mu: float = 0.1


class Untyped(Mine):
    """A new default without a type."""

    lr = 0.5


@pm.settings
class NoBatch(pm.Algorithm):
    """No batch size."""

    name: ClassVar[str] = "no-batch"
    paper: ClassVar[str] = "a test"
    device, team, server = Mine.device, Mine.team, Mine.server


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (Mine, ["Mine is a class", "Mine()"]),
        (NoBatch(), ["NoBatch needs the setting batch_size", "`batch_size: int = 20`"]),
        (Bare(), ["Bare is not decorated", "@pm.settings above `class Bare`"]),
        (Thawed(), ["settings of Thawed can be changed", "@pm.settings"]),
        (Forgot(), ["Forgot has the setting 'mu' and is not decorated", "@pm.settings"]),
        (Untyped(), ["Untyped gives the setting 'lr' a new default without its type", "`lr: TYPE = 0.5`"]),
        (changed(name=""), ["Wrong has no name", "name: ClassVar[str]"]),
        (changed(paper=None), ["Wrong has the paper None", "paper: ClassVar[str]"]),
        (changed(name="my method/2"), ["Wrong is named 'my method/2'", "letters"]),
        (
            changed(device=lambda self, node, w: w),
            ["Wrong.device must take 4", "def device(self, node, message, state)"],
        ),
        (changed(server=lambda self, node: None), ["Wrong.server must take 3", "def server(self, node, state)"]),
        (changed(team=pm.Algorithm.team), ["Wrong has no program for teams", "flat: ClassVar[bool] = True"]),
        (42, ["must be a name or an object of a class derived from pm.Algorithm, not 42"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_mistakes_in_the_class_are_told_before_a_run_begins(method: Any, told: list[str], tmp_path: Path) -> None:
    with pytest.raises(pm.BadInput) as caught:
        pm.run(method, regression([3, 2]), "linear", rounds=1, out=tmp_path / "run")
    for part in told:
        assert part in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_class_without_a_program_names_it() -> None:
    with pytest.raises(pm.BadInput, match="Half does not say what its device and server do: write the method device"):
        check_kind(type("Half", (pm.Algorithm,), {"name": "half", "paper": "x"}))


def test_a_name_of_a_built_in_is_refused() -> None:
    with pytest.raises(pm.BadInput, match="Wrong is named 'permfl', and so is an algorithm of Palmette"):
        pm.run(changed(name="permfl"), regression("2x2"), "linear", rounds=1)


def test_a_class_without_new_settings_needs_no_decorator() -> None:
    simulate(changed(), regression("2x2"), 1)


# -- pm.run ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"round": 5}, r"pm.run has no keyword 'round'; did you mean 'rounds' \(global rounds"),
        ({"epochs": 5}, "pm.run has no keyword 'epochs'; did you mean 'local_steps'"),
        ({"alpha": 0.1}, r"'alpha' is a setting of permfl; write it there: settings=\{'alpha': ...\}"),
        ({"backnd": "loop"}, "pm.run has no keyword 'backnd'; did you mean 'backend'"),
        ({"model": nn.Linear}, r"model is the class Linear; give one made from it: Linear\(...\)"),
        ({"model": pm.Task}, "model is the class Task"),
    ],
)
def test_run_refuses_keywords_it_does_not_have_and_classes(given: dict[str, Any], told: str) -> None:
    with pytest.raises(pm.BadInput, match=told):
        pm.run("permfl", regression("2x2"), **given)


def test_run_says_where_a_setting_of_an_object_belongs() -> None:
    with pytest.raises(pm.BadInput, match=r"'lr' is a setting of mine; write it there: Mine\(lr=...\)"):
        pm.run(Mine(), regression("2x2"), lr=0.1)


# -- the contract ----------------------------------------------------------------------------------------------------------


def numbers_of_its_own(self: Any, node: Any, message: Any, state: Any) -> Any:
    theta = node.descend(message, steps=2, lr=0.1) + 0.01 * torch.rand(message.shape)
    return theta, {"model": theta}


def looks_across_rows(self: Any, node: Any, message: Any, state: Any) -> Any:
    theta = node.descend(message, steps=2, lr=0.1)
    return theta, {"model": theta.mean(0, keepdim=True).expand_as(theta)}


def looks_at_positions(self: Any, node: Any, message: Any, state: Any) -> Any:
    theta = node.descend(message, steps=2, lr=0.1) + 0.01 * torch.sin(node.ids.to(message))[:, None]
    return theta, {"model": theta}


def odd_ones_out(self: Any, node: Any, state: Any) -> Any:
    rows = state["model"] + 0.01 * (node.child_ids % 2)[:, None]
    replies = yield pm.Ask(pm.PerChild(rows), otherwise=state["model"])
    return {"model": replies.rows}


def writes(self: Any, node: Any, message: Any, state: Any) -> Any:
    message -= 0.1
    return message, {"model": message}


def writes_state(self: Any, node: Any, message: Any, state: Any) -> Any:
    state["model"].copy_(node.descend(message, steps=2, lr=0.1))
    return state["model"], {"model": state["model"]}


def needs_everybody(self: Any, node: Any, state: Any) -> Any:
    replies = yield pm.Ask(state["model"])
    return {"model": replies.rows}


def forgets(self: Any, node: Any, state: Any) -> Any:
    rows = MEMORY.get(id(self), state["model"])
    replies = yield pm.Ask(rows, otherwise=rows)
    MEMORY[id(self)] = replies.rows
    return {"model": replies.rows + 1}


MEMORY: dict[int, Any] = {}


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"device": numbers_of_its_own}, ["(deterministic)", "same seed differ", "node.uniform"]),
        ({"device": looks_across_rows}, ["(chunk-invariant)", "never look across rows"]),
        ({"device": looks_at_positions}, ["(separate-nodes)", "node.ids", "node.addresses belong to the node itself"]),
        ({"server": odd_ones_out}, ["(stable-nodes)", "never make numbers from node.ids"]),
        ({"device": writes}, ["(inputs-unchanged)", "Wrong.device wrote into what it was given", "w = w - step"]),
        ({"device": writes_state}, ["(inputs-unchanged)", "Wrong.device wrote into what it was given"]),
        ({"server": needs_everybody}, ["(nobody-answers)", "otherwise=...)"]),
        ({"server": forgets}, ["breaks the contract"]),
        ({"device": device(lambda m: m)}, ["(deterministic)", "Wrong.device must return two things"]),
    ],
    ids=["random", "across", "positions", "odd", "writes", "writes-state", "otherwise", "memory", "rows-only"],
)
def test_the_contract_names_what_is_broken_and_the_fix(members: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ContractBroken) as caught:
        contract(changed(**members))
    line = str(caught.value)
    assert line.startswith("Wrong breaks the contract (")
    for part in told:
        assert part in line


def test_parts_of_the_contract_can_be_left_out_by_name() -> None:
    left = ["nobody-answers", "unreliable-links"]
    report = contract(changed(server=needs_everybody), leave_out=left)
    assert report.left_out == tuple(left)
    assert "nobody-answers: left out" in str(report)
    with pytest.raises(pm.BadInput, match="no check 'nobody_answer'; did you mean 'nobody-answers'"):
        contract(Mine(), leave_out=["nobody_answer"])


@pytest.mark.slow
def test_the_contract_needs_no_pytest() -> None:
    code = "import sys, palmette.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_contract_knows_methods_of_other_trees() -> None:
    assert contract(type("Deep", (Mine,), {"tiers": (4,)})()).method == "mine"
    assert contract(type("Flat", (Mine,), {"flat": True})()).method == "mine"


# -- by import path --------------------------------------------------------------------------------------------------------

MODULE = (
    METHOD.replace('"plain"', '"imported"')
    + """
class Taken(Mine):
    name: ClassVar[str] = "fedavg"

class RowsOnly(Mine):
    def device(self, node, w, state):
        return w

number = 3
"""
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of one's own in the current folder, of a name of its own in every test."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def command(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_an_algorithm_by_import_path_runs_from_the_command_line_and_its_config_runs_again(module: str) -> None:
    path = f"{module}:Mine"
    done = command("run", path, "--tree", "2x3", "--rounds", "1", "--set", "lr=0.3")
    assert done.exit_code == 0, done.stderr
    folder = Path("runs/Mine-digits-1")
    assert f'algorithm = "{path}"' in (folder / "config.toml").read_text()
    again = command("run", "--config", str(folder / "config.toml"), "--out", "two")
    assert again.exit_code == 0, again.stderr
    assert (folder / "global.safetensors").read_bytes() == Path("two/global.safetensors").read_bytes()
    more = command("resume", "two", "--rounds", "2", "--json")
    assert more.exit_code == 0, more.stderr
    assert "paper" not in entry("algorithms", path)  # it names none, and an empty line tells nothing
    listed = command("list", "algorithms", path)
    assert "Learning rate of the devices (eta in the paper)." in " ".join(listed.stdout.split())
    assert command("show", "two").exit_code == 0
    unknown = command("run", path, "--set", "alpha=0.3")
    assert "unknown setting 'alpha'; did you mean 'lr' (learning rate of the devices)?" in unknown.stderr


def test_a_run_is_shown_where_its_algorithm_cannot_be_imported_and_resumes_only_where_it_can(module: str) -> None:
    words = ["--tree", "2x3", "--rounds", "1", "--out", "one", "--quiet"]
    assert command("run", f"{module}:Mine", *words).exit_code == 0
    Path(f"{module}.py").unlink()
    del sys.modules[module]
    assert f"{module}:Mine" in command("show", "one").stdout
    again = command("run", "--config", "one/config.toml", "--out", "two")
    assert (again.exit_code, again.stderr.count(f"there is no module '{module}'")) == (2, 1)


def test_a_wrong_setting_of_an_imported_algorithm_is_refused_before_there_is_a_folder(module: str) -> None:
    words = ["--tree", "2x3", "--rounds", "1", "--out", "one", "--quiet"]
    assert command("run", f"{module}:Mine", *words).exit_code == 0
    wrong = command("run", "--config", "one/config.toml", "--set", "lr=fast", "--out", "two")
    assert wrong.exit_code == 2
    assert "lr: " in wrong.stderr
    assert not Path("two").exists()


def test_a_mistake_in_an_imported_algorithm_is_one_line_in_a_real_process(module: str) -> None:
    words = [sys.executable, "-m", "palmette", "run", f"{module}:RowsOnly", "--tree", "2x3", "--rounds", "1", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "RowsOnly.device must return two things" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere:Mine", "there is no module 'nowhere' for the algorithm 'nowhere:Mine'"),
        ("{}:Mien", "has no 'Mien'; did you mean 'Mine'"),
        ("{}:number", "is no algorithm: it must be a class derived from pm.Algorithm, not 3"),
        ("{}:Taken", "Taken is named 'fedavg', and so is an algorithm of Palmette"),
        ("{}:", "is no import path; write {}:MyMethod"),
        ("{}.Mine", "Write an algorithm of your own as its import path, my_module:MyMethod"),
    ],
)
def test_import_paths_that_lead_nowhere(module: str, path: str, told: str) -> None:
    with pytest.raises(pm.BadInput) as caught:
        kind_of(path.format(module))
    assert told.format(module) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def", "SyntaxError"),
        ("import not_there_at_all", "needs the module 'not_there_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(module: str, text: str, told: str) -> None:
    Path(f"{module}_broken.py").write_text(text, encoding="utf-8")
    with pytest.raises(pm.BadInput, match=f"{module}_broken cannot be imported: .*{told}"):
        kind_of(f"{module}_broken:Mine")
