"""Checkpoints: a whole state and what changed since, in one file that no end of its process can spoil."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palmette.runs.journal
from broken_disks import Disk, Killed, die
from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.engines.store import Pieces
from palmette.links import Link, Participation
from palmette.runs import execute, execution, make_config, resume, verify
from palmette.runs.folder import CHECKPOINT, PREVIOUS, STATE, Folder
from palmette.runs.journal import Journal
from palmette.runs.records import Record
from problems import regression, simulate
from test_runs import DIGITS, Killer, contents

LONGER = {**DIGITS, "rounds": 7}
METHOD = algorithm("permfl", team_steps=1, local_steps=2)


@pytest.fixture(autouse=True)
def _after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_CHECKPOINT_SHARE", 1e9)


def few(store: Path | str = "memory", stop: int = 0) -> Simulation:
    """Return a simulation of eight rounds in each of which every team asks one of its devices."""
    population = regression([5, 5, 5], unequal=True)
    links = {0: Link(Participation.parse("1 device"))}
    return simulate(METHOD, population, 8, stop=stop, links=links, store=store)


def keep(folder: Path, simulation: Simulation, rounds: int) -> Journal:
    """Run some rounds and keep the state after each: first the whole, then changes."""
    journal = Journal(Folder(folder))
    journal.save(simulation.state(), {})
    for _ in range(rounds):
        before = simulation.round
        simulation.step()
        changes = simulation.state(before)
        assert journal.extendable(changes)
        journal.extend(changes, {})
    return journal


def fixed(state: Mapping[str, Tensor | Pieces]) -> dict[str, Tensor]:
    """Return a state that later rounds leave as it is."""
    return {
        name: value.clone() if isinstance(value, Tensor) else torch.cat([torch.empty(0, *value.shape[1:]), *value])
        for name, value in state.items()
    }


def restored(records: list[Record] | None, into: Simulation) -> Simulation:
    assert records
    for record in records:
        into.restore(record.tensors)
    return into


def same_bits(one: Simulation, other: Simulation) -> None:
    """Check that two simulations are in the same state; rows that nobody wrote may lie there from before."""
    assert (one.round, one.device_steps, one.ledger) == (other.round, other.device_steps, other.ledger)
    for mine, theirs in zip(one.stores, other.stores, strict=True):
        assert torch.equal(mine.last, theirs.last)
        everybody = torch.arange(mine.size)
        assert all(torch.equal(mine.rows_of(name, everybody), theirs.rows_of(name, everybody)) for name in mine.initial)
    assert all(torch.equal(mine.turn, theirs.turn) for mine, theirs in zip(one.counters, other.counters, strict=True))


def rounds_in(folder: Path, name: str = CHECKPOINT) -> list[int]:
    return [record.round for record in Journal(Folder(folder)).read(name).records]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


# -- what changed ------------------------------------------------------------------------------------------------------


def test_changes_are_the_rows_of_those_who_took_part_since(tmp_path: Path) -> None:
    simulation = few(stop=2)
    keep(tmp_path, simulation, 2)
    whole, first, second = Journal(Folder(tmp_path)).read(CHECKPOINT).records
    store = simulation.stores[0]
    assert second.tensors["ids/0"].tolist() == (store.last == 3).nonzero().flatten().tolist()
    assert set(second.tensors["last/0"].tolist()) == {3}
    assert torch.equal(second.tensors["rows/0/model"], store.rows["model"][store.last == 3])
    assert len(whole.tensors["ids/0"]) > len(second.tensors["ids/0"]) > 0
    assert first.tensors["ledger"][:, 0].unique().tolist() == [2]
    assert second.tensors["progress"].tolist()[::2] == [4, 3]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_whole_state_and_changes_make_the_state_that_was_kept(on_disk: bool, tmp_path: Path) -> None:
    simulation = few()
    journal = keep(tmp_path, simulation, 5)
    other = restored(journal.load(), few(tmp_path / "rows" if on_disk else "memory"))
    same_bits(simulation, other)
    for one in (simulation, other):
        one.step()
    same_bits(simulation, other)


def test_a_simulation_that_went_further_goes_back_to_what_was_kept(tmp_path: Path) -> None:
    simulation = few()
    journal = keep(tmp_path, simulation, 5)
    for at_most in (5, 4, 2, 0):
        same_bits(restored(journal.load(at_most), simulation), few(stop=at_most))
    assert journal.load(at_most=-1) is None


def test_what_a_links_codec_remembers_from_a_later_round_on_is_kept_with_the_rest(tmp_path: Path) -> None:
    simulation, other = few(), few()
    journal, key = Journal(Folder(tmp_path)), "up/model/4/float32"
    journal.save(simulation.state(), {})
    late = simulation.memories[0].add(key, {"residual": torch.zeros(4)})
    for node in (3, 7):
        before = simulation.round
        simulation.step()
        late.write(torch.tensor([node]), {"residual": torch.full((1, 4), node + 0.5)}, before)
        journal.extend(simulation.state(before), {})
    restored(journal.load(), other)
    found = other.memories[0].stores[key]
    assert torch.equal(found.last, late.last)
    assert torch.equal(found.rows["residual"], late.rows["residual"])
    assert found.last[[3, 7]].tolist() == [0, 1]


def test_changes_as_large_as_the_whole_are_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palmette.runs.journal, "_LITTLE", 0)
    whole = execute(make_config(LONGER), tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        execute(make_config(LONGER), tmp_path / "cut", observer=Killer(6))
    now, before = (rounds_in(tmp_path / "cut", name) for name in (CHECKPOINT, PREVIOUS))
    assert [*before, *now] == list(range(before[0], 7))
    sizes = [(tmp_path / "cut" / name).stat().st_size for name in (CHECKPOINT, PREVIOUS)]
    rows = 10 * 650 * 4  # of the devices, besides teams, server and what describes them
    assert max(sizes) < 2 * (rows + 20_000)
    assert contents(resume(tmp_path / "cut").folder) == contents(whole.folder)


def test_many_small_changes_are_read_with_few_open_files_and_then_kept_as_a_whole(tmp_path: Path) -> None:
    journal, changes = Journal(Folder(tmp_path)), {"progress": torch.zeros(3, dtype=torch.int64)}
    journal.save(changes, {})
    count = 0
    while journal.extendable(changes):
        journal.extend(changes, {})
        count += 1
    assert count == palmette.runs.journal._MOST
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    records = journal.read(CHECKPOINT).records
    assert len(records) == count + 1
    assert not before or len(os.listdir("/proc/self/fd")) <= before + 2


# -- the end of a process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["whole", "changes"])
def test_a_process_that_ends_at_any_operation_of_a_checkpoint_leaves_this_state_or_the_one_before(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(palmette.runs.journal, "_SYNC", 0.0)  # so that waiting for the disk is one of them
    simulation, place, ends = few(), tmp_path / "run", []
    states = [fixed(simulation.state())]
    for before in range(5):
        simulation.step()
        states.append(fixed(simulation.state(before)))
    last = fixed(simulation.state()) if writer == "whole" else states[5]
    found, expected = few(), {done: few(stop=done) for done in (4, 5)}
    for number in range(100):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        journal = Journal(Folder(place))
        journal.save(states[0], {})
        for changes in states[1:5]:
            journal.extend(changes, {})
        disk = Disk(lambda count, what, number=number: count == number, die)  # type: ignore[misc]
        with disk.in_place():
            try:
                (journal.save if writer == "whole" else journal.extend)(last, {})
            except Killed:
                pass
            else:
                break
        again = Journal(Folder(place))
        same_bits(restored(again.load(), found), expected[found.round])
        ends.append(found.round)
        again.save(found.state(), {})  # and it goes on
        before = found.round
        found.step()
        again.extend(found.state(before), {})
        assert rounds_in(place) == [before, before + 1]
    assert len(ends) >= 20, disk.operations  # every operation had its turn
    assert ends == sorted(ends)
    assert {4, 5} == set(ends)


def test_a_run_that_ends_at_an_operation_on_its_checkpoint_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = Disk(lambda count, what: False, only="checkpoint")
    with whole.in_place():
        expected = contents(execute(make_config(DIGITS), tmp_path / "whole").folder)
    count = len(whole.operations)
    assert count > 60
    for number in range(3, count, count // 5):
        disk, place = (
            Disk(lambda done, what, number=number: done == number, die, only="checkpoint"),
            tmp_path / f"{number}",
        )  # type: ignore[misc]
        with disk.in_place(), pytest.raises(Killed):
            execute(make_config(DIGITS), place)
        assert disk.operations == whole.operations[: number + 1]
        assert verify(place).sound  # a record that was not finished is no damage
        assert contents(resume(place).folder) == expected
        shutil.rmtree(place)


def test_what_was_being_written_when_a_run_was_killed_is_told_in_its_log(tmp_path: Path) -> None:
    disk = Disk(lambda count, what: what == "truncate checkpoint.bin", die)
    with disk.in_place(), pytest.raises(Killed):
        execute(make_config(DIGITS), tmp_path / "cut")
    data = (tmp_path / "cut" / CHECKPOINT).read_bytes()
    (tmp_path / "cut" / CHECKPOINT).write_bytes(data + bytes(40))  # the beginning of another record
    resume(tmp_path / "cut")
    log = (tmp_path / "cut" / "log.txt").read_text()
    assert "the run was ended while it wrote checkpoint.bin: what it was writing is left out" in log


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(execute(make_config(DIGITS), tmp_path_factory.mktemp("runs") / "whole").folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that was killed in the last, with a whole state at its beginning and three changes."""
    folder = tmp_path_factory.mktemp("runs") / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "_CHECKPOINT_SHARE", 1e9)
        with pytest.raises(ZeroDivisionError):
            execute(make_config(DIGITS), folder, observer=Killer(3))
    assert rounds_in(folder) == [0, 1, 2, 3]
    return folder


@pytest.fixture
def cut(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "cut"))


def ends(path: Path) -> list[int]:
    """Return where each record of a checkpoint ends, and before them the title."""
    data, found = path.read_bytes(), [32]
    while found[-1] < len(data):
        place = found[-1]
        found.append(place + 16 + int.from_bytes(data[place + 8 : place + 16], "little"))
    return found


@pytest.mark.parametrize(("part", "share"), [(2, 0.5), (3, 0.0), (3, 0.003), (4, 0.999)])
def test_a_damaged_part_is_said_and_the_run_goes_on_from_what_is_before_it(
    part: int, share: float, cut: Path, original: dict[str, bytes]
) -> None:
    low, high = ends(cut / CHECKPOINT)[part - 1 : part + 1]
    flip(cut / CHECKPOINT, low + int(share * (high - low)))
    told = f"the end of .*checkpoint.bin is damaged.*in part {part} .*goes on after round {part - 2}"
    assert verify(cut).problems[CHECKPOINT].startswith(f"damaged (in part {part} ")
    with pytest.warns(UserWarning, match=told):
        assert contents(resume(cut).folder) == original


def test_a_checkpoint_that_was_cut_goes_on_from_the_last_whole_part(cut: Path, original: dict[str, bytes]) -> None:
    os.truncate(cut / CHECKPOINT, ends(cut / CHECKPOINT)[3] - 1)
    with pytest.warns(UserWarning, match="in part 3 it is cut short.*goes on after round 1"):
        assert contents(resume(cut).folder) == original


def test_a_sound_file_is_not_given_up_for_a_damaged_one(cut: Path, original: dict[str, bytes]) -> None:
    shutil.copy(cut / CHECKPOINT, cut / PREVIOUS)
    flip(cut / CHECKPOINT, 40)
    with pytest.warns(UserWarning, match="passed over"), pytest.raises(ZeroDivisionError):
        resume(cut, observer=Killer(0))  # goes on after round 3, and ends before its first checkpoint
    assert rounds_in(cut, PREVIOUS) == [0, 1, 2, 3]
    disk = Disk(lambda count, what: what.startswith("replace"), die, only="checkpoint")
    with disk.in_place(), pytest.warns(UserWarning, match="passed over"), pytest.raises(Killed):
        resume(cut)  # and here while it takes the damaged one's place
    assert rounds_in(cut, PREVIOUS) == [0, 1, 2, 3]
    with pytest.warns(UserWarning, match="passed over"):
        assert contents(resume(cut).folder) == original


def _of_another_order(records: list[Record]) -> list[Record]:
    return [records[0], records[2], records[1]]


def _twice(records: list[Record]) -> list[Record]:
    return [records[0], records[1], records[1]]


def _wild_rows(records: list[Record]) -> list[Record]:
    wild = {**records[1].tensors, "ids/0": records[1].tensors["ids/0"] + 10**12}
    return [records[0], Record(wild, records[1].about)]


def _without_rows(records: list[Record]) -> list[Record]:
    part = {name: value for name, value in records[1].tensors.items() if name != "rows/0/model"}
    return [records[0], Record(part, records[1].about)]


def _far_ahead(records: list[Record]) -> list[Record]:
    ahead = {**records[1].tensors, "progress": torch.tensor([10**12, 0, 0])}
    return [records[0], Record(ahead, records[1].about)]


@pytest.mark.parametrize(
    ("change", "words", "goes_on"),
    [
        (_of_another_order, "from round 1 to round 2, and follows round 0", 0),
        (_twice, "from round 0 to round 1, and follows round 1", 1),
        (_wild_rows, "ids/0 are not some of 10 nodes", 0),
        (_without_rows, "should hold", 0),
        (_far_ahead, "after round 1000000000000 of 4", 0),
    ],
)
def test_parts_that_do_not_follow_each_other_are_passed_over(
    change: Callable[[list[Record]], list[Record]],
    words: str,
    goes_on: int,
    cut: Path,
    original: dict[str, bytes],
) -> None:
    journal = Journal(Folder(cut))
    first, *others = change(journal.read(CHECKPOINT).records)

    def own(tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {name: value.clone() for name, value in tensors.items()}

    given = [(own(one.tensors), one.about) for one in (first, *others)]
    journal.save(*given[0])
    for tensors, about in given[1:]:
        journal.extend(tensors, about)
    with pytest.warns(UserWarning, match=f"{words}.*goes on after round {goes_on}"):
        assert contents(resume(cut).folder) == original


# -- finished runs -----------------------------------------------------------------------------------------------------


def test_the_state_of_a_finished_run_has_parts_and_is_extended_to_the_bytes_of_a_longer_run(tmp_path: Path) -> None:
    longer = execute(make_config(LONGER), tmp_path / "longer")
    execute(make_config(DIGITS), tmp_path / "run")
    assert rounds_in(tmp_path / "run", STATE) == [0, 1, 2, 3, 4]
    assert contents(resume(tmp_path / "run", rounds=7).folder) == contents(longer.folder)
    assert rounds_in(tmp_path / "run", STATE) == [5, 6, 7]  # anew from the first checkpoint of the process that went on
    flip(tmp_path / "run" / STATE, ends(tmp_path / "run" / STATE)[2] + 100)
    assert verify(tmp_path / "run").problems == {STATE: "damaged"}


def test_a_run_that_ended_between_its_last_checkpoint_and_its_end_writes_no_second_one(
    tmp_path: Path, original: dict[str, bytes]
) -> None:
    disk = Disk(lambda count, what: what == "replace .metrics.parquet.part", die)
    with disk.in_place(), pytest.raises(Killed):
        execute(make_config(DIGITS), tmp_path / "cut")
    before = (tmp_path / "cut" / CHECKPOINT).read_bytes()
    assert contents(resume(tmp_path / "cut").folder) == original
    assert (tmp_path / "cut" / STATE).read_bytes() == before
