"""A small part of ``make prove-fuzz``: random settings and arrays end in a result or in one line."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

CASES = 120
SEED = 11


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    path = Path(__file__).parents[1] / "proofs" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_input_ends_in_a_result_or_in_one_line(fuzz: ModuleType) -> None:
    ends = [(case, *fuzz.run_case(SEED, case)) for case in range(CASES)]
    assert [end for end in ends if end[1] not in ("ran", "refused")] == []
    assert {end[1] for end in ends} == {"ran", "refused"}


def test_a_case_leaves_nothing_behind(fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(luck: random.Random, place: Path) -> None:
        Path("1 device").mkdir()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz, "KINDS", (careless,))
    assert fuzz.run_case(SEED, 0)[0] == "ran"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["/elsewhere", "../elsewhere", "..", ".", "", "a/../../b", Path("/x")])
def test_no_wild_folder_leads_out_of_a_case(out: str | Path, fuzz: ModuleType, tmp_path: Path) -> None:
    assert fuzz.inside(tmp_path, out) == tmp_path / "run"
    for kept in ("1 device", "a/b", "\0", "\ud800", 3, None, b"x"):
        assert fuzz.inside(tmp_path, kept) == kept


def test_the_fuzzer_finds_a_fault(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: object, **options: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(fuzz, "KINDS", (broken,))
    end, told = fuzz.run_case(SEED, 0)
    assert (end, "planted" in told) == ("traceback", True)


def test_the_fuzzer_finds_what_takes_too_long(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*words: object, **options: object) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "KINDS", (endless,))
    assert fuzz.run_case(SEED, 0, seconds=0.2)[0] == "too slow"
