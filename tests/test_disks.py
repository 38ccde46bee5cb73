"""Disks that are full, broken or read-only, and folders that go away: what is said, what is kept, and that a run goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import palmette.runs.folder
import palmette.runs.keeping
import palmette.runs.opening
from broken_disks import Disk, full
from palmette.cli.app import app
from palmette.errors import BadInput, Diverged
from palmette.runs import Interrupted, execute, execution, load, make_config, resume, verify
from palmette.runs.files import Files, Unwritable
from palmette.runs.folder import CHECKPOINT, LOCK, LOG, METRICS, PROGRESS, STATE, Folder, Misplaced
from palmette.runs.journal import Journal
from processes import told as printed
from test_runs import DIGITS, Killer, contents

CONFIG: dict[str, Any] = {**DIGITS, "rounds": 5}


@pytest.fixture(autouse=True)
def _after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_CHECKPOINT_SHARE", 1e9)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(execute(make_config(CONFIG), tmp_path_factory.mktemp("runs") / "whole").folder)


class At(Killer):
    """An observer that does something after a round."""

    def __init__(self, round_: int, work: Callable[[], object]) -> None:
        super().__init__(1000)
        self._round, self._work = round_, work

    def round(self, done: int, scores: Any) -> None:
        if done == self._round:
            self._work()


@contextmanager
def heard() -> Iterator[list[warnings.WarningMessage]]:
    """Take note of warnings, which are errors elsewhere."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned


def told(warned: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in warned]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def broken(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(("what", "number"), [("write", errno.ENOSPC), ("write", errno.EIO), ("open", errno.EACCES)])
def test_a_checkpoint_that_cannot_be_written_is_said_and_tried_again(
    what: str, number: int, tmp_path: Path, original: dict[str, bytes]
) -> None:
    seen = {"checkpoints": 0}

    def breaks(count: int, operation: str) -> bool:
        seen["checkpoints"] += operation.startswith("open")
        return seen["checkpoints"] in (3, 4) and operation.startswith(what)  # those after the second and third round

    disk = Disk(breaks, broken(number), only="checkpoint.bin")
    with disk.in_place(), heard() as warned:
        assert contents(execute(make_config(CONFIG), tmp_path / "run").folder) == original
    first, again = told(warned)  # the second failure within a minute is not told again
    path = tmp_path / "run" / CHECKPOINT
    assert first.startswith(f"cannot write {path}: {os.strerror(number)}; what is kept is the state after round 1, ")
    assert first.endswith(" seconds ago. The run goes on, and tries again after the next round")
    assert again == "checkpoints can be written again, the first after round 4"
    assert all(text in (tmp_path / "run" / LOG).read_text() for text in (first, again))
    rounds = [record.round for record in Journal(Folder(tmp_path / "run")).read(STATE).records]
    assert rounds == [0, 1, 4, 5]
    assert verify(tmp_path / "run").sound


def test_what_never_reached_the_disk_is_kept_again_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: dict[str, bytes]
) -> None:
    monkeypatch.setattr(palmette.runs.journal, "_SYNC", 0.0)
    disk = Disk(lambda count, what: count == 1, broken(errno.EIO), only="fsync checkpoint.bin")
    with disk.in_place(), heard() as warned:
        assert contents(execute(make_config(CONFIG), tmp_path / "run").folder) == original
    first, again = told(warned)
    assert "Input/output error; what is kept is the state after round 1, " in first
    assert again == "checkpoints can be written again, the first after round 3"
    rounds = [record.round for record in Journal(Folder(tmp_path / "run")).read(STATE).records]
    assert rounds == [3, 4, 5]


@pytest.mark.parametrize("how", ["stopped", "finished"])
def test_the_last_state_of_a_run_is_waited_for(how: str, tmp_path: Path, original: dict[str, bytes]) -> None:
    stop = At(3, lambda: os.kill(os.getpid(), signal.SIGTERM) if how == "stopped" else None)
    good = Disk(lambda count, what: False, only="checkpoint.bin")
    with good.in_place(), nullcontext() if how == "finished" else pytest.raises(Interrupted):
        execute(make_config(CONFIG), tmp_path / "run", observer=stop)
    waited = [number for number, what in enumerate(good.operations) if what == "fsync checkpoint.bin"]
    written = [number for number, what in enumerate(good.operations) if what == "write checkpoint.bin"]
    assert len(waited) == 1
    assert waited[0] > written[-1]
    bad = Disk(lambda count, what: True, broken(errno.EIO), only="fsync checkpoint.bin")
    ends = Unwritable if how == "finished" else Interrupted
    with (
        bad.in_place(),
        heard(),
        pytest.raises(ends, match=r"that after round 4|after round 3 .*not have reached the disk"),
    ):
        execute(make_config(CONFIG), tmp_path / "bad", observer=stop)
    assert contents(resume(tmp_path / "bad").folder) == original


def test_the_first_checkpoint_may_fail_too(tmp_path: Path, original: dict[str, bytes]) -> None:
    disk = Disk(lambda count, what: count < 2, only="open .checkpoint.bin")
    with disk.in_place(), heard() as warned:
        assert contents(execute(make_config(CONFIG), tmp_path / "run").folder) == original
    first, again = told(warned)
    assert first.endswith("; no state is kept yet. The run goes on, and tries again after the next round")
    assert again == "checkpoints can be written again, the first after round 2"


def test_a_checkpoint_without_room_on_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    journal = Journal(Folder(tmp_path))
    with pytest.raises(Unwritable, match="No space left on device"):
        journal.save({"progress": torch.zeros(1000)}, {})
    assert list(tmp_path.iterdir()) == []


def test_whatever_fails_in_a_checkpoint_the_next_one_goes_on_from_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(palmette.runs.journal, "_SYNC", 0.0)
    states = [{"progress": torch.tensor([done, 0, max(0, done - 1)])} for done in range(5)]
    for writer in ("save", "extend"):
        for number in range(100):
            place = tmp_path / f"{writer}-{number}"
            place.mkdir()
            journal = Journal(Folder(place))
            journal.save(states[0], {})
            journal.extend(states[1], {})
            disk = Disk(lambda count, what, number=number: count == number, full)  # type: ignore[misc]
            with disk.in_place():
                try:
                    getattr(journal, writer)(states[2], {})
                except Unwritable:
                    assert [one.round for one in Journal(Folder(place)).load() or ()] in ([0, 1], [2], [0, 1, 2])
                else:
                    break
            assert not (writer == "save" and journal.extendable(states[3]))  # who knows which file is there now
            if journal.extendable(states[3]):
                journal.extend(states[3], {})
                expected = [0, 1, 3]
            else:
                journal.save(states[3], {})
                expected = [3]
            assert [one.round for one in Journal(Folder(place)).load() or ()] == expected
        assert number >= 9, disk.operations


def test_a_history_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: dict[str, bytes]
) -> None:
    monkeypatch.setattr(execution, "_PUBLISH_PAUSE", 0.0)
    monkeypatch.setattr(execution, "_PUBLISH_SHARE", 1e9)
    disk = Disk(lambda count, what: count < 2, only=f"open .{PROGRESS}")
    with disk.in_place(), heard() as warned:
        assert contents(execute(make_config(CONFIG), tmp_path / "run").folder) == original
    assert told(warned) == [
        f"cannot write {tmp_path / 'run' / PROGRESS}: No space left on device; others see the run as it was before. It goes "
        "on, and tries again later",
        f"{PROGRESS} can be written again",
    ]


def test_lines_that_the_log_has_no_room_for_are_written_later(tmp_path: Path, original: dict[str, bytes]) -> None:
    disk = Disk(lambda count, what: 2 <= count < 4, only=LOG)
    with disk.in_place(), heard() as warned:
        assert contents(execute(make_config(CONFIG), tmp_path / "run").folder) == original
    assert told(warned) == [
        f"cannot write {tmp_path / 'run' / LOG}: No space left on device; its lines are kept until they can be written"
    ]
    execute(make_config(CONFIG), tmp_path / "whole")
    assert (tmp_path / "run" / LOG).read_text() == (tmp_path / "whole" / LOG).read_text()


def test_a_stop_whose_state_cannot_be_kept_says_from_where_the_run_goes_on(
    tmp_path: Path, original: dict[str, bytes]
) -> None:
    disk = Disk(
        lambda count, what: count > 0, only="open checkpoint.bin"
    )  # the first of what changed can still be added
    stop = At(3, lambda: os.kill(os.getpid(), signal.SIGINT))
    words = "stopped after round 3 of 5, whose state could not be kept: the run will go on after round 1"
    with disk.in_place(), pytest.warns(UserWarning, match="state after round 1"), pytest.raises(Interrupted) as error:
        execute(make_config(CONFIG), tmp_path / "run", observer=stop)
    assert str(error.value) == words
    assert contents(resume(tmp_path / "run").folder) == original


def test_a_run_that_diverges_on_a_full_disk_says_that_nothing_is_kept(tmp_path: Path) -> None:
    settings = {"alpha": 1e30, "local_steps": 2, "team_steps": 1}
    config = {**CONFIG, "settings": settings, "engine": {"check_steps": False}}
    disk = Disk(lambda count, what: True, only="open .checkpoint.bin")
    with disk.in_place(), heard(), pytest.raises(Diverged, match="No state could be kept in"):
        execute(make_config(config), tmp_path / "run")


def test_a_trouble_that_lasts_is_told_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palmette.runs.keeping, "_SILENCE", 0.0)
    disk = Disk(lambda count, what: True, only="open checkpoint.bin")
    with disk.in_place(), heard() as warned, pytest.raises(Unwritable):
        execute(make_config(CONFIG), tmp_path / "run")
    assert [text.split(",")[0] for text in told(warned)] == [
        f"cannot write {tmp_path / 'run' / CHECKPOINT}: No space left on device; what is kept is the state after round 0"
    ] * 4
    assert palmette.runs.keeping._ago(1.2) == "1 second ago"
    assert palmette.runs.keeping._ago(300) == "5 minutes ago"
    assert palmette.runs.keeping._ago(2.5 * 3600) == "2 hours ago"


# -- the files of a finished run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keep"), [("devices.safetensors", False), (METRICS, True), ("manifest.json", True), (LOG, False)]
)
def test_a_last_file_that_cannot_be_written_ends_the_run_and_loses_nothing(
    name: str, keep: bool, tmp_path: Path, original: dict[str, bytes]
) -> None:
    config = make_config({**CONFIG, "engine": {"keep_state": keep}})
    disk = Disk(lambda count, what: name != LOG or (tmp_path / "run" / METRICS).exists(), only=name)
    path = tmp_path / "run"
    words = (
        f"cannot write {path / name}: .*all 5 rounds are done, and the last good state is kept.*palmette resume {path}$"
    )
    with disk.in_place(), heard(), pytest.raises(Unwritable, match=words) as error:
        execute(config, path)  # that the log cannot be written is a warning first
    assert ("that after round 4" in str(error.value)) == (not keep)
    assert not Folder(path).finished
    assert not list(path.glob(".*.part"))
    assert verify(path).sound
    assert contents(resume(path).folder) == original


LIMITED = """
import resource, sys
from contextlib import redirect_stderr
from palmette.__main__ import main
from palmette.runs import execution

execution._CHECKPOINT_SHARE = 1e9
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
try:
    with redirect_stderr(sys.stdout):
        main()
except SystemExit as end:
    print(end.code)
"""


def test_a_real_limit_on_files_is_told_in_lines_and_the_run_resumes_when_it_is_gone(tmp_path: Path) -> None:
    words = ["run", "permfl", "--tree", "2x5", "--rounds", "4", "--set", "team_steps=1", "--set", "local_steps=2"]
    words += ["--set", "participation.devices=0.5", "--quiet"]
    assert CliRunner().invoke(app, [*words, "--out", str(tmp_path / "whole")]).exit_code == 0
    *warned, last, code = printed(LIMITED, *words, "--out", tmp_path / "run").splitlines()
    assert code == "1"
    path = tmp_path / "run"
    assert warned[0].startswith(f"palmette: warning: cannot write {path / CHECKPOINT}: File too large; what is kept is")
    assert last.startswith(f"palmette: cannot write {path}/")
    assert last.endswith(f"go on with: palmette resume {path}")
    assert contents(resume(path).folder) == contents(tmp_path / "whole")


# -- folders that cannot be written, that move, and that are taken ------------------------------------------------------


def test_a_read_only_folder_is_refused_in_a_line_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(make_config(DIGITS), tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "cut", observer=Killer(2))

    def read_only(path: Any, mode: str = "r", **given: Any) -> Any:
        if mode != "rb":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open(path, mode, **given)

    monkeypatch.setattr(palmette.runs.folder, "open", read_only, raising=False)
    monkeypatch.setattr(palmette.runs.files, "open", read_only, raising=False)
    assert load(tmp_path / "run").tensors()
    assert verify(tmp_path / "run").sound
    for verb, path in (("resume", tmp_path / "cut"), ("run", tmp_path / "new")):
        words = ["permfl", "--out", str(path)] if verb == "run" else [str(path)]
        done = CliRunner().invoke(app, [verb, *words])
        assert done.exit_code == 2
        assert done.stderr.splitlines() == [
            f"palmette: cannot work in {path}: Read-only file system; make it writable or choose another"
        ]


@pytest.mark.parametrize(("taken", "store"), [(False, "memory"), (False, "disk"), (True, "disk")])
def test_a_folder_that_is_moved_stops_the_run_which_goes_on_there(
    taken: bool, store: str, tmp_path: Path, original: dict[str, bytes]
) -> None:
    here, there = tmp_path / "run", tmp_path / "archive"

    def move() -> None:
        here.rename(there)
        if taken:
            here.mkdir()
            (here / "store-0-model.bin").write_bytes(b"another's")

    config = make_config({**CONFIG, "engine": {"store": store}})
    with pytest.raises(Misplaced) as error:
        execute(config, here, observer=At(3, move))
    assert str(error.value).startswith(f"the folder {here} was moved to {there} while the run in it was under way: ")
    assert str(error.value).endswith(f"go on from its last checkpoint with: palmette resume {there}")
    left = {path.name: path.read_bytes() for path in here.iterdir()} if taken else {}
    assert here.exists() == taken
    assert left == ({"store-0-model.bin": b"another's"} if taken else {})
    result = resume(there)
    assert contents(result.folder) == original
    assert not list(there.glob("store-*"))


def test_a_folder_that_is_removed_stops_the_run_and_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misplaced, match="the folder run was removed while the run in it was under way: the run stops"):
        execute(make_config(CONFIG), Path("run"), observer=At(2, lambda: shutil.rmtree("run")))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_process_took_is_left_to_it(tmp_path: Path) -> None:
    other = Folder(tmp_path / "run")

    def take() -> None:
        (tmp_path / "run" / LOCK).unlink()
        other.lock()

    with pytest.raises(Misplaced, match=r"lock is not the one that this run made.*leaves it to the other"):
        execute(make_config(CONFIG), tmp_path / "run", observer=At(2, take))
    with pytest.raises(BadInput, match="another process is working"):
        resume(tmp_path / "run")
    other.unlock()
    assert resume(tmp_path / "run").finished


def test_a_lock_that_is_removed_by_hand_changes_nothing(tmp_path: Path, original: dict[str, bytes]) -> None:
    done = execute(make_config(CONFIG), tmp_path / "run", observer=At(2, (tmp_path / "run" / LOCK).unlink))
    assert contents(done.folder) == original


SECOND = """
import sys
from palmette.errors import BadInput
from palmette.runs import resume

try:
    resume(sys.argv[1])
except BadInput as error:
    print(error)
"""


def test_two_processes_never_work_on_one_folder(tmp_path: Path, original: dict[str, bytes]) -> None:
    ends = []

    def second() -> None:
        ends.append(printed(SECOND, tmp_path / "run"))

    done = execute(make_config(CONFIG), tmp_path / "run", observer=At(2, second))
    assert ends == [f"another process is working on {tmp_path / 'run'}\n"]
    assert contents(done.folder) == original


# -- files of strangers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute(make_config({**DIGITS, "rounds": 1}), tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.mark.parametrize(
    "name", ["config.toml", "identity.json", "manifest.json", METRICS, "devices.safetensors", LOCK]
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused_and_not_waited_for(
    make: Callable[[Path], None], name: str, finished: Path
) -> None:
    (finished / name).unlink()
    make(finished / name)
    with pytest.raises(BadInput, match=f"{name} is no ordinary file|cannot work in .* Is a directory"):
        load(finished).tensors("PM") if name != LOCK else Folder(finished).lock()


@pytest.mark.parametrize("name", ["../outside", "/dev/zero", "..", "a/b"])
def test_checksums_of_files_outside_the_folder_are_refused_and_the_files_not_read(name: str, finished: Path) -> None:
    (finished.parent / "outside").write_text("secret")
    files = Files(finished)
    listed = files.read_sealed("manifest.json")["files"]
    files.write_sealed("manifest.json", {"files": {**listed, name: {"bytes": 6, "sha256": "0"}}})
    assert verify(finished).problems == {"manifest.json": "damaged"}
    with pytest.raises(BadInput, match="which is not in the folder"):
        load(finished)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b'{"checksum": ' + b'{"a": ' * 200_000,
        b"1" * 5000,
        b'{"checksum": "", "format": 1}',
        b"[[1, 2]]",
    ],
)
@pytest.mark.parametrize("name", ["identity.json", "manifest.json"])
def test_json_that_was_made_to_break_its_reader_is_damage(name: str, text: bytes, finished: Path) -> None:
    (finished / name).write_bytes(text)
    assert verify(finished).problems == {name: "damaged"}
    with pytest.raises(BadInput, match=f"{name} is damaged"):
        load(finished)


@pytest.mark.parametrize("name", ["identity.json", "manifest.json", CHECKPOINT, PROGRESS])
def test_a_file_that_claims_a_terabyte_is_not_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(make_config(DIGITS), tmp_path / "run", observer=Killer(2))
    with open(tmp_path / "run" / name, "ab") as file:
        file.truncate(1 << 40)  # full of holes
    if name == CHECKPOINT:  # which is read a part at a time: what follows the last is none
        assert [one.round for one in Journal(Folder(tmp_path / "run")).load() or ()] == [0, 1, 2]
        return
    with pytest.raises(BadInput, match=f"{name} is damaged"), heard():
        load(tmp_path / "run")
