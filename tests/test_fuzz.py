"""A small part of ``make prove-fuzz``: random input of all kinds ends in a result or in one line."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from palmette.errors import BadInput

CASES = {"configs": 100, "folders": 100, "data": 60, "messages": 240}
SEED = 11


@pytest.fixture(scope="module")
def fuzz() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parents[1] / "proofs"), *sys.path])
        yield importlib.import_module("fuzz")


@pytest.mark.parametrize("kind", CASES)
def test_random_input_ends_in_a_result_or_in_one_line(kind: str, fuzz: ModuleType) -> None:
    ends = [(case, *fuzz.run_case(SEED, case, kind)) for case in range(CASES[kind])]
    assert [end for end in ends if end[1] not in ("ran", "refused")] == []
    assert {end[1] for end in ends} == {"ran", "refused"}


def test_a_case_leaves_nothing_behind(fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(luck: random.Random, place: Path) -> str:
        Path("1 device").mkdir()
        return ""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fuzz.KINDS, "configs", careless)
    assert fuzz.run_case(SEED, 0, "configs")[0] == "ran"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["/elsewhere", "../elsewhere", "..", ".", "", "a/../../b", Path("/x")])
def test_no_wild_folder_leads_out_of_a_case(out: str | Path, fuzz: ModuleType, tmp_path: Path) -> None:
    inside = fuzz.fuzz_configs.inside
    assert inside(tmp_path, out) == tmp_path / "run"
    for kept in ("1 device", "a/b", "\0", "\ud800", 3, None, b"x"):
        assert inside(tmp_path, kept) == kept


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ZeroDivisionError("planted"), "traceback"),
        (MemoryError("planted"), "too much memory"),
        (BadInput("planted"), "refused"),
        (BadInput("two lines\nplanted"), "badly said"),
    ],
)
def test_the_fuzzer_tells_faults_from_refusals(
    error: Exception, word: str, fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: object) -> str:
        raise error

    monkeypatch.setitem(fuzz.KINDS, "data", broken)
    end, told = fuzz.run_case(SEED, 0, "data")
    assert (end, "planted" in told) == (word, True)


def test_the_fuzzer_finds_what_takes_too_long(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*words: object) -> str:
        while True:
            pass

    monkeypatch.setitem(fuzz.KINDS, "data", endless)
    assert fuzz.run_case(SEED, 0, "data", seconds=0.2)[0] == "too slow"


@pytest.mark.parametrize("reader", ["runs", "writes", "screams"])
def test_the_fuzzer_finds_what_does_harm(reader: str, fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(luck: random.Random, folder: Path, place: Path) -> None:
        if reader == "runs":
            (place / "executed").touch()
        elif reader == "writes":
            (place / "outside").write_text("other")
        else:
            fuzz.fuzz_folders.command("show", "no such folder", "one too many")

    monkeypatch.setattr(fuzz.fuzz_folders, "READERS", ((1, reader, harm),))
    end = fuzz.run_case(SEED, 0, "folders")
    assert end[0] == ("refused" if reader == "screams" else "did harm")


def test_a_command_that_writes_control_characters_is_noticed(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = importlib.import_module("fuzz_commands")

    class App:
        def main(self, *_: object, **__: object) -> None:
            print("\x1b[2J")

    monkeypatch.setattr(commands, "_app", App)
    with pytest.raises(commands.BadlySaid, match="wrote control characters"):
        commands.command("show")
