"""What algorithms tell of themselves: numbers about nodes, and outlines of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from palmette.algorithms import algorithm
from palmette.engines.evaluation import measure
from palmette.engines.simulate import Simulation
from palmette.errors import Diverged, ProtocolError
from palmette.links.sparse import Sparse
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State
from palmette.protocol.settings import BatchSize, settings
from palmette.report.tables import reports_table, run_report
from palmette.runs import Result, execute, make_config, resume, run
from palmette.runs.metrics import Metrics
from palmette.task import make_task
from palmette.tree import Tree
from problems import regression, simulate, task_of
from test_contract import every_algorithm
from test_report import text_of
from test_runs import Killer, contents

QUIET = {"algorithm": "permfl", "rounds": 1, "tree": "2x3", "settings": {"team_steps": 1, "local_steps": 1}}


@settings
class Teller(Algorithm):
    """Averages over a tree and counts on every node the messages it got."""

    name: ClassVar[str] = "teller"
    paper: ClassVar[str] = "a test program"
    batch_size: BatchSize = 5

    def keeps(self, node: Node, initial: Tensor) -> State:
        return {"seen": torch.zeros(1, dtype=torch.int64)} | ({"model": initial} if node.tier else {})

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        norm = state["model"].norm(dim=1)
        told = {"seen": state["seen"][:, 0], "norm": norm}
        return told if node.tier else {**told, "odd": torch.where(node.ids % 2 > 0, norm, math.nan)}

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        return {"messages_in_all": rounds * tree.devices}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        return node.descend(message, steps=1, lr=0.1), {"seen": state["seen"] + 1}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        got = yield Ask(message, otherwise=message)
        return got.rows, {"model": got.rows, "seen": state["seen"] + 1}

    def server(self, node: Node, state: State) -> Server:
        got = yield Ask(state["model"], otherwise=state["model"])
        return {"model": got.rows, "seen": state["seen"] + 1}


def told(tmp_path: Path, tree: str = "2x3", **given: Any) -> Result:
    population = regression(tree)
    keywords = {"rounds": 3, "evaluate_every": 1, "out": tmp_path / "run", **given}
    return run(Teller(), population, task_of(population), **keywords)


# -- numbers about nodes -----------------------------------------------------------------------------------------------


def test_what_is_told_of_nodes_lands_in_the_table_counts_added_up_and_others_averaged(tmp_path: Path) -> None:
    result = told(tmp_path)
    assert result.curve("PM", "seen") == {0: 0, 1: 6, 2: 12, 3: 18}
    assert result.curve("TM", "seen") == {0: 0, 1: 2, 2: 4, 3: 6}
    assert result.curve("GM", "seen", node="server") == {0: 0, 1: 1, 2: 2, 3: 3}
    assert result.curve("PM", "seen", node="device-4") == {0: 0, 1: 1, 2: 2, 3: 3}
    rows = next(iter(result.tensors("TM").values())).flatten(1).double()
    assert result.last("TM", "norm") == pytest.approx(float(rows.norm(dim=1).mean()))
    assert result.last("TM", "norm", node="team-1") == pytest.approx(float(rows[1].norm()))


def test_a_device_is_told_of_with_the_model_that_is_measured(tmp_path: Path) -> None:
    result = told(tmp_path)  # devices keep no model: theirs is their team's
    rows = next(iter(result.tensors("PM").values())).flatten(1).double()
    assert result.last("PM", "norm") == pytest.approx(float(rows.norm(dim=1).mean()))


def test_not_a_number_stands_for_none(tmp_path: Path) -> None:
    result = told(tmp_path)
    odd = [result.last("PM", "norm", node=f"device-{i}") for i in (1, 3, 5)]
    assert result.last("PM", "odd") == pytest.approx(sum(odd) / 3)
    assert math.isnan(result.last("PM", "odd", node="device-0"))


def test_the_summary_has_them_in_a_key_of_its_own_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    summary = json.loads(json.dumps(told(tmp_path).summary()))
    assert list(summary)[:-1] == [
        "algorithm", "rounds", "seed", "models", "best", "device_steps", "device_steps_per_second", "traffic", "folder",
    ]  # fmt: skip
    assert all(set(scores) == {"loss"} for scores in summary["models"].values())
    assert summary["extra"]["outline"] == {"messages_in_all": 18}
    assert str(summary["extra"]["metrics"]["seen"]) == "{'PM': 18, 'TM': 6, 'GM': 3}"  # whole numbers
    assert set(summary["extra"]["metrics"]["odd"]) == {"PM"}


def test_who_tells_nothing_has_no_extra(tmp_path: Path) -> None:
    assert "extra" not in execute(make_config(QUIET), tmp_path / "run").summary()


def test_a_killed_run_tells_the_very_same_when_it_is_resumed(tmp_path: Path) -> None:
    population = regression([3, 2, 4], unequal=True)
    task = make_task("linear", population.shape, None)
    given: dict[str, Any] = {"rounds": 4, "evaluate_every": 1, "participation": {"devices": 0.5}}
    whole = run(Teller(), population, task, out=tmp_path / "whole", **given)
    with pytest.raises(ZeroDivisionError):
        run(Teller(), population, task, out=tmp_path / "cut", observer=Killer(2), **given)
    again = resume(tmp_path / "cut", method=Teller(), population=population, model=task)
    assert contents(again.folder) == contents(whole.folder)
    assert "seen" in set(again.metrics["metric"].to_pylist())
    assert again.summary()["extra"] == whole.summary()["extra"]


@every_algorithm
def test_what_is_told_of_a_node_depends_on_that_node_alone(method: Algorithm) -> None:
    simulation = simulate(method, regression([3, 2, 4], unequal=True), 2)
    for tier, store in enumerate(simulation.stores):
        ids = torch.arange(simulation.tree.size(tier))
        models = simulation.device_models(ids) if tier == 0 else simulation.models_of(tier, ids)

        def ask(some: Tensor, tier: int = tier, store: Any = store, models: Tensor = models) -> dict[str, Tensor]:
            return method.report(simulation.node(tier, some), {**store.read(some), "model": models[some]})

        together = ask(ids)
        assert all(value.shape == ids.shape for value in together.values())
        for number in ids.tolist():
            alone = ask(torch.tensor([number]))
            whole = {name: value[number].item() for name, value in together.items()}
            assert {name: value.item() for name, value in alone.items()} == pytest.approx(whole, rel=0, nan_ok=True)


def test_a_report_that_is_not_one_number_per_node_is_refused() -> None:
    @settings
    class Wrong(Teller):
        def report(self, node: Node, state: State) -> dict[str, Tensor]:
            return {"rows": state["model"]}

    with pytest.raises(ProtocolError, match="teller must report one 'rows' for each node"):
        measure(simulate(Wrong(), regression("2x2"), 1))


def test_the_terminal_shows_what_is_told_tier_by_tier(tmp_path: Path) -> None:
    result = told(tmp_path)
    text = text_of(run_report(result))
    assert "messages in all 18" in text
    (line,) = (line for line in text.splitlines() if line.startswith("seen"))
    assert line.split() == ["seen", "18", "6", "3"]
    assert reports_table(execute(make_config(QUIET), tmp_path / "other")) is None


def test_of_many_devices_single_ones_are_told_after_the_last_round_only() -> None:
    tree, metrics = Tree.parse("3x400"), Metrics()
    told = {"n": {"PM": torch.ones(1200, dtype=torch.int64), "TM": torch.ones(3)}}
    metrics.record_reports(told, tree, round_=1, last=False)
    assert (metrics.rows["tier"], metrics.rows["value"]) == ([2, 2, 1, 1, 1], [1200, 1, 1, 1, 1])
    metrics.record_reports(told, tree, round_=2, last=True)
    assert metrics.rows["tier"].count(0) == 1200


def test_a_method_without_teams_tells_of_devices_and_server(tmp_path: Path) -> None:
    @settings
    class Flat(Teller):
        flat: ClassVar[bool] = True

    population = regression("2x3")
    result = run(Flat(), population, task_of(population), rounds=2, out=tmp_path / "run")
    assert result.reports["seen"] == {"PM": 12, "GM": 2}


@pytest.mark.parametrize("name", ["l2gd", "l2gd-coin", "al2sgd"])
def test_methods_with_coins_tell_raw_and_coalesced_averages_of_each_link(name: str, tmp_path: Path) -> None:
    population = regression("2x2")
    given = {"iterations": 40, "lam": 2.0, "gamma": 1.0}
    result = run(name, population, task_of(population), rounds=2, settings=given, out=tmp_path / "run")
    found = result.summary()["extra"]["metrics"]
    assert found["between_raw"]["GM"] >= found["between_coalesced"]["GM"] > 0
    assert found["within_raw"]["TM"] >= found["within_coalesced"]["TM"]
    each = [result.last("TM", "within_raw", node=team) for team in ("team-0", "team-1")]
    assert sum(each) == found["within_raw"]["TM"]


# -- outlines ----------------------------------------------------------------------------------------------------------


STAGED = {"passes": 3, "group_passes": 2, "clients": 4}


def test_a_run_of_passes_has_as_many_rounds_as_they_ask_for() -> None:
    config = {"algorithm": "groupperfl", "settings": STAGED, "tree": [6, 2]}
    assert make_config(config).rounds == 3 * 2 + 2 * 2
    assert make_config({**config, "algorithm": "fl"}).rounds == 3 * 2
    assert make_config({**config, "rounds": 4}).rounds == 4
    assert make_config({"algorithm": "permfl"}).rounds == 20


def test_from_python_too_passes_decide_the_rounds(tmp_path: Path) -> None:
    population = regression([6, 2])
    for name, method in (("a", "groupfl"), ("b", algorithm("groupfl", **STAGED))):
        given = {"settings": STAGED} if isinstance(method, str) else {}
        result = run(method, population, task_of(population), out=tmp_path / name, **given)  # type: ignore[arg-type]
        assert result.config.rounds == 10
        assert result.outline == {
            "planned_rounds": 10,
            "stage_1_rounds": 6,
            "stage_2_rounds": {"team-0": 4, "team-1": 2},
            "downloads_per_client": {"team-0": 10, "team-1": 8},
            "uploads_per_client": 5,
            "epochs_per_client": 5,
        }


def test_another_number_of_rounds_is_shared_out_and_said() -> None:
    method, tree = algorithm("groupperfl", **STAGED), Tree.parse([6, 2])
    told = method.outline(tree, 5)
    assert (told["stage_1_rounds"], told["stage_2_rounds"]) == (3, {"team-0": 2, "team-1": 1})
    assert told["note"] == "the 10 rounds of passes = 3, group_passes = 2 were fitted into the 5 given"
    assert told["epochs_per_client"] == 2 + 1 + 5  # passes begun, and five epochs at the end
    assert method.outline(tree, 1)["stage_2_rounds"] == 0
    assert "no round is left for stage 2" in method.outline(tree, 1)["note"]
    assert "note" not in method.outline(tree, 10)
    assert algorithm("fl", **STAGED).outline(tree, 4)["downloads_per_client"] == 4


def test_programs_are_told_the_stage() -> None:
    population = regression([6, 2])
    method = algorithm("groupfl", **STAGED)
    simulation = Simulation(method, population, task_of(population), rounds=10)
    stages = []
    for _ in range(10):
        stages.append(simulation.node(1, torch.arange(2)).stage)
        simulation.step()
    assert stages == [1] * 6 + [2] * 4


# -- what is not finite ------------------------------------------------------------------------------------------------


@settings
class Breaks(Teller):
    """Its devices reply with what is not a number, wrapped."""

    named: bool = False

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        rows = torch.where(node.ids[:, None] == 2, torch.full_like(message, math.inf), message)
        reply = Sparse(rows, 0.1)
        return ({"": reply} if self.named else reply), state


@pytest.mark.parametrize("named", [False, True])
def test_a_sparse_reply_that_is_not_finite_is_told_of_its_sender(named: bool) -> None:
    with pytest.raises(Diverged, match=r"'device-2' \(tier 0\) is no longer finite in round 1"):
        simulate(Breaks(named=named), regression("2x2"), 1)
