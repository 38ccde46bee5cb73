"""The store: rows in memory or on disk, taken up only where they are written, kept by checkpoints piece by piece."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

import palmette.engines.store
import palmette.runs.config
from palmette.engines.simulate import Simulation
from palmette.engines.store import Store
from palmette.errors import PalmetteError, ProtocolError
from palmette.protocol import Node
from palmette.runs import execute, make_config, resume, run, tensors
from palmette.runs.folder import CHECKPOINT, Folder
from palmette.runs.journal import Journal
from palmette.task import make_task
from problems import regression, simulate, task_of
from test_contract import TABLE, assert_same
from test_runs import DIGITS, Killer, contents, wait_for_checkpoint

INITIAL = {"model": torch.tensor([1.0, 2.0, 3.0]), "control": torch.tensor([7.0], dtype=torch.float64)}
SIZE = 50
# Devices that keep a model, nothing, two rows of different use, a model that only they have.
some_algorithms = pytest.mark.parametrize("name", ["permfl", "fedavg", "scaffold", "local"])


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store" if request.param == "disk" else None


def rows_of(count: int, start: float = 0.0) -> dict[str, Tensor]:
    values = start + torch.arange(float(count))
    return {"model": values[:, None].repeat(1, 3), "control": -values[:, None].double()}


# -- reading and writing -----------------------------------------------------------------------------------------------


def test_nodes_that_never_took_part_have_the_initial_row(folder: Path | None) -> None:
    store = Store(SIZE, INITIAL, folder)
    ids = torch.tensor([3, 4, 30])
    store.write(ids, rows_of(3, 10.0), 5)
    found = store.read(torch.tensor([2, 3, 4, 29, 30]))
    assert found["model"][:, 0].tolist() == [1, 10, 11, 1, 12]
    assert found["model"][0].tolist() == [1, 2, 3]
    assert found["control"][:, 0].tolist() == [7, -10, -11, 7, -12]
    assert found["control"].dtype == torch.float64
    assert store.last[ids].tolist() == [5, 5, 5]
    assert int((store.last >= 0).sum()) == 3


def test_what_is_read_is_a_copy(folder: Path | None) -> None:
    store = Store(SIZE, INITIAL, folder)
    store.write(torch.arange(SIZE), rows_of(SIZE), 0)
    for ids in (torch.arange(4), torch.tensor([1, 40])):
        store.read(ids)["model"].zero_()
    assert store.read(torch.arange(SIZE))["model"][:, 0].tolist() == list(range(SIZE))
    Store(SIZE, INITIAL, folder).read(torch.arange(2))["model"].zero_()
    assert INITIAL["model"].tolist() == [1, 2, 3]


def test_a_program_that_keeps_other_rows_than_it_declared_is_refused(folder: Path | None) -> None:
    with pytest.raises(ProtocolError, match=r"declares \['control', 'model'\]"):
        Store(SIZE, INITIAL, folder).write(torch.arange(1), {"model": torch.zeros(1, 3)}, 0)


def test_nodes_that_keep_nothing_need_no_file(tmp_path: Path) -> None:
    store = Store(SIZE, {}, tmp_path / "store")
    store.write(torch.arange(2), {}, 0)
    assert store.read(torch.arange(3)) == {}
    assert not (tmp_path / "store").exists()


def test_a_store_on_disk_takes_room_only_for_rows_that_were_written(tmp_path: Path) -> None:
    store = Store(100_000, {"model": torch.ones(610)}, tmp_path, prefix="store-0")
    few = torch.arange(0, 100_000, 1_000)
    store.write(few, {"model": torch.rand(100, 610)}, 0)
    store.read(torch.arange(100_000)[:5_000])
    file = tmp_path / "store-0-model.bin"
    with open(file) as opened:
        os.fdatasync(opened.fileno())
    assert store.files == [file]
    assert file.stat().st_size == store.nbytes == 100_000 * 610 * 4
    assert file.stat().st_blocks * 512 < 2 << 20


def test_what_a_killed_run_left_behind_is_not_read(tmp_path: Path) -> None:
    old = Store(SIZE, INITIAL, tmp_path)
    old.write(torch.arange(SIZE), rows_of(SIZE, 5.0), 0)
    new = Store(SIZE, INITIAL, tmp_path)
    assert not bool(new.rows["model"].any())
    assert old.read(torch.arange(1))["model"].tolist() == [[5, 5, 5]]


def test_removed_files_are_gone_and_the_rows_still_there(tmp_path: Path) -> None:
    store = Store(SIZE, INITIAL, tmp_path)
    store.write(torch.arange(SIZE), rows_of(SIZE), 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store-control.bin", "store-model.bin"]
    store.remove()
    store.remove()
    assert not list(tmp_path.iterdir())
    assert store.read(torch.tensor([9]))["model"].tolist() == [[9, 9, 9]]


def test_too_small_a_disk_is_told_before_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palmette.engines.store.shutil, "disk_usage", lambda path: SimpleNamespace(free=(1 << 30) + 100))
    with pytest.raises(PalmetteError, match=r"may grow to .* set engine\.store = 'memory'"):
        Store(SIZE, INITIAL, tmp_path).prepare()


def test_room_is_taken_for_rows_before_they_are_first_written_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda opened, offset, length: taken.append((offset, length)))
    monkeypatch.setattr(os, "fstatvfs", lambda opened: SimpleNamespace(f_bsize=1 << 20))
    store = Store(SIZE, {"model": torch.ones(3)}, tmp_path)
    for ids, expected in (
        ([0, 1, 2, 40], [(0, 36), (480, 12)]),
        ([1, 2], []),
        ([2, 3, 5, 49], [(36, 12), (60, 12), (588, 12)]),
        (list(range(SIZE)), [(48, 12), (72, 408), (492, 96)]),
    ):
        store.write(torch.tensor(ids), {"model": torch.ones(len(ids), 3)}, 0)
        assert taken == expected
        taken.clear()
    other = Store(SIZE, {"model": torch.ones(3)}, tmp_path, prefix="other")
    other.restore(torch.tensor([0, 1, 49]), torch.tensor([0, 1, 3]), {"model": torch.ones(3, 3)})
    assert taken == [(0, 24), (588, 12)]


@pytest.mark.parametrize("unit", [1, 4096])
@pytest.mark.parametrize("width", [4, 2440, 4096, 9000])
def test_ranges_cover_the_rows_and_little_more(width: int, unit: int) -> None:
    numbers = torch.tensor([0, 1, 7, 8, 30, 49]).numpy()
    covered = torch.zeros(50 * width, dtype=torch.bool)
    last = 0
    for begin, end in palmette.engines.store._ranges(numbers, width, unit, len(covered)):
        assert last <= begin < end <= len(covered)
        covered[begin:end], last = True, end
    rows = covered.view(50, width)
    assert bool(rows[numbers].all())
    assert int(covered.sum()) <= 6 * (width + 2 * (unit - 1))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_disk_that_fills_up_ends_the_run_in_a_sentence_and_leaves_no_rows(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**DIGITS, "participation": {"devices": "pass 1"}, "engine": {"store": "disk"}}
    whole = execute(make_config(config), tmp_path / "whole")
    real, calls = os.posix_fallocate, []

    def full(opened: int, offset: int, length: int) -> None:
        calls.append(offset)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(opened, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        PalmetteError, match=r"no room for more devices' models in .*: No space left on device; .*resume"
    ):
        execute(make_config(config), tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("store-*"))
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    monkeypatch.undo()
    assert contents(resume(tmp_path / "cut").folder) == contents(whole.folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PalmetteError, match="cannot keep the devices' models in"):
        Store(SIZE, INITIAL, tmp_path / "file" / "store").prepare()


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize("who", [[], [0], [2, 3, 17, 49], list(range(SIZE))])
def test_written_rows_go_over_to_another_store(
    who: list[int], block: int, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(palmette.engines.store, "_BLOCK", block)
    one, other, third = Store(SIZE, INITIAL), Store(SIZE, INITIAL, folder), Store(SIZE, INITIAL, folder, prefix="third")
    if who:
        one.write(torch.tensor(who), rows_of(len(who), 3.0), 2)
    pieces = {name: one.written(name, one.changed()) for name in INITIAL}
    assert pieces["model"].shape == (len(who), 3)
    told = one.changed(), one.last[one.changed()]
    other.restore(*told, {name: torch.cat([torch.empty(0), *piece]) for name, piece in pieces.items()})
    third.restore(*told, pieces)
    for store in (other, third):
        assert torch.equal(store.last, one.last)
        for name, rows in store.rows.items():
            assert torch.equal(rows, one.rows[name])


# -- simulations -------------------------------------------------------------------------------------------------------


@some_algorithms
def test_a_store_on_disk_changes_no_bit(name: str, tmp_path: Path) -> None:
    method = TABLE[name]
    population = regression([3, 2, 4], unequal=True)
    assert_same(
        *(
            simulate(method, population, 3, dtype=torch.float32, chunk=2, threads=3, store=place)
            for place in ("memory", tmp_path)
        )
    )
    keeps = bool(method.keeps(Node.of_tier(population.tree, 0, task_of(population).layout), torch.ones(3)))
    assert bool(list(tmp_path.glob("store-0-*.bin"))) == keeps


def test_only_what_devices_keep_lies_on_disk(tmp_path: Path) -> None:
    population = regression("2x2")
    simulation = Simulation(TABLE["permfl"], population, task_of(population), rounds=1, store=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    simulation.step()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["store-0-model.bin"]


def test_a_state_goes_over_from_memory_to_disk_without_a_file_between(tmp_path: Path) -> None:
    population = regression([3, 2, 4], unequal=True)
    whole = simulate("permfl", population, 3)
    first = simulate("permfl", population, 2)
    second = Simulation(first.algorithm, population, task_of(population), rounds=3, dtype=torch.float64, store=tmp_path)
    second.restore(first.state())
    second.step()
    assert_same(second, whole)


# -- runs --------------------------------------------------------------------------------------------------------------


@some_algorithms
def test_a_run_killed_with_its_store_on_disk_resumes_to_the_bytes_of_one_in_memory(name: str, tmp_path: Path) -> None:
    method = TABLE[name]
    population = regression([3, 2, 4], unequal=True)
    task = make_task("linear", population.shape, None)
    given: dict[str, Any] = {"rounds": 4, "seed": 3, "evaluate_every": 1, "participation": {"devices": "pass 1"}}
    whole = run(method, population, task, out=tmp_path / "whole", store="memory", **given)
    with pytest.raises(ZeroDivisionError):
        run(method, population, task, out=tmp_path / "cut", observer=Killer(2), store="disk", **given)
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    resumed = resume(tmp_path / "cut", method=method, population=population, model=task)
    assert resumed.config.engine.store == "disk"
    assert contents(resumed.folder) == contents(whole.folder)
    assert not list(resumed.folder.glob("store-*"))


SCRIPT = """
from palmette.runs import execute, make_config
execute(make_config({config!r}), {out!r})
"""


@pytest.mark.slow
def test_a_process_killed_with_its_store_on_disk_resumes_to_the_very_same_bytes(tmp_path: Path) -> None:
    config = {**DIGITS, "rounds": 40, "evaluate_every": 20, "engine": {"store": "disk"}}
    script = SCRIPT.format(config=config, out=str(tmp_path / "cut"))
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(process, tmp_path / "cut")
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    file = tmp_path / "cut" / "store-0-model.bin"
    assert file.exists()
    file.write_bytes(bytes([255]) * file.stat().st_size)  # it is working space: nothing in it may matter
    whole = execute(make_config({**config, "engine": {"store": "memory"}}), tmp_path / "whole")
    assert contents(resume(tmp_path / "cut").folder) == contents(whole.folder)
    assert not file.exists()


@pytest.mark.parametrize(("limit", "place"), [(10 * 650 * 4, "memory"), (10 * 650 * 4 - 1, "disk")])
def test_rows_go_to_disk_by_themselves_when_they_are_many(
    limit: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(palmette.runs.config, "_IN_MEMORY", limit)
    config = make_config(DIGITS)
    assert config.engine.store == "auto"
    population = config.population()
    chosen = config.store(config.method(), population, config.task(population), tmp_path)
    assert chosen == ("memory" if place == "memory" else tmp_path)


def test_a_checkpoint_holds_the_rows_of_those_who_took_part(tmp_path: Path) -> None:
    population = regression([3, 2, 4])
    simulation = simulate("permfl", population, 1)
    simulation.stores[0].last[2:] = -1
    folder = Folder.create(tmp_path / "run")
    Journal(folder).save(simulation.state(), {"every": 3})
    kept = Journal(folder).load()
    folder.unlock()
    assert kept is not None
    assert [record.about for record in kept] == [{"every": 3}]
    assert kept[0].tensors["ids/0"].tolist() == [0, 1]
    assert torch.equal(kept[0].tensors["rows/0/model"], simulation.stores[0].rows["model"][:2])


# -- files of tensors --------------------------------------------------------------------------------------------------


def test_tensors_are_written_as_the_library_writes_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kinds = [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ]
    given = {f'name {i} "ü"\n': torch.rand(i % 3, 5).mul(9).to(kind) for i, kind in enumerate(kinds)}
    given |= {"scalar": torch.tensor(2.0), "none": torch.zeros(0, 3), "another": torch.rand(4)}
    about = {"nodes": ["north", "süd", 'a"b'], "model": {"shape": [1, 2]}}
    file = io.BytesIO()
    tensors.write(file, given, tensors.whole(given), about)
    assert file.getvalue() == save(given, {"about": json.dumps(about)})
    path = tmp_path / "tensors"
    path.write_bytes(b"skipped" + b"." + file.getvalue())
    with open(path, "rb") as opened:
        found, told = tensors.read(tensors.mapped(opened)[8:])
    assert told == about
    assert found.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in found.items())


def test_chunks_of_lines_may_come_in_any_order() -> None:
    whole = {"a": torch.rand(10, 2, 3), "b": torch.rand(10)}
    chunks = [(name, first, value[first : first + 4]) for first in (8, 0, 4) for name, value in whole.items()]
    file = io.BytesIO()
    tensors.write(file, whole, chunks, {})
    assert file.getvalue() == save(whole, {"about": "{}"})
