"""What a run says of its links: replies that did not enter, who was absent, and the time on the simulated clock."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import palmette as pm
from page_runs import digits
from palmette.page.collect import collect
from palmette.report import words
from palmette.report.sheets import as_csv, sheets
from palmette.report.tables import run_report, runs_table

STORM = {"all": {"lost": 0.3, "late": 0.1, "repeated": 0.2}, "teams": {"away": [["team-1", 2, 3]]}}
EDGE = {"preset": "edge"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs: with faults and a clock, in two ways, and with neither."""
    base = tmp_path_factory.mktemp("links")
    small: dict[str, Any] = {"settings": {"team_steps": 3, "local_steps": 2}}
    digits("permfl", base / "storm", links=STORM, clock=EDGE, **small)
    digits("permfl", base / "clean", **small)
    digits(
        "fedavg",
        base / "flat",
        rounds=30,
        links={"all": {"lost": 0.3}},
        clock={"step": 0.5},
        settings={"local_steps": 1},
    )
    return base


def shown(what: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(what)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


# -- the terminal ------------------------------------------------------------------------------------------------------


def test_the_terminal_says_what_did_not_enter_why_and_where_it_is_written(folder: Path) -> None:
    result = pm.load(folder / "storm")
    told = shown(run_report(result))
    reasons: Counter[str] = Counter()
    for link in result.links:
        reasons.update(link["missing"])
        assert f"{sum(link['missing'].values()):,}" in told
    assert reasons["away"] == 1
    assert f"{reasons.total()} replies did not enter: {reasons['lost']} lost, {reasons['late']} late, 1 away." in told
    assert "came twice; the copies changed nothing" in told
    wasted, steps = (result.timings[name] for name in ("wasted_steps", "device_steps"))
    assert f"{wasted:,} of these steps ({100 * wasted / steps:.0f} %) changed nothing" in told
    seconds = result.times[3]
    assert f"{words.duration(seconds)} on the simulated clock ({words.duration(seconds / 3)} a round)" in told
    counts = Counter(row["node"] for row in result.absences.to_pylist() if row["tier"] == 0)
    first = min(counts, key=lambda name: (-counts[name], name))
    assert f"absences.parquet says who was absent when, and why; most often of the devices: {first}" in told
    assert "most often of the teams: team-" in told


def test_a_run_without_faults_and_clock_says_nothing_of_them(folder: Path) -> None:
    told = shown(run_report(pm.load(folder / "clean")))
    for word in ("missing", "enter", "in vain", "clock", "absent"):
        assert word not in told


def test_a_list_of_runs_has_the_clock_where_one_ran(folder: Path) -> None:
    results = [pm.load(folder / name) for name in ("storm", "clean")]
    assert words.duration(results[0].times[3]) in shown(runs_table(results, folder))
    assert "clock" not in shown(runs_table(results[1:], folder))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (0.02, "20.0 ms"), (0.5, "0.50 s"), (20.44, "20.4 s"), (119, "119 s"), (200, "3.33 min"), (7200, "2.00 h"),
     (1e6, "11.6 days"), (1e9, "11,574 days")],
)  # fmt: skip
def test_durations_are_written_in_the_unit_that_fits(seconds: float, told: str) -> None:
    assert words.duration(seconds) == told


# -- the clock in a result ---------------------------------------------------------------------------------------------


def test_a_run_of_which_nothing_enters_has_a_time_in_every_round(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    gone = [[f"team-{number}", 1, 3] for number in range(2)]
    links = {"teams": {"away": gone, "deadline": 7.0}}
    waited = pm.run("permfl", people, rounds=3, settings={"team_steps": 1}, links=links, out=tmp_path / "waited")
    assert waited.times[1] == 7.0
    assert waited.times[2] == 14.0
    assert waited.times[2] < waited.times[3] < 21.0
    links["teams"].pop("deadline")
    never = pm.run("permfl", people, rounds=3, settings={"team_steps": 1}, links=links, clock=EDGE, out=tmp_path / "n")
    assert [never.times[round_] for round_ in (1, 2)] == [0, 0]  # nobody waits for those that are known to be away
    assert never.summary()["time"] == never.times[3] > 0


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_absence_in_the_round_and_team_it_belongs_to(folder: Path) -> None:
    data = collect([folder / "storm"], theory=False)
    told, people = data["runs"][0]["absences"], data["populations"][0]["tiers"]
    expected: Counter[tuple[str, int, str]] = Counter()
    for row in pm.load(folder / "storm").absences.to_pylist():
        name, word = row["node"], row["reason"]
        if row["tier"] == 0:
            name, word = people[1]["names"][people[0]["parents"][people[0]["names"].index(name)]], ""
        expected[name, row["round"], word] += 1
    found: Counter[tuple[str, int, str]] = Counter()
    assert told["columns"] == ["1", "2", "3"]
    for row in told["rows"]:
        for round_, (below, own) in enumerate(zip(row["below"], row["own"], strict=True), 1):
            found.update({(row["name"], round_, word): count for word, count in {"": below, **own}.items() if count})
    assert found == expected
    assert found["team-1", 2, "away"] == 1
    assert told["nodes"][0]["times"] == max(node["times"] for node in told["nodes"])
    sentences = " ".join(data["sentences"])
    assert "replies did not enter" in sentences
    assert f"On the simulated clock it took {words.duration(pm.load(folder / 'storm').times[3])}." in sentences


def test_a_method_without_teams_is_told_by_team_and_many_rounds_are_put_together(folder: Path) -> None:
    told = collect([folder / "flat"], theory=False)["runs"][0]["absences"]
    assert len(told["columns"]) == 24
    assert told["columns"][-1].endswith("30")
    assert [row["name"] for row in told["rows"]] == ["team-0", "team-1", "team-2"]
    assert sum(sum(row["below"]) for row in told["rows"]) == len(pm.load(folder / "flat").absences)
    assert not any(cell for row in told["rows"] for cell in row["own"])


def test_the_page_of_a_run_without_faults_has_neither(folder: Path) -> None:
    run = collect([folder / "clean"], theory=False)["runs"][0]
    assert run["absences"] is None
    assert run["traffic"]["clock"] is None


def test_settings_of_links_and_clock_stand_on_the_page_with_their_meaning(folder: Path) -> None:
    settings = {one["name"]: one for one in collect([folder / "storm"], theory=False)["runs"][0]["settings"]}
    assert settings["links.all.lost"]["value"] == "0.3"
    assert settings["links.all.lost"]["about"].startswith("Chance that a reply is lost")
    assert settings["clock.preset"]["value"] == "edge"


# -- studies and trackers ----------------------------------------------------------------------------------------------


def test_a_comparison_has_the_time_to_the_end_where_there_is_a_clock(folder: Path, tmp_path: Path) -> None:
    study = pm.compare([folder / "storm", folder / "clean"], out=tmp_path / "study", local=False, progress=False)
    summary, result = study.summary(), pm.load(folder / "storm")
    timed, other = summary["methods"]
    assert timed["time"] == result.times[3]
    assert timed["replies_missing"] == sum(sum(link["missing"].values()) for link in result.links)
    assert "time" not in other
    cost = sheets(summary)[-1]
    assert cost.columns[-2:] == ("simulated\nclock", "replies\nmissing")
    assert [row[-2] for row in cost.rows] == [words.duration(result.times[3]), "-"]
    assert "time,replies_missing" in as_csv(summary).splitlines()[0]
    group = collect([folder / "storm", folder / "flat"], theory=False)["groups"][0]["methods"][0]
    assert group["curves"]["PM"]["seconds"][-1] == pytest.approx(result.times[3], rel=1e-4)


class Kept:
    """A tracker that remembers what it is told."""

    def __init__(self) -> None:
        self.rounds: dict[int, Mapping[str, float]] = {}

    def begin(self, start: Any) -> tuple[str, str]:
        return "", ""

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self.rounds[round_] = dict(numbers)

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        pass


def test_trackers_are_told_the_time_on_the_clock(tmp_path: Path) -> None:
    people, kept = pm.make_population("digits", tree="2x2"), Kept()
    result = pm.run("fedavg", people, rounds=2, clock=EDGE, out=tmp_path / "r", track=kept)  # type: ignore[arg-type]
    assert {round_: told["clock/seconds"] for round_, told in kept.rounds.items() if round_} == result.times
    pm.run("fedavg", people, rounds=2, out=tmp_path / "s", track=kept)  # type: ignore[arg-type]
    assert all("clock/seconds" not in told for told in kept.rounds.values())
