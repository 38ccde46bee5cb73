"""Links as a user sets them: what can be written, what is refused, what a run keeps of it, and the place for guards."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import palmette as pm
from palmette.algorithms import FedAvg, PerMFL
from palmette.engines.separate import Separate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link
from palmette.links.amounts import Amount
from palmette.links.away import Away
from palmette.runs.config import RunConfig
from palmette.runs.reading import make_config
from palmette.testing import regression, simulate, task_of
from palmette.testing.compared import same_as_separate
from palmette.tree import Tree
from palmette.tree.segments import SegmentMean

TREE = Tree.parse("2x3")
NONE = torch.zeros(6, dtype=torch.int64)


def config(**values: Any) -> RunConfig:
    return make_config({"algorithm": "permfl", "tree": "2x3", **values})


def amounts(what: Any, round_: int = 0) -> list[float]:
    found = Amount.parse(what, "latency").of(TREE, 0, torch.arange(6), 9.0, 5, NONE, round_)
    return [float(one) for one in found]


# -- amounts and availability ----------------------------------------------------------------------------------------------


def test_an_amount_is_a_number_a_distribution_or_a_table(tmp_path: Path) -> None:
    assert amounts(0.5) == amounts("0.5") == [0.5] * 6
    assert len(set(amounts("lognormal 1 0.5"))) == 6
    assert all(2 <= one <= 3 for one in amounts("uniform 2 3"))
    assert amounts({"device-1": 4}) == [9, 4, 9, 9, 9, 9]
    assert amounts([["device-1", 4], ["device-2", 3, 7]], 1) == [9, 4, 9, 9, 9, 9]
    assert amounts([["device-1", 4], ["device-2", 3, 7]], 2) == [9, 4, 7, 9, 9, 9]
    file = tmp_path / "speeds.csv"
    file.write_text("node,from,value\ndevice-0,0,1\ndevice-0,5,2\n", encoding="utf-8-sig")  # as Excel writes it
    assert amounts(str(file), 3)[0] == 1  # the fourth round
    assert amounts(str(file), 4)[0] == 2
    assert Amount.parse(Amount.parse(str(file), "x").written, "x") == Amount.parse(str(file), "x")


@pytest.mark.parametrize(
    "what",
    [
        -1,
        float("nan"),
        "fast",
        "lognormal 1",
        "lognormal 0 1",
        "uniform 3 2",
        "1e999",
        [["a"]],
        {"a": "b"},
        "no.csv",
        None,
        "--",
    ],
)
def test_amounts_that_are_none_are_refused_by_name(what: Any) -> None:
    with pytest.raises(BadInput, match="latency"):
        Amount.parse(what, "latency")


@pytest.mark.parametrize(
    "what", ["9/3", "x/y", [["a", 3, 3]], [["a", 1]], 5, "none.csv", "8/24 apart", [["a", "b", "c"]]]
)
def test_availability_that_cannot_be_read_is_refused_by_name(what: Any) -> None:
    with pytest.raises(BadInput, match=r"links.devices.away"):
        Away.parse(what, "links.devices.away")


def test_availability_may_lie_in_a_file_and_count_seconds(tmp_path: Path) -> None:
    file = tmp_path / "away.csv"
    file.write_text("node,from,to\ndevice-3,1.5,2.5\n")
    away = Away.parse(str(file), "away", "seconds")
    for seconds, gone in ((1.0, False), (1.5, True), (2.4, True), (2.5, False)):
        found = away.gone(TREE, 0, torch.tensor([2, 3]), 0, 0, torch.full((2,), seconds, dtype=torch.float64))
        assert found.tolist() == [False, gone]


# -- the config --------------------------------------------------------------------------------------------------------------


def test_settings_of_all_links_hold_where_a_link_says_nothing_itself() -> None:
    links = config(links={"all": {"lost": 0.2, "codec": "int8"}, "teams": {"lost": 0.0}}).make_links(TREE)
    assert [link.faults.lost for link in links.values()] == [0.2, 0.0]
    assert [str(link.up) for link in links.values()] == ["int8", "int8"]


def test_directions_may_have_codecs_of_their_own() -> None:
    link = config(links={"devices": {"codec": "int8", "codec_down": "none"}}).make_links(TREE)[0]
    assert (str(link.down), str(link.up)) == ("none", "int8")


def test_the_edge_preset_has_a_team_link_ten_times_as_fast() -> None:
    made = config(clock={"preset": "edge"})
    fast, slow = (link.line for link in made.make_links(TREE).values())
    assert slow.latency.one == 10 * fast.latency.one
    assert fast.bandwidth.one == 10 * slow.bandwidth.one
    assert made.pace(TREE) is not None
    own = config(clock={"preset": "edge"}, links={"teams": {"latency": 3.0}}).make_links(TREE)[1].line
    assert (own.latency.one, own.bandwidth.one) == (3.0, slow.bandwidth.one)


def test_a_method_without_teams_sends_over_the_top_link_and_loses_as_the_devices_do() -> None:
    given = {"devices": {"lost": 0.1, "latency": 1.0}, "teams": {"lost": 0.5, "latency": 7.0, "codec": "int8"}}
    link = config(links=given).make_links(TREE, flat=True)[0]
    assert (link.faults.lost, link.line.latency.one, str(link.up)) == (0.1, 7.0, "int8")
    assert str(config(links={"devices": {"codec": "mask"}}).make_links(TREE, flat=True)[0].up) == "mask"


def test_who_is_away_by_the_second_needs_the_clock_and_gets_it() -> None:
    assert config(links={"devices": {"away": "1/2", "away_unit": "seconds"}}).pace(TREE) is not None


def test_without_latency_deadline_and_clock_there_is_no_clock() -> None:
    assert config(links={"all": {"lost": 0.2, "codec": "int8"}}).pace(TREE) is None
    assert config(links={"all": {"deadline": 2.0}}).pace(TREE) is not None
    assert config(clock={"step": 0.5}).pace(TREE) is not None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"links": {"devices": {"codek": "int8"}}}, "links.devices.codek.*codec"),
        ({"links": {"devices": {"codec": "int9"}}}, "links.devices.codec.*int8"),
        ({"links": {"devices": {"codec": ""}}}, "links.devices.codec: codec ''"),
        ({"links": {"devices": {"codec_up": "gzip"}}}, "links.devices.codec_up: codec 'gzip'"),
        ({"links": {"devices": 3}}, "links.devices: should be a table, not 3"),
        ({"links": {"devices": {"latency": ""}}}, "links.devices.latency"),
        ({"links": {"devices": {"lost": 1.0}}}, "links.devices.lost"),
        ({"links": {"devices": {"lost": "many"}}}, "links.devices.lost"),
        ({"links": {"devices": {"deadline": 0}}}, "links.devices.deadline"),
        ({"links": {"devices": {"away": "9/3"}}}, "links.devices.away"),
        ({"links": {"devices": {"away_unit": "seconds"}}}, "links.devices.away_unit"),
        ({"links": {"devices": {"latency": "slow"}}}, "links.devices.latency"),
        ({"links": {"devices": {"on_bad_reply": "ignore"}}}, "links.devices.on_bad_reply"),
        ({"links": {"codec": "int8"}}, "links: .*links.all.codec"),
        ({"clock": {"speeds": 0}}, "clock.speeds"),
        ({"clock": {"speeds": True}}, "clock.speeds: should be a number"),
        ({"clock": {"preset": "mars"}}, "clock.preset"),
        ({"clock": {"stop": 1}}, "clock.stop.*step"),
    ],
)
def test_what_cannot_be_set_is_refused_by_its_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        config(**values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"links": {"tier5": {"lost": 0.1}}}, "links.*tier5"),
        ({"links": {"device": {"lost": 0.1}}}, "did you mean 'devices'"),
        ({"links": {"devices": {"away": [["team-1", 1, 2]]}}}, "links.devices.away.*team-1"),
        ({"links": {"teams": {"latency": {"device-1": 1.0}}}}, "links.teams.latency.*device-1"),
        ({"links": {"all": {"away": [["device-1", 1, 2]]}}}, "links.all.away.*device-1"),
        ({"replay": "nowhere"}, "replay.*nowhere"),
    ],
)
def test_what_does_not_fit_the_tree_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        config(**values).make_links(TREE)


# -- runs ----------------------------------------------------------------------------------------------------------------

STORM: dict[str, Any] = {
    "links": {
        "all": {"lost": 0.2, "late": 0.1, "corrupt": 0.1, "codec": "int8"},
        "teams": {"codec": "delta+int8", "away": [["team-0", 2, 3]]},
    },
    "clock": {"preset": "edge"},
}


def run(out: Path, **options: Any) -> pm.Result:
    people = pm.make_population("synthetic", tree="3x4")
    settings = {"team_steps": 3, "local_steps": 2}
    return pm.run("permfl", people, rounds=4, settings=settings, out=out, progress=False, **{**STORM, **options})


def lasting(folder: Path) -> dict[str, bytes]:
    names = ("*.safetensors", "metrics.parquet", "traffic.parquet", "absences.parquet", "evaluation.parquet")
    return {path.name: path.read_bytes() for name in names for path in folder.glob(name)}


def test_a_run_tells_who_was_absent_when_and_how_long_it_took(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    absences = result.absences.to_pylist()
    assert {"round": 2, "tier": 1, "node": "team-0", "exchange": 1, "reason": "away"} in absences
    assert {row["reason"] for row in absences} >= {"lost", "away"}
    assert list(result.times) == [1, 2, 3, 4]
    assert sorted(result.times.values()) == list(result.times.values())
    summary = result.summary()
    assert summary["time"] == result.times[4]
    assert 0 < summary["wasted_steps"] < summary["device_steps"]
    assert summary["traffic"]["links"][1]["missing"]["away"] == 1
    assert result.evaluation.num_rows > 0
    written = (tmp_path / "run" / "config.toml").read_text()
    assert "[links.teams]" in written
    assert 'preset = "edge"' in written


def test_a_run_of_the_same_config_and_a_resumed_one_have_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "run")
    pm.rerun(tmp_path / "run", tmp_path / "again", progress=False)
    assert lasting(tmp_path / "again") == lasting(tmp_path / "run")
    people = pm.make_population("synthetic", tree="3x4")
    settings = {"team_steps": 3, "local_steps": 2}
    pm.run("permfl", people, rounds=2, settings=settings, out=tmp_path / "half", progress=False, **STORM)
    pm.resume(tmp_path / "half", rounds=4, progress=False)
    assert lasting(tmp_path / "half") == lasting(tmp_path / "run")


def test_a_replay_has_the_models_of_the_run_it_repeats(tmp_path: Path) -> None:
    run(tmp_path / "run")
    links = {"all": {"codec": "int8"}, "teams": {"codec": "delta+int8"}}
    other = run(tmp_path / "again", replay=tmp_path / "run", links=links, clock=None)
    one, two = lasting(tmp_path / "run"), lasting(tmp_path / "again")
    assert {name: one[name] for name in one if name.endswith("safetensors")} == {
        name: two[name] for name in two if name.endswith("safetensors")
    }
    assert other.absences.num_rows == pq.read_table(tmp_path / "run" / "absences.parquet").num_rows
    assert set(other.absences["reason"].to_pylist()) == {"no answer"}


def test_a_replay_of_an_asynchronous_run_goes_by_the_same_clock(tmp_path: Path) -> None:
    people = pm.make_population("synthetic", tree="3x4")
    slow = {"latency": "lognormal 0.1 1 each", "deadline": 0.5}
    settings = {"team_steps": 3, "local_steps": 2, "buffer": 2}
    given: dict[str, Any] = {"rounds": 6, "settings": settings, "clock": {"preset": "edge"}, "progress": False}
    one = pm.run("fedbuff", people, links={"all": {**slow, "lost": 0.2}}, out=tmp_path / "run", **given)
    two = pm.run("fedbuff", people, links={"all": slow}, replay=tmp_path / "run", out=tmp_path / "again", **given)
    assert set(one.absences["reason"].to_pylist()) == {"lost", "late"}
    for name in ("global", "teams", "devices"):
        assert (one.folder / f"{name}.safetensors").read_bytes() == (two.folder / f"{name}.safetensors").read_bytes()
    assert one.times == two.times


def test_a_node_that_is_away_for_some_seconds_comes_back_though_nothing_else_asks_for_a_clock(tmp_path: Path) -> None:
    people = pm.make_population("synthetic", tree="1x2")
    away = {"devices": {"away": [["device-0", 0, 0.5]], "away_unit": "seconds"}}
    result = pm.run("fedavg", people, rounds=5, links=away, settings={"local_steps": 20}, out=tmp_path / "run")
    assert result.absences["round"].to_pylist() == [1, 2, 3]  # a round takes 20 steps of 0.01 s
    assert result.times[5] == pytest.approx(1.0)


def test_tables_in_files_are_written_into_the_config(tmp_path: Path) -> None:
    file = tmp_path / "away.csv"
    file.write_text("node,from,to\nteam-1,1,2\n")
    result = run(tmp_path / "run", links={"teams": {"away": str(file)}})
    file.unlink()
    assert result.config.links["teams"].away == [["team-1", 1.0, 2.0]]
    pm.rerun(tmp_path / "run", tmp_path / "again", progress=False)
    assert lasting(tmp_path / "again") == lasting(tmp_path / "run")


def test_what_a_run_has_no_use_for_is_said(tmp_path: Path) -> None:
    run(tmp_path / "run")
    with pytest.warns(UserWarning, match=r"no use for links.all.lost$"):
        run(tmp_path / "again", replay=tmp_path / "run", links={"all": {"codec": "int8", "lost": 0.1}}, clock=None)
    people = pm.make_population("synthetic", tree="2x2")
    links = {"devices": {"latency": 1.0, "lost": 0.1}, "teams": {"lost": 0.5, "latency": 7.0}}
    with pytest.warns(UserWarning, match=r"knows no teams: .* no use for links.devices.latency, links.teams.lost$"):
        pm.run("fedavg", people, rounds=1, out=tmp_path / "flat", progress=False, links=links)


def test_of_two_codecs_of_a_method_without_teams_the_devices_own_is_taken_and_the_other_said(tmp_path: Path) -> None:
    people = pm.make_population("synthetic", tree="2x2")
    links = {"devices": {"codec": "float16"}, "teams": {"codec": "int8"}}
    with pytest.warns(UserWarning, match=r"no use for links.teams.codec$"):
        pm.run("fedavg", people, rounds=1, out=tmp_path / "flat", progress=False, links=links)


def test_a_replay_says_what_was_otherwise_and_goes_on_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"))
    links = {"all": {"codec": "int8"}, "teams": {"codec": "delta+int8"}}
    with pytest.warns(UserWarning, match=r"the run in run had another seed: only those of its absences that fit"):
        run(Path("again"), replay="run", links=links, clock=None, seed=9)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="only 4 rounds"):
        assert pm.resume("../again", rounds=5, progress=False).rounds_done == 5
    with pytest.raises(BadInput, match=r"replay = .* is of other nodes: no node"):
        pm.run("permfl", pm.make_population("synthetic", tree="1x2"), rounds=1, replay="../run", progress=False)
    with pytest.raises(BadInput, match="replay is empty"):
        run(Path("none"), replay="", links=links, clock=None)


@pytest.mark.filterwarnings("ignore:alpha = ")
def test_a_device_that_cannot_learn_does_not_end_a_run_that_drops_bad_replies(tmp_path: Path) -> None:
    luck = np.random.default_rng(0)
    x = [luck.normal(size=(40, 8)).astype("float32") * (1e14 if device == 1 else 1) for device in range(6)]
    people = pm.Population.from_arrays(x, [one[:, 0] for one in x], tree="2x3")
    given: dict[str, Any] = {"rounds": 2, "progress": False}
    with pytest.raises(pm.Diverged, match="'device-1'"):
        pm.run("permfl", people, "linear", out=tmp_path / "stop", **given)
    drop = {"devices": {"on_bad_reply": "drop"}}
    with pytest.warns(UserWarning, match="the loss of 'device-1' is beyond all bounds"):
        result = pm.run("permfl", people, "linear", out=tmp_path / "drop", links=drop, **given)
    assert set(result.absences["node"].to_pylist()) == {"device-1"}
    assert result.finished


def test_numbers_of_teams_are_those_of_their_devices_where_a_method_has_no_teams() -> None:
    slow = config(links={"teams": {"latency": [["team-1", 2, 5.0]]}}).make_links(TREE, flat=True)
    rounds = [
        slow[0].line.latency.of(TREE.flat(), 0, torch.arange(6), 0.0, 5, NONE, round_).tolist() for round_ in (0, 1)
    ]
    assert rounds == [[0.0] * 6, [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]]


def test_a_links_own_codec_hides_those_of_all_links() -> None:
    link = config(links={"devices": {"codec": "float16"}, "all": {"codec_up": "int8"}}).make_links(TREE)
    assert str(link[0].up) == str(link[0].down)
    assert str(link[1].up) != str(link[1].down)


def test_a_run_without_faults_has_no_table_of_absences(tmp_path: Path) -> None:
    result = run(tmp_path / "run", links=None, clock=None)
    assert not (tmp_path / "run" / "absences.parquet").exists()
    assert result.absences.num_rows == 0
    assert result.times == {}
    assert "time" not in result.summary()
    with pytest.raises(BadInput, match="lost nobody"):
        run(tmp_path / "again", replay=tmp_path / "run")


def test_links_in_a_config_file_read_as_they_were_written() -> None:
    made = config(**STORM)
    assert make_config(tomllib.loads(made.to_toml())) == made


# -- the place for clipping, noise, secure sums and robust means -------------------------------------------------------------


class Clip:
    """Replies no longer than one."""

    def guarded(self, rows: Tensor, where: Tensor) -> Tensor:
        return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


class Noise:
    """A little noise, drawn under the address of the reply."""

    def guarded(self, rows: Tensor, where: Tensor) -> Tensor:
        from palmette import address

        return rows + 0.01 * torch.stack([address.normal(one, rows.shape[1], rows.dtype) for one in where])


class Median(SegmentMean):
    """The median of each number in place of the mean."""

    def __init__(self, segment: Tensor, count: int, weights: Tensor | None = None, sizes: Tensor | None = None) -> None:
        super().__init__(segment, count, weights, sizes)
        self._rows: list[tuple[Tensor, dict[str, Tensor]]] = []

    def add(self, positions: Any, rows: dict[str, Tensor]) -> None:
        super().add(positions, rows)
        self._rows.append((self._segment[positions], rows))

    def result(self) -> dict[str, Tensor]:
        parents = torch.cat([one for one, _ in self._rows])
        found = super().result()
        for name, mean in found.items():
            rows = torch.cat([given[name] for _, given in self._rows])
            for parent in range(len(mean)):
                if bool((parents == parent).any()):
                    mean[parent] = rows[parents == parent].median(0).values
        return found


def test_guards_change_what_children_send_and_not_what_they_keep() -> None:
    method, people = PerMFL(team_steps=1, local_steps=50, batch_size="full", alpha=0.5), regression("2x3")
    simulation = simulate(method, people, 1, links={0: Link(guards=(Clip(),))})
    assert bool((simulation.stores[0].rows["model"].norm(dim=1) > 1).any())
    assert bool((simulation.team_models().norm(dim=1) <= 1 + 1e-9).all())  # type: ignore[union-attr]


def test_guards_are_the_same_on_separate_nodes_and_draw_by_the_replys_address() -> None:
    people, links = regression([2, 3]), {0: Link(guards=(Clip(), Noise())), 1: Link(guards=(Noise(),))}
    method = PerMFL(team_steps=2, local_steps=3, batch_size=5)
    stacked = simulate(method, people, 2, dtype=torch.float32, chunk=1, links=links)
    with Separate(Simulation(method, people, task_of(people), rounds=2, links=links)) as federation:
        for _ in range(2):
            federation.step()
    same_as_separate(federation.machines, stacked)
    other = simulate(method, people, 2, dtype=torch.float32, chunk=1, links=links, seed=1)
    assert not torch.equal(other.model(), stacked.model())


def test_another_way_to_aggregate_takes_the_place_of_the_mean() -> None:
    people = regression("5")
    people.y[: int(people.start[1])] *= 1e6  # one device sends something far off
    robust = simulate(FedAvg(local_steps=1, batch_size="full"), people, 1, links={0: Link(aggregate=Median)})
    plain = simulate(FedAvg(local_steps=1, batch_size="full"), people, 1)
    assert float(robust.model().norm()) < 10 < 1000 < float(plain.model().norm())
