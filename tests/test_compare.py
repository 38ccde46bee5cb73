"""Comparing methods: the same luck for all, nothing done twice, fair steps, honest numbers."""

from __future__ import annotations

import io
import json
import math
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import palmette as pm
from palmette.cli.app import app
from palmette.report import sheets
from palmette.runs import make_config
from palmette.runs.fingerprint import kept_in
from palmette.runs.folder import Folder
from palmette.runs.journal import Journal
from palmette.studies.crew import Chain, Crew
from palmette.studies.helper import Helper
from palmette.studies.statistics import difference, hurt
from palmette.studies.steps import Objects, rounds_for
from palmette.studies.study import Study
from palmette.studies.trials import Outcome, Trial, run_trial
from palmette.studies.watching import Blind

TINY = {"name": "crowd", "samples": 8, "test_samples": 8}
OPTIONS = [
    "--data",
    "crowd",
    "--set",
    "data.samples=8",
    "--set",
    "data.test_samples=8",
    "--tree",
    "2x2",
    "--jobs",
    "1",
    "-q",
]
FEW = ["--set", "local_steps=2", "--set", "permfl.team_steps=2", "--rounds", "2"]
PLAIN = {"local_steps": 2, "permfl": {"team_steps": 2}}
SETTINGS = {**PLAIN, "tune_steps": 2}
SAME = ("config.toml", "identity.json", "metrics.parquet", "traffic.parquet", "devices.safetensors")


def tiny(methods: Any, out: Path, **more: Any) -> Study:
    given = {"tree": "2x2", "rounds": 2, "seeds": 2, "settings": SETTINGS, "jobs": 1, "progress": False}
    return pm.compare(methods, TINY, out=out, **{**given, **more})


def command(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return tiny(["permfl", "fedavg"], tmp_path_factory.mktemp("study") / "s", steps=8, rounds=None)


# -- the same for all ------------------------------------------------------------------------------------------------------


def last_rounds(folder: Path) -> dict[int, int]:
    """Return the round in which each device last took part, where it did."""
    found: dict[int, int] = {}
    for one in Journal(Folder(folder)).read("state.bin").records:
        found |= zip(one.tensors["ids/0"].tolist(), one.tensors["last/0"].tolist(), strict=True)
    return found


def test_all_methods_meet_the_same_population_participation_and_initial_model(tmp_path: Path) -> None:
    settings = {"local_steps": 2, "team_steps": 1}
    given: dict[str, Any] = {"participation": {"devices": "1 device"}, "settings": settings, "tree": "2x3"}
    found = tiny(["permfl", "pfedmt"], tmp_path / "s", local=False, **given)
    away = []
    for seed in (0, 1):
        runs = [run for arm in found.methods if (run := found.run(arm.name, seed)) is not None]
        parts = [kept_in(Folder(run.folder)).parts for run in runs]
        assert len(parts) == 2
        for part in ("samples", "labels", "split", "tree", "weights"):
            assert len({one[part] for one in parts}) == 1
        seen = [last_rounds(run.folder) for run in runs]
        assert seen[0] == seen[1]
        away.append(seen[0])
    assert len(away[0]) + len(away[1]) < 12  # somebody never took part, so there was something to draw
    assert away[0] != away[1]
    first, second = (kept_in(Folder(found.run("permfl", seed).folder)).parts for seed in (0, 1))  # type: ignore[union-attr]
    assert first["samples"] != second["samples"]


def test_participants_are_those_of_a_run_of_its_own(tmp_path: Path) -> None:
    found = tiny(
        ["permfl"], tmp_path / "s", participation={"devices": "1 device"}, local=False, seeds=[1], settings=PLAIN
    )
    alone = pm.rerun(found.run("permfl", 1).folder, tmp_path / "alone", progress=False)  # type: ignore[union-attr]
    for name in SAME:
        assert (alone.folder / name).read_bytes() == (found.folder / "runs/permfl-1" / name).read_bytes()


# -- steps -----------------------------------------------------------------------------------------------------------------


def test_every_method_takes_the_steps_that_were_asked_for_fine_tuning_counted(tmp_path: Path) -> None:
    settings = {**SETTINGS, "fedavg": {"tune_steps": 4}, "hierfavg": {"team_steps": 3, "tune_steps": 2}}
    found = tiny(["permfl", "fedavg", "hierfavg"], tmp_path / "s", steps=20, rounds=None, settings=settings, seeds=1)
    told = {one["method"]: one for one in found.summary()["methods"]}
    assert {name: one["rounds"] for name, one in told.items()} == {"permfl": 5, "fedavg": 8, "hierfavg": 3, "local": 10}
    assert {name: one["steps_per_device"] for name, one in told.items()} == {
        **{"permfl": 20, "fedavg": 20, "hierfavg": 20, "local": 20},
    }
    for name, one in told.items():
        run = found.run(name, 0)
        assert run is not None
        assert run.timings["device_steps"] / 4 == one["steps_per_device"] - one["tuning_steps"]
    assert {name: one["tuning_steps"] for name, one in told.items() if one["tuning_steps"]} == {
        "fedavg": 4,
        "hierfavg": 2,
    }


def test_devices_that_are_kept_out_of_training_take_no_part_in_equal_steps(tmp_path: Path) -> None:
    settings = {**SETTINGS, "fedavg": {"tune_steps": 4}}
    data = {**TINY, "unseen": 0.4}
    given = {"tree": "2x5", "steps": 20, "seeds": 1, "jobs": 1, "progress": False, "settings": settings}
    found = pm.compare(["permfl", "fedavg"], data, out=tmp_path / "s", **given)
    summary = found.summary()
    told = {one["method"]: one for one in summary["methods"]}
    assert {name: one["rounds"] for name, one in told.items()} == {"permfl": 5, "fedavg": 8, "local": 10}
    assert {name: one["steps_per_device"] for name, one in told.items()} == dict.fromkeys(told, 20)
    assert {name: one["tuning_steps"] for name, one in told.items()} == {**dict.fromkeys(told, 0), "fedavg": 4}
    assert told["fedavg"]["difference"]["devices"] == 6  # pairs of devices that train, 3 of each team
    assert "All numbers are of the devices that train" in " ".join(summary["notes"])


def test_a_method_that_cannot_take_the_steps_exactly_says_what_it_took(tmp_path: Path) -> None:
    found = tiny(["permfl"], tmp_path / "s", steps=11, rounds=None, seeds=1, settings=PLAIN, local=False)
    assert "permfl took 8." in " ".join(found.summary()["notes"])


def test_methods_with_unequal_steps_are_told_apart(tmp_path: Path) -> None:
    notes = " ".join(tiny(["permfl", "local"], tmp_path / "s", seeds=1, settings=PLAIN).summary()["notes"])
    assert "different numbers of gradient steps on each device: permfl 8, local 4" in notes


def test_a_round_longer_than_the_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pm.BadInput, match="permfl takes 4 gradient steps on each device in its first round"):
        tiny(["permfl"], tmp_path / "s", steps=3, rounds=None, settings=PLAIN)
    assert not (tmp_path / "s").exists()


# -- nothing twice, nothing lost -------------------------------------------------------------------------------------------


def test_a_study_goes_on_to_the_same_bytes_wherever_it_was_cut(study: Study, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(study.folder, cut)
    shutil.rmtree(cut / "runs/fedavg-1")
    before = (cut / "runs/permfl-0/manifest.json").stat().st_mtime_ns
    half = cut / "runs/local-1"
    for name in ("manifest.json", "metrics.parquet"):
        (half / name).unlink()
    (half / "state.bin").rename(half / "checkpoint.bin")
    (cut / "results.json").unlink()
    assert command("resume", str(cut), "-q").exit_code == 0
    assert (cut / "runs/permfl-0/manifest.json").stat().st_mtime_ns == before
    for run in ("permfl-0", "fedavg-1", "local-1"):
        for name in SAME:
            assert (cut / "runs" / run / name).read_bytes() == (study.folder / "runs" / run / name).read_bytes(), name
    for name in ("results.json", "study.toml", "README.md"):
        assert (cut / name).read_bytes() == (study.folder / name).read_bytes()


def test_a_study_takes_more_seeds_and_repeats_nothing(study: Study, tmp_path: Path) -> None:
    more = tmp_path / "more"
    shutil.copytree(study.folder, more)
    before = (more / "runs/permfl-0/manifest.json").stat().st_mtime_ns
    found = tiny(["permfl", "fedavg"], more, steps=8, rounds=None, seeds=3)
    assert (more / "runs/permfl-0/manifest.json").stat().st_mtime_ns == before
    assert [one["seeds"] for one in found.summary()["methods"]] == [[0, 1, 2]] * 3


def test_another_study_in_the_folder_is_refused_by_what_differs(study: Study) -> None:
    with pytest.raises(pm.BadInput, match=r"holds another study: permfl has settings\.team_steps = 2"):
        tiny(
            ["permfl", "fedavg"],
            study.folder,
            steps=8,
            rounds=None,
            settings={**SETTINGS, "permfl": {"team_steps": 1}},
        )


def test_ctrl_c_loses_nothing_and_says_how_to_go_on(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun = tmp_path / "s", []

    def second_is_stopped(trial: Trial, *rest: Any) -> Outcome:
        begun.append(trial)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)
        return run_trial(trial, *rest)

    words = ["compare", "permfl", "fedavg", *OPTIONS, "--steps", "8", "--seeds", "1", "--no-local", "--out", str(out)]
    words += ["--set", "local_steps=2", "--set", "tune_steps=2", "--set", "permfl.team_steps=2"]
    with monkeypatch.context() as patch:
        patch.setattr("palmette.studies.crew.run_trial", second_is_stopped)
        done = command(*words)
    assert done.exit_code == 130
    assert done.output.splitlines()[-1] == (
        f"palmette: stopped with 1 of 2 runs done; nothing that was finished is lost, go on with: palmette resume {out}"
    )
    assert "Not all runs are there yet" in command("show", str(out)).output
    assert command(*words).exit_code == 0
    for run in ("permfl-0", "fedavg-0"):
        for name in SAME:
            assert (out / "runs" / run / name).read_bytes() == (study.folder / "runs" / run / name).read_bytes(), name


def test_a_process_beside_gives_the_same_bytes_and_ends_with_this_one(study: Study, tmp_path: Path) -> None:
    arm, told = study.plan.arm("fedavg"), []
    helper = Helper()
    try:
        assert helper.ready()
        for seed, config, end in ((1, arm.seeded(1), "done"), (0, arm.seeded(0, {"team_steps": 1}), "failed")):
            trial = Trial("fedavg", seed, tmp_path / f"r{seed}", config)
            outcome = helper.run(trial, told.append, lambda done, rounds, scores: told.append(done))
            assert outcome.end == end, outcome.message
        assert helper.alive
    finally:
        helper.end()
    assert not helper.alive
    assert told[0] == arm.config.rounds
    assert "unknown setting 'team_steps'" in outcome.message
    for name in SAME:
        assert (tmp_path / "r1" / name).read_bytes() == (study.folder / "runs/fedavg-1" / name).read_bytes(), name


def test_crews_of_several_take_all_trials_and_stop_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str]] = []

    class Fake(Helper):
        def __init__(self) -> None:
            self.stopped = False

        def ready(self) -> bool:
            return True

        def run(self, trial: Trial, begin: Any, round_: Any) -> Outcome:
            time.sleep(0.01)
            ran.append(("beside", trial.arm))
            return Outcome(trial, "stopped" if self.stopped else "done")

        def stop(self) -> None:
            self.stopped = True

        def end(self) -> None:
            ran.append(("ended", ""))

        def abandon(self) -> None:
            pass

        @property
        def alive(self) -> bool:
            return True

    def here(trial: Trial, *rest: Any) -> Outcome:
        time.sleep(0.01)
        ran.append(("here", trial.arm))
        return Outcome(trial, "done")

    def chain(name: str) -> Chain:
        for number in range(2):
            outcome = yield Trial(f"{name}{number}", 0, tmp_path / name)
            assert outcome.trial.arm == f"{name}{number}"

    monkeypatch.setattr("palmette.studies.crew.Helper", Fake)
    monkeypatch.setattr("palmette.studies.crew.run_trial", here)
    eyes = Blind(Console(file=io.StringIO()))
    with Crew(
        3, eyes, lambda trial: Outcome(trial, "done") if trial.arm == "a0" else None, lambda outcome: None
    ) as crew:
        assert crew.run(chain(name) for name in "abcdefgh")
    assert sorted(arm for _, arm in ran if arm) == sorted([f"{a}{n}" for a in "abcdefgh" for n in range(2)][1:])
    assert {who for who, _ in ran} == {"here", "beside", "ended"}


def test_a_run_that_diverges_is_told_the_others_finish_and_it_is_not_repeated(tmp_path: Path) -> None:
    out = str(tmp_path / "s")
    words = ["compare", "local", "permfl", *OPTIONS, *FEW, "--seeds", "1", "--out", out, "--set", "local.alpha=1e30"]
    done = command(*words)
    assert done.exit_code == 1
    assert "local, seed 0 diverged: " in done.output
    assert "runs/local-0 diverged" in done.output.splitlines()[-1]
    assert [one["seeds"] for one in Study(out).summary()["methods"]] == [[], [0]]
    log = (tmp_path / "s/runs/local-0/log.txt").read_text()
    assert command("resume", out, "-q").exit_code == 1
    assert (tmp_path / "s/runs/local-0/log.txt").read_text() == log


def test_a_method_that_diverges_at_once_stops_no_study_of_equal_steps() -> None:
    people = pm.make_population("digits", tree="2x2")
    config = make_config({"algorithm": "local", "settings": {"local_steps": 3, "alpha": 1e30}, "tree": "2x2"})
    assert rounds_for(config, 12, people, Objects(), "local") == 4


# -- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_ends_in_tables_files_and_one_line_of_json(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(study.folder, out)
    files = {name: tmp_path / f"t.{name}" for name in ("csv", "latex", "markdown")}
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    words += ["--plot", str(tmp_path / "p.svg"), "--json", "--out", str(out), "--steps", "8", "--seeds", "2"]
    words += ["--set", "local_steps=2", "--set", "tune_steps=2", "--set", "permfl.team_steps=2"]
    done = command("compare", "permfl", "fedavg", *OPTIONS, *words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(done.stdout.splitlines()) == 1
    assert [one["method"] for one in told["methods"]] == ["permfl", "fedavg", "local"]
    assert told["reference"] == "local"
    assert "Local training was added" in " ".join(told["notes"])
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + 2 * (3 + 2 + 1)
    assert (tmp_path / "t.latex").read_text().count(r"\begin{tabular}") == 3
    assert (tmp_path / "t.markdown").read_text().startswith("| test accuracy in % | PM | TM | GM |")
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()


@pytest.mark.parametrize("width", [80, 120])
def test_a_study_is_shown_again_in_any_width(study: Study, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = command("show", str(study.folder))
    assert done.exit_code == 0
    assert max(len(line) for line in done.output.splitlines()) <= width
    assert "…" not in done.output
    for words in ("test accuracy in %", "worse", "steps", "to the"):
        assert words in done.output
    assert json.loads(command("show", str(study.folder), "--json").stdout)["kind"] == "compare"


def test_a_folder_of_studies_lists_them(study: Study) -> None:
    done = command("show", str(study.folder.parent))
    assert done.exit_code == 0
    assert done.output.splitlines()[-1].split() == [*["s", "compare:", "permfl,", "fedavg,", "local", "2", "finished"]]
    (told,) = json.loads(command("show", str(study.folder.parent), "--json").stdout)
    assert told == {
        **told,
        "kind": "compare",
        "methods": ["permfl", "fedavg", "local"],
        "seeds": [0, 1],
        "finished": True,
    }


def test_one_setting_is_for_all_that_have_it_or_for_one_method(tmp_path: Path) -> None:
    words = [
        "compare",
        "permfl",
        "mine=fedavg",
        *OPTIONS,
        *FEW,
        "--no-local",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "s"),
    ]
    done = command(*words, "--set", "alpha=0.2", "--set", "mine.alpha=0.1", "--set", "tune_steps=3")
    assert done.exit_code == 0, done.output
    assert "tune_steps is no setting of permfl; it is set for mine." in done.output
    found = Study(tmp_path / "s")
    settings = {one["method"]: one["settings"]["0"] for one in found.summary()["methods"]}
    assert settings["permfl"]["alpha"] == 0.2
    assert (settings["mine"]["alpha"], settings["mine"]["tune_steps"]) == (0.1, 3)


def test_folders_of_runs_are_compared_where_they_lie(study: Study, tmp_path: Path) -> None:
    runs = [str(study.folder / "runs" / name) for name in ("permfl-0", "permfl-1", "local-0", "local-1")]
    done = command("compare", *runs, "--out", str(tmp_path / "s"), "-q", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [(one["method"], one["seeds"]) for one in told["methods"]] == [("permfl", [0, 1]), ("local", [0, 1])]
    assert not (tmp_path / "s/runs").exists()
    theirs = {one["method"]: one for one in study.summary()["methods"]}
    assert told["methods"][0]["models"] == json.loads(json.dumps(theirs["permfl"]["models"]))


def test_a_run_that_was_made_longer_since_is_said(study: Study, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(study.folder / "runs/permfl-0", run)
    done = command("compare", str(run), "--no-local", "--out", str(tmp_path / "s"), "-q")
    assert done.exit_code == 0, done.output
    before = pm.load(run).config.rounds
    assert not any("when it was compared" in note for note in Study(tmp_path / "s").summary()["notes"])
    pm.resume(run, rounds=before + 1)
    told = [note for note in Study(tmp_path / "s").summary()["notes"] if "when it was compared" in note]
    assert told == [
        f"The run in {run} had {before} rounds when it was compared and has {before + 1} now, so permfl is not what this study "
        "was made with."
    ]
    assert not any("can take exactly" in note for note in Study(tmp_path / "s").summary()["notes"])


def test_other_methods_run_on_the_population_of_a_folder_with_as_many_steps(study: Study, tmp_path: Path) -> None:
    words = [
        "compare",
        str(study.folder / "runs/permfl-1"),
        "fedavg",
        "--out",
        str(tmp_path / "s"),
        "-q",
        "--jobs",
        "1",
    ]
    done = command(*words, "--set", "local_steps=2", "--set", "tune_steps=2", "--json")
    assert done.exit_code == 0, done.output
    told = {one["method"]: one for one in json.loads(done.stdout.splitlines()[-1])["methods"]}
    assert {name: (one["seeds"], one["steps_per_device"]) for name, one in told.items()} == {
        name: ([1], 8.0) for name in ("permfl", "fedavg", "local")
    }


BAD = {
    "permfl fedavgg local": "unknown algorithm 'fedavgg'; did you mean 'fedavg'",
    "permfl permfl": "permfl is named twice",
    "permfl --set alhpa=1": "none of the methods has the setting 'alhpa'; did you mean 'alpha'?",
    "permfl --set fedavg.alpha=1": "there is no method 'fedavg'",
    "permfl --set permfl.alpha=-1": "alpha: should be",
    "permfl --steps 5 --rounds 2": "not both",
    "permfl --against fedavg": "it is not among the methods",
    "permfl --by best": "settings are chosen by PM",
    "permfl --plot nowhere/p.png": "there is no folder nowhere",
    "permfl --plot p.gif": ".png, .pdf, .svg",
    "permfl hierfavg --tree 10": "permfl needs teams",
    "RUN fedavg --tree 4x10": "is of another population than fedavg",
    "RUN fedavg --set participation.devices=0.5": "had another participation than fedavg",
    "RUN --set permfl.alpha=1": "its settings stay",
    "STUDY permfl": "is a study",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = words.replace("RUN", str(study.folder / "runs/permfl-0")).replace("STUDY", str(study.folder))
    done = command("compare", *given.split())
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1), done.output
    assert BAD[words] in done.output
    assert not (tmp_path / "runs").exists()


# -- from Python -----------------------------------------------------------------------------------------------------------


def test_objects_of_ones_own_are_compared_and_gone_on_with(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype("float32")
    people = pm.Population.from_arrays(
        x, (x[:, 0] > 0).astype("int64"), device=np.repeat(list("abcd"), 20), team=np.repeat(["n", "s"], 40)
    )
    given: dict[str, Any] = {"seeds": [1], "rounds": 2, "out": tmp_path / "s", "settings": PLAIN, "progress": False}
    model = torch.nn.Linear(3, 2)
    found = pm.compare(["permfl", pm.FedAvg(local_steps=2, tune_steps=2)], people, model, **given)
    assert [arm.name for arm in found.methods] == ["permfl", "fedavg", "local"]
    one = found.at(method="permfl", seed=1, node="c", metric="accuracy", model="PM", round=-1, when="after")
    run = found.run("permfl", 1)
    assert run is not None
    assert one.values == [run.last("PM", node="c")]
    assert len(found.at(method=["permfl", "local"], seed=1, round=0, tier=0, metric="loss", model="PM")) == 8
    shutil.rmtree(tmp_path / "s/runs/fedavg-1")
    with pytest.raises(pm.BadInput, match="was given its data as an object"):
        raise_of(command("resume", str(tmp_path / "s"), "-q"))
    again = pm.compare(["permfl", pm.FedAvg(local_steps=2, tune_steps=2)], people, model, **given)
    assert again.finished
    with pytest.raises(pm.BadInput, match="no method is 'fedprox'"):
        found.at(method="fedprox")
    with pytest.raises(pm.BadInput, match="no column 'sead'; did you mean 'seed'"):
        found.at(sead=1)


def raise_of(done: Any) -> None:
    assert done.exit_code == 2
    raise pm.BadInput(done.output)


def test_the_long_table_is_a_data_frame_where_pandas_is_there(study: Study) -> None:
    pytest.importorskip("pandas")
    frame = study.at(
        round=-1, model="GM", metric="accuracy", on="all", weight="samples", statistic="mean", when="after"
    ).to_pandas()
    top = frame[frame.tier == 2].set_index(["method", "seed"]).value
    assert top["fedavg", 1] == study.run("fedavg", 1).last("GM")  # type: ignore[union-attr]


# -- numbers ---------------------------------------------------------------------------------------------------------------

TEAMS = {seed: {f"d{i}": f"t{i // 5}" for i in range(20)} for seed in range(4)}


def values(shift: float, noise: float, seed: int = 0) -> dict[int, dict[str, float]]:
    rng = np.random.default_rng(seed)
    return {s: {f"d{i}": shift + noise * float(rng.normal()) for i in range(20)} for s in range(4)}


def test_the_paired_difference_is_the_mean_and_its_interval_covers_it() -> None:
    one, other = values(0.3, 0.1, 1), values(0.1, 0.1, 2)
    gap = difference(one, other, TEAMS)
    mean = np.mean([one[s][d] - other[s][d] for s in one for d in one[s]])
    assert gap.mean == pytest.approx(mean)
    assert gap.low < gap.mean < gap.high
    assert gap.low > 0.1
    assert (gap.devices, gap.seeds) == (80, 4)
    assert difference(one, other, TEAMS) == gap
    assert difference(one, other, TEAMS, lower=True).mean == pytest.approx(-mean)


def test_devices_that_share_their_luck_do_not_count_as_many() -> None:
    rng = np.random.default_rng(0)
    luck = {s: {f"t{t}": float(rng.normal()) for t in range(4)} for s in range(4)}
    shared = {s: {f"d{i}": luck[s][f"t{i // 5}"] for i in range(20)} for s in range(4)}
    alone = values(0.0, 1.0)
    zero = {s: dict.fromkeys(one, 0.0) for s, one in shared.items()}
    wide, narrow = difference(shared, zero, TEAMS), difference(alone, zero, TEAMS)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    zero = {s: dict.fromkeys(one, 0.0) for s, one in values(0, 0).items()}
    gaps = [difference(values(0.0, 1.0, 100 + k), zero, TEAMS) for k in range(60)]
    covered = sum(gap.low <= 0 <= gap.high for gap in gaps)
    assert covered >= 52


def test_hurt_counts_the_devices_that_fare_worse_and_no_ties() -> None:
    one = {0: {"a": 0.5, "b": 0.7, "c": 0.9, "d": math.nan}, 1: {"a": 1.0}}
    other = {0: {"a": 0.6, "b": 0.7, "c": 0.8, "d": 0.5}, 1: {"a": 0.9}}
    assert hurt(one, other) == pytest.approx((1 / 3 + 0) / 2)
    assert hurt(one, other, lower=True) == pytest.approx((1 / 3 + 1) / 2)
    assert math.isnan(hurt(one, {}))


def test_the_summary_holds_what_the_runs_say(study: Study) -> None:
    told = {one["method"]: one for one in study.summary()["methods"]}
    runs = [study.run("permfl", seed) for seed in (0, 1)]
    locals_ = [study.run("local", seed) for seed in (0, 1)]
    finals = [run.last("TM") for run in runs if run is not None]
    assert told["permfl"]["models"]["TM"]["mean"] == pytest.approx(np.mean(finals))
    assert told["permfl"]["models"]["TM"]["spread"] == pytest.approx(np.std(finals, ddof=1))
    nodes = [f"device-{i}" for i in range(4)]
    worse, against_team = [], []
    for run, alone in zip(runs, locals_, strict=True):
        assert run is not None
        assert alone is not None
        own = [run.last("PM", node=node) for node in nodes]
        worse.append(np.mean([a < alone.last("PM", node=node) for a, node in zip(own, nodes, strict=True)]))
        against_team.append(np.mean([a < run.last("TM", node=node) for a, node in zip(own, nodes, strict=True)]))
    assert told["permfl"]["hurt"] == pytest.approx({"local": np.mean(worse), "team": np.mean(against_team)})
    assert told["fedavg"]["hurt"].keys() == {"local"}
    assert "difference" not in told["permfl"]
    sent = {link["tier"]: link["bytes_up"] + link["bytes_down"] for link in told["permfl"]["links"]}
    assert sent[1] > sent[2] > 0


def test_names_are_escaped_in_markdown_and_latex() -> None:
    sheet = sheets.Sheet("a_b", ("x|y",), (("m_1 & 50 %", "1±2"),), frozenset({(0, 0)}), "n_1")
    assert sheets.markdown([sheet]).splitlines()[0] == "| a_b | x\\|y |"
    assert "**1±2**" in sheets.markdown([sheet])
    assert r"m\_1 \& 50 \% & \textbf{1$\pm$2} \\" in sheets.latex([sheet])


def test_the_name_of_an_algorithm_is_the_algorithm_also_where_a_run_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pm.run("fedavg", pm.make_population("digits", tree="2x2"), rounds=1, out="fedavg", progress=False)
    words = [
        "compare",
        "fedavg",
        "--tree",
        "2x2",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--no-local",
        "--out",
        "study",
        "-q",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert "fedavg is the algorithm; the run in the folder of that name is ./fedavg." in done.stderr
    assert Study(Path("study")).plan.arms[0].runs == {}
    words[1], words[words.index("study")] = "./fedavg", "other"
    assert CliRunner().invoke(app, words).exit_code == 0
    assert list(Study(Path("other")).plan.arms[0].runs) == [0]
