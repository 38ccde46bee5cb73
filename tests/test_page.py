"""The page as data and as a file: what it says, of which runs, and that nothing a user named can become markup."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import palmette as pm
from page_runs import WILD, digits, wild
from palmette.cli.app import app
from palmette.errors import BadInput, PalmetteError
from palmette.page import words, write_report
from palmette.page.collect import collect
from palmette.page.compact import number, plain, thinned
from palmette.page.html import page
from palmette.page.tried import choices, tried
from palmette.report.numbers import by_node

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("page")
    digits("permfl", base / "permfl", settings={"team_steps": 3, "alpha": 0.3})
    digits("fedavg", base / "fedavg", rounds=6, settings={"alpha": 0.3})
    digits("local", base / "local")
    return base


@pytest.fixture(scope="module")
def run(folder: Path) -> dict[str, Any]:
    return collect([folder / "permfl"])


def embedded(text: str) -> dict[str, Any]:
    """The data that a page carries, read as a browser reads them."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


# -- one run -----------------------------------------------------------------------------------------------------------


def test_the_first_screen_says_what_was_run_what_came_out_whom_it_fails_and_what_it_cost(
    run: dict[str, Any], folder: Path
) -> None:
    result = pm.load(folder / "permfl")
    what, came_out, failed, cost = run["sentences"]
    assert what == "permfl trained the model mclr on digits: 12 devices in 3 teams, 3 rounds, seed 0."
    assert f"personal models (PM) {100 * result.last('PM'):.1f} %" in came_out
    assert f"the global model (GM) {100 * result.last('GM'):.1f} %" in came_out
    own, team = by_node(result, "PM", 0), by_node(result, "TM", 0)
    worst = min(own, key=lambda name: own[name])
    assert f"worst: {worst} ({100 * own[worst]:.1f} %)" in failed
    hurt = sum(own[name] < team[name] for name in own)
    assert f"{hurt or 'none'} of 12 devices would be better off with their team's model" in failed
    upper = result.links[-1]
    sent = upper["bytes_up"] + upper["bytes_down"]
    assert cost.startswith(f"It sent {sent / 1000:.1f} kB over the link to the server")


def test_devices_that_do_not_count_and_those_that_fare_as_badly_are_told(run: dict[str, Any]) -> None:
    data, people = copy.deepcopy((run["runs"][0], run["populations"][0]))
    people["unseen"] = [0, 5]
    people["tiers"][0]["test"][3] = 0
    data["nodes"]["PM"][0] = [0.1, *[0.2] * 2, None, *[0.2] * 3, *[0.9] * 5]
    told = words.about_run(data, people)["sentences"]
    assert "12 devices in 3 teams (2 devices kept out of training, 1 device without test samples), 3 rounds" in told[0]
    assert (
        "worst: device-1 (20.0 %), device-2 (20.0 %), device-4 (20.0 %) and 1 other with the same accuracy" in told[2]
    )
    data["nodes"]["PM"][0][1] = 0.1
    assert "with the same" not in words.about_run(data, people)["sentences"][2]


def test_numbers_of_nodes_are_those_of_the_run(run: dict[str, Any], folder: Path) -> None:
    result, data = pm.load(folder / "permfl"), run["runs"][0]
    names = [tier["names"] for tier in run["populations"][0]["tiers"]]
    for kind in ("PM", "TM", "GM"):
        for tier in (0, 1):
            theirs = by_node(result, kind, tier)
            assert data["nodes"][kind][tier] == pytest.approx([theirs[name] for name in names[tier]], abs=1e-5)
        curve = data["curves"]["kinds"][kind]
        assert dict(zip(curve["rounds"], curve["mean"], strict=True)) == pytest.approx(result.curve(kind), abs=1e-5)
    own = [result.curve("PM", node=name) for name in names[0]]
    assert data["devices"]["rounds"] == sorted(own[0])
    for values, curve_ in zip(data["devices"]["values"]["PM"], own, strict=True):
        assert values == pytest.approx([curve_[round_] for round_ in sorted(curve_)], abs=1e-5)


def test_the_band_holds_the_middle_of_the_devices(run: dict[str, Any]) -> None:
    data = run["runs"][0]
    curve, values = data["curves"]["kinds"]["PM"], np.array(data["devices"]["values"]["PM"])
    assert data["curves"]["band"] == "the middle 80 % of the devices"
    assert curve["low"] == pytest.approx(np.quantile(values, 0.1, axis=0), abs=1e-4)
    assert curve["high"] == pytest.approx(np.quantile(values, 0.9, axis=0), abs=1e-4)


def test_labels_and_samples_are_those_of_the_population(run: dict[str, Any]) -> None:
    people, told = pm.make_population("digits", tree="3x4", shift="rotate"), run["populations"][0]
    assert told["tiers"][0]["train"] == people.train.tolist()
    assert [sum(row) for row in told["labels"]] == people.train.tolist()
    first = people.y[: int(people.train[0])].numpy()
    assert told["labels"][0] == np.bincount(first, minlength=10).tolist()
    assert told["tiers"][1]["train"] == [sum(people.train.tolist()[4 * at : 4 * at + 4]) for at in range(3)]


def test_bytes_by_round_end_at_what_the_link_carried(run: dict[str, Any]) -> None:
    traffic = run["runs"][0]["traffic"]
    (upper,) = (link for link in traffic["links"] if link["server"])
    assert traffic["upper"]["rounds"] == [0, 1, 2, 3]
    assert traffic["upper"]["bytes"][0] == 0
    assert traffic["upper"]["bytes"][-1] == upper["bytes_up"] + upper["bytes_down"] > 0
    assert np.ptp(np.diff(traffic["upper"]["bytes"])) == 0  # every round of PerMFL sends as much


def test_distances_fall_to_zero_only_where_models_are_the_same(run: dict[str, Any], folder: Path) -> None:
    told = run["runs"][0]["distances"]
    assert set(told) == {"PM", "TM"}
    assert told["PM"]["mean"][-1] > 0
    result = pm.load(folder / "permfl")
    models = result.tensors("PM"), result.tensors("TM")
    apart = [
        float(sum(((models[0][name][at] - models[1][name][at // 4]).double() ** 2).sum() for name in models[0]) ** 0.5)
        for at in range(12)
    ]
    assert told["PM"]["mean"][-1] == pytest.approx(np.mean(apart), rel=1e-4)


def test_settings_come_with_their_meaning_and_the_theorem_with_its_conditions(run: dict[str, Any]) -> None:
    data = run["runs"][0]
    settings = {one["name"]: one for one in data["settings"]}
    assert settings["team_steps"]["value"] == "3"
    assert "team" in settings["team_steps"]["about"]
    assert settings["data.shift"]["value"] == "rotate"
    assert "PerMFL" in data["theorem"]["theorem"]
    conditions = {one["what"]: one for one in data["theorem"]["conditions"]}
    assert conditions["batch_size"]["holds"] is False
    assert conditions["alpha"]["yours"] == "0.3"


def test_a_run_can_be_run_again_by_the_command_that_its_page_gives(run: dict[str, Any], tmp_path: Path) -> None:
    (again,) = (one["command"] for one in run["runs"][0]["commands"] if "palmette run --config" in one["command"])
    done = CliRunner().invoke(app, [*again.split()[1:], "--out", str(tmp_path / "again"), "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert collect([tmp_path / "again"])["runs"][0]["nodes"] == run["runs"][0]["nodes"]


def test_methods_without_a_theorem_and_samples_given_as_objects_are_told(folder: Path, tmp_path: Path) -> None:
    assert collect([folder / "fedavg"])["runs"][0]["theorem"] == {
        "reason": "Palmette knows no convergence theorem of fedavg."
    }
    wild(tmp_path / "wild")
    (told,) = (run["theorem"] for run in collect([tmp_path / "wild"])["runs"])
    assert "given as objects of Python" in told["reason"]


def test_a_page_runs_no_code_that_a_run_names(tmp_path: Path) -> None:
    code = tmp_path / "code_of_a_stranger.py"
    code.write_text(
        "import torch\nfrom palmette.algorithms import PerMFL\n\n\n"
        'class Mine(PerMFL):\n    """Mine."""\n\n    name = "mine"\n\n\n'
        "def make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    people = pm.make_population("digits", tree="2x3")
    pm.run(f"{code}:Mine", people, rounds=1, out=tmp_path / "algorithm", progress=False)
    pm.run("permfl", people, f"{code}:make", rounds=1, out=tmp_path / "model", progress=False)
    code.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n")
    for folder in ("algorithm", "model"):
        (run,) = collect([tmp_path / folder])["runs"]
        assert "which a page never runs" in run["theorem"]["reason"]
        assert not (tmp_path / "sprung").exists()


def test_warnings_of_a_run_stand_on_its_page(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="alpha = 10000 is"), pytest.raises(pm.Diverged):
        digits("permfl", tmp_path / "run", settings={"alpha": 1e4})
    data = collect([tmp_path / "run"])
    assert any("alpha = 10000 is" in text for text in data["runs"][0]["warnings"])
    assert data["runs"][0]["state"] == "diverged"
    assert any(text.startswith("Lower alpha from 10000 to at most ") for text in data["runs"][0]["warnings"])
    assert "The run diverged: " in data["sentences"][0]
    assert "palmette resume" in data["runs"][0]["commands"][1]["command"]


def test_curves_of_a_sample_of_the_devices_say_so(tmp_path: Path) -> None:
    result = digits("fedavg", tmp_path / "run", rounds=4, evaluate_on=5, evaluate_every=1)
    data = collect([result.folder], theory=False)["runs"][0]
    assert data["sampled"] is True
    curve = data["curves"]["kinds"]["PM"]
    assert dict(zip(curve["rounds"], curve["mean"], strict=True)) == pytest.approx(result.curve("PM"), abs=1e-5)
    assert data["models"][0]["last"] == pytest.approx(result.last("PM", on="all"), abs=1e-5)
    assert data["curves"]["band"] == "one standard deviation over the devices"


# -- several runs ------------------------------------------------------------------------------------------------------


def test_several_runs_are_compared_device_by_device(folder: Path) -> None:
    data = collect([folder / "permfl", folder / "fedavg", folder / "local"], theory=False)
    (group,) = data["groups"]
    by_name = {one["method"]: one for one in group["methods"]}
    assert list(by_name) == ["permfl", "fedavg", "local"]
    assert group["against"] == "permfl"
    assert group["reference"] == "local"
    own, alone = by_node(pm.load(folder / "permfl"), "PM", 0), by_node(pm.load(folder / "local"), "PM", 0)
    gaps = [alone[name] - own[name] for name in own]
    assert by_name["local"]["difference"]["mean"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert by_name["local"]["worse"] == pytest.approx(np.mean([gap < 0 for gap in gaps]), abs=1e-5)
    counted = by_name["local"]["gaps"]
    assert sum(counted["counts"]) + counted["zero"] == 12
    assert sum(counted["counts"][: len(counted["counts"]) // 2]) == sum(gap < 0 for gap in gaps)
    best = group["ranking"][0]
    assert data["sentences"][0].startswith(
        f"Highest test accuracy: the {best['words']} ({best['kind']}) of {best['method']}"
    )
    assert best["mean"] == max(one["models"][kind]["mean"] for one in group["methods"] for kind in one["models"])
    assert len(data["populations"]) == 1, "runs on the same samples share them"


def test_runs_on_other_samples_are_not_compared_one_by_one(folder: Path, tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x3")
    pm.run("local", people, rounds=2, out=tmp_path / "other", progress=False)
    data = collect([folder / "permfl", tmp_path / "other"], theory=False)
    assert len(data["groups"]) == 2
    assert data["sentences"][0] == "2 runs on 2 populations."
    titles = [group["title"] for group in data["groups"]]
    assert titles == ["digits, mclr", "digits, mclr, 2x3 (2)"]
    for title, sentence in zip(titles, data["sentences"][1:], strict=True):
        assert sentence.startswith(f"{title}: Highest test accuracy: ")


def test_a_folder_of_runs_is_the_runs_in_it(folder: Path) -> None:
    data = collect([folder], theory=False)
    assert {run["method"] for run in data["runs"]} == {"permfl", "fedavg", "local"}


def test_a_study_says_who_won_and_shows_a_run_of_every_method(tmp_path: Path) -> None:
    study = pm.compare(
        ["permfl", "fedavg"],
        {"name": "digits", "shift": "rotate"},
        tree="3x4",
        seeds=2,
        steps=60,
        settings={"alpha": 0.3, "local_steps": 5, "team_steps": 3},
        out=tmp_path / "study",
        progress=False,
        jobs=1,
    )
    data = collect([tmp_path / "study"], theory=False)
    assert data["kind"] == "compare"
    assert [run["label"] for run in data["runs"]] == ["permfl", "fedavg", "local"]
    summary = {one["method"]: one for one in study.summary()["methods"]}
    for one in data["groups"][0]["methods"]:
        theirs = summary[one["method"]]
        assert one["models"]["PM"]["mean"] == pytest.approx(theirs["models"]["PM"]["mean"], abs=1e-5)
        if "difference" in theirs:
            assert one["difference"]["low"] == pytest.approx(theirs["difference"]["low"], abs=1e-5)
    assert data["progress"]["finished"] == len(data["progress"]["runs"]) == 6
    shutil.rmtree(tmp_path / "study" / "runs" / "fedavg-1")
    partly = collect([tmp_path / "study"], theory=False)
    assert data["state"] == "finished"
    assert partly["state"] == "stopped"
    assert partly["sentences"][1].startswith(
        "The study was stopped: 5 of 6 runs are finished, and what follows is about"
    )
    assert [row["state"] for row in partly["progress"]["runs"]].count("waiting") == 1


def test_a_sweep_shows_its_grid(tmp_path: Path) -> None:
    pm.sweep(
        "fedavg", "digits", grid={"alpha": [0.1, 0.3], "local_steps": [2, 5]}, tree="2x3", seeds=1, rounds=2,
        out=tmp_path / "sweep", progress=False, jobs=1,
    )  # fmt: skip
    data = collect([tmp_path / "sweep"], theory=False)
    assert data["grid"]["keys"] == ["alpha", "local_steps"]
    assert len(data["grid"]["points"]) == 4
    (chosen,) = data["grid"]["chosen"]
    told = f"Chosen by PM: alpha={chosen['settings']['alpha']}, local_steps={chosen['settings']['local_steps']}."
    assert data["sentences"][:2] == [
        "4 settings were tried with seed 0, on samples kept apart for choosing.",
        told,
    ]


def test_settings_without_a_score_diverged_or_are_still_to_come() -> None:
    point = {"settings": {"lam": 1}, "models": {}}
    summary = {"by": "PM", "grid": {"lam": [1]}, "points": [point], "chosen": [], "finished": False}
    going_on, done = tried(summary), tried({**summary, "finished": True})
    assert going_on is not None
    assert done is not None
    assert (going_on["points"][0]["mean"], going_on["missing"], done["missing"]) == (None, "–", "diverged")
    assert choices(going_on) == ""


def test_settings_of_a_search_are_told_with_their_method_and_seed() -> None:
    one = {"method": "permfl-tuned", "try": 1, "settings": {"lam": 0.1}, "score": 0.9, "chosen": True}
    lost = {"method": "permfl-tuned", "seed": 1, "try": 2}
    found = tried({"by": "PM", "tries": [{**one, "seed": 0}, {**one, "seed": 1}, lost], "finished": True})
    assert found is not None
    assert not found["map"]
    assert [point["mean"] for point in found["points"]] == [0.9, 0.9, None]
    assert choices(found) == "Chosen by PM: lam=0.1."
    found["chosen"][1]["settings"] = {"lam": 0.3}
    assert choices(found) == "Chosen by PM: lam=0.1 (seed 0); lam=0.3 (seed 1)."
    assert tried({"finished": True}) is None


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_page_is_one_small_file_that_loads_nothing(run: dict[str, Any]) -> None:
    text = page(run)
    assert len(text.encode()) < 500_000
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert "default-src 'none'" in text
    assert "unsafe-inline'; img-src" in text.split("script-src")[1]  # styles may be inline, scripts only by their hash
    assert "'unsafe-inline'" not in text.split("script-src")[1].split(";")[0]


def test_no_name_can_end_the_data_or_become_markup(tmp_path: Path) -> None:
    wild(tmp_path / "wild")
    text = write_report(tmp_path / "wild").read_text()
    assert text.count("</script>") == 3
    assert set(embedded(text)["populations"][0]["tiers"][0]["names"]) == set(WILD)
    assert "<img src=x" not in text


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    assert plain({"a": float("nan"), "b": [float("inf"), 0.1234567, True, 3, None]}) == {
        "a": None,
        "b": [None, 0.12346, True, 3, None],
    }
    assert number(1e20) == 1e20
    assert thinned(5, 9) == [0, 1, 2, 3, 4]
    assert thinned(1000, 4) == [0, 333, 666, 999]
    assert embedded(page(collect([digits("local", tmp_path / "run", rounds=1).folder])))["kind"] == "run"


def test_the_same_run_gives_the_same_page(folder: Path, tmp_path: Path) -> None:
    one = write_report(folder / "permfl", out=tmp_path / "one.html").read_bytes()
    other = write_report(pm.load(folder / "permfl"), out=tmp_path / "other.html").read_bytes()
    assert one == other


def test_a_page_does_not_make_a_run_another_one(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "permfl", tmp_path / "run")
    write_report(tmp_path / "run")
    assert CliRunner().invoke(app, ["verify", str(tmp_path / "run")]).exit_code == 0
    pm.resume(tmp_path / "run", rounds=4, progress=False)
    assert not (tmp_path / "run" / "report.html").exists(), "it would tell of three rounds"


# -- the command -------------------------------------------------------------------------------------------------------


def palmette_says(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_report_says_where_the_page_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = palmette_says("report", folder / "permfl")
    assert code == 0
    path = folder / "permfl" / "report.html"
    assert f"page  {path} (" in out
    assert f"open  {path.as_uri()}" in out
    monkeypatch.chdir(tmp_path)
    code, out, _ = palmette_says("report", folder / "permfl", folder / "fedavg", "--no-theory", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1]) == {
        "page": str(tmp_path / "report.html"),
        "bytes": (tmp_path / "report.html").stat().st_size,
    }


def test_open_starts_the_browser_or_says_that_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or len(asked) < 2)
    words = ("report", folder / "local", "--no-theory", "--open")
    assert palmette_says(*words)[2] == ""
    assert "no browser could be started here" in palmette_says(*words)[2]
    assert asked == [(folder / "local" / "report.html").as_uri()] * 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere is not the folder of a run: there is no such folder"),
        (["{permfl}", "{permfl}"], "is named twice"),
        (["{empty}"], "is neither a run nor a study, and there is none in it"),
        (["{permfl}", "--out", "nowhere/page.html"], "there is no folder nowhere"),
        (["{permfl}", "--out", "{empty}"], "is a folder; name a file in it"),
        (["{permfl}", "--out", "page.txt"], "a page is a file of HTML; call it page.html"),
    ],
)
def test_bad_input_is_one_line(words: list[str], reason: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    places = {"permfl": str(folder / "permfl"), "empty": str(tmp_path / "empty")}
    code, out, err = palmette_says("report", *(word.format(**places) for word in words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert reason in err


def test_a_full_disk_leaves_no_half_page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("palmette.page.html.os.replace", full)
    with pytest.raises(PalmetteError, match=r"cannot write .*: No space left on device"):
        write_report(folder / "permfl", out=tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_about_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="name at least one run"):
        write_report()
