"""What a run's folder promises: checksums, formats, checkpoints that fit, no way out of it, and a second chance."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import palmette
import palmette.runs.journal
from palmette.cli.app import app
from palmette.errors import BadInput, PalmetteError
from palmette.runs import execute, execution, load, make_config, resume, verify
from palmette.runs.files import FORMAT, Files
from palmette.runs.folder import (
    CHECKPOINT,
    CONFIG,
    IDENTITY,
    LOCK,
    MANIFEST,
    METRICS,
    PREVIOUS,
    PROGRESS,
    STATE,
    Folder,
)
from palmette.runs.journal import Journal
from palmette.runs.records import TITLE
from test_runs import DIGITS, Killer, contents

SMALL = ["config.toml", "identity.json", "metrics.parquet", "population.parquet", "timings.json", "traffic.parquet"]
MODELS = ["devices.safetensors", "global.safetensors", "teams.safetensors"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute(make_config(DIGITS), tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds with the checkpoints after the third and the second, each of them whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "_CHECKPOINT_SHARE", 1.0)
        patch.setattr(palmette.runs.journal, "_LITTLE", 0)
        patch.setattr(palmette.runs.journal, "_SHARE", 0.0)
        folder = tmp_path_factory.mktemp("runs") / "cut"
        with pytest.raises(ZeroDivisionError):
            execute(make_config(DIGITS), folder, observer=Killer(3))
    return folder


@pytest.fixture
def cut(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "cut"))


def palmette_says(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


# -- checksums ---------------------------------------------------------------------------------------------------------


def test_a_finished_run_lists_the_checksum_of_every_file_it_wrote(original: Path) -> None:
    listed = Files(original).read_sealed(MANIFEST)
    assert sorted(listed["files"]) == sorted([*SMALL, *MODELS, "log.txt", STATE, "evaluation.parquet"])
    assert {path.name for path in original.iterdir()} == {*listed["files"], LOCK, MANIFEST}
    assert all(fact["bytes"] == (original / name).stat().st_size for name, fact in listed["files"].items())
    assert "finished" in (original / "log.txt").read_text()


@pytest.mark.parametrize("name", [*SMALL, MANIFEST])
def test_no_flipped_byte_of_a_small_file_is_read_in_silence(name: str, finished: Path) -> None:
    size = (finished / name).stat().st_size
    for place in np.linspace(0, size - 1, 30).astype(int).tolist():
        flip(finished / name, place)
        with pytest.raises(BadInput, match=f"{name} is damaged"):
            load(finished)
        flip(finished / name, place)
    assert load(finished).kinds


@pytest.mark.parametrize("name", MODELS)
def test_no_flipped_byte_of_a_model_is_read_in_silence(name: str, finished: Path, tmp_path: Path) -> None:
    kind, node = {"d": ("PM", "device-0"), "g": ("GM", None), "t": ("TM", "team-0")}[name[0]]
    reads: list[Callable[[palmette.Result], Any]] = [
        lambda result: result.names(kind),
        lambda result: result.tensors(kind),
        lambda result: result.module(kind, node),
        lambda result: result.save_models(tmp_path / "models", kind),
    ]
    size = (finished / name).stat().st_size
    for number, place in enumerate(np.linspace(0, size - 1, 70).astype(int).tolist()):
        flip(finished / name, place)
        result = load(finished)  # which does not read the models, however large they are
        with pytest.raises(BadInput, match=f"{name} is damaged, by the checksums in manifest.json"):
            reads[number % len(reads)](result)
        flip(finished / name, place)
    assert load(finished).tensors(kind)
    assert not (tmp_path / "models").exists()


def test_a_model_is_checked_once_and_only_when_it_is_asked_for(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = Folder.problem, []

    def counted(folder: Folder, name: str) -> str | None:
        asked.append(name)
        return real(folder, name)

    monkeypatch.setattr(Folder, "problem", counted)
    result = load(finished)
    assert not set(asked) & set(MODELS)
    result.module("PM", "device-0")
    result.module("PM", "device-1")
    result.tensors("PM")
    assert [name for name in asked if name in MODELS] == ["devices.safetensors"]


def test_missing_and_foreign_files_are_told(finished: Path) -> None:
    (finished / "teams.safetensors").unlink()
    shutil.copy(finished / "devices.safetensors", finished / "tier2.safetensors")
    with pytest.raises(BadInput, match=r"teams\.safetensors is missing"):
        load(finished).tensors("TM")
    with pytest.raises(BadInput, match=r"tier2\.safetensors is not of this run"):
        load(finished).tensors("TM2")
    (finished / METRICS).unlink()
    with pytest.raises(BadInput, match=r"metrics\.parquet is missing"):
        load(finished)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("step", ["replace", "seal"])
def test_a_run_that_is_killed_while_it_ends_loses_nothing(
    step: str, keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_CHECKPOINT_SHARE", 1.0)
    config = make_config({**DIGITS, "engine": {"keep_state": keep}})
    whole = execute(config, tmp_path / "whole")
    real = os.replace

    def killed(*given: Any) -> None:
        if step == "seal" or Path(given[1]).name == STATE:
            raise ZeroDivisionError
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "replace") if step == "replace" else (Folder, "seal")), killed)
        with pytest.raises(ZeroDivisionError):
            execute(config, tmp_path / "cut")
    assert not Folder(tmp_path / "cut").finished
    assert (tmp_path / "cut" / (STATE if step == "seal" else CHECKPOINT)).exists()
    assert contents(resume(tmp_path / "cut").folder) == contents(whole.folder)
    assert "rounds 1 to 4" not in (tmp_path / "cut" / "log.txt").read_text().partition("\n")[2]
    for folder in (tmp_path / "whole", tmp_path / "cut"):
        assert verify(folder).sound
        assert verify(folder).others == []
        assert (folder / STATE).exists() == keep


def test_a_run_that_is_made_longer_is_not_finished_until_it_is(tmp_path: Path) -> None:
    execute(make_config(DIGITS), tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        resume(tmp_path / "run", rounds=6, observer=Killer(1))
    assert not (tmp_path / "run" / MANIFEST).exists()
    assert verify(tmp_path / "run").problems == {}
    resume(tmp_path / "run")
    assert verify(tmp_path / "run").sound
    assert Files(tmp_path / "run").read_sealed(IDENTITY)["settings"]["rounds"] == "6"


def test_a_damaged_state_is_noticed_by_verify_and_not_gone_on_from(finished: Path) -> None:
    flip(finished / STATE, 500)
    assert verify(finished).problems == {STATE: "damaged"}
    before = (finished / "log.txt").read_bytes()
    with pytest.raises(PalmetteError, match="is damaged, so it cannot be continued; start a new run"):
        resume(finished, rounds=9)
    assert (finished / "log.txt").read_bytes() == before
    assert load(finished).tensors()


# -- palmette verify ---------------------------------------------------------------------------------------------------


def test_verify_tells_what_is_damaged_and_missing(finished: Path, original: Path) -> None:
    assert palmette_says("verify", str(original))[0] == 0
    flip(finished / "devices.safetensors", 3000)
    (finished / "traffic.parquet").unlink()
    (finished / "note.txt").write_text("mine")
    code, out, _ = palmette_says("verify", str(original), str(finished))
    assert code == 1
    assert out.splitlines() == [
        out.splitlines()[0],
        f"{finished}: finished; 2 of 12 files not as they were written",
        "  devices.safetensors: damaged",
        "  traffic.parquet: missing",
        "  not written by the run, so not checked: note.txt",
    ]
    assert "12 files" in out.splitlines()[0]
    assert "all as they were written" in out.splitlines()[0]
    code, out, _ = palmette_says("verify", str(original), str(finished), "--json")
    assert code == 1
    told = json.loads(out)["runs"]
    assert [run["sound"] for run in told] == [True, False]
    assert told[1]["problems"] == {"devices.safetensors": "damaged", "traffic.parquet": "missing"}


@pytest.mark.parametrize("name", [IDENTITY, MANIFEST, CONFIG, "log.txt"])
def test_verify_looks_at_every_file(name: str, finished: Path) -> None:
    flip(finished / name, 20)
    assert verify(finished).problems == {name: "damaged"}
    assert palmette_says("verify", str(finished))[0] == 1


def test_verify_looks_at_the_checkpoints_of_a_stopped_run(cut: Path) -> None:
    assert verify(cut).sound
    assert verify(cut).files == 4
    flip(cut / CHECKPOINT, 500)
    code, out, _ = palmette_says("verify", str(cut))
    assert code == 1
    assert "checkpoint.bin: damaged (its checksum is wrong)" in out
    (cut / CONFIG).write_text((cut / CONFIG).read_text() + "\n")
    assert set(verify(cut).problems) == {CHECKPOINT, CONFIG}


def test_verify_refuses_what_is_no_run_and_goes_on(original: Path, tmp_path: Path) -> None:
    code, out, told = palmette_says("verify", str(tmp_path), str(original))
    assert code == 2
    assert told.count("\n") == 1
    assert "is not the folder of a run" in told
    assert "all as they were written" in out


# -- formats -----------------------------------------------------------------------------------------------------------


def test_folders_of_before_there_were_formats_are_refused_in_one_line(finished: Path, cut: Path) -> None:
    (finished / IDENTITY).unlink()
    (finished / MANIFEST).unlink()
    (cut / IDENTITY).unlink()
    for old in (finished, cut):
        for verb in ("show", "resume", "verify"):
            code, _, told = palmette_says(verb, str(old))
            assert code == 2
            assert told.count("\n") == 1
            assert "made by an older Palmette" in told
        for read in (load, resume, verify):
            with pytest.raises(BadInput, match=r"older Palmette.*run it again with 'palmette run --config"):
                read(old)


def test_another_format_is_refused_with_both_numbers(
    finished: Path, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Files(finished).read_sealed(IDENTITY)["format"] == FORMAT
    monkeypatch.setattr(palmette.runs.files, "FORMAT", FORMAT + 1)
    for folder in (finished, cut):
        for verb in ("show", "resume", "verify"):
            code, _, told = palmette_says(verb, str(folder))
            assert code == 2
            assert f"has the folder format {FORMAT} and this Palmette reads {FORMAT + 1}" in told
            assert told.count("\n") == 1


# -- checkpoints that do not fit ---------------------------------------------------------------------------------------


def test_the_checkpoint_before_the_last_is_kept(stopped: Path) -> None:
    done = [[one.round for one in Journal(Folder(stopped)).read(name).records] for name in (CHECKPOINT, PREVIOUS)]
    assert done == [[3], [2]]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(cut: Path, original: Path) -> None:
    (cut / CHECKPOINT).write_bytes((cut / CHECKPOINT).read_bytes()[:-3])
    with pytest.warns(UserWarning, match=r"checkpoint\.bin is damaged.*cut short.*passed over"):
        assert contents(resume(cut).folder) == contents(original)
    log = (cut / "log.txt").read_text()
    assert "checkpoint.bin is damaged" in log
    assert "permfl: rounds 3 to 4" in log


@pytest.mark.filterwarnings("default")  # a command prints them
def test_two_damaged_checkpoints_are_said_to_start_the_run_over(cut: Path, original: Path) -> None:
    for name in (CHECKPOINT, PREVIOUS):
        flip(cut / name, 700)
    code, _, told = palmette_says("resume", str(cut), "--quiet")
    assert code == 0
    assert "checkpoint.bin is damaged" in told
    assert "checkpoint.previous.bin is damaged" in told
    assert f"warning: no checkpoint in {cut} can be used: the run starts over with round 1" in told
    assert "the run starts over" in (cut / "log.txt").read_text()
    assert contents(cut) == contents(original)


def _without(name: str) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, about: [tensors, about]["/" not in name and name not in tensors].pop(name)  # type: ignore[arg-type, attr-defined]


def _set(**values: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, about: about.update(values)


def _put(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, about: tensors.update({name: change(tensors[name]) if name in tensors else torch.ones(1)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without("progress"), "should hold"),
        (_without("rows/0/model"), "should hold"),
        (_without("metrics"), "should hold"),
        (_put("strange", torch.clone), "should hold"),
        (_without("every"), "every"),
        (_without("run"), "run"),
        (_set(run="0" * 64), "another run"),
        (_set(every=0), "every"),
        (_set(every="2"), "every"),
        (_set(sane=None), "sane"),
        (_set(initial_loss="big"), "initial_loss"),
        (_set(seconds=[1, 2]), "seconds"),
        (_set(seconds={"rest": 1.0}), "seconds"),
        (_set(format=FORMAT + 1), "format"),
        (_put("progress", lambda value: value.double()), "progress is torch.float64"),
        (_put("progress", lambda value: value[:1]), "progress is .* of shape"),
        (_put("progress", lambda value: value + torch.tensor([7, 0, 0])), "after round 10 of 4"),
        (
            _put("progress", lambda value: value + torch.tensor([0, 0, 1])),
            "from round 1 to round 3, and follows round 0",
        ),
        (_put("rows/0/model", lambda value: value[:, 1:]), "rows/0/model is"),
        (_put("rows/0/model", lambda value: value[1:]), "rows/0/model are"),
        (_put("last/0", lambda value: value + 5), "last/0"),
        (_put("last/1", lambda value: value[:1]), "last/1"),
        (_put("last/1", lambda value: value[:, None]), "last/1 is"),
        (_put("ids/0", lambda value: value[:-1]), "last/0"),
        (_put("ids/0", lambda value: value.flip(0)), "ids/0"),
        (_put("ids/0", lambda value: value + 1), "ids/0"),
        (_put("ids/0", lambda value: value - 1), "ids/0"),
        (_put("turn/1", lambda value: value - 9), "turn/1"),
        (_put("ledger", lambda value: value[:, :3]), "ledger is"),
        (_put("ledger", lambda value: value - 9), "ledger"),
        (_put("metrics", lambda value: value[:-20]), "metrics cannot be read"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_passed_over_in_a_line(
    change: Callable[[dict[str, Tensor], dict[str, Any]], None], words: str, cut: Path, original: Path
) -> None:
    journal = Journal(Folder(cut))
    [(tensors, about)] = journal.read(CHECKPOINT).records
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(tensors, about)
    journal.save(tensors, about)  # with a right checksum
    with pytest.warns(UserWarning, match=rf"checkpoint\.bin is damaged or not of this run \(.*{words}.*\)"):
        assert contents(resume(cut).folder) == contents(original)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"no json",
        b'{"__metadata__": {"about": "[]"}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [9000, 9004]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": "a", "data_offsets": [0, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": 3}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [1e12], "data_offsets": [0, 4]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": [1000000000000, 0], "data_offsets": [0, 0]}}',
        b'{"__metadata__": {"about": "{}"}, "x": {"dtype": "F32", "shape": ['
        + b"1, " * 99
        + b'1], "data_offsets": [0, 4]}}',
        b"[" * 100_000,
        b'{"__metadata__": {"about": "' + b"[" * 100_000 + b'"}}',
        b" " * (1 << 21) + b"{}",
    ],
)
def test_a_checkpoint_whose_description_is_nonsense_is_passed_over(text: bytes, cut: Path, original: Path) -> None:
    data = len(text).to_bytes(8, "little") + text + bytes(64)
    length = len(data).to_bytes(8, "little")
    checksum = f"{zlib.crc32(length, zlib.crc32(data)):08x}".encode()
    (cut / CHECKPOINT).write_bytes(TITLE + checksum + length + data)
    with pytest.warns(
        UserWarning, match=r"not of this run \((its description of the tensors in it|its format is None)"
    ):
        assert contents(resume(cut).folder) == contents(original)


def test_a_checkpoint_of_another_run_is_passed_over(cut: Path, tmp_path: Path, original: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config({**DIGITS, "seed": 5}), tmp_path / "other", observer=Killer(1))
    for name in (CHECKPOINT, PREVIOUS):
        (cut / name).unlink()
    shutil.copy(tmp_path / "other" / CHECKPOINT, cut / CHECKPOINT)
    with (
        pytest.warns(UserWarning, match="belongs to another run"),
        pytest.warns(UserWarning, match="starts over"),
    ):
        assert contents(resume(cut).folder) == contents(original)


# -- what a resumed run remembers --------------------------------------------------------------------------------------


def _memory(folder: Path) -> tuple[dict[str, Any], int]:
    kept = Journal(Folder(folder)).load()
    assert kept is not None
    return {name: value for name, value in kept[-1].about.items() if name != "seconds"}, kept[-1].round


@pytest.mark.parametrize("every", ["auto", 4])
def test_a_run_stopped_twice_remembers_what_one_stopped_once_does(
    every: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_CHECKPOINT_SHARE", 1.0)
    config = {"algorithm": "hierfavg", "rounds": 14, "settings": {"local_steps": 40, "team_steps": 3, "alpha": 0.1}}
    config |= {"tree": "2x5", "evaluate_every": every}
    whole = execute(make_config(config), tmp_path / "whole")
    for name, after in (("once", 7), ("twice", 5)):
        with pytest.raises(ZeroDivisionError):
            execute(make_config(config), tmp_path / name, observer=Killer(after))
    with pytest.raises(ZeroDivisionError):
        resume(tmp_path / "twice", observer=Killer(2))
    once, twice = _memory(tmp_path / "once"), _memory(tmp_path / "twice")
    assert once[1] == 7
    assert once == twice
    measured = sorted(whole.curve("GM"))
    assert 1 < once[0]["every"] < 14
    assert once[0]["sane"] == max(round_ for round_ in measured if round_ <= 7) < 7
    began = min(whole.curve(kind, "loss")[0] for kind in whole.kinds)
    assert once[0]["initial_loss"] == began > whole.curve("GM", "loss")[measured[-2]]
    for name in ("once", "twice"):
        assert contents(resume(tmp_path / name).folder) == contents(whole.folder)


# -- a folder in which nothing came to be ------------------------------------------------------------------------------


def _remnant(folder: Path, config: bytes | None, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"")
    if config is not None:
        (folder / CONFIG).write_bytes(config)


@pytest.mark.parametrize(
    ("share", "names"),
    [
        (None, (LOCK,)),
        (None, (LOCK, ".config.toml.part", "log.txt")),
        (0.0, (LOCK,)),
        (0.5, (LOCK,)),
        (0.5, (LOCK, "log.txt", "store-0-model.bin")),
        (0.5, ()),
        (0.0, ()),
        (1.0, (LOCK,)),  # a whole config, but nothing yet that says whose
    ],
)
def test_a_folder_whose_first_config_was_cut_short_can_be_used_again(
    share: float | None, names: tuple[str, ...], original: Path, tmp_path: Path
) -> None:
    text = (original / CONFIG).read_bytes()
    middle = text.rindex(b"\n", 0, len(text) // 2) + 3  # within a line: half a config that happens to be whole is one
    _remnant(
        tmp_path / "run", None if share is None else text[: middle if share == 0.5 else int(share * len(text))], *names
    )
    if share is not None:
        code, _, told = palmette_says("resume", str(tmp_path / "run"))
        assert code == 2
        assert "ended before anything was saved; start it again with 'palmette run" in told
    execute(make_config(DIGITS), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(original)
    assert verify(tmp_path / "run").sound
    assert not list((tmp_path / "run").glob(".*.part"))


def test_a_config_cut_at_the_end_of_a_line_is_noticed(cut: Path, original: Path) -> None:
    for name in (CHECKPOINT, PREVIOUS, PROGRESS):
        (cut / name).unlink()
    lines = (cut / CONFIG).read_text().splitlines(keepends=True)
    (cut / CONFIG).write_text("".join(lines[:3]))
    with pytest.raises(BadInput, match="ended before anything"):
        resume(cut)
    execute(make_config(DIGITS), cut)
    assert contents(cut) == contents(original)


def test_what_is_of_worth_is_not_overwritten(cut: Path, finished: Path, tmp_path: Path) -> None:
    for folder in (cut, finished):
        before = contents(folder)
        with pytest.raises(BadInput, match="holds a run already"):
            execute(make_config(DIGITS), folder)
        assert contents(folder) == before
    for name in (CHECKPOINT, PREVIOUS):
        (cut / name).unlink()
    with pytest.raises(BadInput, match="holds a run already"):  # it can be resumed from its beginning
        execute(make_config(DIGITS), cut)
    for number, text in enumerate((b"[mine", b'algorithm = "permfl"\nseed = 3\n')):
        mine = tmp_path / f"mine-{number}"
        _remnant(mine, text)
        with pytest.raises(BadInput, match="holds a run already"):
            execute(make_config(DIGITS), mine)
        assert (mine / CONFIG).read_bytes() == text


# -- symbolic links ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [CONFIG, IDENTITY, LOCK, "log.txt", CHECKPOINT, PREVIOUS, MANIFEST])
def test_resume_follows_no_link_out_of_the_folder(name: str, cut: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    if (cut / name).exists():
        (cut / name).rename(outside)
    else:
        outside.write_bytes(b"precious")
    before = outside.read_bytes()
    os.symlink(outside, cut / name)
    if name == PREVIOUS:
        flip(cut / CHECKPOINT, 500)
    code, _, told = palmette_says("resume", str(cut), "--quiet")
    assert code == 2
    lines = [line for line in told.splitlines() if "warning" not in line]
    assert lines == [line for line in lines if f"{name} is a symbolic link" in line]
    assert outside.read_bytes() == before


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_bytes(b"precious")
    folder.mkdir()
    os.symlink(outside, folder / ".file.part")
    os.symlink(outside, folder / "log.txt")
    with pytest.raises(BadInput, match=r"\.file\.part is a symbolic link"):
        Files(folder).write("file", b"1")
    with pytest.raises(BadInput, match=r"log\.txt is a symbolic link"):
        Files(folder).log("a line")
    os.symlink(outside, folder / "file")
    Files(folder).write("file", b"2")  # which takes the link's place
    assert outside.read_bytes() == b"precious"
    assert (folder / "file").read_bytes() == b"2"


@pytest.mark.parametrize("name", [METRICS, "devices.safetensors", "timings.json"])
def test_a_finished_run_is_not_read_through_links(name: str, finished: Path, tmp_path: Path) -> None:
    (finished / name).rename(tmp_path / "outside")
    os.symlink(tmp_path / "outside", finished / name)
    with pytest.raises(BadInput, match="symbolic link"):
        load(finished).tensors("PM")
    assert palmette_says("verify", str(finished))[0] == 2


def test_rows_on_disk_are_not_written_through_a_link(cut: Path, tmp_path: Path, original: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    os.symlink(tmp_path / "outside", cut / "store-0-model.bin")
    (cut / CONFIG).write_text((cut / CONFIG).read_text().replace('store = "auto"', 'store = "disk"'))
    assert resume(cut).config.engine.store == "disk"
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert contents(cut)["devices.safetensors"] == contents(original)["devices.safetensors"]


def test_the_folder_itself_may_be_reached_through_a_link(finished: Path, tmp_path: Path) -> None:
    os.symlink(finished, tmp_path / "latest")
    assert load(tmp_path / "latest").kinds
    assert verify(tmp_path / "latest").sound


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_the_folder_is_synced_after_every_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    replace, fsync = os.replace, os.fsync

    def renamed(source: Any, target: Any) -> None:
        replace(source, target)
        events.append(f"rename {Path(target).name}")

    def synced(number: int) -> None:
        fsync(number)
        events.append("folder" if os.path.samestat(os.fstat(number), os.stat(tmp_path)) else "file")

    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    folder = Folder(tmp_path)
    folder.write("one", b"1")
    assert events == ["file", "rename one", "folder"]
    events.clear()
    journal = Journal(folder)
    for _ in range(2):
        journal.save({"progress": torch.zeros(2)}, {})
    assert events[3:] == ["file", f"rename {PREVIOUS}", f"rename {CHECKPOINT}", "folder"]
    events.clear()
    journal.extend({"progress": torch.zeros(2)}, {})
    assert events == []  # it is on its way
    for _ in range(2):
        journal.sync()
    assert events == ["file"]
    monkeypatch.setattr(palmette.runs.journal, "_SYNC", 0.0)
    journal.extend({"progress": torch.zeros(2)}, {})
    assert events == ["file", "file"]
    folder.close(keep_state=True)
    assert events[-3:] == ["file", f"rename {MANIFEST}", "folder"]
